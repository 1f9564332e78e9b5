"""A conversation with the HTTP server: what the terminal chat says, sends and shows. No terminal in here."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from anaphora.errors import AnaphoraError


class ChatFailed(AnaphoraError):
    """The server could not be reached, or refused. The message is for the reader."""


@dataclass(slots=True)
class Conversation:
    """Turns so far, and how to get the next answer. `receipt` is the last answer's account."""

    client: httpx.Client
    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)
    receipt: dict[str, Any] | None = None

    def ask(self, question: str) -> Iterator[str]:
        """The answer piece by piece. The turn is kept when the answer is complete, and only then.

        Raises: ChatFailed.
        """
        self.receipt = None
        asked = [*self.turns, {"role": "user", "content": question}]
        answer = ""
        for chunk in self._chunks(asked):
            self.receipt = chunk.get("anaphora") or self.receipt
            for choice in chunk.get("choices", ()):
                piece = choice["delta"].get("content") or ""
                answer += piece
                if piece:
                    yield piece
        self.turns = [*asked, {"role": "assistant", "content": answer}]

    def forget(self) -> None:
        """Start anew; the system prompt stays."""
        self.turns = []

    def _chunks(self, turns: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        body = {"model": self.model, "messages": system + turns, "stream": True}
        body |= {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
        body |= {} if self.temperature is None else {"temperature": self.temperature}
        try:
            with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    response.read()
                    raise ChatFailed(problem_of(response))
                for line in response.iter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        chunk = json.loads(line.removeprefix("data: "))
                        if "error" in chunk:
                            raise ChatFailed(str(chunk["error"]["message"]))
                        yield chunk
        except httpx.HTTPError as error:
            raise ChatFailed(unreachable(self.client, error)) from None


def address_of(url: str) -> str:
    """The server's address, with or without the `/v1` that other clients want at its end.

    Raises: ChatFailed.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ChatFailed(f"{url!r} is no address of a server. One looks like http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")


def first_model(client: httpx.Client) -> str:
    """The name of a model the server has.

    Raises: ChatFailed.
    """
    try:
        response = client.get("/v1/models")
    except httpx.HTTPError as error:
        raise ChatFailed(unreachable(client, error)) from None
    if response.status_code != 200:
        raise ChatFailed(problem_of(response))
    try:
        return str(response.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise ChatFailed(f"What answers at {client.base_url} is no server of models.") from None


def receipt_line(receipt: dict[str, Any]) -> str:
    """A receipt in one line, such as `412 of 420 prompt tokens reused, 8 computed; first token after 41 ms`."""
    line = (
        f"{receipt['reused_tokens']} of {receipt['prompt_tokens']} prompt tokens reused, "
        f"{receipt['computed_tokens']} computed; first token after {receipt['time_to_first_token_ms']:.0f} ms"
    )
    generated = receipt["generated_tokens"]
    rest_ms = receipt["total_ms"] - receipt["time_to_first_token_ms"]
    rate = f", {(generated - 1) * 1000 / rest_ms:.0f} tokens/s" if generated > 1 and rest_ms > 0 else ""
    return f"{line}; {generated} generated{rate}"


def problem_of(response: httpx.Response) -> str:
    """What an error response says."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"The server answered with status {response.status_code}."


def unreachable(client: httpx.Client, error: Exception) -> str:
    return f"No server answers at {client.base_url} ({error}). Start one with: anaphora serve"
