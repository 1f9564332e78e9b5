"""Files are whole or absent; hashes are remembered for the very same file only."""

import os
from pathlib import Path

import pytest

from anaphora.engine.models import storage
from anaphora.engine.models.storage import new_directory, remembered_sha256, sha256_of, write_atomically


def test_new_directory_appears_only_when_the_block_ends_well(tmp_path: Path) -> None:
    target = tmp_path / "made" / "folder"
    with new_directory(target) as staging:
        (staging / "a").write_text("1")
        assert not target.exists()
    assert (target / "a").read_text() == "1"
    assert [path.name for path in target.parent.iterdir()] == ["folder"]


def broken_replacement(target: Path) -> None:
    with new_directory(target) as staging:
        (staging / "a").write_text("new")
        raise RuntimeError("broke off")


def test_failed_block_leaves_the_older_folder_and_no_rest(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with new_directory(target) as staging:
        (staging / "a").write_text("old")
    with pytest.raises(RuntimeError, match="broke off"):
        broken_replacement(target)
    assert (target / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_new_directory_replaces_an_older_one(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    for text in ("old", "new"):
        with new_directory(target) as staging:
            (staging / text).write_text(text)
    assert [path.name for path in target.iterdir()] == ["new"]


def test_hash_is_computed_once_for_an_unchanged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"content")
    first = remembered_sha256(file, cache_dir=tmp_path / "cache")
    assert first == sha256_of(file)
    monkeypatch.setattr(storage, "sha256_of", lambda path: pytest.fail("hashed again"))
    assert remembered_sha256(file, cache_dir=tmp_path / "cache") == first


def test_changed_file_of_the_same_size_is_hashed_again(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"content")
    before = file.stat()
    first = remembered_sha256(file, cache_dir=tmp_path / "cache")
    file.write_bytes(b"CONTENT")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert remembered_sha256(file, cache_dir=tmp_path / "cache") == sha256_of(file) != first


def test_replaced_file_with_the_same_time_and_size_is_hashed_again(tmp_path: Path) -> None:
    file, other = tmp_path / "weights", tmp_path / "other"
    file.write_bytes(b"content")
    other.write_bytes(b"CONTENT")
    before = file.stat()
    remembered_sha256(file, cache_dir=tmp_path / "cache")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(file)
    assert remembered_sha256(file, cache_dir=tmp_path / "cache") == sha256_of(file)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"identity": 1}'])
def test_damaged_memory_is_ignored(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"content")
    remembered_sha256(file, cache_dir=tmp_path)
    (note,) = (tmp_path / "hashes").iterdir()
    note.write_text(damage)
    assert remembered_sha256(file, cache_dir=tmp_path) == sha256_of(file)


def test_failed_write_leaves_the_old_content_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "note"
    write_atomically(file, "old")

    def broken(descriptor: int) -> None:
        raise OSError(5, "input/output error")

    monkeypatch.setattr(storage.os, "fsync", broken)
    with pytest.raises(OSError, match="input/output"):
        write_atomically(file, "new")
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["note"]
