"""Compile the native kernels for the machine that runs them, once, where a compiler is present.

<cache_dir>/native/<digest of sources, flags, compiler and processor>/kernels.so

The name holds all that the result depends on, so that a home folder shared by different machines is no danger.
"""

import hashlib
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from anaphora.engine.models.storage import exclusive, new_directory

SOURCES = Path(__file__).parent / "source"
COMPILERS = ("g++", "c++")
"""Tried in this order. The compiler has to be GNU's: its OpenMP is the one that torch runs on, and two don't get on."""

FLAGS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-shared", "-fPIC")
FLOAT_FLAGS = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
"""No -ffast-math: infinities and what is not a number have to stay what they are."""

_TIMEOUT_S = 300.0
_ERROR_LINES = 8


@dataclass(frozen=True, slots=True)
class NotBuilt:
    reason: str  # a sentence for the operator


def build(cache_dir: Path) -> Path | NotBuilt:
    """Give the path of the compiled library, compiling it if this machine has not done so yet.

    One process compiles; others wait for it. Cost: some seconds the first time, a hash of the sources later.
    """
    found = _gnu_compiler()
    if found is None:
        return NotBuilt("there is no GNU C++ compiler (g++) on this machine's path")
    compiler, version = found
    target = cache_dir / "native" / _key(version) / "kernels.so"
    if target.is_file():
        return target
    try:
        with exclusive(cache_dir, "native"):
            if not target.is_file():
                with new_directory(target.parent) as staging:
                    _compile(compiler, staging / target.name)
    except (OSError, subprocess.SubprocessError) as error:
        return NotBuilt(f"they can't be built into {target.parent}: {_words_of(error)}")
    return target


def _gnu_compiler() -> tuple[str, str] | None:
    """Find a compiler: its path and what it says of its version."""
    for name in COMPILERS:
        if (path := shutil.which(name)) is None:
            continue
        try:
            asked = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        except (OSError, subprocess.SubprocessError):
            continue
        if "Free Software Foundation" in asked.stdout:
            return path, asked.stdout
    return None


def _key(version: str) -> str:
    digest = hashlib.sha256()
    for part in (version, *FLAGS, *FLOAT_FLAGS, platform.machine(), _processor()):
        digest.update(len(part).to_bytes(8, "little") + part.encode())
    for path in sorted(SOURCES.iterdir()):
        content = path.read_bytes()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()[:32]


def _processor() -> str:
    """Name what the processor can do; "" where the system doesn't tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    wanted = ("flags", "features", "model name", "cpu part")
    return "\n".join(sorted({line for line in lines if line.lower().startswith(wanted)}))


def _compile(compiler: str, target: Path) -> None:
    command = [compiler, *FLAGS, *FLOAT_FLAGS, str(SOURCES / "decoder.cpp"), "-o", str(target)]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)


def _words_of(error: OSError | subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{error.cmd[0]} ended with status {error.returncode}: " + "\n".join(
            error.stderr.strip().splitlines()[:_ERROR_LINES]
        )
    return str(error)
