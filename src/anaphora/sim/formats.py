"""The formats of traces, and how each is read. A format is a function from one file to requests of an intake.

| format      | one line or file is                                                   | reuse is told by           |
|-------------|-----------------------------------------------------------------------|----------------------------|
| mooncake    | a request with `hash_ids` of 512 tokens, time in ms                     | block ids, global          |
| bailian     | the same with blocks of 16 tokens, time in s, `chat_id`, `parent_chat_id` | block ids, global          |
| agent       | a session (JSON): requests with `hash_ids` of `block_size` tokens        | block ids, by session      |
| tokens      | a request with `tokens`, a list of token ids                            | token ids                  |
| bodies      | a body of the OpenAI or Anthropic API, as it was sent                   | its text                   |
| azure       | a row of a CSV: arrival and lengths                                     | nothing                    |
"""

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from anaphora.core.index import Tokens
from anaphora.sim.bodies import render_body
from anaphora.sim.trace import MAX_PROMPT_TOKENS, Blocks, Intake, TraceRequest

Tokenizer = Callable[[str], list[int]]
Reader = Callable[[Path, Intake], None]

MOONCAKE_BLOCK = 512
BAILIAN_BLOCK = 16

MAX_LINES_TRIED = 100
"""So many lines at the beginning of a file may be malformed before its format can't be told."""


class Malformed(Exception):
    """A line means nothing. The message says why."""


class Unreadable(Exception):
    """A whole file means nothing. The message says why."""


def read_mooncake(path: Path, intake: Intake) -> None:
    """Read Mooncake's format: `timestamp` (ms), `input_length`, `hash_ids` of 512 tokens, the last one partial."""
    for number, row in _rows(path, intake):
        with _Line(path, number, intake):
            prompt = _blocks(row, intake, "", MOONCAKE_BLOCK)
            intake.requests.append(TraceRequest(_number(row, "timestamp") / 1000, prompt))


def read_bailian(path: Path, intake: Intake) -> None:
    """Read Qwen-Bailian's format: as Mooncake's, blocks of 16 tokens, time in seconds, turns of a chat linked."""
    chats: dict[str, str] = {}
    for number, row in _rows(path, intake):
        with _Line(path, number, intake):
            prompt = _blocks(row, intake, "", BAILIAN_BLOCK)
            time_s = _number(row, "timestamp")
            chat, parent = str(row.get("chat_id", number)), str(row.get("parent_chat_id", -1))
            chats[chat] = chats.get(parent, chat)
            intake.requests.append(TraceRequest(time_s, prompt, session=chats[chat]))


def read_agent(path: Path, intake: Intake) -> None:
    """Read one session of a coding agent. Its block ids mean nothing outside of it; its times start at 0.

    Sub-agents, where a request holds `requests` of its own, are read in place. Whole blocks alone have ids there; the
    rest of a prompt is taken for new.
    """
    try:
        session = json.loads(_text(path))
        size = _whole(session, "block_size")
        requests = list(_flat(session["requests"]))
    except (ValueError, KeyError, TypeError, RecursionError, Malformed) as error:
        intake.reject(path, 1, f"not an agent session: {error}")
        return
    for number, item in enumerate(requests, start=1):
        with _Line(path, number, intake):
            row = _with_rest(_object(item), number, size)
            prompt = _blocks(row, intake, path.name, size)
            service_s = _number(row, "api_time") if row.get("api_time") is not None else 0.0
            time_s = _number(row, "t")
            intake.requests.append(TraceRequest(time_s, prompt, session=path.name, service_s=service_s))


def read_tokens(path: Path, intake: Intake) -> None:
    """Read token ids: `tokens`, and optionally `time_s` (else the line's index), `session`, `tenant`."""
    for number, row in _rows(path, intake):
        with _Line(path, number, intake):
            ids = row.get("tokens")
            if not isinstance(ids, list) or not ids:
                raise Malformed("tokens is not a list of token ids")
            if not all(type(one) is int and 0 <= one < 2**31 for one in ids):
                raise Malformed("tokens holds something that is no token id")
            time_s = _number(row, "time_s") if "time_s" in row else float(len(intake.requests))
            session, tenant = _name(row, "session"), _name(row, "tenant")
            intake.requests.append(TraceRequest(time_s, np.array(ids, dtype=np.int32), session, tenant))


def bodies_reader(tokenizer: Tokenizer | None = None) -> Reader:
    """Give a reader of request bodies. Without a tokenizer a token is a byte of the rendered text.

    A line is a body, or `{"time_s": ..., "session": ..., "tenant": ..., "body": {...}}`.
    """

    def read_bodies(path: Path, intake: Intake) -> None:
        for number, row in _rows(path, intake):
            with _Line(path, number, intake):
                body = _object(row["body"]) if "body" in row else row
                try:
                    text = render_body(body)
                except ValueError as error:
                    raise Malformed(str(error)) from None
                time_s = _number(row, "time_s") if "time_s" in row else float(len(intake.requests))
                session, tenant = (_name(row, "session"), _name(row, "tenant")) if "body" in row else ("", "")
                intake.requests.append(TraceRequest(time_s, to_tokens(text, tokenizer), session, tenant))

    return read_bodies


