"""Between the HTTP routes and the engine: render prompts, submit them, remember calling turns."""

import contextlib
import dataclasses
import json
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from anaphora.api.answers import AnswerEvent, AnswerReader, CallPiece, CallReading, Finish, TextPiece
from anaphora.api.contracts import Tab
from anaphora.api.limit_headers import Room
from anaphora.api.model_text import TokenizerEncoder, renderer_of, writes_as_text
from anaphora.api.openai_completions import PromptText, TextOrTokens
from anaphora.api.replay import HandedOut, ReplayMemory
from anaphora.api.source import Source, renamed
from anaphora.engine.engine import Engine
from anaphora.engine.grammar import is_heavy, schema_problem
from anaphora.engine.request import GenerationRequest, Keep, RequestId, Sampling, Tenant
from anaphora.engine.stats import EngineStats
from anaphora.engine.stream import Stream
from anaphora.errors import AnaphoraError, RequestError
from anaphora.prompt.answer_grammar import answer_grammar, answer_schema, arguments_schema, callable_tools
from anaphora.prompt.canonical import Prompt, Tool
from anaphora.prompt.render import Encoded, Rendered
from anaphora.prompt.template import TemplateRefused
from anaphora.prompt.tool_calls import call_frame

_CHAT_FIELDS = {"prompt": "messages", "num_logprobs": "top_logprobs", "num_sequences": "n"}
"""The engine's names for fields that conversations call otherwise."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, and under which id."""

    tenant: Tenant
    response_id: str
    is_batched: bool = False  # what is left in the cache goes before what others left


class Serving:
    """One engine, served. Rendering may run in any thread; submitting belongs to the event loop."""

    def __init__(self, engine: Engine, *, timeout_s: float | None) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._renderer = renderer_of(engine.tokenizer)
        self._encoder = TokenizerEncoder(engine.tokenizer)
        self._memory = ReplayMemory()
        trigger = call_frame(self._renderer.traits.call_style).opener
        self._has_trigger = writes_as_text(engine.tokenizer, trigger)
        self.max_tokens = min(engine.spec.max_context, engine.stats().num_slots)

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def room(self) -> Room:
        """How much the engine takes at once, and how much of it is left now."""
        stats, settings = self._engine.stats(), self._engine.settings
        num_requests = settings.max_sequences + settings.queue_length
        return Room(
            num_requests=num_requests,
            num_requests_left=num_requests - stats.num_running - stats.num_waiting,
            num_tokens=stats.num_slots,
            num_tokens_left=stats.num_free_slots + stats.num_evictable_slots,
        )

    def render(self, prompt: Prompt, tenant: Tenant) -> Rendered:
        """The prompt as tokens.

        Raises: RequestError where the model's chat template can't take this conversation.
        Cost: the tokenizer's, so call it off the event loop.
        """
        try:
            rendered = self._renderer.render(prompt, lambda message: self._memory.recall(tenant, message))
        except TemplateRefused as error:
            raise RequestError(
                f"messages: the model's chat template can't render this conversation: {error}", field="messages"
            ) from error
        return dataclasses.replace(rendered, grammar=self._grammar(prompt, rendered.opening))

    def _grammar(self, prompt: Prompt, opening: str) -> str | None:
        """What the answer has to be, compiled. Tools that promised nothing of their arguments may take any object.

        Raises: RequestError naming the schema that can't be followed.
        """
        style = self._renderer.traits.call_style
        loose = _without_object(prompt) | _too_heavy(prompt)
        for _ in range(2):
            grammar = answer_grammar(prompt, style, opening=opening, loose=loose, has_trigger=self._has_trigger)
            if grammar is None:
                return None
            try:
                self._engine.check_grammar(grammar)
            except RequestError as error:
                loose, problem = loose | _not_followed(prompt), error
            else:
                return grammar
        path = _form_path(prompt)
        raise RequestError(f"{path}: can't be followed: {problem.message}", field=path)

    def encode(self, prompt: TextOrTokens) -> Encoded:
        """Tokens of a Completions prompt. Ids are taken as they are."""
        if isinstance(prompt, str):
            return self._renderer.encode_text(prompt)
        tokens = np.asarray(prompt, dtype=np.int64)
        if tokens.min() < 0 or tokens.max() >= self._engine.spec.vocab_size:
            raise RequestError(
                f"prompt: token ids must be in [0, {self._engine.spec.vocab_size}), the model's vocabulary.",
                field="prompt",
            )
        return Encoded(tokens.astype(np.int32), np.zeros((len(tokens), 2), dtype=np.int64))

    def prompt_text(self, prompt: TextOrTokens, encoded: Encoded, *, with_offsets: bool) -> PromptText:
        """A Completions prompt as `echo` gives it back."""
        if isinstance(prompt, str):
            return PromptText(prompt, tuple(encoded.offsets[:, 0].tolist()) if with_offsets else ())
        text = self._encoder.decode(prompt)
        if not with_offsets:
            return PromptText(text, ())
        lengths = [len(self._encoder.decode([token])) for token in prompt]
        return PromptText(text, tuple(np.concatenate([[0], np.cumsum(lengths[:-1])]).astype(int).tolist()))

    def submit_prompt(
        self, rendered: Rendered, prompt: Prompt, sampling: Sampling, *, asker: Asker, call_prefix: str, tab: Tab | None
    ) -> Source:
        """Start answering a rendered prompt.

        Raises: RequestError, PromptTooLong, Overloaded, EngineStopped.
        """
        sampling = dataclasses.replace(sampling, stop=(*sampling.stop, *rendered.stops), grammar=rendered.grammar)
        calls = None
        if tools := callable_tools(prompt):
            names = tuple(tool.name for tool in tools)
            calls = CallReading(names, rendered.opening, is_single=not prompt.tool_choice.parallel)
        reader = AnswerReader(sampling.num_sequences, calls, _ids(call_prefix))
        fields = {**_CHAT_FIELDS, "grammar": _form_path(prompt)}
        try:
            stream = self._submit(rendered.tokens, sampling, asker, keep=() if tab is None else tab.keep)
        except RequestError as error:
            raise renamed(error, fields) from None
        return Source([stream], [reader], tab, fields=fields)

    def submit_texts(self, prompts: Sequence[Encoded], sampling: Sampling, *, asker: Asker, tab: Tab | None) -> Source:
        """Start completing every one of these prompts, or none.

        Raises: as `submit_prompt`.
        """
        streams: list[Stream] = []
        try:
            for index, prompt in enumerate(prompts):
                streams.append(self._submit(prompt.tokens, sampling, asker, index=index))
        except AnaphoraError:
            for stream in streams:
                stream.abort()
            raise
        readers = [AnswerReader(sampling.num_sequences, None, _ids("")) for _ in streams]
        return Source(streams, readers, tab)

    async def remembering(
        self, events: AsyncGenerator[AnswerEvent, None], tenant: Tenant
    ) -> AsyncGenerator[AnswerEvent, None]:
        """The same events; calling turns are remembered as they end."""
        pieces: dict[int, list[TextPiece | CallPiece]] = {}
        async with contextlib.aclosing(events):
            async for event in events:
                if isinstance(event, TextPiece | CallPiece):
                    pieces.setdefault(event.sequence_index, []).append(event)
                elif isinstance(event, Finish) and event.calls_tools:
                    self._memory.remember(tenant, _handed_out(pieces[event.sequence_index]), event.generated)
                yield event

    def _submit(
        self, tokens: object, sampling: Sampling, asker: Asker, *, index: int = 0, keep: tuple[Keep, ...] = ()
    ) -> Stream:
        assert isinstance(tokens, np.ndarray)
        request_id = RequestId(f"{asker.response_id}-{index}" if index else asker.response_id)
        priority: Literal["low", "normal"] = "low" if asker.is_batched else "normal"
        request = GenerationRequest(request_id, tokens, sampling, asker.tenant, self._timeout_s, keep, priority)
        return self._engine.submit(request)


