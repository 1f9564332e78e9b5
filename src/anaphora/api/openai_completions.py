"""OpenAI's legacy Completions: raw text or token ids in, text out, scores of every token if asked for. Pure.

Evaluation harnesses live on this endpoint: they send batches of token ids with `echo` and `logprobs`, and read
the prompt's own scores. `max_tokens` 0 with `echo` scores a prompt and generates nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from anaphora.api.account import Account
from anaphora.api.answers import Answer, AnswerEvent, Finish, TextPiece
from anaphora.api.openai import MAX_TOP_LOGPROBS, SamplingFields, sampling_of
from anaphora.api.wire import refuse, validated
from anaphora.engine.request import FinishReason, Sampling, TokenLogprob

MAX_PROMPTS = 2048
_DEFAULT_MAX_TOKENS = 16

TextOrTokens = str | tuple[int, ...]


class CompletionRequest(SamplingFields):
    prompt: Any
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None


@dataclass(frozen=True, slots=True)
class CompletionCall:
    """One Completions request, translated. `sampling` holds for each prompt."""

    model: str
    prompts: tuple[TextOrTokens, ...]
    sampling: Sampling
    echoes: bool
    is_streamed: bool
    includes_usage: bool


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt as `echo` gives it back: its text, and the place of each of its tokens in it."""

    text: str
    offsets: tuple[int, ...]  # [num_prompt_tokens]


def read_completion(body: dict[str, Any]) -> CompletionCall:
    """The request, translated.

    Raises: RequestError naming the field.
    """
    request = validated(CompletionRequest, body)
    if request.suffix:
        refuse("suffix", "is not supported: the model completes text at its end only.")
    if request.best_of is not None and request.best_of != (request.n or 1):
        refuse("best_of", "must equal n: every answer that is computed is returned.")
    echoes = bool(request.echo)
    max_tokens = _DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    if max_tokens == 0 and not echoes:
        refuse("max_tokens", "must be at least 1 unless echo is true: the answer would be empty.")
    sampling = sampling_of(
        request,
        max_tokens=max_tokens,
        num_logprobs=request.logprobs,
        num_prompt_logprobs=request.logprobs if echoes else None,
    )
    return CompletionCall(
        model=request.model,
        prompts=_prompts(request.prompt),
        sampling=sampling,
        echoes=echoes,
        is_streamed=bool(request.stream),
        includes_usage=bool(request.stream_options and request.stream_options.include_usage),
    )


def _prompts(value: object) -> tuple[TextOrTokens, ...]:
    """The four forms: a string, a list of strings, a list of token ids, a list of lists of token ids."""
    if isinstance(value, str):
        return (_filled(value, "prompt"),)
    if not isinstance(value, list) or not value:
        refuse("prompt", "must be a string, a list of strings, a list of token ids, or a list of those lists.")
    if len(value) > MAX_PROMPTS and not _is_token(value[0]):
        refuse("prompt", f"must not have more than {MAX_PROMPTS} prompts.")
    if _is_token(value[0]):
        return (_tokens(value, "prompt"),)
    return tuple(_prompt(entry, f"prompt[{index}]") for index, entry in enumerate(value))


def _prompt(value: object, path: str) -> TextOrTokens:
    if isinstance(value, str):
        return _filled(value, path)
    if isinstance(value, list) and value:
        return _tokens(value, path)
    refuse(path, "must be a string or a list of token ids.")


def _filled(text: str, path: str) -> str:
    if not text:
        refuse(path, "must not be empty.")
    return text


