"""The routes. Each handler is one way through: read, render, submit, answer.

    body --read_*--> call --Serving.render--> tokens --submit--> Source --events--> Reply --> body | event stream

Reading and rendering run in a thread, so that a large body holds up nobody; the rest runs on the event loop.
"""

import asyncio
import contextlib
import hmac
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import anaphora
from anaphora.api import openapi
from anaphora.api.account import Account
from anaphora.api.answers import AnswerEvent, Begin, collect
from anaphora.api.anthropic import read_count, read_messages
from anaphora.api.anthropic_diagnostics import diagnosis, message_settings, read_diagnostics
from anaphora.api.anthropic_marks import MarkedPrompt, marked_prompt
from anaphora.api.anthropic_reply import MessageReply
from anaphora.api.auth import Keys, digest_of, key_of
from anaphora.api.batch_routes import Answering, BatchRoutes
from anaphora.api.contracts import Contracts
from anaphora.api.errors import Protocol, route_error_reply
from anaphora.api.explaining import Explaining, Inquiry, Question, text_rendering
from anaphora.api.http import (
    EventStream,
    described,
    error_response,
    guarded,
    json_response,
    read_body,
    until_disconnect,
)
from anaphora.api.incoming import Handler, Incoming
from anaphora.api.limit_headers import host_headers, limit_headers
from anaphora.api.metrics import Metrics
from anaphora.api.models import ServedModels
from anaphora.api.openai import ChatCall, read_chat
from anaphora.api.openai_completions import CompletionReply, read_completion
from anaphora.api.openai_marks import KeyedPrompt, chat_words, keyed_prompt, responses_words
from anaphora.api.openai_reply import ChatReply
from anaphora.api.request_entry import entry_of
from anaphora.api.request_log import RequestLog
from anaphora.api.response_store import ResponseStore
from anaphora.api.responses import ResponsesCall, read_input_tokens, read_responses
from anaphora.api.responses_diagnostics import comparison, read_comparison, response_settings
from anaphora.api.responses_reply import ResponseReply
from anaphora.api.seen_file import SeenFile, open_seen
from anaphora.api.serving import Asker, Serving, new_id
from anaphora.api.source import Source
from anaphora.api.wire import parse_body, refuse, want_text
from anaphora.api.writer import Writer, chat_writer, completion_writer, message_writer, response_writer
from anaphora.contract.prices import PriceBook
from anaphora.contract.profiles import LOCAL, Profile, profile_named
from anaphora.core.fates import Fate
from anaphora.core.index import Tokens
from anaphora.engine.engine import Engine
from anaphora.engine.request import Keep, Tenant
from anaphora.errors import NotAuthenticated, RequestTimeout, UnknownResponse
from anaphora.explain.memory import MemoryLimits
from anaphora.prompt.canonical import Prompt
from anaphora.prompt.front_nonces import FRONT_NONCES, Rules
from anaphora.prompt.render import Rendered

Prepared = TypeVar("Prepared")


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """What the HTTP side is told by the operator."""

    served_names: tuple[str, ...] = ()  # () serves the model under its own name
    keys: Keys = field(default_factory=lambda: Keys({}))
    metrics_key: str | None = None  # with API keys set, what `/metrics` asks for
    max_body_bytes: int = 32 * 2**20
    request_timeout_s: float | None = None
    profile: Profile = field(default_factory=lambda: profile_named(LOCAL))
    prices: PriceBook | None = None
    clock: Callable[[], float] = time.monotonic  # of lifetimes, in seconds
    request_log: RequestLog | None = None
    explain: MemoryLimits | None = field(default_factory=MemoryLimits)  # None: no requests are remembered
    front_nonces: Rules = FRONT_NONCES  # what is taken out in front of system prompts
    seen_path: Path | None = None  # file that tells after a restart what was seen before


