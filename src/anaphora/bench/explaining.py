"""What explanations cost: of a hit's time, and for a log."""

import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from anaphora.api.explaining import Explaining, Question
from anaphora.api.recorded import RecordedReader
from anaphora.bench.lines import Line, at_most
from anaphora.bench.timing import median_us
from anaphora.engine.request import Delta, Receipt, RequestId, Tenant
from anaphora.explain.lint import Linter, Sent
from anaphora.explain.memory import MemoryLimits
from anaphora.explain.seen import Seen
from anaphora.explain.words import encode_words
from anaphora.prompt.canonical import Message, Prompt, Text
from anaphora.prompt.render import Renderer

LOG_REQUESTS = 10_000
LOG_TOKENS = 10_000
_SAMPLE = 60
_NUM_ROUNDS = 41
_SENTENCE = "the harbour is deep and boats come at night when tides are high so ask about ropes anchors and lights"
_WORDS = _SENTENCE.split()


def explaining_line(name: str, hit_s: float, *, num_cached: int, num_new: int) -> Line:
    """Compare what a server does to explain a request with a hit: remember it, name its miss, note its answer.

    The mean of two kinds: another question, and a time in front that loses all, which is the dearest to explain.
    """
    times: list[float] = []
    for is_timed in (False, True):
        prompts = itertools.islice(_prompts(num_cached, num_new, is_timed=is_timed), _NUM_ROUNDS + 1)
        requests = iter(list(enumerate(prompts)))
        times.append(median_us(_explainer(requests, num_new), num_rounds=_NUM_ROUNDS) / 1e6)
    took_s = sum(times) / len(times)
    parts = {"explain_ms": 1e3 * took_s, "hit_ms": 1e3 * hit_s}
    return Line(f"{name}: explanation / hit", took_s / hit_s, "x", at_most(0.01), parts)


def _explainer(requests: Iterator[tuple[int, Prompt]], num_new: int) -> Callable[[], None]:
    """Explain the next of some requests, rendered beforehand, at each call."""
    renderer, explaining = Renderer(None, encode_words), _explaining()
    rendered = iter([(number, prompt, renderer.render(prompt)) for number, prompt in requests])

    def explain_next() -> None:
        number, prompt, one = next(rendered)
        receipt = _receipt(len(one.tokens), num_new)
        question = Question(Tenant("tenant"), f"response-{number}", f"request-{number}", "endpoint", "model")
        inquiry = explaining.arrive(question, one, prompt)
        inquiry.begin(receipt)
        inquiry.take(Delta(0, " word", (7,)))
        inquiry.end(receipt)

    return explain_next


def lint_line() -> Line:
    """Time lint on a log whose requests share nothing, the dearest there is: seconds for 10,000 of 10,000 tokens."""
    lines = [json.dumps(_body(number)) for number in range(_SAMPLE)]

    def lint() -> int:
        reader, linter = RecordedReader(), Linter()
        for line in lines:
            for recorded in reader.read(json.loads(line)):
                linter.take(Sent(recorded.side))
        return linter.report().num_tokens

    num_tokens = lint()
    took_s = median_us(lint, num_rounds=3) / 1e6 / _SAMPLE * LOG_REQUESTS
    parts = {"request_ms": 1e3 * took_s / LOG_REQUESTS, "tokens_each": num_tokens / _SAMPLE}
    return Line("lint of 10,000 requests of 10,000 tokens", took_s, "s", at_most(60.0), parts)


def _explaining() -> Explaining:
    seen = Seen((), model_digest=bytes(32), keep=lambda digests: None)
    return Explaining(MemoryLimits(), fate=lambda *asked: None, seen=seen)


def _prompts(num_cached: int, num_new: int, *, is_timed: bool) -> Iterator[Prompt]:
    """Questions over one system prompt, with or without the time in front of it."""
    draw = random.Random(0)
    system = _text(draw, num_cached)
    for number in itertools.count():
        said = f"It is 10:{number // 60 % 60:02}:{number % 60:02}. {system}" if is_timed else system
        question = Text(_text(draw, num_new), "messages[0].content")
        yield Prompt((Message("user", (question,), "messages[0]"),), (Text(said, "system"),))


def _body(number: int) -> dict[str, Any]:
    draw = random.Random(number)
    messages = [{"role": role, "content": _text(draw, LOG_TOKENS // 2)} for role in ("system", "user")]
    return {"model": "model", "messages": messages}


def _text(draw: random.Random, num_words: int) -> str:
    return " ".join(draw.choice(_WORDS) for _ in range(num_words))


def _receipt(num_tokens: int, num_new: int) -> Receipt:
    return Receipt(
        request_id=RequestId("request"),
        num_prompt_tokens=num_tokens,
        num_reused_tokens=num_tokens - num_new,
        num_computed_tokens=num_new,
        num_written_tokens=num_new,
        num_generated_tokens=1,
        source="device",
        stop_reason="diverged",
        queue_time_s=0.0,
        time_to_first_token_s=0.0,
        total_time_s=0.0,
    )
