"""`anaphora chat` as a person uses it: in a terminal, against a real server."""

import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from server_world import Server

PATIENCE_S = 120


class Terminal:
    """The person's side of a pseudo-terminal."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._shown = ""  # and not looked at yet

    def type(self, line: str) -> None:
        os.write(self._handle, f"{line}\n".encode())

    def end_input(self) -> None:
        """Press Ctrl-D."""
        os.write(self._handle, b"\x04")

    def read_until(self, pattern: str) -> str:
        """What is shown up to and with the first match."""
        while (match := re.search(pattern, self._shown)) is None:
            ready, _, _ = select.select([self._handle], [], [], PATIENCE_S)
            assert ready, f"{pattern!r} never came; shown so far: {self._shown}"
            try:
                piece = os.read(self._handle, 65536)
            except OSError:  # the other side is closed
                piece = b""
            assert piece, f"the program left before {pattern!r}; shown: {self._shown}"
            self._shown += piece.decode(errors="replace")
        seen, self._shown = self._shown[: match.end()], self._shown[match.end() :]
        return seen


@contextmanager
def chat(*flags: str) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["env", "TERM=dumb", "COLUMNS=200", sys.executable, "-m", "anaphora.cli", "chat", *flags],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(ours), process
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_conversation_in_a_terminal_shows_answers_and_what_was_reused(server: Server) -> None:
    flags = ("--url", server.url, "--api-key", "red-key", "--max-tokens", "6", "--system", "chat: be brief.")
    with chat(*flags) as (terminal, process):
        assert "/help lists commands" in terminal.read_until("> ")
        terminal.type("What is a lens?")
        first = terminal.read_until(r"first token after .*\n")
        terminal.read_until("> ")
        terminal.type("And a mirror?")
        second = terminal.read_until(r"first token after .*\n")
        counts = [re.search(r"(\d+) of (\d+) prompt tokens reused", shown) for shown in (first, second)]
        assert counts[0] is not None
        assert counts[1] is not None
        assert int(counts[1][1]) >= int(counts[0][2]) + 5  # the whole first prompt, and the answer but its last token
        for line, words in (("/system", "chat: be brief."), ("/nonsense", "no command /nonsense"), ("/help", "/quit")):
            terminal.type(line)
            terminal.read_until(re.escape(words))
        terminal.type("/quit")
        assert process.wait(PATIENCE_S) == 0


def test_end_of_input_leaves_in_order(server: Server) -> None:
    with chat("--url", server.url, "--api-key", "red-key") as (terminal, process):
        terminal.read_until("> ")
        terminal.end_input()
        assert process.wait(PATIENCE_S) == 0


def test_wrong_key_and_absent_server_are_told_in_one_line(server: Server) -> None:
    with chat("--url", server.url, "--api-key", "wrong") as (terminal, process):
        assert "anaphora: This API key is not known here." in terminal.read_until(r"here\.")
        assert process.wait(PATIENCE_S) == 1
    with chat("--url", "http://127.0.0.1:9") as (terminal, process):
        terminal.read_until(r"No server answers at http://127\.0\.0\.1:9")
        assert process.wait(PATIENCE_S) == 1
