"""The requests of the last while, by tenant: what a new one is compared with. Pure, bounded; time is passed in.

    arrive(request)                 -> the nearest earlier one of the same tenant, then the request is remembered
    begin, answer                   -> what became of it: when it could first be read, what the model wrote
    get(tenant, id)                 -> that request, while it is remembered

A tenant never meets another's requests: each has a tree of its own. Where text is not to be kept, digests stand in
its place: places and changes of structure are told all the same.
"""

import hashlib
import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from anaphora.core.index import NO_TOKENS, Tokens, common_length
from anaphora.engine.request import Tenant
from anaphora.explain.divergence import ANSWER
from anaphora.explain.openings import Handle, Nearest, Openings
from anaphora.explain.reasons import Side
from anaphora.prompt.canonical import Message, Part, Prompt, Text, Thinking, Tool, ToolChoice, ToolResult, ToolUse
from anaphora.prompt.locate import Piece
from anaphora.prompt.render import Rendered

NO_OFFSETS = np.empty((0, 2), dtype=np.int64)
ENTRY_BYTES = 3000
PIECE_BYTES = 250
DIGESTS_BYTES = 550
"""Of bookkeeping, for each request and for each part: one whose text is kept, one of which a digest is. Measured."""
DIGEST_LENGTH = 16
SHORT_SETTING = 64
"""Characters that a setting may have to be kept as it is: a digest would take as much."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    max_requests: int = 4096
    max_bytes: int = 64 * 2**20
    keeps_text: bool = True  # False: digests of it


@dataclass(slots=True, eq=False)
class Asked:
    """One remembered request. What is known of its fate is filled in as it happens."""

    request_id: str
    at_s: float  # when it arrived
    model: str  # as the client called it
    side: Side  # without tokens; without text where that is not kept
    num_tokens: int  # of the prompt
    num_answered: int = 0  # tokens behind it that are cached too
    settings: Mapping[str, str] = field(default_factory=dict)  # other fields that a host counts as part of the prompt
    keeps_text: bool = True
    began_s: float | None = None  # when its answer began: from then on others could read it
    kept_until_s: float | None = None  # promised to stay until then, if nobody reads it
    has_failed: bool = False
    facts: Mapping[str, object] = field(default_factory=dict)  # what is told of it later, by whoever answers it


class _Tenant:
    def __init__(self) -> None:
        self.openings: Openings[Asked] = Openings()
        self.handles: dict[str, tuple[Handle, Asked]] = {}


class RequestMemory:
    """Requests by tenant, the oldest of all forgotten first. Not for several threads."""

    def __init__(self, limits: MemoryLimits = MemoryLimits()) -> None:
        self.limits = limits
        self._tenants: dict[Tenant, _Tenant] = {}
        self._order: OrderedDict[tuple[Tenant, str], int] = OrderedDict()  # -> bytes
        self._num_bytes = 0
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._order)

    @property
    def size_bytes(self) -> int:
        """An estimate, above rather than below what the memory takes."""
        return self._num_bytes + 4 * self._num_tokens

    def arrive(self, tenant: Tenant, asked: Asked, tokens: Tokens) -> Nearest[Asked] | None:
        """Remember a request, and say which earlier one of the tenant opens longest like it.

        Forgets the oldest where there is no room. Cost: one comparison of the tokens, and a copy of the new ones.
        """
        own = self._tenants.setdefault(tenant, _Tenant())
        assert asked.request_id not in own.handles, "a request arrives once"
        before = own.openings.num_tokens
        added = own.openings.add(tokens, asked)
        own.handles[asked.request_id] = added.handle, asked
        self._num_tokens += own.openings.num_tokens - before
        size = _size_bytes(asked)
        self._order[tenant, asked.request_id] = size
        self._num_bytes += size
        self._make_room()
        return added.nearest

    def answer(self, tenant: Tenant, asked: Asked, tokens: Tokens, text: str) -> None:
        """Add what the model wrote behind a request, as far as it is cached, unless the request is forgotten."""
        own = self._tenants.get(tenant)
        entry = None if own is None else own.handles.get(asked.request_id)
        if own is None or entry is None:
            return
        before = own.openings.num_tokens
        own.openings.extend(entry[0], tokens)
        asked.num_answered += len(tokens)
        self._num_tokens += own.openings.num_tokens - before
        if asked.keeps_text and text:
            asked.side = replace(asked.side, rendered=_with_answer(asked.side.rendered, text))
            self._order[tenant, asked.request_id] += len(text)
            self._num_bytes += len(text)
        self._make_room()

    def get(self, tenant: Tenant, request_id: str) -> Asked | None:
        """That request of the tenant, if it is remembered."""
        own = self._tenants.get(tenant)
        entry = None if own is None else own.handles.get(request_id)
        return None if entry is None else entry[1]

    def num_alike(self, tenant: Tenant, request_id: str, tokens: Tokens) -> int:
        """Tokens that open both a remembered request of the tenant, its answer included, and these.

        Cost: a copy of the remembered ones, and one comparison.
        """
        own = self._tenants[tenant]
        return common_length(own.openings.tokens_of(own.handles[request_id][0]), tokens)

    def latest(self, tenant: Tenant) -> Asked | None:
        """The tenant's last request that is remembered."""
        own = self._tenants.get(tenant)
        return None if own is None else next(reversed(own.handles.values()))[1]

    def check(self) -> None:
        """Assert every invariant. Cost: all that is remembered."""
        assert self.size_bytes <= self.limits.max_bytes or not self._order, "more is kept than there is room for"
        assert len(self._order) <= self.limits.max_requests
        assert self._num_bytes == sum(self._order.values())
        assert self._num_tokens == sum(own.openings.num_tokens for own in self._tenants.values())
        known = {(tenant, name) for tenant, own in self._tenants.items() for name in own.handles}
        assert known == set(self._order), "a request is remembered by half"
        for own in self._tenants.values():
            assert len(own.openings) == len(own.handles) > 0, "an empty tenant was kept"
            own.openings.check()

    def _make_room(self) -> None:
        limits = self.limits
        while self._order and (len(self._order) > limits.max_requests or self.size_bytes > limits.max_bytes):
            (tenant, request_id), size = self._order.popitem(last=False)
            own = self._tenants[tenant]
            before = own.openings.num_tokens
            forgotten = own.openings.forget_oldest()
            assert forgotten.request_id == request_id, "requests are forgotten in the order they came"
            self._num_tokens -= before - own.openings.num_tokens
            self._num_bytes -= size
            del own.handles[request_id]
            if not own.handles:
                del self._tenants[tenant]