def _without_object(prompt: Prompt) -> frozenset[str]:
    """Names of tools whose schema is not one of an object, as all arguments are.

    Raises: RequestError naming the schema where it has to be followed.
    """
    found = [tool for tool in callable_tools(prompt) if json.loads(tool.schema).get("type", "object") != "object"]
    for tool in found:
        if _has_to_follow(tool, prompt):
            raise RequestError(f'{tool.schema_path}.type: must be "object".', field=f"{tool.schema_path}.type")
    return frozenset(tool.name for tool in found)


def _too_heavy(prompt: Prompt) -> frozenset[str]:
    """Names of tools whose schema must not even be compiled.

    Raises: RequestError naming the schema where it has to be followed.
    """
    schemas = [json.loads(tool.schema) for tool in callable_tools(prompt)]
    if prompt.answer is not None:
        schemas.append(json.loads(prompt.answer.schema))
    return _not_followed(prompt) if any(is_heavy(schema) for schema in schemas) else frozenset()


def _form_path(prompt: Prompt) -> str:
    """The field that says what form the answer has."""
    return "tools" if prompt.answer is None or callable_tools(prompt) else prompt.answer.path


def _has_to_follow(tool: Tool, prompt: Prompt) -> bool:
    return tool.is_strict or prompt.tool_choice.mode in ("any", "tool")


def _not_followed(prompt: Prompt) -> frozenset[str]:
    """Names of tools whose schema can't be followed and need not be.

    Raises: RequestError naming the schema that has to be.
    """
    if prompt.answer is not None and (problem := schema_problem(answer_schema(prompt.answer))) is not None:
        raise RequestError(f"{prompt.answer.path}: {problem}.", field=prompt.answer.path)
    loose = []
    for tool in callable_tools(prompt):
        if (problem := schema_problem(arguments_schema(tool))) is None:
            continue
        if _has_to_follow(tool, prompt):
            raise RequestError(f"{tool.schema_path}: {problem}.", field=tool.schema_path)
        loose.append(tool.name)
    return frozenset(loose)


def new_id(prefix: str) -> str:
    """An id nobody can guess."""
    return prefix + uuid.uuid4().hex


def _ids(prefix: str) -> Callable[[], str]:
    return lambda: new_id(prefix)


def _handed_out(pieces: Sequence[TextPiece | CallPiece]) -> HandedOut:
    text = "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))
    calls = tuple((piece.call_id, piece.name, piece.arguments) for piece in pieces if isinstance(piece, CallPiece))
    return HandedOut(text, calls)
