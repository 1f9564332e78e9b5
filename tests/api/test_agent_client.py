"""Goal: an agents package that knows nothing of us holds a conversation with tools over each API, and the cache numbers
that it reports are right. Method: Pydantic AI, unmodified, against a real server with a tiny random model, whose calls
are enforced; what the agent adds up is held against the server's own request log.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anthropic
import openai
import pytest
from hosted_world import KEYS
from pydantic import BaseModel
from served import served

from anaphora.api.app import ApiSettings
from anaphora.api.auth import keys_of
from anaphora.api.request_log import RequestLog
from anaphora.engine.engine import Engine
from anaphora.engine.settings import EngineSettings
from anaphora.testing.random_models import random_model

pydantic_ai = pytest.importorskip("pydantic_ai", reason="the agents package is not installed")

INSTRUCTIONS = "You look after a garden. " * 4


class Verdict(BaseModel):
    mood: Literal["good", "bad"]


class Log:
    """The server's request log, read from where it was read last."""

    def __init__(self, path: Path) -> None:
        self.writer = RequestLog(path)
        self._path = path
        self._num_read = 0

    def new(self) -> list[Any]:
        lines = self._path.read_text(encoding="utf-8").splitlines()
        fresh, self._num_read = lines[self._num_read :], len(lines)
        return [json.loads(line) for line in fresh]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    log = Log(tmp_path_factory.mktemp("agent") / "requests.jsonl")
    yield log
    log.writer.close()


@pytest.fixture(scope="module")
def url(log: Log) -> Iterator[str]:
    settings = EngineSettings(kv_pool_bytes=128 * 2**20, num_threads=1)
    with (
        Engine(random_model("llama", max_context=16384), settings) as engine,
        served(engine, ApiSettings(("tiny",), keys_of(KEYS), request_log=log.writer)) as where,
    ):
        yield where


@asynccontextmanager
async def agent_of(api: str, url: str) -> AsyncIterator[Any]:
    """An agent over one API, with one tool and a form for its answers."""
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="red-key", max_retries=0) as gpt,
        anthropic.AsyncAnthropic(base_url=url, api_key="red-key", max_retries=0) as claude,
    ):
        models = {
            "chat": lambda: OpenAIChatModel("tiny", provider=OpenAIProvider(openai_client=gpt)),
            "responses": lambda: OpenAIResponsesModel("tiny", provider=OpenAIProvider(openai_client=gpt)),
            "messages": lambda: AnthropicModel("tiny", provider=AnthropicProvider(anthropic_client=claude)),
        }
        marks = {"anthropic_cache_instructions": True, "anthropic_cache_messages": True} if api == "messages" else {}
        agent = pydantic_ai.Agent(
            models[api](),
            instructions=f"{api}: {INSTRUCTIONS}",
            output_type=Verdict,
            model_settings={"max_tokens": 200, "parallel_tool_calls": False, **marks},
            retries=3,
        )

        @agent.tool_plain
        def weather(day: Literal["today", "tomorrow"]) -> str:
            """Tell the weather."""
            assert day in ("today", "tomorrow")
            return "sunny"

        yield agent


@pytest.mark.parametrize(("api", "num_turns"), [("chat", 10), ("messages", 10), ("responses", 3)])
def test_turns_with_tools_and_the_agents_own_numbers(url: str, log: Log, api: str, num_turns: int) -> None:
    log.new()

    async def talk() -> tuple[int, int]:
        history: Any = []
        num_known = num_read = num_written = 0
        async with agent_of(api, url) as agent:
            for turn in range(num_turns):
                result = await agent.run(f"{turn}: how is it?", message_history=history)
                assert isinstance(result.output, Verdict)
                history, requests = result.all_messages(), log.new()
                check_usage(result.usage, requests)
                for request in requests:
                    assert request["anaphora"]["reused_tokens"] >= num_known  # all that stood in the prompt before
                    num_known = request["anaphora"]["prompt_tokens"] - 1
                num_read += result.usage.cache_read_tokens
                num_written += result.usage.cache_write_tokens
        return num_read, num_written

    num_read, num_written = asyncio.run(talk())
    assert num_read > 500
    assert (num_written > 0) == (api == "messages")


def check_usage(usage: Any, requests: list[Any]) -> None:
    """What the agent adds up is what the server told."""
    receipts = [request["anaphora"] for request in requests]
    assert usage.requests == len(receipts)
    assert usage.input_tokens == sum(one["prompt_tokens"] for one in receipts)
    assert usage.cache_read_tokens == sum(one["contract"]["read_tokens"] for one in receipts)
    assert usage.cache_write_tokens == sum(one["contract"]["written_tokens"] for one in receipts)
    assert usage.output_tokens == sum(one["generated_tokens"] for one in receipts)
