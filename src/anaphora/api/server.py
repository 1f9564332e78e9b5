"""Run the application with uvicorn: one process, the engine's thread beside the HTTP loop."""

import asyncio
import logging
import sys
from collections.abc import Callable
from socket import AF_INET6, AI_PASSIVE, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, gaierror, getaddrinfo, socket

import uvicorn

from anaphora.api.app import ApiSettings, build_app
from anaphora.api.auth import keys_of
from anaphora.api.request_log import RequestLog
from anaphora.api.shared_prompts import share_prompts
from anaphora.config import Settings
from anaphora.contract.profiles import profile_named
from anaphora.costs.price_books import price_book
from anaphora.engine.engine import Engine
from anaphora.errors import SettingsError
from anaphora.explain.memory import MemoryLimits
from anaphora.prompt.front_nonces import FRONT_NONCES, NOTHING

_PRELOADING_S = 2.0
"""Who asks first should find what the server before this one knew; but nobody waits long for a server to start."""

_LAST_WORDS_S = 10
"""Time for the last error messages to go out after the engine was closed; then connections are cut."""


def serve(settings: Settings) -> None:
    """Load the model and serve it until SIGTERM or SIGINT.

    Running requests get `shutdown_timeout_s` to finish; those left are ended with an error in their protocol's shape.
    Raises: ModelUnavailable, SettingsError.
    """
    told = api_settings(settings)
    with bind(settings.host, settings.port) as bound:
        engine = Engine.load(settings.model, settings.engine_settings(), cache_dir=settings.cache_dir)
        try:
            shared = share_prompts(engine, settings.shared_prompts)
            engine.preload(wait_s=_PRELOADING_S)
            app = build_app(engine, told, on_shutdown=engine.close)
            config = uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=settings.shutdown_timeout_s + _LAST_WORDS_S,
                server_header=False,
            )
            logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
            server = AnnouncingServer(config, lambda url: announce(url, engine, shared))
            server.at_deadline(settings.shutdown_timeout_s, engine.close)
            server.run(sockets=[bound])
        finally:
            engine.close()
            if told.request_log is not None:
                told.request_log.close()


def bind(host: str, port: int) -> socket:
    """Take the address before the model is loaded, so that a wrong one is told at once. Nothing is accepted yet.

    Raises: SettingsError.
    """
    bound: socket | None = None
    try:
        family, kind, protocol, _, address = getaddrinfo(host, port, type=SOCK_STREAM, flags=AI_PASSIVE)[0]
        bound = socket(family, kind, protocol)
        bound.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        bound.bind(address)
    except gaierror as error:
        raise SettingsError(
            f"host = {host!r} is no address: {error.strerror}. Take 127.0.0.1 for this machine alone, 0.0.0.0 for all."
        ) from error
    except OSError as error:
        if bound is not None:
            bound.close()
        raise SettingsError(
            f"host = {host!r}, port = {port} can't be listened on: {error.strerror or error}. "
            "Choose another host or port (port 0 takes any free one), or stop what uses this one."
        ) from error
    return bound


def api_settings(settings: Settings) -> ApiSettings:
    """The part of the settings that the HTTP side is told. Prices are loaded where something asks for them.

    Raises: SettingsError.
    """
    profile = profile_named(settings.profile)
    has_prices = profile.priced_as is not None or settings.prices is not None
    log = None
    if settings.request_log is not None:
        log = RequestLog(
            settings.request_log, max_bytes=settings.request_log_bytes, with_bodies=settings.request_log_bodies
        )
    return ApiSettings(
        served_names=tuple(settings.served_names),
        keys=keys_of(settings.api_keys),
        metrics_key=settings.metrics_key,
        max_body_bytes=settings.max_body_bytes,
        request_timeout_s=settings.request_timeout_s,
        profile=profile,
        prices=price_book(settings.prices) if has_prices else None,
        request_log=log,
        explain=_memory_limits(settings),
        front_nonces=FRONT_NONCES if settings.drop_front_nonces else NOTHING,
        seen_path=settings.cache_dir.expanduser() / "seen-openings" if settings.explain_requests else None,
    )


def _memory_limits(settings: Settings) -> MemoryLimits | None:
    if not settings.explain_requests:
        return None
    return MemoryLimits(settings.explain_requests, settings.explain_bytes, keeps_text=settings.explain_text)


def announce(url: str, engine: Engine, more_lines: tuple[str, ...] = ()) -> None:
    """Print what is served, and where, once it can be reached."""
    for line in (*engine.start_up_lines, *more_lines):
        print(line)
    print(f"Serving {engine.spec.name} at {url}", flush=True)


class AnnouncingServer(uvicorn.Server):
    """A uvicorn server that says at which URL it listens, and ends what still runs when it is told to stop."""

    def __init__(self, config: uvicorn.Config, when_ready: Callable[[str], None]) -> None:
        super().__init__(config)
        self._when_ready = when_ready
        self._grace_s = 0.0
        self._end_requests: Callable[[], None] | None = None

    def at_deadline(self, grace_s: float, end_requests: Callable[[], None]) -> None:
        """Call `end_requests`, in a thread, when requests still run `grace_s` after the signal to stop."""
        self._grace_s = grace_s
        self._end_requests = end_requests

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            listening = self.servers[0].sockets[0]
            host, port = listening.getsockname()[:2]
            self._when_ready(f"http://[{host}]:{port}" if listening.family == AF_INET6 else f"http://{host}:{port}")

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        ending = asyncio.create_task(self._end_after_grace())
        try:
            await super().shutdown(sockets=sockets)
        finally:
            ending.cancel()

    async def _end_after_grace(self) -> None:
        await asyncio.sleep(self._grace_s)
        if self._end_requests is not None:
            await asyncio.to_thread(self._end_requests)
