"""What to load before anybody asks: whole prompts out of the records that were used last. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anaphora.core.namespace import Namespace, namespace_of
from anaphora.engine.durable.pieces import Opening
from anaphora.tiers.base import Known
from anaphora.tiers.survey import Survey


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
    chains = []
    for prefix in Survey(known).prefixes():
        tenant = None if prefix.origin is None else prefix.origin.tenant
        namespace = prefix.records[-1].namespace
        if tenant is None or namespace != namespace_of(model_digest=model_digest, tenant=tenant):
            continue
        if not prefix.is_whole() or any(one.namespace not in (namespace, shared) for one in prefix.records):
            continue
        num_shared = sum(len(one.tokens) for one in prefix.records if one.namespace == shared)
        tokens = np.concatenate([one.tokens for one in prefix.records])
        chains.append(Chain(Opening(tokens, namespace, shared, num_shared), tenant))
    return chains
