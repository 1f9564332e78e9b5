"""What an earlier process has seen. Method: two processes that hand digests on as a file would."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphora.engine.request import Tenant
from anaphora.explain import seen as seen_module
from anaphora.explain.seen import DIGEST_BYTES, Seen

RED, BLUE = Tenant("red"), Tenant("blue")
MODEL = b"m" * 32


def process(earlier: list[bytes], *, model: bytes = MODEL) -> tuple[Seen, list[bytes]]:
    kept: list[bytes] = []

    def keep(digests: bytes) -> None:
        kept.extend(digests[start : start + DIGEST_BYTES] for start in range(0, len(digests), DIGEST_BYTES))

    return Seen(earlier, model_digest=model, keep=keep), kept


def tokens(num_tokens: int, *, changed: int | None = None) -> np.ndarray:
    ids = np.arange(num_tokens, dtype=np.int32)
    if changed is not None:
        ids[changed] += 1
    return ids


def test_the_next_process_knows_how_far_a_prompt_was_seen() -> None:
    first, kept = process([])
    assert first.look(tokens(300), RED) == 0
    assert first.look(tokens(300), RED) == 0, "this process reuses it, which is not the question"
    assert len(kept) == len(set(kept)) == 3
    second, _ = process(kept)
    assert second.look(tokens(300), RED) == 256
    assert second.look(tokens(130, changed=129), RED) == 128
    assert second.look(tokens(63), RED) == 0
    assert second.look(tokens(300), BLUE) == 0, "another tenant's"
    other, _ = process(kept, model=b"n" * 32)
    assert other.look(tokens(300), RED) == 0, "another model's"


@given(st.integers(0, 600), st.integers(0, 600), st.integers(0, 599))
def test_the_last_place_in_front_of_a_change_is_found(num_first: int, num_second: int, changed: int) -> None:
    first, kept = process([])
    first.look(tokens(num_first), RED)
    second, _ = process(kept)
    alike = min(num_first, num_second, changed)
    found = second.look(tokens(num_second, changed=changed if changed < num_second else None), RED)
    assert found == max((place for place in (64, 128, 256, 512) if place <= alike), default=0)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_module, "MAX_DIGESTS", 4)
    seen, kept = process([])
    for start in range(9):
        seen.look(tokens(128) + np.int32(start), RED)
    seen.look(tokens(128), RED)
    assert len(kept) == 2 * 10, "what was forgotten is new again"
