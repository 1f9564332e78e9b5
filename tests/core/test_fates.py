"""What became of what was cached. Method: small pools that evict all the time, asked about what they lost."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anaphora.core.cache import PrefixCache
from anaphora.core.events import Cleared, Evicted, Stored
from anaphora.core.fates import MAX_NAMESPACES, Fate, Fates
from anaphora.core.index import place_of
from anaphora.core.lease import Lease
from anaphora.core.namespace import Namespace, shared_namespace_of

SPACE, OTHER = Namespace(b"s" * 32), Namespace(b"o" * 32)
LONG = "abcdefghijklmnopqrstuvwxyz"


def tokens(text: str) -> np.ndarray:
    return np.array([ord(letter) for letter in text], dtype=np.int32)


def make_cache(num_slots: int, **options: object) -> PrefixCache:
    return PrefixCache(num_slots, **{"clock": lambda: 0.0, **options})  # type: ignore[arg-type]


def store(cache: PrefixCache, text: str, *, space: Namespace = SPACE) -> None:
    """Cache a prompt and let go of it."""
    num_new = len(text) - cache.peek(space, tokens(text)).num_tokens
    lease = cache.acquire(space, tokens(text), max_reuse=len(text), num_private=num_new)
    assert isinstance(lease, Lease)
    cache.publish(lease, tokens(text), len(text))
    cache.release(lease)


def fate(
    fates: Fates, text: str, num_reused: int, *, space: Namespace = SPACE, now: float, age_s: float = 99.0
) -> Fate | None:
    return fates.of(space, tokens(text), num_reused, age_s=age_s, now=now)


def evicted(
    text: str, position: int, *, when: float, num_tokens: int = 1, asker: Namespace = SPACE, space: Namespace = SPACE
) -> Evicted:
    return Evicted(space, num_tokens, when, place_of(space, tokens(text), position), asker)


def test_what_is_missing_was_evicted_then_and_for_whom() -> None:
    now, fates = [0.0], Fates()
    cache = make_cache(6, clock=lambda: now[0], listener=fates.note)
    store(cache, "abcd")
    now[0] = 1.0
    store(cache, "wxyz", space=OTHER)
    assert fate(fates, "abcd", 2, now=4.0) == Fate("evicted", 3.0, for_others=True)
    assert fate(fates, "abcd", 2, space=OTHER, now=4.0) is None, "nobody learns of another's"
    now[0] = 2.0
    store(cache, "pqrstu")
    assert fate(fates, "abcd", 0, now=4.0) == Fate("evicted", 2.0)


def test_what_was_evicted_from_further_in_front_is_found() -> None:
    fates = Fates()
    fates.note(evicted("abcdef", 1, when=1.0, num_tokens=5))
    fates.note(evicted("zz", 1, when=2.0, asker=OTHER))
    assert fate(fates, "abcdef", 4, now=2.0) == Fate("evicted", 1.0), "evicted from place 1 to 6"
    assert fate(fates, "abcdefg", 6, now=2.0) == Fate("evicted", 0.0, for_others=True, is_exact=False)


def test_what_happened_before_it_was_cached_is_not_its_fate() -> None:
    fates = Fates()
    fates.note(evicted("ab", 1, when=1.0))
    assert fate(fates, "ab", 1, now=3.0, age_s=2.0) == Fate("evicted", 2.0)
    assert fate(fates, "ab", 1, now=3.0, age_s=1.5) is None
    fates.note(Cleared(SPACE, 4, 1.0))
    assert fate(fates, "ab", 1, now=3.0, age_s=1.5) is None


def test_the_newest_eviction_of_a_place_counts() -> None:
    fates = Fates()
    for when, asker in ((1.0, OTHER), (2.0, SPACE)):
        fates.note(evicted("ab", 1, when=when, asker=asker))
    fates.note(Stored(SPACE, 1, 3.0))
    assert fate(fates, "ab", 1, now=2.0) == Fate("evicted", 0.0)


def test_a_namespace_that_was_cleared_answers_for_all_in_it() -> None:
    fates = Fates()
    fates.note(evicted("ab", 1, when=1.0))
    fates.note(Cleared(SPACE, 4, 2.0))
    assert fate(fates, "ab", 1, now=5.0) == Fate("cleared", 3.0)
    assert fate(fates, "ab", 1, space=OTHER, now=5.0) is None


def test_what_is_shared_has_its_fate_under_the_shared_name() -> None:
    shared = shared_namespace_of(model_digest=b"m")
    fates = Fates(shared=shared)
    fates.note(evicted("ab", 1, when=1.0, space=shared))
    assert fate(fates, "ab", 1, now=1.0) == Fate("evicted", 0.0, for_others=True)


def test_memory_is_bounded_and_the_oldest_go_first() -> None:
    fates = Fates(max_evictions=2)
    for when, text in enumerate(("a", "b", "c")):
        fates.note(evicted(text, 0, when=when))
    assert len(fates) == 2
    assert fate(fates, "a", 0, now=9.0) == Fate("evicted", 7.0, is_exact=False)
    assert fate(fates, "b", 0, now=9.0) == Fate("evicted", 8.0)
    for number in range(MAX_NAMESPACES + 1):
        fates.note(Cleared(Namespace(b"%d" % number), 1, 0.0))
    assert fate(fates, "a", 0, space=Namespace(b"0"), now=0.0) is None
    assert fate(fates, "a", 0, space=Namespace(b"1"), now=0.0) == Fate("cleared", 0.0)


@given(st.lists(st.tuples(st.integers(1, 20), st.text("ab", min_size=1, max_size=12)), max_size=12))
def test_every_lost_token_of_a_prompt_that_was_cached_has_a_fate(stored: list[tuple[int, str]]) -> None:
    fates, known = Fates(), set[str]()
    cache = make_cache(36, listener=fates.note)
    for num_shared, tail in stored:
        text = LONG[:num_shared] + tail
        num_reused = cache.peek(SPACE, tokens(text)).num_tokens
        if num_reused < max((len(one) for one in known if text.startswith(one)), default=0):
            found = fate(fates, text, num_reused, now=0.0)
            assert found is not None
            assert found.kind == "evicted"
        store(cache, text)
        known |= {text[:stop] for stop in range(1, len(text) + 1)}


def test_a_place_is_the_same_however_the_tree_is_cut() -> None:
    fates = Fates()
    cache = make_cache(len(LONG) + 4, listener=fates.note)
    for text in (LONG[:3], LONG[:9], f"{LONG[:5]}!", LONG):
        store(cache, text)
    store(cache, "0123456789ABCDEF")
    num_left = cache.peek(SPACE, tokens(LONG)).num_tokens
    assert 0 < num_left < len(LONG)
    assert fate(fates, LONG, num_left, now=0.0) == Fate("evicted", 0.0)


def test_a_place_is_told_by_what_stands_right_in_front_of_it() -> None:
    fates = Fates()
    cache = make_cache(42, listener=fates.note)
    for text in (f"{LONG}12345678", f"{LONG}abcdefgh"):
        store(cache, text)
    store(cache, "0123")
    lost = next(
        text for text in (f"{LONG}12345678", f"{LONG}abcdefgh") if cache.peek(SPACE, tokens(text)).num_tokens < 34
    )
    num_left = cache.peek(SPACE, tokens(lost)).num_tokens
    assert len(LONG) <= num_left < len(LONG) + 8
    assert fate(fates, lost, num_left, now=0.0) == Fate("evicted", 0.0)
