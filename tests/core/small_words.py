"""Words for tests of the cache under pressure: a letter is a token, a helper is a sentence."""

import numpy as np

from anaphora.core.cache import PrefixCache
from anaphora.core.evictable import Priority
from anaphora.core.lease import Lease
from anaphora.core.namespace import Namespace

SPACE = Namespace(b"s" * 32)
RED, BLUE, GREEN = (Namespace(letter * 32) for letter in (b"r", b"b", b"g"))
COMMON = Namespace(b"c" * 32)


class Clock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def tokens(text: str) -> np.ndarray:
    return np.array([ord(letter) for letter in text], dtype=np.int32)


def lease_of(
    cache: PrefixCache,
    text: str,
    *,
    space: Namespace = SPACE,
    num_more: int = 0,
    priority: Priority = Priority.NORMAL,
) -> Lease:
    """Lease a prompt with room for exactly its tokens and `num_more`, and publish it."""
    num_private = len(text) - cached(cache, text, space=space) + num_more
    lease = cache.acquire(space, tokens(text), max_reuse=len(text), num_private=num_private, priority=priority)
    cache.check()
    assert isinstance(lease, Lease), lease
    cache.publish(lease, tokens(text), len(text))
    cache.check()
    return lease


def store(
    cache: PrefixCache,
    text: str,
    *,
    space: Namespace = SPACE,
    keep: float | None = None,
    priority: Priority = Priority.NORMAL,
) -> None:
    """Cache a prompt, promise that it stays if told so, and let go of it."""
    lease = lease_of(cache, text, space=space, priority=priority)
    if keep is not None:
        assert cache.keep(lease, len(text), lifetime_s=keep) is None
    cache.release(lease)
    cache.check()


def read(cache: PrefixCache, text: str, *, space: Namespace = SPACE) -> int:
    """Use what is cached of a prompt. Returns the number of tokens."""
    lease = cache.acquire(space, tokens(text), max_reuse=len(text), num_private=0)
    assert isinstance(lease, Lease)
    cache.release(lease)
    cache.check()
    return lease.num_reused


def cached(cache: PrefixCache, text: str, *, space: Namespace = SPACE) -> int:
    return cache.peek(space, tokens(text)).num_tokens
