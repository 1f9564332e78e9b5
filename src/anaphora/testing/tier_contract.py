"""What every lower tier must do, wherever its bytes lie. Subclass `TierContract`."""

from typing import Protocol

import numpy as np

from anaphora.core.namespace import Namespace
from anaphora.tiers.base import Origin, Outcome, Tier
from anaphora.tiers.keys import START, RecordKey, Tokens
from anaphora.tiers.record import LayerShape, Layout, Miss, MissReason, Record, pieces

_SPACE = Namespace(b"s" * 32)
_LAYOUT = Layout("float16", (LayerShape(2, 3, 5),))


class _MakesTiers(Protocol):
    def make_tier(self, cap_bytes: int) -> Tier: ...


class TierContract:
    """Tests that any tier passes. `make_tier` returns a new, empty one under that cap."""

    def test_a_new_tier_is_empty(self: _MakesTiers) -> None:
        tier = self.make_tier(1000)
        assert (len(tier), tier.size_bytes, tier.cap_bytes, tier.num_failures) == (0, 0, 1000, 0)
        assert not tier.has(_record("abc").key)
        assert tier.load(_record("abc").key) == Miss(MissReason.ABSENT)
        assert tier.following(_SPACE, START) == []
        tier.check()

    def test_what_was_stored_is_loaded_bit_by_bit(self: _MakesTiers) -> None:
        tier, record = self.make_tier(1000), _record("abc")
        assert tier.store(record) is Outcome.STORED
        assert tier.has(record.key)
        assert _is(tier.load(record.key), record)
        assert (len(tier), tier.size_bytes) == (1, record.size_bytes)
        tier.check()

    def test_a_record_is_stored_once(self: _MakesTiers) -> None:
        tier, record = self.make_tier(1000), _record("abc")
        tier.store(record)
        assert tier.store(record) is Outcome.ALREADY_STORED
        assert len(tier) == 1
        tier.check()

    def test_a_chain_is_found_up_to_its_first_gap(self: _MakesTiers) -> None:
        tier, chain = self.make_tier(5000), _chain("abc", "def", "ghi", "jkl")
        for record in (chain[0], chain[1], chain[3]):
            tier.store(record)
        keys = [record.key for record in chain]
        assert tier.find(keys) == 2
        assert tier.find(keys[:1]) == 1
        assert tier.find(keys[2:]) == 0
        assert tier.find([]) == 0

    def test_what_follows_a_record_is_listed_with_its_tokens(self: _MakesTiers) -> None:
        """So that a prompt which leaves a record in its middle can reuse the tokens before that."""
        tier, first = self.make_tier(5000), _record("abc")
        one, other = _record("def", first.key), _record("dex", first.key)
        elsewhere = _record("def", first.key, space=Namespace(b"t" * 32))
        for record in (first, one, other, elsewhere):
            tier.store(record)
        entries = tier.following(_SPACE, first.key)
        assert {entry.key for entry in entries} == {one.key, other.key}
        assert {bytes(entry.tokens.astype(np.uint8)) for entry in entries} == {b"def", b"dex"}
        assert {entry.size_bytes for entry in entries} == {one.size_bytes}

    def test_the_record_that_shares_most_is_found_among_many(self: _MakesTiers) -> None:
        tier, first = self.make_tier(50_000), _record("abc")
        tier.store(first)
        rng = np.random.default_rng(3)
        texts = {"".join("xy"[i] for i in rng.integers(2, size=rng.integers(1, 9))) for _ in range(40)}
        for text in texts:
            tier.store(_record(text, first.key))
        for _ in range(40):
            wanted = "".join("xyz"[i] for i in rng.choice(3, size=rng.integers(1, 9), p=(0.45, 0.45, 0.1)))
            most = max(_shared(text, wanted) for text in texts)
            entry = tier.nearest(_SPACE, first.key, _tokens(wanted))
            assert (0 if entry is None else _shared(_text(entry.tokens), wanted)) == most
        assert tier.nearest(_SPACE, START, _tokens("zzz")) is None
        assert tier.nearest(Namespace(b"t" * 32), first.key, _tokens("xy")) is None

    def test_a_use_counts_against_eviction(self: _MakesTiers) -> None:
        records = [_record(text) for text in ("abc", "def", "ghi", "jkl")]
        tier = self.make_tier(3 * records[0].size_bytes)
        for record in records[:3]:
            tier.store(record)
        tier.use([records[0].key, _record("nothing").key])
        assert tier.store(records[3]) is Outcome.STORED
        assert [tier.has(record.key) for record in records] == [True, False, True, True]

    def test_what_was_used_last_is_listed_behind_what_it_follows(self: _MakesTiers) -> None:
        tier, chain, other = self.make_tier(5000), _chain("abc", "def", "ghi"), _record("xyz")
        origin = Origin(b"m" * 32, "model", "red")
        for record in (*chain, other):
            tier.store(record)
        foreign = _record("else", space=Namespace(b"t" * 32))
        tier.introduce(_SPACE, origin)
        tier.introduce(foreign.namespace, Origin(b"n" * 32, "another", "red"))
        tier.use([chain[2].key])
        new, size = _record("new"), other.size_bytes
        for record in (new, foreign):  # uses are written with the next change
            tier.store(record)
        assert [one.key for one in tier.recent(origin.model_digest, max_bytes=4 * size)] == [
            record.key for record in (new, *chain)
        ]
        known = tier.recent(origin.model_digest, max_bytes=5 * size)
        assert len(known) == 5
        assert (known[3].origin, known[3].parent, known[3].is_pinned) == (origin, chain[1].key, False)
        assert _text(known[3].tokens) == "ghi"
        assert tier.recent(origin.model_digest, max_bytes=size - 1) == []

    def test_a_deleted_record_is_gone(self: _MakesTiers) -> None:
        tier, record = self.make_tier(1000), _record("abc")
        assert not tier.delete(record.key)
        tier.store(record)
        assert tier.delete(record.key)
        assert tier.load(record.key) == Miss(MissReason.ABSENT)
        assert (len(tier), tier.size_bytes) == (0, 0)
        tier.check()

    def test_a_record_larger_than_the_cap_is_refused_and_evicts_nothing(self: _MakesTiers) -> None:
        small, large = _record("abc"), _record("x" * 20)
        tier = self.make_tier(large.size_bytes - 1)
        tier.store(small)
        assert tier.store(large) is Outcome.TOO_LARGE
        assert _is(tier.load(small.key), small)
        tier.check()

    def test_a_record_just_as_large_as_the_cap_fits(self: _MakesTiers) -> None:
        small, large = _record("abc"), _record("x" * 20)
        tier = self.make_tier(large.size_bytes)
        tier.store(small)
        assert tier.store(large) is Outcome.STORED
        assert not tier.has(small.key)
        tier.check()

    def test_what_was_not_used_for_longest_is_evicted(self: _MakesTiers) -> None:
        records = [_record(text) for text in ("abc", "def", "ghi", "jkl")]
        tier = self.make_tier(3 * records[0].size_bytes)
        for record in records[:3]:
            tier.store(record)
        tier.load(records[0].key)
        assert tier.store(records[1]) is Outcome.ALREADY_STORED
        assert tier.store(records[3]) is Outcome.STORED
        assert [tier.has(record.key) for record in records] == [True, True, False, True]
        tier.check()

    def test_a_chain_is_evicted_from_its_end(self: _MakesTiers) -> None:
        """Its first record, loaded before the others, is needed to reach them."""
        chain = _chain("abc", "def", "ghi")
        tier = self.make_tier(3 * chain[0].size_bytes)
        for record in chain:
            tier.store(record)
        tier.store(_record("xyz"))
        assert tier.find([record.key for record in chain]) == 2
        tier.check()

    def test_the_prefix_of_a_record_is_not_evicted_for_it(self: _MakesTiers) -> None:
        chain = _chain("abc", "def", "ghi")
        tier = self.make_tier(2 * chain[0].size_bytes)
        assert [tier.store(record) for record in chain] == [Outcome.STORED, Outcome.STORED, Outcome.NO_ROOM]
        assert tier.find([record.key for record in chain]) == 2
        tier.check()

    def test_under_random_use_it_keeps_the_cap_and_answers_exactly(self: _MakesTiers) -> None:
        rng = np.random.default_rng(0)
        tier = self.make_tier(1500)
        for _ in range(150):
            record = _record("abcdefgh"[: rng.integers(1, 9)] + str(rng.integers(4)))
            doing = rng.integers(3)
            if doing == 0:
                assert tier.store(record) in (Outcome.STORED, Outcome.ALREADY_STORED)
                assert tier.has(record.key)
            elif doing == 1:
                there = tier.has(record.key)
                assert tier.delete(record.key) is there
                assert not tier.has(record.key)
            else:
                there, loaded = tier.has(record.key), tier.load(record.key)
                assert _is(loaded, record) if there else loaded == Miss(MissReason.ABSENT)
            assert tier.size_bytes <= 1500
            tier.check()
        assert tier.num_failures == 0


def _record(text: str, parent: RecordKey = START, *, space: Namespace = _SPACE) -> Record:
    """A record of one token a letter, whose keys and values follow from all that names it."""
    tokens = _tokens(text)
    seed = [*space[:4], *parent[:8], *tokens.tolist()]
    kv = np.random.default_rng(seed).integers(0, 256, _LAYOUT.kv_bytes(len(text)), dtype=np.uint8)
    return Record(space, parent, tokens, _LAYOUT, kv)


def _tokens(text: str) -> Tokens:
    return np.array([ord(letter) for letter in text], dtype=np.int32)


def _text(tokens: Tokens) -> str:
    return "".join(map(chr, tokens.tolist()))


def _shared(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _chain(*texts: str) -> list[Record]:
    chain: list[Record] = []
    for text in texts:
        chain.append(_record(text, chain[-1].key if chain else START))
    return chain


def _is(loaded: Record | Miss, record: Record) -> bool:
    return isinstance(loaded, Record) and b"".join(pieces(loaded)) == b"".join(pieces(record))
