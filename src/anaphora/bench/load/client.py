"""One request over HTTP, timed where its pieces arrive."""

import itertools
import time
from dataclasses import dataclass

import httpx

from anaphora.bench.load.calls import Answered, Ask, Failed
from anaphora.bench.load.wires import Broke, Counted, Ended, Said, Wire
from anaphora.errors import SettingsError

_MAX_MESSAGE = 300
"""Characters of a server's words that are kept: an error page may be long."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and how it is asked."""

    name: str
    url: str  # without /v1
    model: str
    wire: Wire
    api_key: str = ""
    is_ours: bool = False  # started by this run


def open_http(timeout_s: float) -> httpx.AsyncClient:
    """Give a client that never makes a request wait for another one's connection."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(timeout=httpx.Timeout(timeout_s, connect=10), limits=limits)


def models_at(url: str, api_key: str) -> list[str]:
    """Ask a server what it serves.

    Raises: SettingsError if nothing answers there, or no server of models.
    """
    headers = {"authorization": f"Bearer {api_key}", "x-api-key": api_key} if api_key else {}
    try:
        answer = httpx.get(f"{url}/v1/models", headers=headers, timeout=10)
        answer.raise_for_status()
        return [str(model["id"]) for model in answer.json()["data"]]
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise SettingsError(f"No server tells its models at {url}: {error}. Name one with --model.") from None
    except (ValueError, LookupError, TypeError):
        raise SettingsError(f"What answers at {url} lists no models. Name one with --model.") from None


class _Broken(Exception):
    """The answer is not whole: why, by kind, and in the server's words."""

    def __init__(self, kind: str, message: str = "") -> None:
        super().__init__(kind)
        self.kind = kind
        self.message = message[:_MAX_MESSAGE]


class _Tape:
    """What has arrived of one answer, and when."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []  # of pieces, on the clock
        self.text = ""
        self.counted = Counted()
        self.is_whole = False

    def take(self, wire: Wire, data: str, now: float) -> None:
        for sign in wire.read(data):
            if isinstance(sign, Said):
                self.arrivals.append(now)
                self.text += sign.text
            elif isinstance(sign, Counted):
                self.counted = _latest(self.counted, sign)
            elif isinstance(sign, Ended):
                self.is_whole = True
            elif isinstance(sign, Broke):
                raise _Broken(f"error event: {sign.kind}", sign.message)


async def send(
    http: httpx.AsyncClient, target: Target, ask: Ask, *, wave_began: float, due: float
) -> Answered | Failed:
    """Ask and read the whole answer. `wave_began` and `due` are on `time.perf_counter`'s clock.

    Never raises for what a server or the network does: that is a Failed, told by its kind.
    """
    tape = _Tape()
    try:
        await _read(http, target, ask, tape)
    except _Broken as broken:
        return _failed(ask, broken.kind, broken.message, (wave_began, due))
    except httpx.TimeoutException as error:
        return _failed(ask, "timeout", str(error), (wave_began, due))
    except httpx.ConnectError as error:
        return _failed(ask, "not reachable", str(error), (wave_began, due))
    except httpx.HTTPError as error:
        return _failed(ask, "connection lost", str(error) or type(error).__name__, (wave_began, due))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return _failed(ask, "unreadable answer", repr(error), (wave_began, due))
    end = time.perf_counter()
    if tape.counted.prompt_tokens is None or tape.counted.output_tokens is None:
        return _failed(ask, "no usage told", "", (wave_began, due))
    arrivals = tape.arrivals or [end]  # an answer of special tokens alone has no text
    return Answered(
        kind=ask.kind,
        due_s=due - wave_began,
        first_s=arrivals[0] - due,
        total_s=end - due,
        gaps_s=tuple(later - earlier for earlier, later in itertools.pairwise(arrivals)),
        prompt_tokens=tape.counted.prompt_tokens,
        cached_tokens=tape.counted.cached_tokens,
        output_tokens=tape.counted.output_tokens,
        text=tape.text,
    )


async def _read(http: httpx.AsyncClient, target: Target, ask: Ask, tape: _Tape) -> None:
    wire = target.wire
    body = wire.body(ask, target.model)
    async with http.stream("POST", target.url + wire.path, json=body, headers=wire.headers(target.api_key)) as response:
        if response.status_code != 200:
            await response.aread()
            raise _Broken(*_refusal(response))
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                tape.take(wire, line.removeprefix("data:").strip(), time.perf_counter())
    if not tape.is_whole:
        raise _Broken("stream ended early")


def _refusal(response: httpx.Response) -> tuple[str, str]:
    """The status with the API's own word for it, and the message."""
    status = str(response.status_code)
    try:
        error = response.json()["error"]
        return f"{status} {error.get('code') or error.get('type') or ''}".strip(), str(error.get("message") or "")
    except (ValueError, LookupError, TypeError, AttributeError):
        return status, response.text


def _failed(ask: Ask, problem: str, message: str, clock: tuple[float, float]) -> Failed:
    wave_began, due = clock
    return Failed(ask.kind, due - wave_began, time.perf_counter() - due, problem, message)


def _latest(before: Counted, now: Counted) -> Counted:
    """Join what a stream tells bit by bit; counts are cumulative, so the later one holds."""
    return Counted(
        before.prompt_tokens if now.prompt_tokens is None else now.prompt_tokens,
        before.cached_tokens if now.cached_tokens is None else now.cached_tokens,
        before.output_tokens if now.output_tokens is None else now.output_tokens,
    )