def _tokens(value: list[Any], path: str) -> tuple[int, ...]:
    for index, token in enumerate(value):
        if not (_is_token(token) and 0 <= token < 2**31):
            refuse(f"{path}[{index}]", "must be a token id.")
    return tuple(value)


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class CompletionReply:
    """Write answers as a `text_completion`, whole or in chunks.

    Choices are numbered prompt by prompt: choice = prompt index * n + sequence index.
    """

    def __init__(self, *, response_id: str, created: int, call: CompletionCall) -> None:
        self._head = {"id": response_id, "object": "text_completion", "created": created, "model": call.model}
        self._call = call
        self._offsets: dict[int, int] = {}  # where the next token of a choice begins in its text
        self._held: dict[str, Any] | None = None

    def whole(
        self,
        answers: Sequence[Answer],
        echoed: Sequence[tuple[PromptText, Sequence[TokenLogprob | None]]],
        account: Account,
    ) -> dict[str, Any]:
        """The body of an answer that isn't streamed. `echoed` has one entry per prompt, or none."""
        choices = []
        num_sequences = self._call.sampling.num_sequences
        for index, answer in enumerate(answers):
            text, scores = answer.text, self._no_scores()
            if echoed:
                prompt, prompt_logprobs = echoed[index // num_sequences]
                text = prompt.text + text
                _add(scores, self._prompt_scores(prompt, prompt_logprobs))
                self._offsets[index] = len(prompt.text)
            _add(scores, self._scores(index, answer.logprobs))
            choices.append(self._choice(index, text, scores, finish=_finish_reason(answer.finish.reason)))
        return {**self._head, "choices": choices, "usage": usage_of(account), "anaphora": account.extension()}

    def echo(
        self, prompt_index: int, prompt: PromptText, logprobs: Sequence[TokenLogprob | None]
    ) -> list[dict[str, Any]]:
        """The chunks that give a prompt back, one for each of its sequences."""
        chunks = []
        first = prompt_index * self._call.sampling.num_sequences
        for index in range(first, first + self._call.sampling.num_sequences):
            self._offsets[index] = len(prompt.text)
            scores = self._no_scores()
            _add(scores, self._prompt_scores(prompt, logprobs))
            chunks.append(self._chunk([self._choice(index, prompt.text, scores, finish=None)]))
        return chunks

    def piece(self, event: AnswerEvent) -> list[dict[str, Any]]:
        """The chunks for one event. The last end is held until `closing`, which has the receipt."""
        if isinstance(event, TextPiece):
            scores = self._scores(event.sequence_index, event.logprobs)
            return [self._chunk([self._choice(event.sequence_index, event.text, scores, finish=None)])]
        if not isinstance(event, Finish):
            return []
        scores = self._scores(event.sequence_index, event.logprobs)
        choice = self._choice(event.sequence_index, "", scores, finish=_finish_reason(event.reason))
        ready, self._held = self._held, self._chunk([choice])
        return [ready] if ready else []

    def closing(self, account: Account) -> list[dict[str, Any]]:
        """The last chunks."""
        assert self._held is not None, "a finished answer has a finished sequence"
        if not self._call.includes_usage:
            return [{**self._held, "anaphora": account.extension()}]
        last = {**self._head, "choices": [], "usage": usage_of(account), "anaphora": account.extension()}
        return [self._held, last]

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk: dict[str, Any] = {**self._head, "choices": choices}
        if self._call.includes_usage:
            chunk["usage"] = None
        return chunk

    def _choice(self, index: int, text: str, scores: dict[str, list[Any]], *, finish: str | None) -> dict[str, Any]:
        has_scores = self._call.sampling.num_logprobs is not None
        return {"index": index, "text": text, "logprobs": scores if has_scores else None, "finish_reason": finish}

    def _no_scores(self) -> dict[str, list[Any]]:
        return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}

    def _scores(self, index: int, logprobs: Sequence[TokenLogprob]) -> dict[str, list[Any]]:
        scores = self._no_scores()
        for entry in logprobs:
            offset = self._offsets.setdefault(index, 0)
            _add(scores, _one(entry, offset))
            self._offsets[index] = offset + len(entry.token)
        return scores

    def _prompt_scores(self, prompt: PromptText, logprobs: Sequence[TokenLogprob | None]) -> dict[str, list[Any]]:
        scores = self._no_scores()
        for position, (entry, offset) in enumerate(zip(logprobs, prompt.offsets, strict=True)):
            if entry is not None:
                _add(scores, _one(entry, offset))
                continue
            stop = prompt.offsets[position + 1] if position + 1 < len(prompt.offsets) else len(prompt.text)
            scores["tokens"].append(prompt.text[offset:stop])
            scores["token_logprobs"].append(None)
            scores["top_logprobs"].append(None)
            scores["text_offset"].append(offset)
        return scores


def usage_of(account: Account) -> dict[str, Any]:
    """OpenAI's usage: cached and written tokens are part of the prompt's."""
    prompt, generated, tokens = account.num_prompt_tokens, account.num_generated_tokens, account.tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": tokens.read, "cache_write_tokens": tokens.written},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _one(entry: TokenLogprob, offset: int) -> dict[str, list[Any]]:
    top: dict[str, float] = {_name(entry.token, entry.token_bytes): entry.logprob}
    for _, token, token_bytes, logprob in entry.top:
        name = _name(token, token_bytes)
        top[name] = max(logprob, top.get(name, logprob))
    return {
        "tokens": [_name(entry.token, entry.token_bytes)],
        "token_logprobs": [entry.logprob],
        "top_logprobs": [top],
        "text_offset": [offset],
    }


def _name(token: str, token_bytes: bytes) -> str:
    """A token's text, or its bytes where it is only part of a character (several would look the same)."""
    try:
        token_bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes)
    return token


def _add(scores: dict[str, list[Any]], more: dict[str, list[Any]]) -> None:
    for name, values in more.items():
        scores[name] += values


def _finish_reason(reason: FinishReason) -> str:
    return "length" if reason == "length" else "stop"
