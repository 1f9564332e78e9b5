"""The small parts of the HTTP side: error shapes, keys, bodies, replayed turns, served models."""

import pytest

from anaphora.api.answers import CallPiece, TextPiece, collect
from anaphora.api.auth import keys_of
from anaphora.api.errors import Protocol, error_reply
from anaphora.api.models import ServedModels
from anaphora.api.openai_completions import read_completion
from anaphora.api.replay import HandedOut, ReplayMemory
from anaphora.api.wire import parse_body
from anaphora.engine.request import DEFAULT_TENANT, Tenant
from anaphora.errors import (
    BodyTooLarge,
    EngineFailure,
    EngineStopped,
    NotAuthenticated,
    Overloaded,
    PromptTooLong,
    RequestError,
    RequestTimeout,
    UnknownModel,
)
from anaphora.prompt.canonical import Message, Text, ToolUse

OPENAI, ANTHROPIC = Protocol.OPENAI, Protocol.ANTHROPIC


@pytest.mark.parametrize(
    ("error", "openai", "anthropic"),
    [
        (RequestError("n: bad", field="n"), (400, "invalid_request_error", None), (400, "invalid_request_error")),
        (PromptTooLong("x"), (400, "invalid_request_error", "context_length_exceeded"), (400, "invalid_request_error")),
        (UnknownModel("x"), (404, "invalid_request_error", "model_not_found"), (404, "not_found_error")),
        (NotAuthenticated("x"), (401, "invalid_request_error", "invalid_api_key"), (401, "authentication_error")),
        (BodyTooLarge("x"), (413, "invalid_request_error", "request_too_large"), (413, "request_too_large")),
        (
            Overloaded("x", retry_after_s=1.2),
            (429, "rate_limit_error", "rate_limit_exceeded"),
            (529, "overloaded_error"),
        ),
        (RequestTimeout("x"), (408, "timeout_error", "request_timeout"), (504, "timeout_error")),
        (EngineStopped("x"), (503, "server_error", "engine_stopped"), (503, "api_error")),
        (EngineFailure("x"), (500, "server_error", None), (500, "api_error")),
        (ZeroDivisionError("secret"), (500, "server_error", None), (500, "api_error")),
    ],
)
def test_error_in_the_shape_and_status_of_each_protocol(
    error: Exception, openai: tuple[int, str, str | None], anthropic: tuple[int, str]
) -> None:
    reply = error_reply(error, OPENAI, "req_1")
    assert (reply.status, reply.body["error"]["type"], reply.body["error"]["code"]) == openai
    assert set(reply.body["error"]) == {"message", "type", "param", "code"}
    reply = error_reply(error, ANTHROPIC, "req_1")
    assert (reply.status, reply.body["error"]["type"]) == anthropic
    assert (reply.body["type"], reply.body["request_id"]) == ("error", "req_1")
    assert "secret" not in str(reply.body)


def test_field_is_named_in_each_protocols_spelling() -> None:
    error = RequestError("messages[3].content[1].type: not supported.", field="messages[3].content[1].type")
    assert error_reply(error, OPENAI, "r").body["error"]["param"] == "messages[3].content[1].type"
    message = error_reply(error, ANTHROPIC, "r").body["error"]["message"]
    assert message == "messages.3.content.1.type: not supported."


def test_full_queue_says_when_to_come_back() -> None:
    assert error_reply(Overloaded("x", retry_after_s=1.2), OPENAI, "r").headers == {"retry-after": "2"}
    assert error_reply(Overloaded("x", retry_after_s=0.0), ANTHROPIC, "r").headers == {"retry-after": "1"}


def test_error_inside_a_stream_is_the_protocols_event() -> None:
    error = RequestTimeout("Too late.")
    assert error_reply(error, OPENAI, "r").event.startswith('data: {"error": {"message": "Too late."')
    assert error_reply(error, ANTHROPIC, "r").event.startswith('event: error\ndata: {"type": "error"')


def test_key_alone_decides_the_tenant() -> None:
    keys = keys_of({"k1": "red", "k2": "blue"})
    assert keys.tenant_of({"authorization": "Bearer k1"}) == "red"
    assert keys.tenant_of({"authorization": "bearer  k2 "}) == "blue"
    assert keys.tenant_of({"x-api-key": "k2", "x-tenant": "red"}) == "blue"
    assert keys_of({}).tenant_of({"authorization": "Bearer anything"}) == DEFAULT_TENANT


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Basic k1"}, {"authorization": "Bearer"}, {"x-api-key": "k"}]
)
def test_missing_or_wrong_key_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(NotAuthenticated):
        keys_of({"k1": "red"}).tenant_of(headers)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b'{"a": NaN}',
        b'{"a": "\\ud800"}',
        b"\xff\xfe{}",
        b'{"a":' + b"[" * 100_000,
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
    ids=["empty", "cut", "list", "text", "nan", "surrogate", "utf-16", "deep", "long-number"],
)
def test_body_that_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(RequestError):
        parse_body(raw)


