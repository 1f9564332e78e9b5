"""Every field of every endpoint, replaced by everything it may not be: refused by name, or harmless.

Method: a valid body with all fields (`full_bodies`) is spoiled in one place at a time. The readers, which are
pure, see every value in every place; the application sees a few in each.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from full_bodies import CHAT, COMPLETIONS, COUNT, FULL, MESSAGES, Path, paths_of, spelled, value_at, with_value
from starlette.testclient import TestClient

from anaphora.api.anthropic import read_count, read_messages
from anaphora.api.app import ApiSettings, build_app
from anaphora.api.openai import read_chat
from anaphora.api.openai_completions import read_completion
from anaphora.engine.engine import Engine
from anaphora.engine.settings import EngineSettings
from anaphora.errors import RequestError
from anaphora.testing.random_models import random_model

READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    CHAT: read_chat,
    COMPLETIONS: read_completion,
    MESSAGES: read_messages,
    COUNT: read_count,
}
WRONG: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**400, 1.5, 1e308, -1e308, float("inf")),
    *("", "x", " ", "\x00", "é漢😀", "x" * 1000),
    *([], [None], [[]], [{}], ["", ""], [[[[[]]]]], {}, {"type": "x"}, {"type": None}, {"type": []}, {"type": {}}),
)
FIELDS = [(endpoint, name) for endpoint, body in FULL.items() for name in body]

# What a client may put in: the model's to make sense of, or read by nobody here.
FREE = re.compile(
    r"(user|metadata)\b|messages\.\d+\.name|.*\.(prompt_cache_breakpoint|signature|data|media_type)\b|.*tool_calls\.0\.type"
    r"|.*\.(parameters|input_schema|input)\.|logit_bias\.5"
)
# Fields with more than one type.
SEVERAL = re.compile(r"(stop|system|prompt(\.\d+)?|.*content(\.\d+\.source)?|tool_choice)$")
# What the mended or removed value contradicts elsewhere in the body, which is then what is named.
CONTRADICTED = {
    "logprobs": "top_logprobs",
    "tools": "tool_choice",
    "n": "best_of",
    "stream": "stream_options",
    "prompt": "prompt",  # its first entry says what the others have to be
}


def json_type(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return str(type(value))
    return "number" if isinstance(value, int | float) else type(value).__name__


def names_field(named: str, path: Path) -> bool:
    """Whether an error names the place that was spoiled, something in it, or what it contradicts."""
    named, place = re.sub(r"\[(\d+)\]", r".\1", named), spelled(path)
    other = CONTRADICTED.get(str(path[0]))
    return named.startswith(place) or place.startswith(named) or bool(other and named.startswith(other))


def refusal_of(endpoint: str, body: dict[str, Any]) -> RequestError | None:
    try:
        READERS[endpoint](body)
    except RequestError as error:
        return error
    return None


def places(endpoint: str, field: str) -> Iterator[Path]:
    yield from paths_of({field: FULL[endpoint][field]})


@pytest.mark.parametrize(("endpoint", "field"), FIELDS)
def test_wrong_value_is_refused_by_name_or_harmless(endpoint: str, field: str) -> None:
    for path in places(endpoint, field):
        right = value_at(FULL[endpoint], path)
        for wrong in WRONG:
            refusal = refusal_of(endpoint, with_value(FULL[endpoint], path, wrong))
            if refusal is not None:
                assert names_field(refusal.field or "nothing", path), (path, wrong, str(refusal))
                assert str(refusal).startswith(f"{refusal.field}: ")
                continue
            is_type_kept = wrong is None or json_type(wrong) == json_type(right)
            place = spelled(path)
            assert is_type_kept or FREE.match(place) or SEVERAL.fullmatch(place), (path, wrong)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    settings = EngineSettings(kv_pool_bytes=8 * 2**20, num_threads=1)
    with (
        Engine(random_model("llama", max_context=2048), settings) as engine,
        TestClient(build_app(engine, ApiSettings(("tiny",)))) as opened,
    ):
        yield opened


@pytest.mark.parametrize(("endpoint", "field"), FIELDS)
def test_wrong_value_gets_a_status_and_harms_nobody(client: TestClient, endpoint: str, field: str) -> None:
    for path in places(endpoint, field):
        for wrong in ("x", {"type": []}):
            body = with_value(FULL[endpoint], path, wrong)
            response = client.post(endpoint, json=body)
            assert response.status_code in (200, 400, 404), (path, wrong, response.text)
            if response.status_code == 200:
                assert '"error"' not in response.text, (path, wrong)
                continue
            error = response.json()["error"]
            assert names_field(error.get("param") or error["message"].split(":")[0], path), (path, wrong, error)
    assert 'anaphora_pool_slots{state="leased"} 0.0' in client.get("/metrics").text


@pytest.mark.parametrize("endpoint", FULL)
def test_full_body_is_answered(client: TestClient, endpoint: str) -> None:
    response = client.post(endpoint, content=json.dumps(FULL[endpoint]))
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(("endpoint", "field"), FIELDS)
def test_field_left_out_is_named_or_not_needed(endpoint: str, field: str) -> None:
    body = {name: value for name, value in FULL[endpoint].items() if name != field}
    needed = {"model", "messages", "prompt"} | ({"max_tokens"} if endpoint == MESSAGES else set())
    refusal = refusal_of(endpoint, body)
    if field in needed:
        assert refusal is not None
        assert refusal.field == field
    elif refusal is not None:
        assert refusal.field == CONTRADICTED[field]
