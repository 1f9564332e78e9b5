"""Prompts made in code: a long, sensible system prompt, and random tokens that nobody has cached yet."""

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_OPENING = "You are the assistant of a camera store. Answer in one short sentence, from this handbook.\n\nCatalogue:\n"
_RULES = (
    "\nHouse rules:\nThe store is open from Monday to Saturday, from 9 to 18 o'clock. "
    "Returns are accepted within 30 days with a receipt. Shipping abroad takes 10 days and costs 25 euros. "
    "Repairs take two weeks.\n"
)
_KINDS = ("lens", "tripod", "camera bag", "flash", "filter", "battery", "camera body", "strap")
_NAMES = ("Aster", "Birch", "Cedar", "Dahlia", "Elder", "Fern", "Gorse", "Hazel", "Iris", "Juniper", "Laurel", "Maple")


def handbook(num_tokens: int, count_tokens: Callable[[str], int]) -> str:
    """Write a store's handbook of at least `num_tokens` tokens, and at most one catalogue entry more.

    Cost: one tokenisation of the whole text, and one of each entry.
    """
    entries: list[str] = []
    num_left = num_tokens - count_tokens(_OPENING + _RULES)
    for number in itertools.count(1):
        if num_left <= 0:
            break
        entries.append(_entry(number))
        num_left -= count_tokens(entries[-1])
    return _OPENING + "".join(entries) + _RULES


def _entry(number: int) -> str:
    name, kind = _NAMES[number % len(_NAMES)], _KINDS[number * 5 % len(_KINDS)]
    price, weight, stock = 20 + number * 37 % 480, 90 + number * 53 % 900, number * 7 % 23
    where = f"{stock} in stock" if stock else "sold out, back in two weeks"
    return f"{number}. {kind} {name} {100 + number}: {price} euros, {weight} grams, {where}.\n"


class FreshTokens:
    """Random prompts. Each opens with a token that no earlier one opened with, so none of it can be cached."""

    def __init__(self, vocab_size: int, *, seed: int = 0) -> None:
        self._vocab_size = vocab_size
        self._random = np.random.default_rng(seed)
        self._openings = iter(self._random.permutation(vocab_size).tolist())

    def draw(self, num_tokens: int) -> NDArray[np.int32]:  # [num_tokens]
        """Make the next prompt, or a tail that no cached prompt goes on with."""
        tokens = self._random.integers(0, self._vocab_size, num_tokens, dtype=np.int32)
        tokens[0] = next(self._openings)
        return tokens
