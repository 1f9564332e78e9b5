"""Why requests miss, as the server tells it: receipts, headers, both hosts' diagnostics, metrics, its own endpoint."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic.types
import openai.types.responses
import pytest
from starlette.testclient import TestClient

from anaphora.api.app import ApiSettings, build_app
from anaphora.api.auth import keys_of
from anaphora.engine.engine import Engine
from anaphora.engine.settings import EngineSettings
from anaphora.explain.memory import MemoryLimits
from anaphora.testing.random_models import random_model

LONG = "You answer questions about the harbour and its boats. "


@pytest.fixture
def client(roomy: Engine) -> Iterator[TestClient]:
    with TestClient(build_app(roomy, ApiSettings(served_names=("tiny", "other")))) as opened:
        yield opened


def chat_body(system: str, *questions: str, **fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(questions)]
    system_message = {"role": "system", "content": system}
    return {"model": "tiny", "max_tokens": 3, "temperature": 0, "messages": [system_message, *messages], **fields}


def chat(client: TestClient, *arguments: str, **fields: Any) -> dict[str, Any]:
    response = client.post("/v1/chat/completions", json=chat_body(*arguments, **fields))
    assert response.status_code == 200, response.text
    return dict(response.json())


def message(client: TestClient, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "max_tokens": 3, "messages": [{"role": "user", "content": "Hi"}], **fields}
    response = client.post("/v1/messages", json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def respond(client: TestClient, **fields: Any) -> dict[str, Any]:
    response = client.post("/v1/responses", json={"model": "tiny", "max_output_tokens": 3, **fields})
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_a_time_in_the_system_prompt_is_named_everywhere(client: TestClient) -> None:
    first = chat(client, f"It is 10:21:07. {LONG}", "How deep is it?")
    assert first["anaphora"]["miss"]["reason"] == "first_seen"
    response = client.post("/v1/chat/completions", json=chat_body(f"It is 10:49:51. {LONG}", "How deep is it?"))
    miss = response.json()["anaphora"]["miss"]
    assert (miss["reason"], miss["cause"], miss["where"]) == ("diverged", "time", "messages[0].content")
    assert miss["byte"] == len("It is 10:")
    assert miss["token"] == response.json()["anaphora"]["reused_tokens"]
    assert miss["lost_tokens"] > len(LONG) // 4
    assert miss["nearest"]["id"] == first["id"]
    assert response.headers["x-anaphora-miss-reason"] == "time"
    assert response.headers["x-anaphora-miss-where"] == "messages[0].content:9"
    assert response.headers["x-anaphora-miss-lost-tokens"] == str(miss["lost_tokens"])
    shown = client.get(f"/v1/anaphora/requests/{response.json()['id']}").json()
    assert shown["anaphora"]["miss"] == miss
    assert shown["state"] == "finished"
    before, after = (shown["excerpts"][side] for side in ("first", "second"))
    assert (before["text"][before["at"] :][:5], after["text"][after["at"] :][:5]) == ("21:07", "49:51")
    assert client.get("/v1/anaphora/requests/last").json() == shown
    assert client.get(f"/v1/anaphora/requests/{response.headers['request-id']}").json() == shown
    metrics = client.get("/metrics").text
    assert 'anaphora_misses_total{cause="time",reason="diverged"} 1.0' in metrics
    assert f'anaphora_lost_tokens_total{{cause="time",reason="diverged"}} {miss["lost_tokens"]:.1f}' in metrics


def test_streamed_and_whole_answers_tell_the_same(client: TestClient) -> None:
    chat(client, f"At 10:00:00 {LONG}", "stream")
    whole = chat(client, f"At 11:11:11 {LONG}", "stream")["anaphora"]["miss"]
    with client.stream(
        "POST", "/v1/chat/completions", json=chat_body(f"At 12:22:22 {LONG}", "stream", stream=True)
    ) as it:
        assert it.headers["x-anaphora-miss-reason"] == "time"
        lines = [line.removeprefix("data: ") for line in it.iter_lines() if line.startswith("data: {")]
    (streamed,) = [one["anaphora"]["miss"] for line in lines if "anaphora" in (one := json.loads(line))]
    assert {**streamed, "nearest": None} == {**whole, "nearest": None}


def test_answers_that_come_back_otherwise_are_seen(client: TestClient) -> None:
    system = f"{LONG} Answer at length."
    answer = chat(client, system, "Tell me.", max_tokens=12)["choices"][0]["message"]["content"]
    miss = chat(client, system, "Tell me.", answer, "More.")["anaphora"]["miss"]
    assert (miss["cause"], miss["where"]) == ("retokenised", "messages[2].content"), "random weights write odd tokens"
    answer = chat(client, system, "Go on.", max_tokens=12)["choices"][0]["message"]["content"]
    changed = chat(client, system, "Go on.", f"##{answer}", "More, please.")["anaphora"]["miss"]
    assert (changed["cause"], changed["where"], changed["byte"]) == ("answer_changed", "messages[2].content", 0)


def test_tenants_never_see_each_others_requests(roomy: Engine) -> None:
    settings = ApiSettings(("tiny",), keys_of({"red-key": "red", "blue-key": "blue"}))
    with TestClient(build_app(roomy, settings)) as client:
        red, blue = ({"authorization": f"Bearer {colour}-key"} for colour in ("red", "blue"))
        body = chat_body(f"secret of red {LONG}", "Hi")
        answered = client.post("/v1/chat/completions", json=body, headers=red)
        first, request_id = answered.json(), answered.headers["request-id"]
        second = client.post("/v1/chat/completions", json=body, headers=blue).json()
        assert second["anaphora"]["miss"]["reason"] == "first_seen"
        assert "nearest" not in second["anaphora"]["miss"]
        assert client.get(f"/v1/anaphora/requests/{first['id']}", headers=red).status_code == 200
        assert client.get(f"/v1/anaphora/requests/{request_id}", headers=red).json()["id"] == first["id"]
        assert client.get("/v1/anaphora/requests/last", headers=blue).json()["id"] == second["id"]
        for name in (first["id"], request_id, "nobody"):
            refused = client.get(f"/v1/anaphora/requests/{name}", headers=blue)
            assert (refused.status_code, refused.json()["error"]["message"][:21]) == (404, "There is no request '")
        asked = {"previous_message_id": first["id"]}
        body = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}], "diagnostics": asked}
        told = client.post("/v1/messages", json=body, headers=blue).json()["diagnostics"]
        assert told == {"cache_miss_reason": {"type": "previous_message_not_found"}}
        for name in (first["id"], request_id, "last"):
            options = {"comparison_response_id": name}
            body = {"model": "tiny", "max_output_tokens": 2, "input": "Hi", "prompt_cache_options": options}
            told = client.post("/v1/responses", json=body, headers=blue).json()["prompt_cache_diagnostics"]
            assert told == {"type": "comparison_response_not_found"}
        assert client.get("/v1/anaphora/requests/last").status_code == 401


def test_messages_diagnostics_as_the_host_specifies_them(client: TestClient) -> None:
    def reason(previous: str | None, **fields: Any) -> Any:
        answer = message(client, diagnostics={"previous_message_id": previous}, **fields)
        anthropic.types.Message.model_validate(answer)
        return answer["diagnostics"] and answer["diagnostics"]["cache_miss_reason"]

    tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("look", "find")]
    base: dict[str, Any] = {"system": LONG, "tools": tools}
    first = message(client, **base)
    assert "diagnostics" not in first
    assert reason(None, **base) is None
    assert reason(first["id"], **base) is None
    more = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    assert reason(first["id"], **base, messages=more) is None
    marked = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]
    assert reason(first["id"], **{**base, "system": marked}) is None
    assert reason("msg_nobody", **base) == {"type": "previous_message_not_found"}
    assert reason(first["id"], **base, tool_choice={"type": "none"}) == {"type": "unavailable"}
    changes: dict[str, dict[str, Any]] = {
        "model_changed": {"model": "other", "system": "x"},
        "tools_changed": {"tools": tools[::-1], "system": "x"},
        "system_changed": {"system": f"{LONG}!", "messages": [{"role": "user", "content": "Other"}]},
        "messages_changed": {"messages": [{"role": "user", "content": "Other"}], "thinking": {"type": "disabled"}},
    }
    for kind, change in changes.items():
        found = reason(first["id"], **{**base, **change})
        assert found["type"] == kind
        assert found["cache_missed_input_tokens"] > 0
    assert reason(first["id"], **base, speed="fast")["type"] == "model_changed"
    for wrong in ("msg", {"previous_message_id": 3}):
        body = {"model": "tiny", "max_tokens": 3, "messages": more[:1], "diagnostics": wrong}
        assert client.post("/v1/messages", json=body).status_code == 400


def test_messages_diagnostics_stand_in_the_first_event(client: TestClient) -> None:
    body = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    text = client.post("/v1/messages", json={**body, "diagnostics": {"previous_message_id": "msg_x"}}).text
    start = json.loads(text.split("data: ")[1].split("\n")[0])
    assert start["message"]["diagnostics"] == {"cache_miss_reason": {"type": "previous_message_not_found"}}
    assert "diagnostics" not in client.post("/v1/messages", json=body).text


def test_responses_diagnostics_as_the_host_specifies_them(client: TestClient) -> None:
    def told(compared: str, **fields: Any) -> dict[str, Any]:
        answer = respond(client, prompt_cache_options={"comparison_response_id": compared}, **fields)
        parsed = openai.types.responses.Response.model_validate(answer)
        assert parsed.prompt_cache_options is not None
        assert parsed.prompt_cache_options.comparison_response_id == compared
        return dict(answer["prompt_cache_diagnostics"])

    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("look", "find")]
    base: dict[str, Any] = {"input": "How deep is it?", "instructions": LONG, "tools": tools, "prompt_cache_key": "a"}
    first = respond(client, **base)
    assert "prompt_cache_diagnostics" not in first
    assert told(first["id"], **base) == {"type": "cache_hit"}
    assert told("resp_nobody", **base) == {"type": "comparison_response_not_found"}
    changes: dict[str, dict[str, Any]] = {
        "model_changed": {"model": "other"},
        "prompt_cache_key_changed": {"prompt_cache_key": "b", "tools": []},
        "service_tier_changed": {"service_tier": "flex"},
        "tools_changed": {"tools": tools[::-1], "input": "x"},
        "reasoning_effort_changed": {"reasoning": {"effort": "low"}, "input": "x"},
        "verbosity_changed": {"text": {"verbosity": "low"}},
        "input_changed": {"input": "How wide is it?"},
    }
    for reason, change in changes.items():
        found = told(first["id"], **{**base, **change})
        assert (found["type"], found["reason"]) == ("cache_miss", reason)
        is_behind = reason in ("tools_changed", "input_changed")
        assert (found["comparison_reusable_tokens"] > 0) == is_behind
        assert found["cache_missed_tokens"] > 0
    wrong = {"model": "tiny", "input": "Hi", "prompt_cache_options": {"comparison_response_id": 3}}
    assert client.post("/v1/responses", json=wrong).status_code == 400


def test_contracts_reasons_are_told_where_the_engine_lost_nothing(client: TestClient) -> None:
    message(client, system=f"{LONG} unmarked")
    found = message(client, system=f"{LONG} unmarked")
    assert found["usage"]["cache_read_input_tokens"] == 0
    assert (found["anaphora"]["miss"]["reason"], found["anaphora"]["miss"]["level"]) == ("no_breakpoint", "contract")
    marked = [{"type": "text", "text": f"{LONG} marked", "cache_control": {"type": "ephemeral"}}]
    message(client, system=marked)
    assert message(client, system=marked)["anaphora"]["miss"]["reason"] == "none"


def test_batches_are_told_by_what_lost_most(client: TestClient) -> None:
    def complete(*prompts: Any) -> dict[str, Any]:
        return dict(client.post("/v1/completions", json={"model": "tiny", "prompt": prompts, "max_tokens": 2}).json())

    complete(f"Seed 12ab34cd56ef78 {LONG}", "short")
    found = complete("short", f"Seed 99ff34cd56ef78 {LONG}")
    assert found["anaphora"]["miss"]["cause"] == "nonce"
    assert found["anaphora"]["miss"]["where"] == "prompt"
    assert client.get(f"/v1/anaphora/requests/{found['id']}-1").json()["anaphora"]["miss"]["reason"] == "diverged"
    ids = list(range(40, 90))
    complete(ids)
    assert complete([*ids[:30], 7, 8])["anaphora"]["miss"]["reason"] == "none"
    assert complete(ids)["anaphora"]["miss"]["reason"] == "none"


def small_engine(num_tokens: int) -> Engine:
    loaded = random_model("llama")
    size = num_tokens * loaded.spec.kv_bytes_per_token(loaded.dtype)
    return Engine(loaded, EngineSettings(kv_pool_bytes=size, num_threads=1))


def test_evictions_and_restarts_are_told(tmp_path: Path) -> None:
    settings = ApiSettings(("tiny",), seen_path=tmp_path / "cache" / "seen")
    with small_engine(300) as engine, TestClient(build_app(engine, settings)) as client:
        chat(client, LONG * 4, "Hi")
        chat(client, f"Other. {LONG * 4}", "Hi")
        miss = chat(client, LONG * 4, "Hi")["anaphora"]["miss"]
        assert (miss["reason"], "gone_seconds_ago" in miss, "room_went_to_others" in miss) == ("evicted", True, False)
        assert miss["lost_tokens"] > 0
    with small_engine(300) as engine, TestClient(build_app(engine, settings)) as client:
        miss = chat(client, LONG * 4, "Hi")["anaphora"]["miss"]
        assert (miss["reason"], miss["lost_tokens"]) == ("not_durable", 128)
        assert chat(client, LONG * 4, "Hi")["anaphora"]["miss"]["reason"] == "none"


def test_a_place_that_cant_be_written_costs_nobody_an_answer(roomy: Engine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with TestClient(build_app(roomy, ApiSettings(("tiny",), seen_path=tmp_path / "file" / "seen"))) as client:
        assert chat(client, LONG, "Hi")["usage"]["prompt_tokens"] > 0


def test_nothing_is_remembered_where_that_is_turned_off(roomy: Engine) -> None:
    with TestClient(build_app(roomy, ApiSettings(("tiny",), explain=None))) as client:
        answer = chat(client, LONG, "Hi")
        assert "miss" not in answer["anaphora"]
        assert client.get(f"/v1/anaphora/requests/{answer['id']}").status_code == 404
        told = message(client, diagnostics={"previous_message_id": "msg_x"})["diagnostics"]
        assert told == {"cache_miss_reason": {"type": "unavailable"}}
        compared = respond(client, input="Hi", prompt_cache_options={"comparison_response_id": "resp_x"})
        assert compared["prompt_cache_diagnostics"] == {"type": "unavailable"}


def test_without_text_nothing_that_was_said_is_kept(roomy: Engine) -> None:
    settings = ApiSettings(("tiny",), explain=MemoryLimits(keeps_text=False))
    with TestClient(build_app(roomy, settings)) as client:
        chat(client, f"Silently 10:21. {LONG}", LONG)
        miss = chat(client, f"Silently 10:49. {LONG}", LONG)["anaphora"]["miss"]
        assert (miss["cause"], miss["where"], miss["byte"]) == ("text_changed", "messages[0].content", 12)
        assert client.get("/v1/anaphora/requests/last").json()["excerpts"] == {}
