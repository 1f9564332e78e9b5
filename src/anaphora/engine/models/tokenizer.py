"""The tokenizer a GGUF file describes, exactly.

A byte-level BPE tokenizer first cuts the text into pieces and then merges bytes inside each piece. A GGUF
file holds the vocabulary and the merges, but of the cutting only a name (`tokenizer.ggml.pre`). The rules
below are keyed by that name. A name that isn't here keeps the rule that
Transformers chose, and the operator is told.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_log = logging.getLogger(__name__)

GGUF_PRE_KEY = "gguf_pre"
"""The cutting rule's name among a tokenizer's settings, so that `models inspect` can show it."""

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizerRule:
    """How text is cut before merging.

    `split` None is GPT-2's own rule. `whole_words`: a piece that is a token as it stands is taken whole, even
    where the merges would not build it. `compose`: the text is put into Unicode's composed form (NFC) first.
    """

    split: str | None = None
    single_digits: bool = False  # every digit is a piece of its own, cut before `split`
    whole_words: bool = False
    compose: bool = False


_GPT2_RULE = PreTokenizerRule()
_DIGITS_RULE = PreTokenizerRule(single_digits=True)
_LLAMA3_RULE = PreTokenizerRule(split=_LLAMA3, whole_words=True)
_QWEN2_RULE = PreTokenizerRule(split=_QWEN2, compose=True)

RULES = {
    "gpt-2": _GPT2_RULE,
    "phi-2": _GPT2_RULE,
    "smollm": _DIGITS_RULE,
    "starcoder": _DIGITS_RULE,
    "refact": _DIGITS_RULE,
    "llama3": _LLAMA3_RULE,
    "llama-v3": _LLAMA3_RULE,
    "llama-bpe": _LLAMA3_RULE,
    "qwen2": _QWEN2_RULE,
    "deepseek-r1-qwen": _QWEN2_RULE,
    "tekken": PreTokenizerRule(split=_TEKKEN, whole_words=True),
}
"""The rule of each name.

Source: `llama-vocab.cpp` of llama.cpp (the names); the published `tokenizer.json` of each family (the rules).
"""

_CONTROL, _USER_DEFINED = 3, 4  # values of `tokenizer.ggml.token_type`


def tokenizer_from_gguf(path: Path, fields: dict[str, Any]) -> Any:
    """Build the tokenizer of a GGUF file, with the chat template and special tokens the file names.

    Returns a `transformers.PreTrainedTokenizerFast`. Warns where the cutting rule is not a known one.
    Cost: seconds for a vocabulary of 50,000; the caller keeps the result.
    """
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(path.parent), gguf_file=path.name)
    pre = fields.get("tokenizer.ggml.pre")
    tokenizer.init_kwargs[GGUF_PRE_KEY] = pre
    if fields.get("tokenizer.ggml.model") == "gpt2":
        rule = RULES.get(str(pre))
        if rule is not None:
            apply_rule(tokenizer.backend_tokenizer, rule)
        _add_special_tokens(tokenizer, fields)
    if fields.get("tokenizer.chat_template") and not tokenizer.chat_template:
        tokenizer.chat_template = fields["tokenizer.chat_template"]
    return tokenizer


def warn_about_rule(pre: str | None, *, source: str, byte_level: bool) -> None:
    """Tell the operator when a GGUF file's cutting rule is unknown. Silent where there is nothing to say."""
    if byte_level and pre not in RULES:
        _log.warning(
            "%s names the pre-tokenizer %r, whose rule is not known here: tokens may differ from those the "
            "model was trained on. Known: %s. The original model folder with its tokenizer.json is exact.",
            source,
            pre,
            ", ".join(sorted(RULES)),
        )


def apply_rule(backend: Any, rule: PreTokenizerRule) -> None:
    """Make a `tokenizers.Tokenizer` with a byte-level BPE model cut text by `rule`. Changes `backend`."""
    steps: list[Any] = []
    if rule.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if rule.split is not None:
        steps.append(pre_tokenizers.Split(Regex(rule.split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule.split is None))
    backend.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    backend.normalizer = normalizers.NFC() if rule.compose else None
    backend.model.ignore_merges = rule.whole_words


def _add_special_tokens(tokenizer: Any, fields: dict[str, Any]) -> None:
    """Keep control tokens and user-defined tokens whole in text, as the file's token types say.

    Older releases of Transformers leave some out; adding a token twice changes nothing.
    """
    vocabulary = tokenizer.get_vocab()
    types = fields.get("tokenizer.ggml.token_type") or ()
    names = fields.get("tokenizer.ggml.tokens") or ()
    for wanted, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        chosen = [
            AddedToken(name, normalized=False, special=special)
            for name, kind in zip(names, types, strict=False)
            if kind == wanted and name in vocabulary
        ]
        if chosen:
            tokenizer.add_tokens(chosen, special_tokens=special)
