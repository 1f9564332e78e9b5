"""Small traces for tests: letters for tokens."""

import random

import numpy as np

from anaphora.sim.trace import Trace, TraceRequest


def letters(text: str) -> np.ndarray:
    return np.array([ord(letter) for letter in text], dtype=np.int32)


def trace_of(*prompts: str, **names: str) -> Trace:
    """A trace of prompts, one a second. `tenant` or `session` goes to all of them."""
    requests = tuple(TraceRequest(float(index), letters(text), **names) for index, text in enumerate(prompts))
    return Trace("letters", requests, block_tokens=1)


def random_trace(seed: int, *, num_requests: int = 60, alphabet: str = "ab", longest: int = 8) -> Trace:
    """Short prompts over few letters, so that openings are shared all the time."""
    rng = random.Random(seed)
    return trace_of(*("".join(rng.choices(alphabet, k=rng.randint(1, longest))) for _ in range(num_requests)))
