"""Prompts surveyed, cut anew, and taken from one tier to another. Method: small records whose bytes follow from their
tokens; what was cut anew is compared value by value."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from records_world import LAYOUT, SPACE, make_record, same

from anaphora.core.namespace import Namespace, namespace_of
from anaphora.tiers.archive import NotImported, import_archive, origin_of_archive, write_archive
from anaphora.tiers.base import Known, Origin
from anaphora.tiers.host import HostTier
from anaphora.tiers.keys import START
from anaphora.tiers.record import Record
from anaphora.tiers.recut import recut
from anaphora.tiers.survey import Survey

DIGEST = b"m" * 32
RED = Origin(DIGEST, "model", "red")
RED_SPACE = namespace_of(model_digest=DIGEST, tenant="red")


def chain(*texts: str, namespace: Namespace = SPACE) -> list[Record]:
    records: list[Record] = []
    for text in texts:
        parent = records[-1].key if records else START
        records.append(make_record(text, parent=parent, namespace=namespace))
    return records


def values(records: list[Record]) -> list[np.ndarray]:
    """Everything they hold, layer by layer, in token order, as integers: no number equals NaN."""
    pairs = [[record.layer(index) for record in records] for index in range(len(LAYOUT.layers))]
    joined = [np.concatenate([pair[which] for pair in layer], axis=1) for layer in pairs for which in (0, 1)]
    return [np.ascontiguousarray(one).view(np.uint32) for one in joined]


def text_of(records: list[Record]) -> list[str]:
    return ["".join(map(chr, record.tokens)) for record in records]


def known(record: Record, *, origin: Origin | None = RED, is_pinned: bool = False) -> Known:
    return Known(record.key, record.namespace, record.parent, record.tokens, 10, origin, is_pinned)


@pytest.mark.parametrize("texts", [("abcdefgh",), ("abc", "defgh"), ("ab", "cdefg", "h"), ("abcd", "efgh")])
def test_the_same_tokens_are_cut_elsewhere_and_named_anew(texts: tuple[str, ...]):
    records = chain(*texts)
    cut = list(recut(records, namespace=RED_SPACE, record_tokens=4))
    assert text_of(cut) == ["abcd", "efgh"]
    assert [one.namespace for one in cut] == [RED_SPACE] * 2
    assert [one.parent for one in cut] == [START, cut[0].key]
    assert all(np.array_equal(one, other) for one, other in zip(values(cut), values(records), strict=True))


def test_what_is_left_over_is_a_short_record():
    assert text_of(list(recut(chain("abcde", "f"), namespace=RED_SPACE, record_tokens=4))) == ["abcd", "ef"]


def test_an_archive_brings_a_prompt_to_another_tier(tmp_path: Path):
    records, tier = chain("abcde", "fgh"), HostTier(cap_bytes=100_000)
    assert write_archive(tmp_path / "prompt", RED, records) == (tmp_path / "prompt").stat().st_size
    assert (tmp_path / "prompt").stat().st_mode & 0o777 == 0o600
    assert origin_of_archive(tmp_path / "prompt") == RED
    assert import_archive(tmp_path / "prompt", tier, origin=RED, record_tokens=4) == 8
    (first, second) = tier.recent(DIGEST, max_bytes=100_000)
    assert (first.origin, first.namespace, first.parent) == (RED, RED_SPACE, START)
    stored = [tier.load(one.key) for one in (first, second)]
    assert all(isinstance(one, Record) for one in stored)
    assert all(np.array_equal(a, b) for a, b in zip(values(stored), values(records), strict=True))  # type: ignore[arg-type]
    assert import_archive(tmp_path / "prompt", tier, origin=RED, record_tokens=4) == 8
    assert len(tier) == 2


def test_an_archive_of_another_model_is_refused(tmp_path: Path):
    write_archive(tmp_path / "prompt", RED, chain("abcde"))
    tier = HostTier(cap_bytes=100_000)
    other = Origin(b"n" * 32, "another", "red")
    with pytest.raises(NotImported, match="another model: model"):
        import_archive(tmp_path / "prompt", tier, origin=other, record_tokens=4)
    assert len(tier) == 0


def test_an_archive_is_never_written_over_a_file(tmp_path: Path):
    (tmp_path / "mine").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        write_archive(tmp_path / "mine", RED, chain("abcde"))


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_archive_is_refused_or_gives_what_was_in_it(tmp_path: Path, seed: int):
    records = chain("abcd", "efgh", namespace=RED_SPACE)
    path = tmp_path / "prompt"
    write_archive(path, RED, records)
    rng, content = np.random.default_rng(seed), bytearray(path.read_bytes())
    at = int(rng.integers(len(content)))
    if seed % 3:
        content[at] ^= 1 << int(rng.integers(8))
    else:
        del content[at:]
    path.write_bytes(content)
    tier = HostTier(cap_bytes=100_000)
    with contextlib.suppress(NotImported):
        import_archive(path, tier, origin=RED, record_tokens=4)
    for record in records:
        loaded = tier.load(record.key)
        assert not isinstance(loaded, Record) or same(loaded, record)
    assert {one.key for one in tier.recent(DIGEST, max_bytes=10**6)} <= {record.key for record in records}


def test_prompts_are_listed_with_all_that_is_in_front_of_them():
    one, other = chain("abc", "def"), chain("abc", "xyz")
    survey = Survey([known(one[1]), known(other[1], is_pinned=True), known(one[0])])
    prefixes = survey.prefixes()
    assert [prefix.key for prefix in prefixes] == [one[1].key, other[1].key]
    assert [(prefix.num_tokens, prefix.size_bytes, prefix.is_pinned) for prefix in prefixes] == [
        (6, 20, False),
        (6, 20, True),
    ]
    assert [record.key for record in survey.from_there_on(one[0].key)][-1] == one[0].key
    assert len(survey.from_there_on(one[0].key)) == 3
    assert survey.named(one[1].key.hex()[:10]) == [one[1].key]


def test_a_tenants_records_are_its_own_and_not_what_is_shared():
    shared = Origin(DIGEST, "model", None)
    region, red = make_record("abc"), RED_SPACE
    mine = make_record("def", parent=region.key, namespace=red)
    more = make_record("ghi", parent=mine.key, namespace=red)
    survey = Survey([known(more), known(mine), known(region, origin=shared)])
    assert [one.key for one in survey.of_tenant("red")] == [more.key, mine.key]
    assert {one.key for one in survey.of_tenant(None)} == {region.key, mine.key, more.key}
    assert survey.of_tenant("blue") == []


def test_a_prompt_whose_beginning_is_gone_is_not_whole():
    records = chain("abc", "def")
    assert not Survey([known(records[1])]).prefixes()[0].is_whole()
    assert Survey(map(known, records)).prefixes()[0].is_whole()
