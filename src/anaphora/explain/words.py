"""A tokenizer of words, for where no model's is at hand: fast, and counts near a model's.

    "It is  9 m."   ->   It | _is | __ | 9 | _m | .          a space goes with the word behind it

The same word is the same token, in every process. Two words could share an id, one pair in a thousand million.
"""

import numpy as np
from numpy.typing import NDArray

from anaphora.prompt.render import Encoded

_SPACE, _WORD, _SIGN = 0, 1, 2
_KINDS = np.full(128, _SIGN, dtype=np.int8)
_KINDS[[ord(sign) for sign in " \t\n\r\v\f\x1c\x1d\x1e\x1f"]] = _SPACE
_KINDS[[code for code in range(128) if chr(code).isalnum() or chr(code) == "_"]] = _WORD

_NUM_WEIGHTS = 64
_WEIGHTS = (np.random.default_rng(20261201).integers(0, 2**31, _NUM_WEIGHTS, dtype=np.uint32) << 1) | 1


def encode_words(text: str, *, opens_text: bool = False) -> Encoded:
    """Tokens of a text: words, runs of white space, single signs. Letters beyond ASCII are parts of words.

    Cost: some passes over the text, vectorised.
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    if not codes.size:
        return Encoded(np.empty(0, dtype=np.int32), np.empty((0, 2), dtype=np.int64))
    starts = _starts(codes)
    stops = np.append(starts[1:], codes.size)
    # Narrow types, worked on in place: this is most of what a log costs.
    places = np.arange(codes.size, dtype=np.uint32)
    places -= np.repeat(starts.astype(np.uint32), stops - starts)
    places %= np.uint32(_NUM_WEIGHTS)
    spelled = _WEIGHTS[places]
    spelled *= codes + np.uint32(1)
    ids = np.add.reduceat(spelled, starts) + (stops - starts).astype(np.uint32)
    return Encoded((ids & np.uint32(0x7FFFFFFF)).astype(np.int32), np.stack([starts, stops], axis=1))


def _starts(codes: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Where tokens begin."""
    kinds = _KINDS[np.minimum(codes, 127)]
    kinds[codes > 127] = _WORD
    is_start = np.ones(codes.size, dtype=bool)
    is_start[1:] = (kinds[1:] != kinds[:-1]) | (kinds[1:] == _SIGN)
    # A space that stands alone in front of a word opens it.
    is_lone = (codes == ord(" ")) & is_start
    opens_word = is_lone[:-1] & (kinds[1:] == _WORD)
    is_start[1:] &= ~opens_word
    return np.flatnonzero(is_start)
