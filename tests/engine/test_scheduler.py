"""The scheduler against the real cache: budgets kept, first come first served, decodes first, nobody starves.

Method: hypothesis draws crowds of requests and the step in which each arrives; a step is carried out without a model
(what was scheduled counts as computed, and a made-up token follows), with the cache checked after each.
"""

from hypothesis import event, given, settings
from hypothesis import strategies as st
from scheduler_world import World, sequence_of

from anaphora.engine.joining import MIN_JOINED

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=30)
crowds = st.lists(st.tuples(st.integers(0, 12), prompts, st.integers(0, 25)), min_size=1, max_size=12)


@settings(max_examples=300)
@given(crowds, st.integers(1, 40), st.integers(1, 6), st.booleans())
def test_every_request_ends_whatever_the_crowd(
    crowd: list[tuple[int, list[int], int]], max_step_tokens: int, max_sequences: int, cache: bool
) -> None:
    world = World(max_step_tokens=max_step_tokens, max_sequences=max_sequences, cache=cache)
    arrivals = [(at, sequence_of(tokens, max_new_tokens=new)) for at, tokens, new in crowd]
    now = 0
    while len(world.finished) < len(arrivals):
        for at, sequence in arrivals:
            if at == now:
                world.scheduler.add(sequence)
        shares = world.step()
        assert shares or not (world.scheduler.running or world.scheduler.waiting), (
            "work is left and nothing is scheduled"
        )
        now += 1
        assert now < 5000, "somebody starves"
    assert world.cache.counts().leased == 0
    for at, sequence in arrivals:
        assert sequence.num_left == 0
        assert at <= now
    event(f"preempted: {world.scheduler.num_preemptions > 0}")


@settings(max_examples=100)
@given(crowds, st.integers(1, 40), st.integers(1, 6), st.randoms(use_true_random=False))
def test_aborted_sequences_give_everything_back(
    crowd: list[tuple[int, list[int], int]], max_step_tokens: int, max_sequences: int, random: object
) -> None:
    world = World(max_step_tokens=max_step_tokens, max_sequences=max_sequences)
    alive = [sequence_of(tokens, max_new_tokens=new) for _, tokens, new in crowd]
    for sequence in alive:
        world.scheduler.add(sequence)
    while alive:
        world.step()
        alive = [sequence for sequence in alive if sequence not in world.finished]
        if alive:
            gone = random.choice(alive)  # type: ignore[attr-defined]
            world.scheduler.remove(gone)
            assert gone.lease is None
            alive.remove(gone)
            world.cache.check()
    assert world.cache.counts().leased == 0
    assert not world.scheduler.running
    assert not world.scheduler.waiting


@given(crowds, st.integers(1, 20))
def test_first_come_is_first_started(crowd: list[tuple[int, list[int], int]], max_step_tokens: int) -> None:
    world = World(max_step_tokens=max_step_tokens, max_sequences=4)
    sequences = [sequence_of(tokens[:MIN_JOINED], max_new_tokens=new) for _, tokens, new in crowd]
    started: list[int] = []
    for sequence in sequences:
        world.scheduler.add(sequence)
    while len(world.finished) < len(sequences):
        for share in world.step():
            if share.sequence.id not in started:
                started.append(share.sequence.id)
    assert started == [sequence.id for sequence in sequences]


def test_running_answer_goes_on_while_a_long_prompt_is_read() -> None:
    world = World(max_step_tokens=4, max_sequences=4)
    quick = sequence_of([1], max_new_tokens=20)
    world.scheduler.add(quick)
    world.step()
    slow = sequence_of([2] * 30, max_new_tokens=1)
    world.scheduler.add(slow)
    for _ in range(5):
        shares = world.step()
        assert [(share.sequence.id, share.num_rows) for share in shares] == [(quick.id, 1), (slow.id, 3)]


def test_preempted_sequence_keeps_its_tokens_and_reuses_what_is_still_cached() -> None:
    world = World(max_step_tokens=64, max_sequences=4)
    old, young = sequence_of([1] * 4, max_new_tokens=50), sequence_of([0] * 5, max_new_tokens=20)
    world.scheduler.add(old)
    world.scheduler.add(young)
    while not world.scheduler.num_preemptions:
        world.step()
    tokens = young.tokens.tolist()
    assert old.lease is not None
    assert young.lease is None
    assert young.num_generated > 0
    while old not in world.finished:
        world.step()
    while young.lease is None:
        world.step()
    assert young.lease.num_reused >= len(tokens) - 2
    assert young.tokens[: len(tokens)].tolist() == tokens
    while young not in world.finished:
        world.step()
    assert young.num_generated == 20


@given(crowds)
def test_prompts_stay_whole_where_they_must(crowd: list[tuple[int, list[int], int]]) -> None:
    world = World(max_step_tokens=70, max_sequences=6, cache=False, min_first_chunk=64)
    sequences = [sequence_of(tokens, max_new_tokens=new) for _, tokens, new in crowd]
    for sequence in sequences:
        world.scheduler.add(sequence)
    while len(world.finished) < len(sequences):
        for share in world.step():
            assert share.num_rows in (1, share.sequence.num_computed)


def test_further_answers_fork_only_where_the_whole_prompt_is_cached() -> None:
    world = World(max_step_tokens=64, max_sequences=3)
    first, second, third, fourth = (sequence_of([1, 0, 1, 1], max_new_tokens=4) for _ in range(4))
    assert not world.scheduler.admit_fork(second)
    assert world.cache.counts().leased == 0
    world.scheduler.add(first)
    world.step()
    assert world.scheduler.admit_fork(second)
    assert second.num_to_compute == 0
    assert world.scheduler.admit_fork(third)
    assert not world.scheduler.admit_fork(fourth)  # no seat is left
