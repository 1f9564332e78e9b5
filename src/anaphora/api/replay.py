"""Remember what the model wrote when it called tools, so that the next turn's prompt repeats it byte for byte.

Clients send calls back as JSON values: spacing, key order of the envelope and the text's edges are lost on the
way. Rendered anew, such a turn would differ from the tokens in the cache and everything after it would
be computed again. A turn is recognised by its first call's id, and only taken when names, arguments and text
are still what was handed out. What is not remembered is rendered the ordinary way.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from anaphora.engine.request import Tenant
from anaphora.prompt.canonical import Message, ToolUse
from anaphora.prompt.strict_json import NotJson, read_json

MAX_BYTES = 16 * 2**20
"""Room for about ten thousand calling turns; the oldest go first."""


@dataclass(frozen=True, slots=True)
class HandedOut:
    """A turn as the client got it: its text, and (id, name, arguments) of its calls."""

    text: str
    calls: tuple[tuple[str, str, str], ...]


class ReplayMemory:
    """Bounded memory of calling turns, apart for each tenant. Safe to use from several threads."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._turns: OrderedDict[tuple[Tenant, str], tuple[HandedOut, str]] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, tenant: Tenant, turn: HandedOut, generated: str) -> None:
        """Keep what the model wrote for this turn. Forgets the oldest turns where there is no room."""
        key = (tenant, turn.calls[0][0])
        with self._lock:
            self._turns[key] = (turn, generated)
            self._num_bytes += _size(turn, generated)
            while self._num_bytes > self._max_bytes:
                _, (old, text) = self._turns.popitem(last=False)
                self._num_bytes -= _size(old, text)

    def recall(self, tenant: Tenant, message: Message) -> str | None:
        """What the model wrote for this message, if the message is still as it was handed out."""
        calls = [part for part in message.parts if isinstance(part, ToolUse)]
        if not calls:
            return None
        with self._lock:
            found = self._turns.get((tenant, calls[0].call_id))
            if found is not None:
                self._turns.move_to_end((tenant, calls[0].call_id))
        if found is None or not _is_same(found[0], message, calls):
            return None
        return found[1]


def _is_same(turn: HandedOut, message: Message, calls: list[ToolUse]) -> bool:
    if len(turn.calls) != len(calls) or turn.text.strip() != message.text.strip():
        return False
    return all(
        (call_id, name) == (call.call_id, call.name) and _value(arguments) == _value(call.arguments)
        for (call_id, name, arguments), call in zip(turn.calls, calls, strict=True)
    )


def _value(arguments: str) -> object:
    try:
        return read_json(arguments)
    except NotJson:
        return arguments


def _size(turn: HandedOut, generated: str) -> int:
    return 4 * (len(generated) + len(turn.text) + sum(len(arguments) for _, _, arguments in turn.calls)) + 500
