"""The variant without a cache. What it shares with the other is in the cache contract."""

import numpy as np
import pytest

from anaphora.core.lease import Counts, Match
from anaphora.core.namespace import Namespace
from anaphora.core.no_reuse import NoReuse

SPACE = Namespace(b"s" * 32)
PROMPT = np.arange(4, dtype=np.int32)


def test_nothing_published_is_ever_found():
    cache = NoReuse(10)
    lease = cache.acquire(SPACE, PROMPT, max_reuse=4, num_private=4)
    assert cache.publish(lease, PROMPT, 4) == 0
    assert (lease.num_reused, lease.num_published, lease.num_slots) == (0, 0, 4)
    assert cache.peek(SPACE, PROMPT) == Match(0, (), diverged=False)
    cache.release(lease)
    assert cache.counts() == Counts(free=10, evictable=0, leased=0, total=10)
    assert cache.clear(SPACE) == 0


def test_a_refused_lease_is_not_kept():
    cache = NoReuse(3)
    assert not hasattr(cache.acquire(SPACE, PROMPT, max_reuse=0, num_private=4), "extents")
    cache.check()
    assert cache.counts().leased == 0


@pytest.mark.parametrize("use", ["release", "grow", "publish"])
def test_a_released_lease_can_not_be_used(use):
    cache = NoReuse(10)
    lease = cache.acquire(SPACE, PROMPT, max_reuse=4, num_private=4)
    cache.release(lease)
    arguments = {"release": (), "grow": (1,), "publish": (PROMPT, 3)}
    with pytest.raises(AssertionError, match=r"released twice|not open"):
        getattr(cache, use)(lease, *arguments[use])


def test_publishing_more_than_there_is_room_for_is_our_bug():
    cache = NoReuse(10)
    lease = cache.acquire(SPACE, PROMPT, max_reuse=4, num_private=2)
    with pytest.raises(AssertionError):
        cache.publish(lease, PROMPT, 3)
