"""Who opens longest like new tokens. Method: random words against a list that is searched from end to end."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphora.explain.openings import Openings

words = st.text(alphabet="ab", min_size=1, max_size=6)


def tokens(text: str) -> np.ndarray:
    return np.array([ord(letter) for letter in text], dtype=np.int32)


def common(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_the_longest_opening_wins_and_the_latest_of_equals() -> None:
    openings: Openings[str] = Openings()
    openings.add(tokens("rules a"), "first")
    openings.add(tokens("rules b"), "second")
    found = openings.nearest(tokens("rules ax"))
    assert found is not None
    assert (found.num_tokens, found.value) == (7, "first")
    found = openings.nearest(tokens("rules c"))
    assert found is not None
    assert (found.num_tokens, found.value) == (6, "second")
    assert openings.nearest(tokens("xyz")) is None
    assert openings.num_tokens == len("rules ") + 2


def test_what_was_added_first_is_forgotten_first() -> None:
    openings: Openings[str] = Openings()
    first = openings.add(tokens("abc"), "first").handle
    openings.add(tokens("abd"), "second")
    assert openings.forget_oldest() == "first"
    openings.extend(first, tokens("zz"))
    openings.check()
    found = openings.nearest(tokens("abczz"))
    assert found is not None
    assert (found.num_tokens, found.value) == (2, "second")
    assert openings.forget_oldest() == "second"
    openings.check()
    assert (len(openings), openings.num_tokens) == (0, 0)


def test_nothing_opens_like_nothing() -> None:
    with pytest.raises(AssertionError, match="nothing"):
        Openings[int]().add(tokens(""), 1)


@given(st.lists(st.one_of(words, st.tuples(st.integers(0, 9), words), st.none()), max_size=30), words)
def test_tree_agrees_with_a_list(steps: list[str | tuple[int, str] | None], asked: str) -> None:
    openings: Openings[int] = Openings()
    known: dict[int, str] = {}
    handles = []
    for step in steps:
        if step is None:
            if known:
                oldest = min(known)
                assert openings.forget_oldest() == oldest
                del known[oldest]
        elif isinstance(step, str):
            added = openings.add(tokens(step), len(handles))
            best = max(((common(text, step), number) for number, text in known.items()), default=(0, -1))
            nearest = None if added.nearest is None else (added.nearest.num_tokens, added.nearest.value)
            assert nearest == (best if best[0] else None)
            known[len(handles)] = step
            handles.append(added.handle)
        elif handles:
            number = step[0] % len(handles)
            openings.extend(handles[number], tokens(step[1]))
            if number in known:
                known[number] += step[1]
        openings.check()
    for number, text in known.items():
        assert openings.tokens_of(handles[number]).tolist() == tokens(text).tolist()
    found = openings.nearest(tokens(asked))
    best = max(((common(text, asked), number) for number, text in known.items()), default=(0, -1))
    assert (None if found is None else (found.num_tokens, found.value)) == (best if best[0] else None)
