"""Read a trace: one file, or a folder of files that ran side by side."""

from pathlib import Path

from anaphora.sim.formats import READERS, Reader, Tokenizer, Unreadable, bodies_reader, detect
from anaphora.sim.trace import Blocks, Intake, Trace, TraceError, TraceRequest

SUFFIXES = frozenset({".json", ".jsonl", ".csv", ".ndjson"})
"""Files of a folder with such a suffix are traces, packed or not. Others may be a licence, a note."""


def load_trace(
    path: Path,
    *,
    format_name: str | None = None,
    is_strict: bool = False,
    tokenizer: Tokenizer | None = None,
    session_gap_s: float = 0.0,
) -> Trace:
    """Read a file, or all files of a folder as one trace, and sort the requests by time.

    The format is told from the first line that is like one, unless named. Files of a folder start `session_gap_s` one
    after another; a malformed line is left out and listed in `problems`, and so is a file of a folder that means
    nothing, unless its name tells that it is no trace.
    Raises TraceError for a path that can't be read, a format that can't be told, a trace without requests, and with
    `is_strict` for the first malformed line.
    """
    if not 0 <= session_gap_s < float("inf"):
        raise TraceError(f"Files can't begin {session_gap_s} seconds one after another. The gap must be 0 or more.")
    intake = Intake(is_strict)
    names: set[str] = set()
    begin_s = 0.0
    for file in _files(path):
        num_before = len(intake.requests)
        try:
            name = format_name or detect(file)
            _reader(name, tokenizer)(file, intake)
        except Unreadable as error:
            if not path.is_dir():
                raise TraceError(f"{file}: {error}") from None
            if SUFFIXES & set(file.suffixes):
                intake.reject(file, 1, str(error))
            continue  # else a licence, a note
        intake.requests[num_before:] = [_later(one, begin_s) for one in intake.requests[num_before:]]
        begin_s += session_gap_s
        names.add(name)
    if not intake.requests:
        first = f"; {intake.problems[0]}" if intake.problems else ""
        raise TraceError(f"{path}: no request in it ({len(intake.problems)} malformed lines{first}).")
    requests = sorted(intake.requests, key=lambda request: request.time_s)
    return Trace(
        name=path.name,
        requests=tuple(requests),
        block_tokens=_unit(requests, names),
        problems=tuple(intake.problems),
        reuse="unknown" if names == {"azure"} else "told",
    )


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    if not path.is_file():
        raise TraceError(f"{path}: there is no such file or folder.")
    return [path]


def _reader(name: str, tokenizer: Tokenizer | None) -> Reader:
    if name not in READERS:
        raise TraceError(f"format {name!r} is unknown. Choose one of: {', '.join(READERS)}.")
    return bodies_reader(tokenizer) if name == "bodies" else READERS[name]


def _later(request: TraceRequest, seconds: float) -> TraceRequest:
    if not seconds:
        return request
    return TraceRequest(
        request.time_s + seconds, request.prompt, request.session, request.tenant, service_s=request.service_s
    )


def _unit(requests: list[TraceRequest], names: set[str]) -> int:
    if names == {"azure"}:
        return 1
    sizes = {one.prompt.block_tokens if isinstance(one.prompt, Blocks) else 1 for one in requests}
    return max(sizes)
