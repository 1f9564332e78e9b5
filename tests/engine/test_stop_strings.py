"""Stop strings: however the text is split, what is shown is what a search of the whole text would show.

Method: hypothesis over a two-letter alphabet, so that stop strings nearly match all the time.
"""

from hypothesis import given
from hypothesis import strategies as st

from anaphora.engine.stop_strings import StopScanner

letters = st.text("ab", max_size=24)
stops = st.lists(st.text("ab", min_size=1, max_size=6), max_size=4).map(tuple)


def first_stop(text: str, wanted: tuple[str, ...]) -> tuple[str, str | None]:
    """Read the text one character at a time; stop as soon as the text so far holds a stop string."""
    for end in range(1, len(text) + 1):
        found = [(text.find(stop, 0, end), -len(stop), stop) for stop in wanted if stop in text[:end]]
        if found:
            at, _, stop = min(found)
            return text[:at], stop
    return text, None


@given(letters, stops)
def test_one_character_at_a_time_equals_the_plain_reference(text: str, wanted: tuple[str, ...]) -> None:
    scanner = StopScanner(wanted)
    shown, met = "", None
    for character in text:
        scanned = scanner.push(character)
        shown += scanned.text
        if scanned.stop_string is not None:
            met = scanned.stop_string
            break
    else:
        shown += scanner.flush()
    assert (shown, met) == first_stop(text, wanted)


@given(st.lists(letters, max_size=8), stops)
def test_any_splitting_shows_no_stop_string_and_no_piece_of_the_one_that_was_met(
    pieces: list[str], wanted: tuple[str, ...]
) -> None:
    scanner = StopScanner(wanted)
    shown, given_so_far = "", ""
    for piece in pieces:
        given_so_far += piece
        scanned = scanner.push(piece)
        shown += scanned.text
        if scanned.stop_string is not None:
            assert given_so_far.startswith(shown + scanned.stop_string)
            assert not any(stop in shown for stop in wanted)
            return
        assert not any(stop in given_so_far for stop in wanted)
        held = given_so_far[len(shown) :]
        assert held == "" or any(stop.startswith(held) for stop in wanted)
    assert shown + scanner.flush() == "".join(pieces)


@given(letters, stops)
def test_whole_text_at_once_ends_before_the_first_match_and_the_longest_of_those(
    text: str, wanted: tuple[str, ...]
) -> None:
    scanned = StopScanner(wanted).push(text)
    places = [text.find(stop) for stop in wanted if stop in text]
    if not places:
        assert scanned.stop_string is None
        return
    assert scanned.text == text[: min(places)]
    assert scanned.stop_string == max((stop for stop in wanted if text.startswith(stop, min(places))), key=len)


def test_empty_stop_strings_mean_nothing() -> None:
    scanner = StopScanner(("", ""))
    assert scanner.push("abc").text == "abc"
    assert scanner.push("").stop_string is None
