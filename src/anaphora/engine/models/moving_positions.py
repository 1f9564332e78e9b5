"""Rotary settings whose frequencies depend on how long the sequence is.

With `dynamic` and `longrope` scaling, Transformers chooses the frequencies of a whole forward pass by the highest
position in it. A key computed in a short prompt then differs from the same key in a long one, and rows of a ragged
step would disturb each other. Up to the original context nothing moves, and caching is exact.
Sources: dynamic NTK scaling, as in Transformers' rotary embeddings; LongRoPE, Ding et al. 2024, arXiv:2402.13753.
"""

from typing import Any

MOVING_KINDS = frozenset({"dynamic", "longrope"})


def longest_fixed_context(config: Any) -> int | None:
    """Answer the longest context (in tokens) at which positions do not move; None if they never do."""
    text = config.get_text_config(decoder=True)
    parameters = getattr(text, "rope_parameters", None) or {}
    by_layer_kind = [value for value in parameters.values() if isinstance(value, dict)]
    limits = [
        int(one.get("original_max_position_embeddings") or text.max_position_embeddings)
        for one in by_layer_kind or [parameters]
        if one.get("rope_type") in MOVING_KINDS
    ]
    return min(limits, default=None)


def why_positions_move(config: Any, *, max_context: int) -> str | None:
    """Say why a model can't be cached exactly at this context, and what would help; None if it can."""
    limit = longest_fixed_context(config)
    if limit is None or max_context <= limit:
        return None
    return (
        f"its rotary positions are rescaled when a sequence grows beyond {limit} tokens "
        f"(set max_context to {limit} or less to have it cached)"
    )
