"""The disk tier outlives its process and what happens to its folder. Method: real files, damaged on purpose."""

import logging
import os
import shutil
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records_world import file_bytes, make_record, same

from anaphora.tiers.base import Outcome
from anaphora.tiers.disk import DiskTier
from anaphora.tiers.keys import START
from anaphora.tiers.record import Miss, MissReason, Record

TEXTS = ("abcde", "fghij", "klmno")
SIZE = make_record("abcde").size_bytes


def filled(folder: Path, *, cap_bytes: int = 10 * SIZE) -> list[Record]:
    """Store three records, close, and give them back."""
    tier = DiskTier(folder, cap_bytes=cap_bytes)
    records = [make_record(text) for text in TEXTS]
    for record in records:
        assert tier.store(record) is Outcome.STORED
    tier.check()
    tier.close()
    return records


def file_of(folder: Path, record: Record) -> Path:
    return folder / "v2" / "records" / f"{record.key.hex()}.kv"


def is_exact(loaded: Record | Miss, record: Record) -> bool:
    return isinstance(loaded, Record) and same(loaded, record)


def test_a_restart_finds_everything(tmp_path: Path):
    records = filled(tmp_path)
    tier = DiskTier(tmp_path, cap_bytes=10 * SIZE)
    tier.check()
    assert tier.size_bytes == 3 * SIZE
    assert all(is_exact(tier.load(record.key), record) for record in records)
    assert [entry.key for entry in tier.following(records[0].namespace, START)] == [
        record.key for record in reversed(records)
    ]
    tier.close()


def test_order_of_use_survives_a_restart(tmp_path: Path):
    first, second, third = filled(tmp_path)
    tier = DiskTier(tmp_path, cap_bytes=3 * SIZE)
    tier.load(first.key)
    tier.close()
    tier = DiskTier(tmp_path, cap_bytes=3 * SIZE)
    tier.store(make_record("pqrst"))
    assert [tier.has(record.key) for record in (first, second, third)] == [True, False, True]
    tier.close()


def test_a_smaller_cap_evicts_at_the_start(tmp_path: Path):
    records = filled(tmp_path)
    tier = DiskTier(tmp_path, cap_bytes=SIZE)
    tier.check()
    assert [tier.has(record.key) for record in records] == [False, False, True]
    tier.close()


def test_files_are_the_owners_alone(tmp_path: Path):
    previous = os.umask(0)
    try:
        tier = DiskTier(tmp_path / "new", cap_bytes=10 * SIZE)
        tier.store(make_record("abcde"))
        files = [path for path in (tmp_path / "new").rglob("*") if path.is_file()]
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}
        tier.close()
    finally:
        os.umask(previous)
    assert len(modes) >= 4
    assert set(modes.values()) == {0o600}, modes


@settings(max_examples=40)
@given(st.data())
def test_a_damaged_file_is_a_miss_and_then_gone(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    folder = tmp_path_factory.mktemp("damaged")
    victim, *others = filled(folder)
    path, content = file_of(folder, victim), bytearray(file_bytes(victim))
    if data.draw(st.booleans(), label="cut"):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    tier = DiskTier(folder, cap_bytes=10 * SIZE)
    path.write_bytes(content)
    assert isinstance(tier.load(victim.key), Miss)
    assert not tier.has(victim.key), "found again after it failed"
    assert tier.find([victim.key]) == 0
    assert all(is_exact(tier.load(record.key), record) for record in others)
    tier.check()
    assert tier.store(victim) is Outcome.STORED
    assert is_exact(tier.load(victim.key), victim)
    tier.close()
    shutil.rmtree(folder)


def _swap(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (lambda path, other: path.unlink(), MissReason.ABSENT),
        (_swap, MissReason.OTHER_KEY),
        (lambda path, other: path.write_bytes(path.read_bytes() * 100), MissReason.TRUNCATED),
        (lambda path, other: (path.unlink(), path.symlink_to(other)), MissReason.UNREADABLE),
        (lambda path, other: (path.unlink(), os.mkfifo(path)), MissReason.UNREADABLE),
    ],
)
def test_a_file_that_is_not_what_was_stored_is_a_miss(
    tmp_path: Path, happens: Callable[[Path, Path], None], reason: MissReason
):
    victim, other, _ = filled(tmp_path)
    tier = DiskTier(tmp_path, cap_bytes=10 * SIZE)
    happens(file_of(tmp_path, victim), file_of(tmp_path, other))
    assert tier.load(victim.key) == Miss(reason)
    assert not tier.has(victim.key)
    assert is_exact(tier.load(other.key), other)
    tier.close()


def test_the_sweep_removes_leftovers_and_adopts_whole_records(tmp_path: Path):
    gone, cut, kept = filled(tmp_path)
    unknown = make_record("vwxyz")
    file_of(tmp_path, gone).unlink()
    file_of(tmp_path, cut).write_bytes(file_bytes(cut)[:-1])
    file_of(tmp_path, unknown).write_bytes(file_bytes(unknown))
    records = tmp_path / "v2" / "records"
    (records / "1234.part").write_bytes(b"half")
    (records / f"{'ab' * 32}.kv").write_bytes(file_bytes(kept))
    (records / "notes.txt").write_text("not ours")
    (records / "zz.kv").write_text("not hexadecimal")
    (records / "link.kv").symlink_to(records / "notes.txt")
    tier = DiskTier(tmp_path, cap_bytes=10 * SIZE)
    tier.check()
    assert [tier.has(record.key) for record in (gone, cut, kept, unknown)] == [False, False, True, True]
    assert is_exact(tier.load(unknown.key), unknown)
    assert tier.num_failures == 0
    tier.close()