def read_azure(path: Path, intake: Intake) -> None:
    """Read Azure's CSV: arrival and lengths. Every prompt is taken for new, since nothing tells otherwise."""
    names: list[str] | None = None
    start: float | None = None
    for number, line in enumerate(_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        with _Line(path, number, intake):
            cells = _cells(line)
            if names is None:
                names = cells
                continue
            row = dict(zip(names, cells, strict=False))
            try:
                moment = datetime.fromisoformat(row.get("TIMESTAMP", "")[:26]).timestamp()
                length = int(row.get("ContextTokens", ""))
            except (ValueError, OverflowError) as error:
                raise Malformed(str(error)) from None
            if not 1 <= length <= MAX_PROMPT_TOKENS:
                raise Malformed(f"ContextTokens is {length}")
            start = moment if start is None else start
            ids = intake.number(path.name, [number])
            intake.requests.append(TraceRequest(moment - start, Blocks(ids, length, length)))


READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "mooncake": read_mooncake,
        "bailian": read_bailian,
        "agent": read_agent,
        "tokens": read_tokens,
        "bodies": bodies_reader(),
        "azure": read_azure,
    }
)
"""Every format by the name that the command line uses."""


def detect(path: Path) -> str:
    """Tell a file's format from its name, or else from the first line that is like one.

    Raises Unreadable for a file that can't be read, is empty or has no such line.
    """
    text = _text(path)
    if not text.strip():
        raise Unreadable("the trace is empty.")
    if ".csv" in path.suffixes:
        return "azure"
    candidates = [line for line in text.split("\n") if line.strip()][:MAX_LINES_TRIED]
    for candidate in (*candidates, text):
        try:
            row = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and (name := _format_of(row)) is not None:
            return name
    raise Unreadable("the format can't be told from its lines. Name it with --format.")


def to_tokens(text: str, tokenizer: Tokenizer | None) -> Tokens:
    """Turn text into token ids: a tokenizer's, or its UTF-8 bytes."""
    if tokenizer is not None:
        return np.array(tokenizer(text), dtype=np.int32)
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8).astype(np.int32)


def _format_of(row: dict[str, Any]) -> str | None:
    if "block_size" in row and "requests" in row:
        return "agent"
    if "hash_ids" in row:
        return "bailian" if "chat_id" in row else "mooncake"
    if "tokens" in row:
        return "tokens"
    body = row["body"] if isinstance(row.get("body"), dict) else row
    return "bodies" if {"messages", "input", "prompt"} & set(body) else None


class _Line:
    """Turns `Malformed`, raised while one line is read, into a problem of the intake."""

    def __init__(self, path: Path, number: int, intake: Intake) -> None:
        self._path, self._number, self._intake = path, number, intake

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Malformed):
            return False
        self._intake.reject(self._path, self._number, str(error))
        return True


def _text(path: Path) -> str:
    """Read a file, unpacked, without its byte order mark. Raises Unreadable if it can't be had."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise Unreadable(f"it can't be read: {error}") from None
    return data.decode("utf-8", "replace").removeprefix("\ufeff")


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]))
    except csv.Error as error:
        raise Malformed(str(error)) from None


def _rows(path: Path, intake: Intake) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            intake.reject(path, number, f"not JSON: {error}")
            continue
        if isinstance(row, dict):
            yield number, row
        else:
            intake.reject(path, number, "not a JSON object")


def _flat(requests: list[Any]) -> Iterator[Any]:
    for row in requests:
        inner = row.get("requests") if isinstance(row, dict) else None
        if isinstance(inner, list):
            yield from _flat(inner)
        else:
            yield row


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed("not a JSON object")
    return value


def _number(row: dict[str, Any], name: str) -> float:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise Malformed(f"{name} is {value!r}, not a number from 0 on")
    return float(value)


def _whole(row: dict[str, Any], name: str) -> int:
    value = row.get(name)
    if type(value) is not int or value < 1:
        raise Malformed(f"{name} is {value!r}, not a whole number from 1 on")
    if value > MAX_PROMPT_TOKENS:
        raise Malformed(f"{name} is {value}, more than any prompt has")
    return value


def _name(row: dict[str, Any], name: str) -> str:
    return str(row.get(name, ""))


def _with_rest(row: dict[str, Any], number: int, size: int) -> dict[str, Any]:
    """Give an agent's request Mooncake's fields, and an id of its own to what lies behind the last whole block."""
    num_tokens, ids = _whole(row, "in"), row.get("hash_ids")
    if isinstance(ids, list) and len(ids) == num_tokens // size and num_tokens % size:
        ids = [*ids, f"rest of {number}"]
    return {**row, "input_length": num_tokens, "hash_ids": ids}


def _blocks(row: dict[str, Any], intake: Intake, scope: str, size: int) -> Blocks:
    num_tokens = _whole(row, "input_length")
    ids = row.get("hash_ids")
    if not isinstance(ids, list) or not all(type(one) is int or isinstance(one, str) for one in ids):
        raise Malformed("hash_ids is not a list of block ids")
    if len(ids) != -(-num_tokens // size):
        raise Malformed(f"{len(ids)} hash_ids of {size} tokens do not make {num_tokens} tokens")
    return Blocks(intake.number(scope, ids), size, num_tokens)