class Api:
    """The handlers, around one engine."""

    def __init__(self, engine: Engine, settings: ApiSettings) -> None:
        self._settings = settings
        self._serving = Serving(engine, timeout_s=settings.request_timeout_s)
        self._queue_length = engine.settings.queue_length
        self._contracts = Contracts(settings.profile, prices=settings.prices, clock=settings.clock)
        self._responses = ResponseStore()
        self._seen_file: SeenFile | None = None
        self._explaining = None if settings.explain is None else self._explain(engine, settings.explain)
        self.metrics = Metrics(self._serving)
        names = settings.served_names or (engine.spec.name,)
        self._models = ServedModels(names, created=int(time.time()), max_context=self._serving.max_tokens)

    def answering(self, engine: Engine) -> Answering:
        """Who answers the lines of batches."""

        def num_others(num_lines: int) -> int:
            stats = engine.stats()
            return stats.num_running + stats.num_waiting - num_lines

        return Answering(
            handlers={
                "/v1/messages": (self.messages, Protocol.ANTHROPIC),
                "/v1/chat/completions": (self.chat_completions, Protocol.OPENAI),
                "/v1/responses": (self.responses, Protocol.OPENAI),
                "/v1/completions": (self.completions, Protocol.OPENAI),
            },
            num_others=num_others,
            max_sequences=engine.settings.max_sequences,
            max_body_bytes=self._settings.max_body_bytes,
            clock=self._contracts.clock,
            count=self.metrics.count_request,
        )

    def close(self) -> None:
        """Close what was opened."""
        if self._seen_file is not None:
            self._seen_file.close()

    def _explain(self, engine: Engine, limits: MemoryLimits) -> Explaining:
        seen = None
        if self._settings.seen_path is not None:
            seen, self._seen_file = open_seen(self._settings.seen_path, model_digest=engine.spec.digest)

        def fate(tokens: Tokens, num_reused: int, tenant: Tenant, age_s: float) -> Fate | None:
            return engine.fate(tokens, num_reused, tenant=tenant, age_s=age_s)

        return Explaining(limits, fate=fate, seen=seen)

    async def chat_completions(self, incoming: Incoming) -> Response:
        def prepare(body: dict[str, Any]) -> Any:
            call = read_chat(body, self._settings.front_nonces)
            self._models.check(call.model)
            rendered = self._serving.render(call.prompt, incoming.tenant)
            rules = self._settings.profile.openai
            return call, rendered, keyed_prompt(chat_words(body, rules), call.prompt, rendered, rules)

        call, rendered, keyed = await self._prepared(incoming, prepare)
        asker = Asker(incoming.tenant, new_id("chatcmpl-"), incoming.is_batched)
        source, _ = self._ask(incoming, call, (rendered, keyed), asker)
        reply = ChatReply(response_id=asker.response_id, created=int(time.time()), call=call)
        return await self._respond(incoming, source, chat_writer(reply, call.model), is_streamed=call.is_streamed)

    async def responses(self, incoming: Incoming) -> Response:
        def prepare(body: dict[str, Any]) -> Any:
            call = read_responses(body, self._earlier(body, incoming.tenant), self._settings.front_nonces)
            self._models.check(call.model)
            rendered = self._serving.render(call.prompt, incoming.tenant)
            words = responses_words(body, call.items)
            keyed = keyed_prompt(words, call.prompt, rendered, self._settings.profile.openai)
            return call, rendered, keyed, (read_comparison(body), response_settings(body))

        call, rendered, keyed, (compared_id, compared_settings) = await self._prepared(incoming, prepare)
        asker = Asker(incoming.tenant, new_id("resp_"), incoming.is_batched)
        source, inquiry = self._ask(incoming, call, (rendered, keyed), asker, compared_settings)

        def diagnose(account: Account) -> dict[str, Any]:
            return comparison(
                compared_id,
                None if inquiry is None else inquiry.compared_with,
                num_tokens=account.num_prompt_tokens,
                num_reused=account.num_reused_tokens,
            )

        def keep(response: dict[str, Any]) -> None:
            if call.is_stored:
                self._responses.keep(incoming.tenant, [item.value for item in call.items], response)

        reply = ResponseReply(
            response_id=asker.response_id,
            created=int(time.time()),
            call=call,
            new_id=new_id,
            keep=keep,
            diagnose=diagnose,
        )
        return await self._respond(incoming, source, response_writer(reply, call.model), is_streamed=call.is_streamed)

    def _ask(
        self,
        incoming: Incoming,
        call: ChatCall | ResponsesCall,
        prepared: tuple[Rendered, KeyedPrompt],
        asker: Asker,
        compared_settings: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[Source, Inquiry | None]:
        """Reckon a request of either OpenAI endpoint in the ledgers, and start answering it."""
        rendered, keyed = prepared
        tab = self._contracts.open_chat(
            keyed, rendered.tokens, incoming.tenant, call.model, started_s=incoming.started_s
        )
        if incoming.is_batched:
            tab = self._contracts.at_batch_price(tab, call.model)
        source = self._serving.submit_prompt(
            rendered, call.prompt, call.sampling, asker=asker, call_prefix="call_", tab=tab
        )
        question = self._question(incoming, asker, call.model, compared_settings, tab.keep)
        return source, self._inquire(source, question, [(rendered, call.prompt)])

    def _question(
        self,
        incoming: Incoming,
        asker: Asker,
        model: str,
        settings: Mapping[str, str] = MappingProxyType({}),
        keep: tuple[Keep, ...] = (),
    ) -> Question:
        return Question(
            tenant=incoming.tenant,
            response_id=asker.response_id,
            request_id=incoming.request_id,
            endpoint=incoming.endpoint,
            model=model,
            settings=settings,
            keep=keep,
        )

    def _inquire(
        self, source: Source, question: Question, prompts: Sequence[tuple[Rendered, Prompt]]
    ) -> Inquiry | None:
        """Have a request that was submitted remembered and explained. Returns the first of its inquiries."""
        if self._explaining is None:
            return None
        inquiries = [
            self._explaining.arrive(question, rendered, prompt, number=number)
            for number, (rendered, prompt) in enumerate(prompts)
        ]
        source.watch(inquiries)
        return inquiries[0]

    async def count_input_tokens(self, incoming: Incoming) -> Response:
        def prepare(body: dict[str, Any]) -> int:
            model, prompt = read_input_tokens(body, self._earlier(body, incoming.tenant), self._settings.front_nonces)
            self._models.check(model)
            return len(self._serving.render(prompt, incoming.tenant).tokens)

        num_tokens = await self._prepared(incoming, prepare)
        return json_response({"object": "response.input_tokens", "input_tokens": num_tokens})

    async def show_response(self, incoming: Incoming) -> Response:
        kept = self._responses.get(incoming.tenant, str(incoming.request.path_params["response_id"]))
        return json_response(kept.response)

    async def delete_response(self, incoming: Incoming) -> Response:
        response_id = str(incoming.request.path_params["response_id"])
        self._responses.delete(incoming.tenant, response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def completions(self, incoming: Incoming) -> Response:
        def prepare(body: dict[str, Any]) -> Any:
            call = read_completion(body)
            self._models.check(call.model)
            if len(call.prompts) > self._queue_length:
                refuse("prompt", f"has {len(call.prompts)} prompts; the queue holds {self._queue_length}.")
            encoded = [self._serving.encode(prompt) for prompt in call.prompts]
            wants_scores = call.sampling.num_prompt_logprobs is not None
            texts = [
                self._serving.prompt_text(prompt, tokens, with_offsets=wants_scores)
                for prompt, tokens in zip(call.prompts, encoded, strict=True)
                if call.echoes
            ]
            return call, encoded, texts

        call, encoded, texts = await self._prepared(incoming, prepare)
        asker = Asker(incoming.tenant, new_id("cmpl-"), incoming.is_batched)
        tab = self._contracts.open_texts(
            [one.tokens for one in encoded], incoming.tenant, call.model, started_s=incoming.started_s
        )
        if incoming.is_batched:
            tab = self._contracts.at_batch_price(tab, call.model)
        source = self._serving.submit_texts(encoded, call.sampling, asker=asker, tab=tab)
        renderings = [
            text_rendering(one, prompt if isinstance(prompt, str) else None, "prompt")
            for one, prompt in zip(encoded, call.prompts, strict=True)
        ]
        self._inquire(source, self._question(incoming, asker, call.model), renderings)
        reply = CompletionReply(response_id=asker.response_id, created=int(time.time()), call=call)
        writer = completion_writer(reply, call.model, texts, source)
        return await self._respond(incoming, source, writer, is_streamed=call.is_streamed)

    async def messages(self, incoming: Incoming) -> Response:
        limit = self._serving.max_tokens

        def prepare(body: dict[str, Any]) -> Any:
            call = read_messages(body, self._settings.front_nonces)
            self._models.check(call.model)
            if (call.sampling.max_tokens or 0) > limit:
                refuse("max_tokens", f"{call.sampling.max_tokens} > {limit}, the most this model can generate.")
            asked = read_diagnostics(body)
            betas = incoming.request.headers.get("anthropic-beta", "")
            return call, *self._marked(body, call.prompt, incoming.tenant), (asked, message_settings(body, betas))

        call, rendered, marked, (asked, settings) = await self._prepared(incoming, prepare)
        asker = Asker(incoming.tenant, new_id("msg_"), incoming.is_batched)
        sampling, fills_context = call.sampling_within(limit - len(rendered.tokens))
        tab = self._contracts.open_message(marked, incoming.tenant, call.model, started_s=incoming.started_s)
        if incoming.is_batched:
            tab = self._contracts.at_batch_price(tab, call.model)
        source = self._serving.submit_prompt(
            rendered, call.prompt, sampling, asker=asker, call_prefix="toolu_", tab=tab
        )
        question = self._question(incoming, asker, call.model, settings, tab.keep)
        inquiry = self._inquire(source, question, [(rendered, call.prompt)])
        reply = MessageReply(
            response_id=asker.response_id,
            model=call.model,
            fills_context=fills_context,
            more=diagnosis(asked, None if inquiry is None else inquiry.compared_with),
        )
        return await self._respond(incoming, source, message_writer(reply, call.model), is_streamed=call.is_streamed)

    async def count_tokens(self, incoming: Incoming) -> Response:
        def prepare(body: dict[str, Any]) -> int:
            call = read_count(body, self._settings.front_nonces)
            self._models.check(call.model)
            rendered, _ = self._marked(body, call.prompt, incoming.tenant)
            return len(rendered.tokens)

        return json_response({"input_tokens": await self._prepared(incoming, prepare)})

    async def list_models(self, incoming: Incoming) -> Response:
        query = incoming.request.query_params
        if incoming.protocol is Protocol.OPENAI:
            return json_response(self._models.openai_list())
        limit = query.get("limit", "20")
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= 1000):
            refuse("limit", "must be from 1 to 1000.")
        return json_response(
            self._models.anthropic_list(
                after_id=query.get("after_id"), before_id=query.get("before_id"), limit=int(limit[:9])
            )
        )

    async def show_model(self, incoming: Incoming) -> Response:
        name = str(incoming.request.path_params["model_id"])
        self._models.check(name)
        is_openai = incoming.protocol is Protocol.OPENAI
        return json_response(self._models.openai_entry(name) if is_openai else self._models.anthropic_entry(name))

    async def show_request(self, incoming: Incoming) -> Response:
        name = str(incoming.request.path_params["request_id"])
        found = None if self._explaining is None else self._explaining.find(incoming.tenant, name)
        if found is None:
            raise UnknownResponse(f"There is no request {name[:80]!r} remembered here (any more).")
        return json_response(entry_of(found))

    async def health(self, request: Request) -> Response:
        return json_response({"status": "ok", "models": list(self._models.names)})

    async def describe(self, request: Request) -> Response:
        return json_response(openapi.document(anaphora.__version__))

    async def root(self, request: Request) -> Response:
        return json_response({"name": "anaphora", "version": anaphora.__version__, "models": list(self._models.names)})

    async def scrape(self, request: Request) -> Response:
        """Metrics. They are about all tenants, so with API keys set they ask for a key of their own."""
        wanted = self._settings.metrics_key
        if self._settings.keys.tenants or wanted is not None:
            given = key_of(request.headers)
            if wanted is None or given is None or not hmac.compare_digest(digest_of(given), digest_of(wanted)):
                error = NotAuthenticated("/metrics needs the metrics key (setting metrics_key).")
                return error_response(described(error, Protocol.OPENAI, ""))
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def endpoint(
        self, path: str, handler: Handler, *, protocol: Protocol | None = None
    ) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap a handler: who asks, errors in shape, ids in headers, one count. None: the header decides."""

        async def run(request: Request) -> Response:
            spoken = protocol or spoken_protocol(request)
            request_id = new_id("req_")

            started_s, begun = self._contracts.clock(), time.perf_counter()
            tenant: Tenant | None = None

            async def answer() -> Response:
                nonlocal tenant
                tenant = self._settings.keys.tenant_of(request.headers)
                return await handler(Incoming(request, path, spoken, request_id, tenant, started_s))

            response = await guarded(answer(), protocol=spoken, request_id=request_id)
            response.headers["request-id"] = response.headers["x-request-id"] = request_id
            response.headers.update(limit_headers(spoken, self._serving.room(), datetime.now(UTC)))
            response.headers.update(host_headers(spoken, tenant, time.perf_counter() - begun))
            self.metrics.count_request(path, response.status_code)
            return response

        return run

    def _earlier(self, body: dict[str, Any], tenant: Tenant) -> tuple[Mapping[str, Any], ...]:
        """The items of the response that a request continues."""
        response_id = body.get("previous_response_id")
        if response_id is not None:
            want_text(response_id, "previous_response_id")
        return self._responses.items_to_continue(tenant, response_id)

    def _marked(self, body: dict[str, Any], prompt: Prompt, tenant: Tenant) -> tuple[Rendered, MarkedPrompt]:
        """A Messages request's prompt as tokens, and its breakpoints."""
        rendered = self._serving.render(prompt, tenant)
        return rendered, marked_prompt(body, prompt, rendered, self._settings.profile.anthropic)

    async def _prepared(self, incoming: Incoming, prepare: Callable[[dict[str, Any]], Prepared]) -> Prepared:
        """Read the body here, and run `prepare` on it in a thread."""
        limit = self._settings.request_timeout_s
        try:
            async with asyncio.timeout(limit):
                raw = await read_body(incoming.request, max_bytes=self._settings.max_body_bytes)
        except TimeoutError:
            raise RequestTimeout(f"The body of the request did not arrive within {limit:g} seconds.") from None

        def work() -> Prepared:
            body = parse_body(raw)
            if self._settings.request_log is not None and self._settings.request_log.with_bodies:
                incoming.request.state.body = body
            return prepare(body)

        return await asyncio.to_thread(work)

    async def _respond(self, incoming: Incoming, source: Source, writer: Writer, *, is_streamed: bool) -> Response:
        """Answer with what the source brings. Until the first token is there, an error still has a status."""
        events = self._serving.remembering(source.events(), incoming.tenant)
        is_handed_over = False
        try:
            first = await until_disconnect(incoming.request, _next(events))
            if is_streamed:
                headers = source.account().headers()
                frames = self._frames(incoming, source, writer, (first, events))
                is_handed_over = True
                return EventStream(frames, headers=headers, on_close=source.abort)
            rest = await until_disconnect(incoming.request, _all(events))
            account = source.account()
            self._record(incoming, writer, account)
            body = writer.whole(collect([first, *rest], source.num_sequences), account)
            return json_response(body, headers=account.headers())
        finally:
            if not is_handed_over:
                source.abort()

    def _record(self, incoming: Incoming, writer: Writer, account: Account) -> None:
        """Count an answered request, and log it where that is asked for."""
        self.metrics.observe(incoming.endpoint, account)
        if self._explaining is not None:
            self._explaining.note(incoming.tenant, incoming.request_id, account=account)
        if self._settings.request_log is not None:
            self._settings.request_log.write(
                {
                    "request_id": incoming.request_id,
                    "endpoint": incoming.endpoint,
                    "tenant": incoming.tenant,
                    "model": writer.model,
                    "usage": writer.usage(account),
                    "anaphora": account.extension(),
                },
                getattr(incoming.request.state, "body", None),
            )

    async def _frames(
        self,
        incoming: Incoming,
        source: Source,
        writer: Writer,
        begun: tuple[AnswerEvent, AsyncGenerator[AnswerEvent, None]],
    ) -> AsyncGenerator[str, None]:
        first, rest = begun
        try:
            for chunk in [*writer.opening(source.account()), *writer.piece(first)]:
                yield writer.frame(chunk)
            async with contextlib.aclosing(rest) as events:
                async for event in events:
                    for chunk in writer.piece(event):
                        yield writer.frame(chunk)
            account = source.account()
            self._record(incoming, writer, account)
            for chunk in writer.closing(account):
                yield writer.frame(chunk)
            yield writer.last_frame
        except Exception as error:
            self.metrics.count_stream_error(incoming.endpoint)
            yield described(error, incoming.protocol, incoming.request_id).event


def build_app(engine: Engine, settings: ApiSettings, *, on_shutdown: Callable[[], None] | None = None) -> Starlette:
    """The ASGI application around an engine. `on_shutdown` runs when the server stops."""
    api = Api(engine, settings)
    openai, anthropic = Protocol.OPENAI, Protocol.ANTHROPIC
    batches = BatchRoutes(api.answering(engine))

    def post(path: str, handler: Handler, protocol: Protocol) -> Route:
        return Route(path, api.endpoint(path, handler, protocol=protocol), methods=["POST"])

    def get(path: str, handler: Handler) -> Route:
        return Route(path, api.endpoint(path, handler), methods=["GET"])

    routes = [
        post("/v1/chat/completions", api.chat_completions, openai),
        post("/v1/responses", api.responses, openai),
        post("/v1/responses/input_tokens", api.count_input_tokens, openai),
        get("/v1/responses/{response_id}", api.show_response),
        Route("/v1/responses/{response_id}", api.endpoint("/v1/responses", api.delete_response), methods=["DELETE"]),
        post("/v1/completions", api.completions, openai),
        post("/v1/messages", api.messages, anthropic),
        post("/v1/messages/count_tokens", api.count_tokens, anthropic),
        Route(
            "/v1/anaphora/requests/{request_id}",
            api.endpoint("/v1/anaphora/requests", api.show_request),
            methods=["GET"],
        ),
        get("/v1/models", api.list_models),
        get("/v1/models/{model_id:path}", api.show_model),
        *batches.routes(api.endpoint),
        Route("/openapi.json", api.describe, methods=["GET"]),
        Route("/health", api.health, methods=["GET"]),
        Route("/metrics", api.scrape, methods=["GET"]),
        Route("/", api.root, methods=["GET"]),
    ]

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await batches.queue.close()
        if on_shutdown is not None:
            await asyncio.to_thread(on_shutdown)
        api.close()

    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _no_route})


def spoken_protocol(request: Request) -> Protocol:
    """Which API the client speaks, where the path doesn't say."""
    speaks = "anthropic-version" in request.headers or request.url.path.startswith("/v1/messages")
    return Protocol.ANTHROPIC if speaks else Protocol.OPENAI


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    request_id = new_id("req_")
    reply = route_error_reply(error.status_code, spoken_protocol(request), request_id)
    headers: Mapping[str, str] = {**(error.headers or {}), "request-id": request_id, "x-request-id": request_id}
    return json_response(reply.body, status=reply.status, headers=headers)


async def _next(events: AsyncIterator[AnswerEvent]) -> AnswerEvent:
    first = await anext(events)
    assert isinstance(first, Begin), "an answer begins with its beginning"
    return first


async def _all(events: AsyncIterator[AnswerEvent]) -> list[AnswerEvent]:
    return [event async for event in events]
