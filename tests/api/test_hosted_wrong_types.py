"""Every field of Responses, and every word on caching, replaced by what it may not be: refused by name, or harmless.

Method: as `test_wrong_types`, over HTTP, under profiles whose rules read the cache options.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from full_bodies import CHAT, MESSAGES, paths_of, spelled, value_at, with_value
from hosted_world import MODEL, Hosted, hosted

from anaphora.contract.profiles import profile_named
from anaphora.engine.engine import Engine
from anaphora.engine.settings import EngineSettings
from anaphora.testing.random_models import random_model

RESPONSES = "/v1/responses"
_BREAKPOINT = {"mode": "explicit", "ttl": "30m"}
_CACHING = {
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
    "prompt_cache_retention": "24h",
    "service_tier": "flex",
}
BODIES: dict[str, dict[str, Any]] = {
    RESPONSES: {
        **_CACHING,
        "model": MODEL,
        "instructions": "I",
        "input": [
            {"role": "developer", "content": "D"},
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "q", "prompt_cache_breakpoint": _BREAKPOINT}],
            },
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "4"}]},
            {"type": "function_call_output", "call_id": "c", "output": "4", "name": "f"},
            {"role": "user", "content": [{"type": "refusal", "refusal": "no"}]},
        ],
        "tools": [
            {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]},
            {"type": "web_search"},
        ],
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": True,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "max_output_tokens": 1,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_logprobs": 1,
        "include": ["message.output_text.logprobs"],
        "store": True,
        "stream": False,
        "metadata": {"a": "b"},
        "truncation": "auto",
    },
    CHAT: {
        **_CACHING,
        "model": MODEL,
        "max_tokens": 1,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "q", "prompt_cache_breakpoint": _BREAKPOINT}]},
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "b"},
        ],
        "reasoning_effort": "low",
        "verbosity": "low",
    },
    MESSAGES: {
        "model": MODEL,
        "max_tokens": 1,
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "q", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
            },
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t",
                        "content": [{"type": "text", "text": "r", "cache_control": {"type": "ephemeral"}}],
                    },
                    {
                        "type": "document",
                        "citations": {"enabled": True},
                        "source": {"type": "text", "media_type": "text/plain", "data": "D"},
                    },
                ],
            },
        ],
        "cache_control": {"type": "ephemeral", "ttl": "5m"},
        "output_config": {"effort": "low", "task_budget": {"total": 9}},
        "speed": "fast",
        "thinking": {"type": "adaptive"},
    },
}
WRONG: tuple[Any, ...] = (None, True, 0, -1, 1.5, "x", "", [], [None], [{}], {}, {"type": []}, {"type": None})

CONTRADICTED = {"include": "top_logprobs", "tools": "tool_choice"}
"""What a changed field contradicts elsewhere in the body, which is then what is named."""


@pytest.fixture(scope="module")
def strict() -> Iterator[Hosted]:
    """Rules that read every word on caching."""
    profile = profile_named("openai:gpt-5.6")
    rules = replace(profile.openai, min_tokens=0)
    settings = EngineSettings(kv_pool_bytes=32 * 2**20, num_threads=1)
    with (
        Engine(random_model("llama", max_context=4096), settings) as engine,
        hosted(engine, replace(profile, openai=rules)) as one,
    ):
        yield one


@pytest.mark.parametrize("endpoint", BODIES)
def test_the_full_body_is_answered(strict: Hosted, endpoint: str) -> None:
    response = strict.http.post(endpoint, json=BODIES[endpoint], headers={"x-api-key": "red-key"})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(("endpoint", "field"), [(at, name) for at, body in BODIES.items() for name in body])
def test_a_wrong_value_is_refused_by_name_or_harmless(strict: Hosted, endpoint: str, field: str) -> None:
    body = BODIES[endpoint]
    for path in paths_of({field: body[field]}):
        for wrong in WRONG:
            if wrong == value_at(body, path):
                continue
            changed = with_value(body, path, wrong)
            response = strict.http.post(endpoint, json=changed, headers={"x-api-key": "red-key"})
            assert response.status_code in (200, 400, 404), (path, wrong, response.text)
            if response.status_code == 200:
                continue
            error = response.json()["error"]
            named = re.sub(r"\[(\d+)\]", r".\1", error.get("param") or error["message"].split(":")[0])
            is_kind = path[-1] == "type"  # what an item lacks depends on its kind
            place, other = spelled(path[:-1] if is_kind else path), CONTRADICTED.get(field)
            is_near = named.startswith(place) or place.startswith(named)
            assert is_near or (other and named.startswith(other)), (path, wrong, error)
