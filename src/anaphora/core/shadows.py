"""What a cache would hit in other orders of eviction, told without running it: its shadows.

Where a node's rank changes only when it is used, a cache that evicts the lowest rank holds, at any time, just what
ranks above some border. So of each order we keep only how many tokens stand at which rank, gone ones included:

    rank      ....... 3   0  12 | 40   8  15   2      tokens, in buckets
              would be gone     | would be cached     the border moves up as tokens come in on top

What is used again would have been a hit exactly where its old rank is above the border.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NUM_BUCKETS = 4096
"""From the border up. Where that is too few, buckets become twice as wide; where an eighth is enough, half as wide."""
STRIDE = 128
"""Buckets that are looked at in one go when a border moves."""


class Shadows:
    """Several caches of the same room that differ in the order of eviction.

    Borders are exact to a bucket: of the tokens in the bucket at the border, part counts as cached.
    Cost: O(shadows) for each use, amortised. Memory: 32 KB for each shadow.
    Source: compare Waldspurger, Park, Garthwaite, Ahmad 2015, "Efficient MRC construction with SHARDS" (LRU at many
    sizes from one pass; ours are many orders at one size).
    """

    def __init__(self, widths: Floats) -> None:  # [num_shadows] of a bucket, in units of rank
        self._narrowest = widths.copy()
        self._widths = widths.copy()
        self._rows = np.arange(len(widths))
        self._buckets = np.zeros((len(widths), NUM_BUCKETS))
        self._totals = np.zeros(len(widths))
        self._borders = np.zeros(len(widths), dtype=np.int64)
        self._tops = np.zeros(len(widths), dtype=np.int64)  # the highest buckets that were used
        self._part_at_border = np.ones(len(widths))

    def take(self, ranks: Floats, num_tokens: Floats) -> Floats:  # [n, num_shadows], [n] -> [num_shadows]
        """Take tokens out that are used again. Returns how many of them each cache would have had."""
        places = self._places_of(ranks)
        taken = np.where(places >= self._borders, num_tokens[:, None], 0.0)
        self._put(places, -taken)
        missing = np.minimum(self._buckets[self._rows, places % NUM_BUCKETS], 0.0)
        if missing.any():  # fingerprints that others share: what was not there can't be taken
            for row, column in set(zip(*np.nonzero(self._buckets < 0), strict=True)):
                self._totals[row] -= self._buckets[row, column]
                self._buckets[row, column] = 0.0
        hits: Floats = (taken * np.where(places == self._borders, self._part_at_border, 1.0)).sum(axis=0)
        return hits

    def add(self, ranks: Floats, num_tokens: Floats) -> None:  # [n, num_shadows], [n]
        """Put tokens where they rank in each order. Those that rank below the border are gone at once."""
        places = self._places_of(ranks)
        if not self._totals.any():
            self._borders = places.min(axis=0)
            self._tops = self._borders.copy()
        while (is_far := places.max(axis=0) - self._borders >= NUM_BUCKETS).any():
            self._widen(is_far)
            places = self._places_of(ranks)
        self._tops = np.maximum(self._tops, places.max(axis=0))
        self._put(places, np.where(places >= self._borders, num_tokens[:, None], 0.0))

    def fit(self, room: float) -> None:
        """Move the borders up until all that is above them has room."""
        lowest = self._buckets[self._rows, self._borders % NUM_BUCKETS]
        while (is_over := self._totals - lowest >= room).any():
            lowest = self._advance(is_over, room)
        above = self._totals - lowest
        self._part_at_border = np.clip((room - above) / np.maximum(lowest, 1.0), 0.0, 1.0)
        is_wide = (self._tops - self._borders < NUM_BUCKETS // 8) & (self._widths > self._narrowest)
        if is_wide.any():
            self._narrow(is_wide)

    def span(self, shadow: int) -> float:
        """Tell how far the highest rank is above the border in one of the orders."""
        return float((self._tops[shadow] - self._borders[shadow]) * self._widths[shadow])

    def check(self) -> None:
        """Assert what must hold. Cost: O(buckets)."""
        assert (self._buckets >= 0).all(), "tokens were taken that are not there"
        assert np.allclose(self._buckets.sum(axis=1), self._totals, atol=0.5), "tokens are miscounted"
        assert (self._tops - self._borders < NUM_BUCKETS).all(), "a bucket stands for two ranks"

    def _places_of(self, ranks: Floats) -> NDArray[np.int64]:
        return np.floor(ranks / self._widths).astype(np.int64)

    def _put(self, places: NDArray[np.int64], num_tokens: Floats) -> None:
        np.add.at(self._buckets, (self._rows, places % NUM_BUCKETS), num_tokens)
        self._totals += num_tokens.sum(axis=0)

    def _advance(self, rows: NDArray[np.bool_], room: float) -> Floats:  # [num_shadows]
        """Move some borders up by `STRIDE` buckets at most. Returns what is in the buckets at the borders."""
        columns = (self._borders[:, None] + np.arange(STRIDE)) % NUM_BUCKETS
        tokens = self._buckets[self._rows[:, None], columns]
        below = np.cumsum(tokens, axis=1) - tokens
        has_room = self._totals[:, None] - below - tokens < room
        moves = np.where(has_room.any(axis=1), has_room.argmax(axis=1), STRIDE - 1) * rows
        self._totals -= below[self._rows, moves]
        self._borders += moves
        self._buckets[self._rows[:, None], columns] = np.where(np.arange(STRIDE) < moves[:, None], 0.0, tokens)
        return self._buckets[self._rows, self._borders % NUM_BUCKETS]

    def _widen(self, rows: NDArray[np.bool_]) -> None:
        """Join buckets two by two."""
        for row in np.flatnonzero(rows):
            places = self._borders[row] + np.arange(NUM_BUCKETS)
            joined = np.zeros(NUM_BUCKETS)
            np.add.at(joined, (places // 2) % NUM_BUCKETS, self._buckets[row, places % NUM_BUCKETS])
            self._buckets[row] = joined
            self._borders[row] //= 2
            self._tops[row] //= 2
            self._widths[row] *= 2

    def _narrow(self, rows: NDArray[np.bool_]) -> None:
        """Part buckets in two: the upper half gets all that was in them."""
        for row in np.flatnonzero(rows):
            places = self._borders[row] + np.arange(NUM_BUCKETS // 2)
            parted = np.zeros(NUM_BUCKETS)
            parted[(2 * places + 1) % NUM_BUCKETS] = self._buckets[row, places % NUM_BUCKETS]
            self._buckets[row] = parted
            self._borders[row] = 2 * self._borders[row] + 1
            self._tops[row] = 2 * self._tops[row] + 1
            self._widths[row] /= 2
