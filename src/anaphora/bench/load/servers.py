"""Our own server as a process of its own, on a free port of this machine."""

import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from anaphora.errors import SettingsError

_STOPPING_S = 60.0


@dataclass(frozen=True, slots=True)
class ServeSetting:
    """A server to start, by name, and its flags beside `anaphora serve`."""

    name: str
    flags: tuple[str, ...] = ()


def setting_from(text: str) -> ServeSetting:
    """Read `NAME=FLAGS`, such as `off=--no-cache`; a name alone has no flags.

    Raises: SettingsError.
    """
    name, _, flags = text.partition("=")
    if not name.strip() or name.strip().startswith("-"):
        raise SettingsError(f"--serve {text!r} has no name. One that has: --serve 'off=--no-cache'.")
    return ServeSetting(name.strip(), tuple(shlex.split(flags)))


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Let a SIGTERM leave through every `finally`, so that no server outlives the run that started it.

    For the main thread. What was set for the signal before is set again afterwards.
    """
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def running_server(setting: ServeSetting, *, flags: Sequence[str] = ()) -> Iterator[str]:
    """Start a server, give its address once it can be reached, and stop it in the end.

    Raises: SettingsError with what it said if it does not start.
    """
    command = [sys.executable, "-m", "anaphora.cli", "serve", "--host", "127.0.0.1", "--port", "0"]
    command += ["--disk-cache-bytes", "0"]  # a run finds nothing of an earlier one, unless its flags say otherwise
    with tempfile.TemporaryFile("w+", encoding="utf-8") as complaints:
        process = subprocess.Popen(
            [*command, *flags, *setting.flags], stdout=subprocess.PIPE, stderr=complaints, text=True
        )
        try:
            assert process.stdout is not None
            address = next((line.split()[-1] for line in process.stdout if line.startswith("Serving ")), None)
            if address is None:
                complaints.seek(0)
                said = complaints.read().strip().splitlines() or ["nothing"]
                raise SettingsError(f"The server {setting.name!r} did not start. It said: {said[-1]}")
            yield address
        finally:
            process.terminate()
            try:
                process.wait(_STOPPING_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
