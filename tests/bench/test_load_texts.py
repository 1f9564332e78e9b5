"""Workloads are what they say: what is shared is shared, what is not is not, and a seed says it all.

Method: conversations as data; prompts are compared by their opening characters.
"""

import itertools
from collections.abc import Iterator

import pytest

from anaphora.bench.load.calls import Conversation, Pace
from anaphora.bench.load.cases import CASES, PLAIN, Size
from anaphora.bench.load.material import load_material
from anaphora.bench.load.workloads import WORKLOADS, Brief, take

MATERIAL = load_material()


def brief(*, seed: int = 0, salt: str = "salt", **lengths: int) -> Brief:
    return Brief(material=MATERIAL, salt=salt, seed=seed, chars_per_token=4.0, max_tokens=8, **lengths)


def written(name: str, num_requests: int = 20, **how: int) -> tuple[Conversation, ...]:
    return take(WORKLOADS[name](brief(**how)), num_requests)


def openings(conversations: tuple[Conversation, ...]) -> list[str]:
    return [one.system for one in conversations]


def shared_chars(texts: list[str]) -> int:
    """The most characters that two of the texts open with alike."""

    def of_two(one: str, other: str) -> int:
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))

    return max(of_two(*pair) for pair in itertools.combinations(texts, 2))


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_as_many_requests_are_written_as_asked_for_and_a_seed_says_which(name: str) -> None:
    first = written(name, 17)
    assert sum(len(one.turns) for one in first) == 17
    assert first == written(name, 17)
    assert first != written(name, 17, seed=1)


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_rounds_share_no_more_than_the_opening_of_their_salt(name: str) -> None:
    one, other = (next(WORKLOADS[name](brief(salt=salt))) for salt in ("blue", "red"))
    assert shared_chars([one.system, other.system]) <= 8
    if one.tools:
        assert one.tools[0] != other.tools[0]


def test_an_agent_goes_on_from_what_was_recorded() -> None:
    first, *others = written("agent", 40)
    assert all((one.system, one.tools) == (first.system, first.tools) for one in others)
    assert len(first.tools) == 14
    history = [message for turn in first.turns for message in turn.messages]
    assert history[0]["role"] == "user"
    assert all(turn.messages[-1]["role"] != "assistant" for turn in first.turns)
    assert all(turn.messages[0]["role"] == "assistant" for turn in first.turns[1:])
    assert any("tool_calls" in message for message in history)
    assert len({one.turns[0].messages[0]["content"] for one in (first, *others)}) == 1 + len(others)


def test_a_chat_keeps_the_servers_answers_and_brings_none() -> None:
    for one in written("chat"):
        assert one.keeps_answers
        assert {message["role"] for turn in one.turns for message in turn.messages} == {"user"}


def test_questions_differ_and_their_document_does_not() -> None:
    asked = written("document", 30)
    assert len(set(openings(asked))) == 1
    assert len({one.turns[0].messages[0]["content"] for one in asked}) == 30


def test_few_shot_prompts_are_of_some_subjects_and_hold_no_question_of_their_own() -> None:
    asked = written("few-shot", 60)
    assert len(set(openings(asked))) == 5
    for one in asked:
        question = str(one.turns[0].messages[0]["content"]).partition(". ")[2]
        assert question not in one.system


def test_prompts_that_share_nothing_share_nothing() -> None:
    assert shared_chars(openings(written("no-sharing", 40))) < 8


def test_mixed_load_has_every_kind() -> None:
    assert {one.kind for one in written("mixed", 200)} == {"agent", "chat", "document", "few-shot", "no-sharing"}


@pytest.mark.parametrize("name", ["agent", "chat", "document", "few-shot", "no-sharing"])
def test_lengths_are_about_those_asked_for(name: str) -> None:
    one = written(name, 1, prefix_tokens=200, own_tokens=10)[0]
    assert 600 < len(one.system) + sum(len(str(tool)) for tool in one.tools) < 1400
    if name != "agent":  # its turns are recorded
        assert len(str(one.turns[0].messages[0]["content"])) <= 40


def waves_of(name: str, **size: int | bool) -> Iterator[tuple[str, tuple[Conversation, ...], Pace, bool]]:
    case = CASES[name]
    how = Size(case.num_requests, Pace(case.concurrency), **size)  # type: ignore[arg-type]
    lengths = {"prefix_tokens": case.prefix_tokens, "own_tokens": case.own_tokens}
    for wave in case.waves(brief(**{key: value for key, value in lengths.items() if value}), how):
        yield wave.name, wave.conversations, wave.pace, wave.counts


def test_requests_over_a_shared_prefix_differ_behind_it() -> None:
    ((name, asked, pace, counts),) = waves_of("shared-prefix")
    assert (name, len(asked), pace, counts) == ("run", 32, Pace(8), True)
    assert len(set(openings(asked))) == 1
    assert len(asked[0].system) == pytest.approx(1500 * 4, rel=0.01)
    assert len({one.turns[0].messages[0]["content"] for one in asked}) == 32


def test_priming_sends_the_shared_prefix_ahead_and_does_not_count() -> None:
    prime, run = waves_of("shared-prefix", is_primed=True)
    assert (prime[0], prime[3], run[3]) == ("prime", False, True)
    assert prime[1][0].system == run[1][0].system
    assert prime[1][0].turns[0].max_tokens == 1


def test_identical_prompts_are_identical_and_the_lone_one_is_another() -> None:
    alone, together = waves_of("identical")
    assert all(one == together[1][0] for one in together[1])
    assert together[2].concurrency == len(together[1]) == 8
    assert shared_chars([alone[1][0].system, together[1][0].system]) == 0
    assert len(alone[1][0].system) == pytest.approx(len(together[1][0].system), abs=40)


def test_hits_follow_the_cold_request_of_their_length() -> None:
    waves = list(waves_of("first-token"))
    assert [wave[0] for wave in waves] == [
        f"{kind} {length}" for length in ("410+8", "2,000+16", "6,000+30") for kind in ("cold", "hit")
    ]
    for cold, hit in zip(waves[::2], waves[1::2], strict=True):
        assert len(cold[1]) == 1
        assert {one.system for one in hit[1]} == {cold[1][0].system}


def test_every_workload_can_run_without_targets() -> None:
    assert set(PLAIN) == set(WORKLOADS)
