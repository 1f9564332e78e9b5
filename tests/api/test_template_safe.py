"""Goal: what a client sends back gives the same tokens, whatever clients and templates do to it on the way: nonces in
front, arguments written anew, reasoning that a template drops. Method: conversations through a real engine behind the
application; what was reused says whether the tokens were the same.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from anaphora.api.app import ApiSettings, build_app
from anaphora.engine.engine import Engine
from anaphora.engine.settings import EngineSettings
from anaphora.prompt.canonical import Message, Text
from anaphora.prompt.front_nonces import FRONT_NONCES, NOTHING, cleaned_messages, cleaned_system
from anaphora.testing.random_models import CHAT_TEMPLATE, random_model

LINE = "x-anthropic-billing-header: cc_version=2.1; cch={};"
TOOL = {"type": "object", "properties": {"b": {"enum": [1]}, "a": {"enum": [2]}}, "required": ["b", "a"]}

# As Qwen's: reasoning of turns before the last question is left out.
DROPS_REASONING = CHAT_TEMPLATE.replace(
    "{{ message['content'] }}",
    "{% if message['role'] == 'assistant' %}{{ message['content'].split('</think>')[-1] }}"
    "{% else %}{{ message['content'] }}{% endif %}",
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    settings = EngineSettings(kv_pool_bytes=32 * 2**20, num_threads=1)
    with Engine(random_model("llama", max_context=4096), settings) as small:
        yield small


def receipt(client: TestClient, path: str, body: dict[str, Any]) -> tuple[Any, Any]:
    answer = client.post(path, json={"model": "random-llama", "max_tokens": 1, **body}).json()
    return answer, answer["anaphora"]


def with_nonce(path: str, nonce: str, about: str) -> dict[str, Any]:
    """A request whose system prompt opens with a line that nobody else sends."""
    line, kind = LINE.format(nonce), f"You are kind. {about} " * 5
    ask = [{"role": "user", "content": "Hi"}]
    match path:
        case "/v1/messages":
            return {"system": [{"type": "text", "text": line}, {"type": "text", "text": kind}], "messages": ask}
        case "/v1/chat/completions":
            return {"messages": [{"role": "system", "content": f"{line}\n{kind}"}, *ask]}
    return {"instructions": f"{line}\n\n{kind}", "input": "Hi"}


PATHS = ["/v1/messages", "/v1/chat/completions", "/v1/responses"]


@pytest.mark.parametrize("path", PATHS)
def test_a_nonce_in_front_of_the_system_prompt_costs_nothing(engine: Engine, path: str) -> None:
    with TestClient(build_app(engine, ApiSettings())) as client:
        receipt(client, path, with_nonce(path, "4f9d2", f"dropped {path}"))
        _, second = receipt(client, path, with_nonce(path, "81e07", f"dropped {path}"))
    assert second["computed_tokens"] == 1


@pytest.mark.parametrize("path", PATHS)
def test_the_rule_can_be_switched_off(engine: Engine, path: str) -> None:
    with TestClient(build_app(engine, ApiSettings(front_nonces=NOTHING))) as client:
        receipt(client, path, with_nonce(path, "4f9d2", f"kept {path}"))
        _, second = receipt(client, path, with_nonce(path, "81e07", f"kept {path}"))
    assert second["computed_tokens"] > 50


def test_only_a_known_line_at_the_very_front_is_taken_out() -> None:
    behind = (Text(f"Be kind.\n{LINE.format(1)}", "system"),)
    assert cleaned_system(behind, FRONT_NONCES) == behind
    assert cleaned_system((), FRONT_NONCES) == ()
    alone, rest = Text(LINE.format(1), "system[0]"), Text("Be kind.", "system[1]")
    assert cleaned_system((alone, rest), FRONT_NONCES) == (rest,)
    assert cleaned_system((alone, rest), NOTHING) == (alone, rest)
    system = Message("system", (alone,), "messages[0]")
    user = Message("user", (alone,), "messages[1]")
    assert cleaned_messages((system, user), FRONT_NONCES) == (user,)
    assert cleaned_messages((user,), FRONT_NONCES) == (user,)
    assert cleaned_messages((), FRONT_NONCES) == ()


@pytest.mark.parametrize("rewrite", [json.loads, lambda text: dict(reversed(json.loads(text).items()))])
def test_arguments_that_come_back_respaced_or_sorted_give_the_generated_tokens(engine: Engine, rewrite: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": TOOL}}]
    asked = [{"role": "user", "content": f"call {rewrite.__name__}"}]
    fields = {"tools": tools, "max_tokens": 120, "parallel_tool_calls": False}
    path = "/v1/chat/completions"
    with TestClient(build_app(engine, ApiSettings())) as client:
        answer, first = receipt(client, path, {**fields, "messages": asked, "tool_choice": "required"})
        message = answer["choices"][0]["message"]
        [call] = message["tool_calls"]
        text = json.dumps(rewrite(call["function"]["arguments"]), separators=(",", ":"))
        assert text != call["function"]["arguments"]
        again = {**message, "tool_calls": [{**call, "function": {"name": "f", "arguments": text}}]}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "7"}
        _, second = receipt(client, path, {**fields, "messages": [*asked, again, result], "max_tokens": 1})
    assert second["reused_tokens"] >= first["prompt_tokens"] + first["generated_tokens"] - 1


def test_a_template_that_drops_reasoning_still_hits_all_that_stood_before_it() -> None:
    loaded = random_model("llama", max_context=4096)
    loaded.tokenizer.chat_template = DROPS_REASONING
    with (
        Engine(replace(loaded), EngineSettings(kv_pool_bytes=32 * 2**20, num_threads=1)) as engine,
        TestClient(build_app(engine, ApiSettings())) as client,
    ):
        turns: list[Any] = [{"role": "system", "content": "Think first. " * 20}, {"role": "user", "content": "one"}]
        _, first = receipt(client, "/v1/chat/completions", {"messages": turns, "max_tokens": 20})
        thought = {"role": "assistant", "content": "<think>a long and winding thought</think>An answer."}
        more = [*turns, thought, {"role": "user", "content": "two"}]
        _, second = receipt(client, "/v1/chat/completions", {"messages": more})
        _, third = receipt(
            client, "/v1/chat/completions", {"messages": [*more, thought, {"role": "user", "content": "three"}]}
        )
    assert second["reused_tokens"] >= first["prompt_tokens"]  # all but the answer itself, which has lost its thought
    assert third["reused_tokens"] >= second["prompt_tokens"]
