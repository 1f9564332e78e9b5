"""Which records a prompt is made of, which of them are worth loading, and which are not stored yet. Pure.

    tokens   0 ............ num_shared ............................ len(tokens)
             |   region    |          the tenant's own              |
    pieces   [256][256][..][256][256][256] ..................... [...]     the last of each part may be shorter

A piece is named by its tokens and everything in front of it. The region's pieces are named in the shared namespace, so
that all tenants load the same ones; the tenant's own follow the region's last. A short piece at the end is stored too:
a record that goes on longer takes its place later.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from anaphora.core.index import common_length
from anaphora.core.namespace import Namespace
from anaphora.tiers.base import Entry, Tier
from anaphora.tiers.keys import START, RecordKey, Tokens, record_key

RECORD_TOKENS = 256
"""Large enough that reading one costs much more than finding it, small enough that little is read for nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """The tokens that a prompt opens with, and under whose names their records are kept."""

    tokens: Tokens
    namespace: Namespace
    shared: Namespace
    num_shared: int  # tokens of the shared region that it opens with

    def first(self, num_tokens: int) -> "Opening":
        """The same, cut off behind its first tokens."""
        return Opening(self.tokens[:num_tokens], self.namespace, self.shared, min(self.num_shared, num_tokens))


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens `[start, stop)` of an opening, and their name."""

    namespace: Namespace
    parent: RecordKey
    key: RecordKey
    start: int
    stop: int

    @property
    def is_whole(self) -> bool:
        """Whether no record of this piece can be longer."""
        return self.stop - self.start == RECORD_TOKENS


@dataclass(frozen=True, slots=True)
class Wanted:
    """A record to load: its first tokens are tokens `[piece.start, stop)` of the opening."""

    piece: Piece
    key: RecordKey  # the piece's, or that of a record which opens alike
    stop: int
    size_bytes: int  # of the record, as the index says; 0 where it was not asked


def pieces_of(opening: Opening) -> Iterator[Piece]:
    """Yield the pieces of an opening, first tokens first. Cost: O(tokens), spread over the pieces."""
    parent, num_shared = START, opening.num_shared
    parts = ((opening.shared, 0, num_shared), (opening.namespace, num_shared, len(opening.tokens)))
    for namespace, first, last in parts:
        for start in range(first, last, RECORD_TOKENS):
            stop = min(start + RECORD_TOKENS, last)
            key = record_key(namespace, parent, opening.tokens[start:stop])
            yield Piece(namespace, parent, key, start, stop)
            parent = key


def find_wanted(tier: Tier, opening: Opening, *, num_present: int) -> list[Wanted]:
    """List the records that go on behind the first `num_present` tokens, as far as they are stored without a gap.

    Cost: O(tokens), one look into the index for each piece.
    """
    wanted: list[Wanted] = []
    for piece in pieces_of(opening):
        if piece.stop <= num_present:
            continue
        if piece.is_whole and tier.has(piece.key):
            wanted.append(Wanted(piece, piece.key, piece.stop, 0))
            continue
        entry, num_found = nearest(tier, opening, piece)
        if entry is not None and piece.start + num_found > num_present:
            wanted.append(Wanted(piece, entry.key, piece.start + num_found, entry.size_bytes))
        if piece.start + num_found < piece.stop:
            break
    return wanted


def nearest(tier: Tier, opening: Opening, piece: Piece) -> tuple[Entry | None, int]:
    """Find the record that shares most of a piece's first tokens, and how many."""
    tokens = opening.tokens[piece.start : piece.stop]
    entry = tier.nearest(piece.namespace, piece.parent, tokens)
    return entry, 0 if entry is None else common_length(entry.tokens, tokens)
