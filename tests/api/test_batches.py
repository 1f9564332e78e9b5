"""Goal: batches of both APIs end with the answers that the requests would have had, one at a time, and wait for others.
Method: the official clients against the application; the queue alone, with an endpoint and a clock of the test's own.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import anthropic
import openai
import pytest
from hosted_world import MODEL, Hosted, hosted

from anaphora.api.batching import MAX_TENANT_BYTES, Batch, BatchQueue, Line, LineReply
from anaphora.engine.engine import Engine
from anaphora.engine.request import Tenant
from anaphora.errors import Overloaded, UnknownObject

MAX_POLLS = 5000


@pytest.fixture(scope="module")
def server(roomy: Engine) -> Iterator[Hosted]:
    with hosted(roomy) as running:
        yield running


def until(look: Callable[[], Any], has_ended: Callable[[Any], bool]) -> Any:
    """Look again until it has ended; every look is a request, so the server goes on."""
    for _ in range(MAX_POLLS):
        if has_ended(seen := look()):
            return seen
    raise AssertionError("the batch did not end")


def params(content: str, **fields: Any) -> Any:
    return {
        "model": MODEL,
        "max_tokens": 3,
        "temperature": 0,
        "messages": [{"role": "user", "content": content}],
        **fields,
    }


def message_batch(server: Hosted, requests: dict[str, Any], key: str = "red-key") -> Any:
    entries: Any = [{"custom_id": name, "params": one} for name, one in requests.items()]
    return server.claude(key).messages.batches.create(requests=entries)


def test_a_message_batch_ends_with_the_answers_of_its_requests(server: Hosted) -> None:
    client = server.claude().messages.batches
    system = [{"type": "text", "text": "kept for all " * 9, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    requests = {f"r{n}": params(f"question {n}", system=system) for n in range(4)}
    batch = message_batch(server, requests)
    assert (batch.processing_status, batch.results_url) == ("in_progress", None)
    assert batch.request_counts.processing == 4
    assert (batch.expires_at - batch.created_at).total_seconds() == 24 * 3600
    ended = until(lambda: client.retrieve(batch.id), lambda one: one.processing_status == "ended")
    assert (ended.request_counts.succeeded, ended.request_counts.processing) == (4, 0)
    results = {one.custom_id: one.result for one in client.results(batch.id)}
    for name, request in requests.items():
        single = server.claude().messages.create(
            **{key: one for key, one in request.items() if key != "temperature"}, extra_body={"temperature": 0}
        )
        assert results[name].message.content == single.content
        assert results[name].message.usage.service_tier == "batch"
    reads = [one.message.usage.cache_read_input_tokens for one in results.values()]
    assert sorted(read > 0 for read in reads) == [False, True, True, True]  # the first one wrote for the others


def test_what_is_wrong_with_one_request_is_told_in_its_result(server: Hosted) -> None:
    client = server.claude().messages.batches
    batch = message_batch(
        server,
        {
            "good": params("fine"),
            "model": params("x", model="nobody"),
            "stream": params("x", stream=True),
            "none": params("x", max_tokens=0),
            "fast": params("x", speed="fast"),
        },
    )
    ended = until(lambda: client.retrieve(batch.id), lambda one: one.processing_status == "ended")
    assert (ended.request_counts.succeeded, ended.request_counts.errored) == (1, 4)
    errors = {one.custom_id: one.result.error.error for one in client.results(batch.id) if one.result.type == "errored"}
    assert errors["model"].type == "not_found_error"
    assert {errors[name].type for name in ("stream", "none", "fast")} == {"invalid_request_error"}
    assert errors["none"].message.startswith("max_tokens: ")


@pytest.mark.parametrize(
    ("entries", "path"),
    [
        ([], "requests"),
        ([{"custom_id": "a b", "params": {}}], r"requests\.0\.custom_id"),
        ([{"custom_id": "x" * 65, "params": {}}], r"requests\.0\.custom_id"),
        ([{"custom_id": "a", "params": {}}, {"custom_id": "a", "params": {}}], r"requests\.1\.custom_id"),
        ([{"custom_id": "a", "params": 3}], r"requests\.0\.params"),
    ],
)
def test_a_batch_that_is_none_is_refused_by_path(server: Hosted, entries: Any, path: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=path):
        server.claude().messages.batches.create(requests=entries)


def test_message_batches_are_listed_deleted_and_apart(server: Hosted) -> None:
    client = server.claude("blue-key").messages.batches
    made = [message_batch(server, {"a": params("blue")}, "blue-key").id for _ in range(3)]
    assert [one.id for one in client.list(limit=2)] == made[::-1]  # two pages
    assert [one.id for one in client.list(before_id=made[0], limit=1).data] == [made[1]]
    until(lambda: client.retrieve(made[0]), lambda one: one.processing_status == "ended")
    with pytest.raises(anthropic.NotFoundError):
        server.claude("red-key").messages.batches.retrieve(made[0])
    assert client.delete(made[0]).id == made[0]
    with pytest.raises(anthropic.NotFoundError):
        client.retrieve(made[0])


def test_a_canceled_message_batch_ends_and_says_what_was_not_begun(server: Hosted) -> None:
    client = server.claude().messages.batches
    batch = message_batch(server, {f"r{n}": params(f"long {n}", max_tokens=150) for n in range(40)})
    with pytest.raises(anthropic.BadRequestError, match="has not ended"):
        client.delete(batch.id)
    canceling = client.cancel(batch.id)
    assert canceling.cancel_initiated_at is not None
    ended = until(lambda: client.retrieve(batch.id), lambda one: one.processing_status == "ended")
    counts = ended.request_counts
    assert counts.canceled > 0
    assert counts.canceled + counts.succeeded == 40
    assert sum(one.result.type == "canceled" for one in client.results(batch.id)) == counts.canceled
    assert client.cancel(batch.id).processing_status == "ended"


def upload(server: Hosted, lines: list[Any], key: str = "red-key") -> Any:
    content = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines).encode()
    return server.gpt(key).files.create(file=("requests.jsonl", content), purpose="batch")


def line(name: str, content: str, url: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    given = params(content) if url != "/v1/responses" else {"model": MODEL, "input": content, "max_output_tokens": 16}
    return {"custom_id": name, "method": "POST", "url": url, "body": {**given, **body}}


def test_a_file_of_requests_becomes_a_file_of_answers(server: Hosted) -> None:
    client = server.gpt()
    file = upload(server, [line("a", "one"), line("b", "two"), line("bad", "three", temperature=9)])
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).text.count("\n") == 3
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"for": "a test"}
    )
    ended = until(lambda: client.batches.retrieve(batch.id), lambda one: one.status == "completed")
    assert (ended.request_counts.total, ended.request_counts.completed, ended.request_counts.failed) == (3, 2, 1)
    assert (ended.metadata, ended.model) == ({"for": "a test"}, MODEL)
    answers = [json.loads(one) for one in client.files.content(ended.output_file_id).text.splitlines()]
    single = client.chat.completions.create(**params("one"))
    assert answers[0]["response"]["body"]["choices"][0]["message"]["content"] == single.choices[0].message.content
    assert [one["custom_id"] for one in answers] == ["a", "b"]
    assert ended.usage.output_tokens == sum(one["response"]["body"]["usage"]["completion_tokens"] for one in answers)
    [failed] = [json.loads(one) for one in client.files.content(ended.error_file_id).text.splitlines()]
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("bad", 400)
    assert failed["response"]["body"]["error"]["param"] == "temperature"
    assert batch.id in [one.id for one in client.batches.list(limit=1)]


def test_responses_and_completions_may_wait_too(server: Hosted) -> None:
    client = server.gpt()
    for url in ("/v1/responses", "/v1/completions"):
        entry = line("a", "hello", url)
        entry["body"] = (
            entry["body"] if url == "/v1/responses" else {"model": MODEL, "prompt": "hello", "max_tokens": 2}
        )
        made = client.batches.create(input_file_id=upload(server, [entry]).id, endpoint=url, completion_window="24h")  # type: ignore[arg-type]
        ended = until(lambda made=made: client.batches.retrieve(made.id), lambda one: one.status == "completed")
        assert ended.request_counts.completed == 1
        assert ended.usage.total_tokens > 0


def test_a_file_with_mistakes_fails_and_names_the_lines(server: Hosted) -> None:
    client = server.gpt()
    mistakes = [
        "{",
        line("a", "x"),
        line("a", "x"),
        {**line("b", "x"), "url": "/v1/other"},
        {**line("c", "x"), "method": "GET"},
    ]
    file = upload(server, [*mistakes, {**line("", "x")}, {**line("d", "x"), "body": 3}, "[]"])
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert batch.status == "failed"
    assert [one.line for one in batch.errors.data] == [1, 3, 4, 5, 6, 7, 8]
    assert client.batches.create(
        input_file_id=upload(server, [""]).id, endpoint="/v1/responses", completion_window="24h"
    ).errors.data[0].code == "empty_file"  # fmt: skip


def test_what_can_not_be_a_batch_is_refused(server: Hosted) -> None:
    client = server.gpt()
    file = upload(server, [line("a", "x")])
    make = client.batches.create
    with pytest.raises(openai.BadRequestError, match="endpoint"):
        make(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
    with pytest.raises(openai.BadRequestError, match="completion_window"):
        make(input_file_id=file.id, endpoint="/v1/responses", completion_window="1h")  # type: ignore[arg-type]
    with pytest.raises(openai.NotFoundError):
        make(input_file_id="file-none", endpoint="/v1/responses", completion_window="24h")
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=b"x", purpose="user_data")
    with pytest.raises(openai.NotFoundError):
        server.gpt("blue-key").files.retrieve(file.id)
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(file.id)
    broken = server.http.post("/v1/files", headers={"authorization": "Bearer red-key"}, json={"purpose": "batch"})
    assert (broken.status_code, broken.json()["error"]["param"]) == (400, "content-type")


def test_a_cancelled_batch_keeps_what_was_answered(server: Hosted) -> None:
    client = server.gpt()
    file = upload(server, [line(f"r{n}", f"cancelled {n}", max_tokens=150) for n in range(40)])
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    ended = until(lambda: client.batches.retrieve(batch.id), lambda one: one.status == "cancelled")
    lines = [json.loads(one) for one in client.files.content(ended.error_file_id).text.splitlines()]
    assert {one["error"]["code"] for one in lines} == {"batch_cancelled"}
    assert ended.request_counts.completed + len(lines) == 40


class Endpoint:
    """Answers lines when it is told to, and keeps count of how many run at once."""

    def __init__(self, *, at_once: int = 2) -> None:
        self.now = 0.0
        self.open = asyncio.Event()
        self.seen: list[str] = []
        self.num_running = self.most_running = 0
        self.at_once = at_once
        self.queue = BatchQueue(self._answer, num_at_once=lambda _: self.at_once, clock=lambda: self.now)

    def batch(self, name: str, num_lines: int, *, tenant: str = "red", body: bytes = b"{}") -> Batch:
        lines = tuple(Line(f"{name}{n}", "/v1/messages", body) for n in range(num_lines))
        return Batch(name, Tenant(tenant), "k", lines, self.now)

    async def _answer(self, batch: Batch, line: Line) -> LineReply:
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        self.seen.append(line.custom_id)
        await self.open.wait()
        self.num_running -= 1
        return LineReply(200, {}, "r", 2)

    async def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(10_000):
            if holds():
                return
            await asyncio.sleep(0)
        raise AssertionError("it never came to that")


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_batches_take_turns_and_no_more_run_than_may() -> None:
    async def story() -> None:
        world = Endpoint()
        first, second = world.batch("a", 3), world.batch("b", 2)
        world.queue.add(first)
        world.queue.add(second)
        await world.until(lambda: world.num_running == 2)  # the first of each
        world.open.set()
        await world.until(lambda: first.ended_at is not None and second.ended_at is not None)
        assert world.seen[:2] == ["a0", "b0"]
        assert sorted(world.seen[2:]) == ["a1", "a2", "b1"]
        assert world.seen.index("a1") < world.seen.index("a2")
        assert world.most_running == 2
        assert {one.body for one in first.lines} == {b""}
        await world.queue.close()

    run(story())


def test_what_has_not_begun_after_a_day_expires() -> None:
    async def story() -> None:
        world = Endpoint(at_once=1)
        batch = world.batch("a", 3)
        world.queue.add(batch)
        await world.until(lambda: world.num_running == 1)
        world.now = 24 * 3600.0
        world.open.set()
        await world.until(lambda: batch.ended_at is not None)
        assert [batch.outcomes[n] if n else "answered" for n in range(3)] == ["answered", "expired", "expired"]
        await world.queue.close()

    run(story())


def test_there_is_room_for_so_many_bytes_and_ended_ones_go_first() -> None:
    async def story() -> None:
        world = Endpoint()
        half = b"x" * (MAX_TENANT_BYTES // 2 + 1)
        world.queue.add(world.batch("a", 1, body=half))
        with pytest.raises(Overloaded):
            world.queue.add(world.batch("b", 1, body=half))
        world.queue.add(world.batch("c", 1, tenant="blue", body=half))
        world.open.set()
        await world.until(lambda: world.queue.get(Tenant("red"), "k", "a").ended_at is not None)
        world.queue.add(world.batch("b", 1, body=half))  # an ended one has its answers left, which are small
        assert [one.batch_id for one in world.queue.all_of(Tenant("red"), "k")] == ["b", "a"]
        with pytest.raises(UnknownObject):
            world.queue.get(Tenant("blue"), "k", "a")
        await world.queue.close()

    run(story())


def test_lines_that_say_nothing_take_room_too() -> None:
    async def story() -> None:
        world = Endpoint()
        many = tuple(Line(f"{n}", "/v1/messages", b"") for n in range(100_000))
        batches = [Batch(f"b{n}", Tenant("red"), "k", many, world.now) for n in range(10)]
        with pytest.raises(Overloaded):
            list(map(world.queue.add, batches))
        assert 0 < len(world.queue.all_of(Tenant("red"), "k")) < 10
        long = Batch("long", Tenant("blue"), "k", (Line("x" * MAX_TENANT_BYTES, "/v1/messages", b""),), world.now)
        with pytest.raises(Overloaded):
            world.queue.add(long)
        await world.queue.close()

    run(story())


def test_closing_ends_the_work() -> None:
    async def story() -> None:
        world = Endpoint()
        world.queue.add(world.batch("a", 5))
        await world.until(lambda: world.num_running == 1)
        await world.queue.close()
        assert world.seen == ["a0"]

    run(story())
