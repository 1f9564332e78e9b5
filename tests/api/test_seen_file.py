"""The file of what was seen: it goes on where it was left, stays bounded, and its troubles cost nobody an answer."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest

from anaphora.api import seen_file
from anaphora.api.explaining import Explaining, Question
from anaphora.api.seen_file import SeenFile, open_seen
from anaphora.engine.request import Delta, Keep, Receipt, RequestId, Tenant
from anaphora.explain.memory import MemoryLimits, prompt_of_text
from anaphora.explain.seen import DIGEST_BYTES
from anaphora.explain.words import encode_words
from anaphora.prompt.locate import Piece
from anaphora.prompt.render import Rendered

ONE, TWO = b"1" * DIGEST_BYTES, b"2" * DIGEST_BYTES
RED = Tenant("red")


def test_a_file_goes_on_where_it_was_left_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "seen"
    for expected, digests in (((), ONE), ((ONE,), TWO + b"cut"), ((ONE, TWO), b"")):
        file = SeenFile(path)
        assert file.earlier == expected
        file.append(digests)
        file.close()
    file.append(ONE)
    assert path.stat().st_mode & 0o077 == 0


def test_a_file_much_too_long_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_file, "MAX_BYTES", 2 * DIGEST_BYTES)
    path = tmp_path / "seen"
    path.write_bytes(ONE * 4 + TWO)
    file = SeenFile(path)
    file.close()
    assert file.earlier == (ONE, TWO)
    assert path.read_bytes() == ONE + TWO


def test_a_write_that_fails_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen, file = open_seen(tmp_path / "seen", model_digest=bytes(32))

    def refuse(number: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", refuse)
    with caplog.at_level(logging.WARNING):
        for start in range(3):
            assert seen.look(np.arange(start, start + 64, dtype=np.int32), RED) == 0
    assert caplog.text.count("No space left") == 1
    file.close()


def receipt(*, retention: str = "none") -> Receipt:
    return Receipt(
        request_id=RequestId("r"),
        num_prompt_tokens=9,
        num_reused_tokens=0,
        num_computed_tokens=9,
        num_written_tokens=9,
        num_generated_tokens=2,
        source="none",
        stop_reason="nothing_cached",
        queue_time_s=0.0,
        time_to_first_token_s=0.0,
        total_time_s=0.0,
        retention=retention,  # type: ignore[arg-type]
    )


def test_a_request_is_noted_with_its_answer_its_promise_and_its_failure() -> None:
    text = "Where is the pier, and who may moor there?"
    encoded = encode_words(text)
    rendered = Rendered(text, encoded.tokens, encoded.offsets, (Piece(0, len(text), "prompt"),))
    explaining = Explaining(MemoryLimits(max_requests=2), fate=lambda *asked: None, clock=lambda: 5.0)

    def arrive(name: str) -> Question:
        return Question(RED, name, f"req_{name}", "/v1/x", "m", keep=(Keep(3, 60.0), Keep(9, 300.0)))

    inquiry = explaining.arrive(arrive("a"), rendered, prompt_of_text(text, "prompt"))
    inquiry.begin(receipt())
    for index, ids in ((0, (1, 2)), (1, (7,)), (0, (3,))):
        inquiry.take(Delta(index, "word", ids))
    inquiry.end(receipt(retention="partly_kept"))
    asked = explaining.find(RED, "req_a")
    assert asked is inquiry.asked
    assert (asked.kept_until_s, asked.num_answered) == (305.0, 2), "the last token has no keys and values"
    inquiry.end(receipt())
    inquiry.fail()
    assert (asked.has_failed, asked.num_answered) == (False, 2)
    late = explaining.arrive(arrive("b"), rendered, prompt_of_text(text, "prompt"))
    late.fail()
    assert late.asked.has_failed
    assert late.compared_with("b") is None, "not with itself"
    explaining.arrive(arrive("c"), rendered, prompt_of_text(text, "prompt"))
    assert explaining.find(RED, "req_a") is None
    assert explaining.find(RED, "last") is explaining.find(RED, "c")
    explaining.note(RED, "req_a", account=1)