def _size_bytes(asked: Asked) -> int:
    """What a request takes, tokens apart. Its parts count by themselves: a template need not render them.

    Cost: a look at each part.
    """
    rendered, prompt = asked.side.rendered, asked.side.prompt
    num_parts, num_bytes = sum(not message.parts for message in prompt.messages), 0
    for part in prompt.parts:
        num_parts += 1
        num_bytes += sum(sys.getsizeof(text) for text in _texts(part))
    each = PIECE_BYTES if asked.keeps_text else DIGESTS_BYTES
    num_bytes += each * max(num_parts, len(rendered.pieces))
    num_bytes += sum(sys.getsizeof(name) + sys.getsizeof(value) for name, value in asked.settings.items())
    return ENTRY_BYTES + sys.getsizeof(rendered.text) + num_bytes


def _texts(part: Tool | Part) -> tuple[str, ...]:
    """What a part says, and the ids in it."""
    if isinstance(part, Tool):
        return part.name, part.description, part.schema
    if isinstance(part, ToolUse):
        return part.call_id, part.name, part.arguments
    if isinstance(part, ToolResult):
        return part.call_id, part.name, part.text
    return (part.text,)


def remembered_settings(settings: Mapping[str, str], *, keeps_text: bool) -> dict[str, str]:
    """What is kept of a request's settings: digests of those that are long, or of all. Equal ones stay equal."""
    longest = SHORT_SETTING if keeps_text else 0
    return {name: value if len(value) <= longest else _digest(value) for name, value in settings.items()}


def remembered_side(side: Side, *, keeps_text: bool) -> Side:
    """What is kept of a prompt: its text and parts, or digests in place of both. Tokens are kept elsewhere, and the
    form of the answer is not compared.
    """
    text, pieces = (side.rendered.text, side.rendered.pieces) if keeps_text else ("", ())
    rendered = Rendered(text=text, tokens=NO_TOKENS, offsets=NO_OFFSETS, pieces=pieces)
    prompt = replace(side.prompt, answer=None) if keeps_text else hollow(side.prompt)
    return Side(prompt, rendered, side.scope)


def hollow(prompt: Prompt) -> Prompt:
    """A prompt with digests in place of all that is said in it: equal parts stay equal, and nothing can be read."""
    return replace(
        prompt,
        answer=None,
        tool_choice=ToolChoice(),
        tools=tuple(_hollow_tool(tool) for tool in prompt.tools),
        system=tuple(replace(text, text=_digest(text.text)) for text in prompt.system),
        messages=tuple(
            replace(message, parts=tuple(_hollow_part(part) for part in message.parts)) for message in prompt.messages
        ),
    )


def words_of(part: Tool | Part) -> Tool | Part:
    """A part without its place and its mark, so that what says the same is equal."""
    if isinstance(part, Tool):
        return replace(part, path="", mark=None, schema_path="")
    return replace(part, path="", mark=None)


def _hollow_tool(tool: Tool) -> Tool:
    return replace(tool, name=_digest(tool.name), description=_digest(tool.description), schema=_digest(tool.schema))


def _hollow_part(part: Part) -> Part:
    if isinstance(part, ToolUse):
        name, call_id = _digest(part.name), _digest(part.call_id)
        return replace(part, name=name, call_id=call_id, arguments=_digest(part.arguments))
    if isinstance(part, ToolResult):
        return replace(part, name=_digest(part.name), call_id=_digest(part.call_id), text=_digest(part.text))
    assert isinstance(part, Text | Thinking)
    return replace(part, text=_digest(part.text))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_LENGTH).hexdigest()


def _with_answer(rendered: Rendered, text: str) -> Rendered:
    start = len(rendered.text)
    piece = Piece(start, start + len(text), ANSWER)
    return replace(rendered, text=rendered.text + text, pieces=(*rendered.pieces, piece))


def prompt_of_text(text: str, path: str) -> Prompt:
    """A prompt that is one text and has no parts, as Completions sends it."""
    return Prompt((Message("user", (Text(text, path),), path),))