def test_what_the_sweep_can_not_remove_does_not_stop_the_start(tmp_path: Path):
    (record, *_) = filled(tmp_path)
    (tmp_path / "v2" / "records" / "folder").mkdir()
    tier = DiskTier(tmp_path, cap_bytes=10 * SIZE)
    assert is_exact(tier.load(record.key), record)
    assert tier.num_failures == 1
    tier.close()


def test_a_second_user_of_the_folder_does_not_sweep_what_the_first_is_writing(tmp_path: Path):
    filled(tmp_path)
    first = DiskTier(tmp_path, cap_bytes=10 * SIZE)
    part = tmp_path / "v2" / "records" / "being-written.part"
    part.write_bytes(b"half")
    second = DiskTier(tmp_path, cap_bytes=10 * SIZE)
    assert part.exists()
    first.close()
    second.close()
    last = DiskTier(tmp_path, cap_bytes=10 * SIZE)
    assert not part.exists()
    last.close()


def test_two_users_see_each_others_records(tmp_path: Path):
    first, second = (DiskTier(tmp_path, cap_bytes=10 * SIZE) for _ in range(2))
    record = make_record("abcde")
    assert first.store(record) is Outcome.STORED
    assert is_exact(second.load(record.key), record)
    assert second.store(record) is Outcome.ALREADY_STORED
    assert second.delete(record.key)
    assert first.load(record.key) == Miss(MissReason.ABSENT)
    first.check()
    first.close()
    second.close()


@pytest.mark.parametrize("seed", [*range(8), 19, 153, 159])
def test_a_damaged_index_costs_at_most_misses(tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture):
    """Flips 40 bytes anywhere in it, between two runs: start-up never fails, and no answer is wrong."""
    records = filled(tmp_path)
    index = tmp_path / "v2" / "index.sqlite"
    rng, content = np.random.default_rng(seed), bytearray(index.read_bytes())
    for at in rng.integers(0, len(content), 40):
        content[at] ^= int(rng.integers(1, 256))
    index.write_bytes(content)
    with caplog.at_level(logging.CRITICAL):
        tier = DiskTier(tmp_path, cap_bytes=10 * SIZE)
        for record in records:
            loaded = tier.load(record.key)
            assert isinstance(loaded, Miss) or same(loaded, record)
            tier.following(record.namespace, START)
        assert tier.store(make_record("pqrst")) in (Outcome.STORED, Outcome.FAILED)
        tier.close()


@pytest.mark.parametrize("content", [b"", b"not a database" * 1000])
def test_an_index_that_is_lost_is_made_anew_from_the_records(tmp_path: Path, content: bytes):
    records = filled(tmp_path)
    (tmp_path / "v2" / "index.sqlite").write_bytes(content)
    tier = DiskTier(tmp_path, cap_bytes=10 * SIZE)
    tier.check()
    assert all(is_exact(tier.load(record.key), record) for record in records)
    tier.close()


def test_after_close_lookups_find_nothing_and_nothing_raises(tmp_path: Path):
    records = filled(tmp_path)
    tier = DiskTier(tmp_path, cap_bytes=10 * SIZE)
    tier.close()
    assert tier.load(records[0].key) == Miss(MissReason.ABSENT)
    assert tier.store(make_record("pqrst")) is Outcome.FAILED
    assert not tier.delete(records[0].key)
    assert (len(tier), tier.size_bytes, tier.following(records[0].namespace, START)) == (0, 0, [])


@pytest.mark.parametrize("num_damages", [50, pytest.param(1000, marks=pytest.mark.torture)])
def test_random_damage_of_any_file_between_two_runs_is_never_a_wrong_answer(
    tmp_path: Path, num_damages: int, caplog: pytest.LogCaptureFixture
):
    """One flipped bit or a truncation, in a record or in the index; the next start mends the folder each time."""
    rng = np.random.default_rng(num_damages)
    records = [make_record(text) for text in TEXTS]
    num_exact = 0
    with caplog.at_level(logging.CRITICAL):
        for _ in range(num_damages):
            tier = DiskTier(tmp_path, cap_bytes=10 * SIZE)
            for record in records:
                loaded = tier.load(record.key)
                assert isinstance(loaded, Miss) or same(loaded, record)
                num_exact += isinstance(loaded, Record)
                assert tier.store(record) in (Outcome.STORED, Outcome.ALREADY_STORED)
            tier.check()
            tier.close()
            files = sorted(path for path in (tmp_path / "v2").rglob("*") if path.is_file() and path.stat().st_size)
            _damage(files[rng.integers(len(files))], rng)
    assert num_exact > num_damages


def _damage(path: Path, rng: np.random.Generator) -> None:
    content = bytearray(path.read_bytes())
    at = int(rng.integers(len(content)))
    if rng.random() < 0.3:
        del content[at:]
    else:
        content[at] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)


def test_threads_may_share_a_tier(tmp_path: Path):
    tier = DiskTier(tmp_path, cap_bytes=4 * SIZE)
    records = [make_record(letter * 5) for letter in "abcdefgh"]

    def use(first: int) -> bool:
        exact = True
        for step in range(20):
            record = records[(first + step) % len(records)]
            tier.store(record)
            loaded = tier.load(record.key)
            exact &= isinstance(loaded, Miss) or same(loaded, record)
        return exact

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(use, range(4)))
    tier.check()
    assert tier.num_failures == 0
    tier.close()
