"""A request as the hosted contracts see it: blocks in prefix order, each with the tokens up to its end.

    tools            system        messages
    [T0][T1]         [S0]          [user: B0][B1]  [assistant: B2]  [user: B3]   generation prompt
            ^ end=120    ^ end=400         ^ 430 *         ^ 470            ^ 480                 ^ num_tokens=483

A breakpoint (`*`) stands at the end of a block and names the whole prefix that ends there. The prefix's key is a
chained digest of what the blocks say, with the settings that belong to a level mixed in where the level begins,
and never of the marks themselves: a mark that moves changes no key.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NewType

Level = Literal["tools", "system", "messages"]
LEVELS: tuple[Level, ...] = ("tools", "system", "messages")

Kind = Literal["tool", "text", "tool_use", "tool_result", "thinking"]

Key = NewType("Key", bytes)
"""Digest of a scope and a prefix in it."""

Scope = NewType("Scope", bytes)
"""Digest of everything that keeps caches apart: whose, which model."""

_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Block:
    """One piece of a request. `end` counts the prompt's tokens up to and including it."""

    level: Level
    kind: Kind
    content: bytes  # what the host would hash
    end: int
    path: str
    message_index: int = -1  # -1: outside the messages
    role: str = ""
    ttl: str | None = None  # of the breakpoint the client put here
    can_be_marked: bool = True  # by an automatic breakpoint


@dataclass(frozen=True, slots=True)
class Levels:
    """Settings that are part of the prefix from a level on, as digests or text."""

    tools: bytes = b""
    system: bytes = b""
    messages: bytes = b""


@dataclass(frozen=True, slots=True)
class Layout:
    blocks: tuple[Block, ...]
    num_tokens: int  # of the whole prompt, with what the template adds at its end
    levels: Levels = field(default_factory=Levels)

    def check(self) -> None:
        """Assert that blocks stand in prefix order and ends never shrink."""
        places = [LEVELS.index(block.level) for block in self.blocks]
        assert places == sorted(places), "levels stand in prefix order"
        ends = [0, *(block.end for block in self.blocks), self.num_tokens]
        assert ends == sorted(ends), "ends never shrink"


def scope_of(*names: str) -> Scope:
    """The scope with these names: tenant, workspace, model, ...

    Names are length-prefixed, so that ("ab", "c") and ("a", "bc") differ.
    """
    return Scope(_chained(b"scope", *(name.encode() for name in names)))


def keys_of(layout: Layout, scope: Scope, *, ends_messages: bool = False) -> list[Key]:
    """The key of the prefix ending at each block. `ends_messages`: of the prefix that also closes its message.

    Cost: one digest per block, over its content.
    """
    keys: list[Key] = []
    chain: bytes = scope
    level_index, message_index = -1, -1
    for block in layout.blocks:
        while level_index < LEVELS.index(block.level):
            level_index += 1
            level = LEVELS[level_index]
            chain = _chained(chain, b"level", level.encode(), getattr(layout.levels, level))
        if block.message_index != message_index:
            message_index = block.message_index
            chain = _chained(chain, b"message", block.role.encode())
        chain = _chained(chain, block.kind.encode(), block.content)
        keys.append(Key(_chained(chain, b"end") if ends_messages else chain))
    return keys


def content_of(*texts: str) -> bytes:
    """Several texts as one content that no other texts give."""
    return b"".join(len(data).to_bytes(8, "little") + data for data in (text.encode() for text in texts))


def _chained(chain: bytes, *values: bytes) -> bytes:
    digest = hashlib.blake2b(chain, digest_size=_DIGEST_BYTES)
    for value in values:
        digest.update(len(value).to_bytes(8, "little") + value)
    return digest.digest()


def chained_tokens(chain: bytes, tokens: bytes) -> Key:
    """The key of a prefix of token ids that goes on from `chain`."""
    return Key(_chained(chain, tokens))


def message_ends(blocks: Sequence[Block]) -> list[int]:
    """Index of the last block of each message, in order."""
    return [
        index
        for index, block in enumerate(blocks)
        if block.message_index >= 0
        and (index + 1 == len(blocks) or blocks[index + 1].message_index != block.message_index)
    ]
