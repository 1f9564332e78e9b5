"""For an application's own tests: would this call hit? No model, no server, no network.

from anaphora.testing.prompt_cache import prompt_cache            # the fixture; in a conftest.py

def test_the_second_call_hits(prompt_cache):
    prompt_cache.send(body_of("first question"))
    prompt_cache.send(body_of("second question")).assert_hits(at_least=1_000)

def test_the_app_itself(prompt_cache):                            # its own client, over a transport that answers here
    client = anthropic.Anthropic(api_key="any", http_client=httpx.Client(transport=prompt_cache.transport()))
    run_the_app(client)
    prompt_cache.calls[-1].assert_hits(at_least=1_000)
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest

from anaphora.api.anthropic_reply import message_usage
from anaphora.api.openai_completions import usage_of
from anaphora.api.rehearsal import Rehearsal, Rehearsed
from anaphora.api.responses_reply import response_usage
from anaphora.contract.profiles import LOCAL
from anaphora.errors import RequestError


class RehearsedCalls:
    """Calls of a test in order, rehearsed by one profile's rules."""

    def __init__(self, profile: str = LOCAL) -> None:
        """`profile`: a hosted model's, such as anthropic:claude-opus-5, or local. Raises: SettingsError."""
        self._rehearsal = Rehearsal(profile)
        self.calls: list[Rehearsed] = []

    def send(self, body: Mapping[str, Any], **options: Any) -> Rehearsed:
        """Rehearse a body of the Chat Completions, Responses or Messages API. `options`: those of `Rehearsal.send`.

        Raises: RequestError for what is none of them.
        """
        self.calls.append(self._rehearsal.send(body, **options))
        return self.calls[-1]

    def transport(self, http: Any = httpx, *, answer: str = "ok") -> Any:
        """A transport for an SDK's client: every request is rehearsed and answered with this text and honest usage.

        `http`: the package whose clients the SDK takes, httpx or one like it. Answers are whole: a request for a stream
        is refused.
        """

        def reply(request: Any) -> Any:
            status, value = self._answered(request.url.path, json.loads(request.content), answer)
            return http.Response(status, json=value)

        return http.MockTransport(reply)

    def _answered(self, path: str, body: Mapping[str, Any], answer: str) -> tuple[int, dict[str, Any]]:
        write = _WRITERS.get(path.rpartition("/v1/")[2])
        if write is None or body.get("stream"):
            return _refused(f"{path} {'as a stream ' if write else ''}is not rehearsed.")
        try:
            call = self.send(body)
        except RequestError as error:
            return _refused(str(error))
        return 200, write(body, call, answer)


@pytest.fixture
def prompt_cache() -> RehearsedCalls:
    """Calls of one test, by the rules of the local profile. `RehearsedCalls(profile)` for a hosted model's."""
    return RehearsedCalls()


def _refused(problem: str) -> tuple[int, dict[str, Any]]:
    return 400, {"type": "error", "error": {"message": problem, "type": "invalid_request_error"}}


def _message(body: Mapping[str, Any], call: Rehearsed, answer: str) -> dict[str, Any]:
    return {
        "id": "msg_rehearsed",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [{"type": "text", "text": answer}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": message_usage(call.account),
    }


def _completion(body: Mapping[str, Any], call: Rehearsed, answer: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": answer}
    return {
        "id": "chatcmpl-rehearsed",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": usage_of(call.account),
    }


def _response(body: Mapping[str, Any], call: Rehearsed, answer: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": answer, "annotations": []}
    item = {"id": "msg_rehearsed", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    return {
        "id": "resp_rehearsed",
        "object": "response",
        "created_at": 0,
        "model": body["model"],
        "status": "completed",
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": response_usage(call.account),
    }


_WRITERS: Mapping[str, Callable[[Mapping[str, Any], Rehearsed, str], dict[str, Any]]] = {
    "messages": _message,
    "chat/completions": _completion,
    "responses": _response,
}
