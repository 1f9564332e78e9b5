"""The application under a profile, with a clock that stands where it is put, and the two official clients on it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anthropic
import openai
from starlette.testclient import TestClient

from anaphora.api.app import ApiSettings, build_app
from anaphora.api.auth import keys_of
from anaphora.contract.profiles import Profile, profile_named
from anaphora.engine.engine import Engine

MODEL = "tiny"
KEYS = {"red-key": "red", "blue-key": "blue"}


@dataclass(slots=True)
class Hosted:
    """A server in this process. `now_s` is its clock."""

    http: TestClient
    clock: list[float] = field(default_factory=lambda: [0.0])

    def at(self, now_s: float) -> None:
        self.clock[0] = now_s

    def claude(self, key: str = "red-key") -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url="http://testserver", api_key=key, http_client=self.http, max_retries=0)

    def gpt(self, key: str = "red-key") -> openai.OpenAI:
        return openai.OpenAI(base_url="http://testserver/v1", api_key=key, http_client=self.http, max_retries=0)

    def message(self, messages: Sequence[Any], *, key: str = "red-key", **fields: Any) -> Any:
        """A Messages answer, by the official client."""
        request = {"model": MODEL, "max_tokens": 1, **fields}
        return self.claude(key).messages.create(messages=list(messages), **request)

    def usage(self, messages: Sequence[Any], **fields: Any) -> Any:
        """The usage of a Messages answer, with its identities checked."""
        answer = self.message(messages, **fields)
        check_identities(answer)
        return answer.usage

    def chat(self, messages: Sequence[Any], *, key: str = "red-key", **fields: Any) -> Any:
        """A Chat Completions answer, by the official client."""
        request = {"model": MODEL, "max_tokens": 1, **fields}
        answer = self.gpt(key).chat.completions.create(messages=list(messages), **request)
        check_openai_identities(answer)
        return answer


def check_identities(answer: Any) -> None:
    """What holds on every Messages answer."""
    usage, receipt = answer.usage, answer.anaphora
    total = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    assert total == receipt["prompt_tokens"]
    split = usage.cache_creation
    written = split.ephemeral_5m_input_tokens + split.ephemeral_1h_input_tokens
    assert usage.cache_creation_input_tokens == written
    assert usage.cache_read_input_tokens <= receipt["reused_tokens"]


def check_openai_identities(answer: Any) -> None:
    """What holds on every Chat Completions answer."""
    usage, details = answer.usage, answer.usage.prompt_tokens_details
    assert usage.prompt_tokens == answer.anaphora["prompt_tokens"]
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert details.cached_tokens + details.cache_write_tokens <= usage.prompt_tokens
    assert details.cached_tokens <= answer.anaphora["reused_tokens"]


@contextmanager
def hosted(engine: Engine, profile: str | Profile = "local", **rules: Any) -> Iterator[Hosted]:
    """A server under a profile. `rules` change its Anthropic rules."""
    chosen = profile if isinstance(profile, Profile) else profile_named(profile)
    chosen = replace(chosen, anthropic=replace(chosen.anthropic, **rules))
    clock = [0.0]
    settings = ApiSettings((MODEL, "other"), keys_of(KEYS), profile=chosen, clock=lambda: clock[0])
    with TestClient(build_app(engine, settings)) as http:
        yield Hosted(http, clock)


def text(content: str, ttl: str | None = None) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "text", "text": content}
    return block if ttl is None else {**block, "cache_control": {"type": "ephemeral", "ttl": ttl}}


def talk(
    num_blocks: int, marks: Mapping[int, str] | Sequence[int] = (), *, about: str, **changed: str
) -> list[dict[str, Any]]:
    """Blocks 1 to n, each a message. `b6="new"` changes block 6; `about` keeps tests apart."""
    ttls = marks if isinstance(marks, Mapping) else dict.fromkeys(marks, "5m")
    return [
        {
            "role": "user" if n % 2 else "assistant",
            "content": [text(changed.get(f"b{n}", f"{about} {n}"), ttls.get(n))],
        }
        for n in range(1, num_blocks + 1)
    ]


def counts(usage: Any) -> tuple[int, int, int]:
    """Read, written, input."""
    return usage.cache_read_input_tokens, usage.cache_creation_input_tokens, usage.input_tokens
