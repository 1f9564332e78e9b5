"""Keys name a prefix and nothing else. Method: known values, another process, and neighbours that must differ."""

import os
import subprocess
import sys

import numpy as np
import pytest
from records_world import SPACE

from anaphora.core.namespace import Namespace
from anaphora.tiers.keys import START, RecordKey, chain, record_key

TOKENS = np.arange(10, dtype=np.int32)
IN_ANOTHER_PROCESS = """
import numpy as np
from anaphora.tiers.keys import chain
print([link.key.hex() for link in chain(b"s" * 32, np.arange(10, dtype=np.int32), record_tokens=4)])
"""


def test_a_chain_covers_full_records_and_each_link_names_its_parent():
    first, second = chain(SPACE, TOKENS, record_tokens=4)
    assert (first.start, first.stop, first.parent) == (0, 4, START)
    assert (second.start, second.stop, second.parent) == (4, 8, first.key)
    assert first.key == record_key(SPACE, START, TOKENS[:4])


@pytest.mark.parametrize("num_tokens", [0, 3])
def test_less_than_a_record_has_no_link(num_tokens: int):
    assert list(chain(SPACE, TOKENS[:num_tokens], record_tokens=4)) == []


def test_keys_are_the_same_in_every_process():
    """With another seed of Python's own hash: a key kept on a disk has to be found after a restart."""
    here = str([link.key.hex() for link in chain(SPACE, TOKENS, record_tokens=4)])
    there = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == here


def test_a_key_does_not_change_from_version_to_version():
    """Files of earlier versions are named by it. If this has to change, so does the format's version."""
    assert record_key(SPACE, START, TOKENS).hex() == "e7de4a93f0352d2f681a4a3df52278fb026d4451f98ba019412e753c8b53c410"


def test_anything_that_differs_gives_another_key():
    other_parent, other_space = RecordKey(b"p" * 32), Namespace(b"t" * 32)
    keys = {
        record_key(SPACE, START, TOKENS),
        record_key(SPACE, START, TOKENS[:-1]),
        record_key(SPACE, START, TOKENS[::-1]),
        record_key(SPACE, other_parent, TOKENS),
        record_key(other_space, START, TOKENS),
    }
    assert len(keys) == 5


def test_how_the_tokens_lie_in_memory_makes_no_difference():
    assert record_key(SPACE, START, np.repeat(TOKENS, 2)[::2]) == record_key(SPACE, START, TOKENS)
    assert record_key(SPACE, START, TOKENS.astype(">i4")) == record_key(SPACE, START, TOKENS)


def test_what_is_no_namespace_no_parent_or_no_length_is_refused():
    with pytest.raises(ValueError, match="32 bytes"):
        record_key(Namespace(b"short"), START, TOKENS)
    with pytest.raises(ValueError, match="32 bytes"):
        record_key(SPACE, RecordKey(b""), TOKENS)
    with pytest.raises(ValueError, match="at least one"):
        list(chain(SPACE, TOKENS, record_tokens=0))
