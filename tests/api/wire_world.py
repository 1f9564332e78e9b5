"""Builders with defaults for what the engine hands to the replies."""

from anaphora.api.account import Account
from anaphora.engine.request import Delta, Receipt, RequestId, TokenLogprob


def account(*, prompt: int = 26, reused: int = 20, generated: int = 3) -> Account:
    receipt = Receipt(
        request_id=RequestId("r"),
        num_prompt_tokens=prompt,
        num_reused_tokens=reused,
        num_computed_tokens=prompt - reused,
        num_written_tokens=prompt - reused + generated - 1,
        num_generated_tokens=generated,
        source="device" if reused else "none",
        stop_reason="diverged" if reused else "nothing_cached",
        queue_time_s=0.001,
        time_to_first_token_s=0.02,
        total_time_s=0.05,
    )
    return Account((receipt,))


EXTENSION = {
    "prompt_tokens": 26,
    "reused_tokens": 20,
    "computed_tokens": 6,
    "written_tokens": 8,
    "generated_tokens": 3,
    "kept_tokens": 0,
    "retention": "none",
    "source": "device",
    "loaded_tokens": 0,
    "stop_reason": "diverged",
    "queue_ms": 1.0,
    "time_to_first_token_ms": 20.0,
    "total_ms": 50.0,
}


def delta(text: str, **rest: object) -> Delta:
    return Delta(sequence_index=rest.pop("sequence_index", 0), text=text, token_ids=(1,), **rest)  # type: ignore[arg-type]


def score(token: str, logprob: float = -0.5, *, others: tuple[tuple[str, float], ...] = ()) -> TokenLogprob:
    best = ((1, token, token.encode(), logprob), *((2, other, other.encode(), low) for other, low in others))
    return TokenLogprob(1, token, token.encode(), logprob, best if others else ())
