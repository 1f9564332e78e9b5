"""The book of entries: bounded, swept as time passes, its own check true after every step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphora.contract.entries import Entries, Write
from anaphora.contract.layout import Key


def key(number: int) -> Key:
    return Key(bytes([number]))


def test_the_entry_that_expires_first_makes_room() -> None:
    book = Entries(max_entries=2)
    for number, lifetime_s in ((1, 50.0), (2, 10.0), (3, 30.0)):
        book.publish(Write(key(number), lifetime_s, 0.0))
        book.check()
    assert [book.is_live(key(number), 0.0) for number in (1, 2, 3)] == [True, False, True]


def test_expired_entries_take_no_room() -> None:
    book = Entries()
    for number in range(100):
        book.publish(Write(key(number), 10.0, 0.0))
    book.refresh(key(7), 5.0)
    book.sweep(11.0)
    assert len(book) == 1
    book.sweep(16.0)
    assert len(book) == 0


def test_a_limit_on_life_holds_against_refreshes() -> None:
    book = Entries()
    book.publish(Write(key(1), 10.0, 0.0, 25.0))
    for at_s in (8.0, 16.0, 24.0):
        book.refresh(key(1), at_s)
    assert book.is_live(key(1), 25.0)
    assert not book.is_live(key(1), 25.1)


def test_check_sees_an_entry_that_is_filed_nowhere() -> None:
    book = Entries()
    book.publish(Write(key(1), 10.0, 0.0))
    book._by_expiry.clear()
    with pytest.raises(AssertionError):
        book.check()


Step = tuple[str, int, int]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["publish", "refresh", "sweep"]), st.integers(0, 5), st.integers(1, 20))))
def test_book_agrees_with_a_table_of_expiries(steps: list[Step]) -> None:
    book, table, now_s = Entries(), dict[int, tuple[float, float]](), 0.0
    for what, number, amount in steps:
        if what == "publish":
            lifetime_s, expires_s = table.get(number, (0.0, 0.0))
            table[number] = (max(lifetime_s, amount), max(expires_s, now_s + amount))
            book.publish(Write(key(number), amount, now_s))
        elif what == "refresh" and book.is_live(key(number), now_s):
            table[number] = (table[number][0], max(table[number][1], now_s + table[number][0]))
            book.refresh(key(number), now_s)
        elif what == "sweep":
            now_s += amount
            book.sweep(now_s)
            table = {one: life for one, life in table.items() if life[1] >= now_s}
        book.check()
        for one in range(6):
            assert book.is_live(key(one), now_s) == (one in table and table[one][1] >= now_s)
