"""The facts of a model that `anaphora models inspect` shows."""

from collections.abc import Iterator
from dataclasses import dataclass

from anaphora.engine.models.gguf_file import pre_tokenizer_name
from anaphora.engine.models.spec import LoadedModel, ModelSpec
from anaphora.engine.models.tokenizer import RULES


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a loaded model is, for people."""

    spec: ModelSpec
    num_parameters: int
    dtype: str
    kv_bytes_per_token: int
    end_tokens: tuple[str, ...]
    tokenizer_class: str
    pre_tokenizer: str | None  # rule named by a GGUF file; None: the tokenizer came with the model
    has_chat_template: bool

    def rows(self) -> Iterator[tuple[str, str]]:
        """Give the facts as (label, text), in reading order."""
        spec = self.spec
        yield "name", spec.name
        yield "architecture", spec.architecture
        yield "parameters", f"{self.num_parameters:,}, computed in {self.dtype}"
        yield "layers", str(spec.num_layers)
        yield "heads", f"{spec.num_heads} query, {spec.num_kv_heads} key/value, {spec.head_dim} wide"
        yield "keys and values", f"{self.kv_bytes_per_token:,} bytes per token"
        yield "context", f"{spec.max_context:,} tokens"
        yield "vocabulary", f"{spec.vocab_size:,} tokens"
        ends = zip(self.end_tokens, sorted(spec.end_token_ids), strict=True)
        yield "end tokens", ", ".join(f"{token} ({token_id})" for token, token_id in ends) or "none"
        yield "tokenizer", self.tokenizer_class + self._rule()
        yield "chat template", "yes" if self.has_chat_template else "no"
        yield "digest", spec.digest.hex()
        yield "cacheable", spec.not_cacheable_because or "yes, exactly"

    def _rule(self) -> str:
        if self.pre_tokenizer is None:
            return ""
        known = "" if self.pre_tokenizer in RULES else ", a rule not known here: tokens may differ"
        return f" (pre-tokenizer {self.pre_tokenizer}{known})"


def facts_of(loaded: LoadedModel) -> ModelFacts:
    """Gather the facts of a loaded model. Cost: O(number of weight tensors)."""
    tokenizer = loaded.tokenizer
    return ModelFacts(
        spec=loaded.spec,
        num_parameters=sum(parameter.numel() for parameter in loaded.model.parameters()),
        dtype=str(loaded.dtype).removeprefix("torch."),
        kv_bytes_per_token=loaded.spec.kv_bytes_per_token(loaded.dtype),
        end_tokens=tuple(
            str(tokenizer.convert_ids_to_tokens(token_id)) for token_id in sorted(loaded.spec.end_token_ids)
        ),
        tokenizer_class=type(tokenizer).__name__,
        pre_tokenizer=pre_tokenizer_name(tokenizer),
        has_chat_template=tokenizer.chat_template is not None,
    )