def test_escaped_characters_are_read() -> None:
    assert parse_body(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


RED, BLUE = Tenant("red"), Tenant("blue")
TURN = HandedOut("Sure.", (("c1", "f", '{"b": 1,  "a": 2}'),))


def sent_back(text: str = "Sure.", call_id: str = "c1", name: str = "f", arguments: str = '{"a":2,"b":1}') -> Message:
    return Message("assistant", (Text(text, "m"), ToolUse(call_id, name, arguments, "m")), "m")


def test_turn_sent_back_as_handed_out_is_recalled() -> None:
    memory = ReplayMemory()
    memory.remember(RED, TURN, "as generated")
    assert memory.recall(RED, sent_back()) == "as generated"
    assert memory.recall(RED, sent_back(" Sure.\n")) == "as generated"


def test_changed_or_foreign_turn_is_not_recalled() -> None:
    memory = ReplayMemory()
    memory.remember(RED, TURN, "as generated")
    changed = [sent_back("No."), sent_back(call_id="c2"), sent_back(name="g"), sent_back(arguments='{"a":3,"b":1}')]
    assert [memory.recall(RED, message) for message in changed] == [None] * 4
    assert memory.recall(BLUE, sent_back()) is None
    assert memory.recall(RED, Message("assistant", (Text("Sure.", "m"),), "m")) is None


def test_memory_of_turns_forgets_the_oldest_and_stays_within_its_bytes() -> None:
    memory = ReplayMemory(max_bytes=3000)
    for index in range(10):
        memory.remember(RED, HandedOut("", ((f"c{index}", "f", "{}"),)), "x" * 100)
    kept = [index for index in range(10) if memory.recall(RED, sent_back("", f"c{index}", "f", "{}"))]
    assert kept == [7, 8, 9]


def test_models_are_listed_in_pages_for_anthropic() -> None:
    models = ServedModels(("a", "b", "c"), created=0, max_context=10)
    page = models.anthropic_list(after_id=None, before_id=None, limit=2)
    assert ([entry["id"] for entry in page["data"]], page["has_more"], page["last_id"]) == (["a", "b"], True, "b")
    rest = models.anthropic_list(after_id="b", before_id=None, limit=2)
    assert ([entry["id"] for entry in rest["data"]], rest["has_more"]) == (["c"], False)
    with pytest.raises(UnknownModel):
        models.check("d")


def test_text_around_calls_stays_in_order() -> None:
    from anaphora.api.answers import Finish

    events = [TextPiece(0, "a"), TextPiece(0, "b"), CallPiece(0, "1", "f", "{}"), TextPiece(0, "c"), Finish(0, "stop")]
    (answer,) = collect(events, 1)
    assert answer.blocks == (TextPiece(0, "ab"), CallPiece(0, "1", "f", "{}"), TextPiece(0, "c"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32", "utf-16-le"])
@pytest.mark.parametrize("text", ["\ud800", "\\ud800", "a\udc00\ud800"])
def test_no_encoding_brings_a_lone_surrogate_in(text: str, encoding: str) -> None:
    with pytest.raises(RequestError):
        parse_body(f'{{"a": "{text}"}}'.encode(encoding, "surrogatepass"))


def test_byte_order_mark_is_no_part_of_the_body() -> None:
    assert parse_body(b'\xef\xbb\xbf{"a": "\xc3\xa9"}') == {"a": "\u00e9"}


@pytest.mark.parametrize("token", [-1, 2**31, 2**63, -(2**64), 10**100, True, 1.0, None, "1"])
@pytest.mark.parametrize("is_batch", [False, True])
def test_token_ids_of_any_size_are_refused_by_place(token: object, is_batch: bool) -> None:
    prompt: list[object] = [5, token]
    with pytest.raises(RequestError) as caught:
        read_completion({"model": "m", "prompt": [prompt] if is_batch else prompt})
    assert caught.value.field == ("prompt[0][1]" if is_batch else "prompt[1]")
