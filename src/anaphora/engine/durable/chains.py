"""What to load before anybody asks: whole prompts out of the records that were used last. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anaphora.core.namespace import Namespace, namespace_of
from anaphora.engine.durable.pieces import Opening
from anaphora.tiers.base import Known


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Records that follow one another from token 0 on, as the opening they hold, and whose it is."""

    opening: Opening
    tenant: str


def chains_of(known: Sequence[Known], *, model_digest: bytes, shared: Namespace) -> list[Chain]:
    """Join records to the longest openings of one model that they make, in the order in which the last ones come.

    What the index says of a tenant is checked against the namespace. A region of which no tenant's record follows is
    left out: it is loaded when the first one asks. Cost: O(records + tokens of the openings).
    """
    by_key = {one.key: one for one in known}
    followed = {one.parent for one in known}
    chains = []
    for last in known:
        tenant = None if last.origin is None else last.origin.tenant
        if last.key in followed or tenant is None:
            continue
        if last.namespace != namespace_of(model_digest=model_digest, tenant=tenant):
            continue
        records = [last]
        while (before := by_key.get(records[-1].parent)) is not None:
            records.append(before)
        records.reverse()
        if any(records[0].parent) or any(one.namespace not in (last.namespace, shared) for one in records):
            continue
        num_shared = sum(len(one.tokens) for one in records if one.namespace == shared)
        tokens = np.concatenate([one.tokens for one in records])
        chains.append(Chain(Opening(tokens, last.namespace, shared, num_shared), tenant))
    return chains
