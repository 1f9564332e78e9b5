"""The real `openai` and `anthropic` packages against a real server process with the default model.

Every prompt opens with its test's name, so that tests share nothing but the template's opening.
"""

import asyncio
from typing import Any

import anthropic
import openai
import pytest
from server_world import MODEL, Server

FEW = 4

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
OPENAI_TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather now.", "parameters": WEATHER}}
]
ANTHROPIC_TOOLS: Any = [{"name": "get_weather", "description": "Weather now.", "input_schema": WEATHER}]


def turn(text: str) -> Any:
    return [{"role": "user", "content": text}]


def chat(server: Server, text: str, **fields: Any) -> Any:
    fields = {"max_tokens": FEW, "temperature": 0, **fields}
    return server.openai().chat.completions.create(model=MODEL, messages=turn(text), **fields)


def message(server: Server, text: str, **fields: Any) -> Any:
    fields = {"max_tokens": FEW, "extra_body": {"temperature": 0}, **fields}
    return server.anthropic().messages.create(model=MODEL, messages=turn(text), **fields)


def input_total(usage: Any) -> int:
    return int(usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens)


def test_openai_answers_and_the_second_time_computes_one_token(server: Server) -> None:
    first = chat(server, "openai twice: capital of France?")
    second = chat(server, "openai twice: capital of France?")
    assert first.choices[0].message.content == second.choices[0].message.content != ""
    assert second.usage.prompt_tokens_details.cached_tokens == second.usage.prompt_tokens - 1
    assert second.anaphora["computed_tokens"] == 1
    assert first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens
    assert first.usage.completion_tokens == FEW


def test_anthropic_answers_and_the_second_time_computes_one_token(server: Server) -> None:
    first = message(server, "anthropic twice: capital of France?", system="Be brief.")
    second = message(server, "anthropic twice: capital of France?", system="Be brief.")
    assert first.content[0].text == second.content[0].text != ""
    assert second.anaphora["computed_tokens"] == 1
    assert input_total(first.usage) == input_total(second.usage) == second.usage.input_tokens  # nothing was marked
    assert second.usage.cache_creation.ephemeral_5m_input_tokens == 0
    assert first.stop_reason == "max_tokens"


def test_openai_stream_equals_the_whole_answer(server: Server) -> None:
    chat(server, "openai stream")
    whole = chat(server, "openai stream")
    chunks = list(chat(server, "openai stream", stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-2].choices[0].finish_reason == "length"


def test_anthropic_stream_equals_the_whole_answer(server: Server) -> None:
    message(server, "anthropic stream")
    whole = message(server, "anthropic stream")
    client = server.anthropic()
    arguments: Any = {"model": MODEL, "messages": turn("anthropic stream"), "extra_body": {"temperature": 0}}
    with client.messages.stream(max_tokens=FEW, **arguments) as stream:
        kinds = [event.type for event in stream if event.type not in ("text", "content_block_delta")]
        final = stream.get_final_message()
    assert kinds == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    assert final.content[0].text == whole.content[0].text
    assert final.usage == whole.usage
    assert final.stop_reason == "max_tokens"


def test_both_apis_count_one_request_alike(server: Server) -> None:
    messages: Any = [{"role": "system", "content": "Be brief."}, *turn("counted alike")]
    by_openai = server.openai().chat.completions.create(model=MODEL, messages=messages, max_tokens=2, temperature=0)
    by_anthropic = message(server, "counted alike", system="Be brief.", max_tokens=2)
    counted = server.anthropic().messages.count_tokens(model=MODEL, messages=turn("counted alike"), system="Be brief.")
    assert by_openai.usage is not None
    assert by_openai.usage.prompt_tokens == input_total(by_anthropic.usage) == counted.input_tokens
    assert by_anthropic.anaphora["computed_tokens"] == 1
    assert by_openai.choices[0].message.content == by_anthropic.content[0].text


def test_next_turn_reuses_prompt_and_reply(server: Server) -> None:
    first = chat(server, "turns: say hello.", max_tokens=8)
    reply = first.choices[0].message.content
    turns = [*turn("turns: say hello."), {"role": "assistant", "content": reply}, *turn("Again.")]
    second: Any = server.openai().chat.completions.create(model=MODEL, messages=turns, max_tokens=1, temperature=0)
    assert second.anaphora["reused_tokens"] >= first.usage.prompt_tokens + first.usage.completion_tokens - 1


def test_openai_tools_make_a_round_and_the_call_is_replayed_exactly(server: Server) -> None:
    client = server.openai()
    asked = turn("openai tools: weather in Oslo?")
    fields: Any = {"model": MODEL, "tools": OPENAI_TOOLS, "temperature": 0, "max_tokens": 60}
    first: Any = client.chat.completions.create(messages=asked, tool_choice="required", **fields)
    (choice,) = first.choices
    assert choice.finish_reason == "tool_calls"
    call = choice.message.tool_calls[0]
    assert call.function.name == "get_weather"
    result = {"role": "tool", "tool_call_id": call.id, "content": "7 degrees"}
    turns: Any = [*asked, choice.message.model_dump(exclude_none=True), result]
    second: Any = client.chat.completions.create(messages=turns, **(fields | {"max_tokens": FEW}))
    # Only the end token may differ: it was generated but never went through the model.
    known = first.usage.prompt_tokens + first.usage.completion_tokens
    assert second.anaphora["reused_tokens"] >= known - 2
    assert second.choices[0].message.content


def test_anthropic_tools_make_a_round_streamed_and_the_call_is_replayed_exactly(server: Server) -> None:
    client = server.anthropic()
    asked = turn("anthropic tools: weather in Oslo?")
    fields: Any = {"model": MODEL, "tools": ANTHROPIC_TOOLS, "extra_body": {"temperature": 0}}
    choice: Any = {"type": "tool", "name": "get_weather"}
    with client.messages.stream(messages=asked, tool_choice=choice, max_tokens=60, **fields) as stream:
        first = stream.get_final_message()
    assert first.stop_reason == "tool_use"
    use = next(block for block in first.content if isinstance(block, anthropic.types.ToolUseBlock))
    assert isinstance(use.input, dict)
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "7 degrees"}
    turns: Any = [*asked, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second: Any = client.messages.create(messages=turns, max_tokens=FEW, **fields)
    assert second.anaphora["reused_tokens"] >= input_total(first.usage) + first.usage.output_tokens - 2


def test_two_answers_with_scores_share_one_prompt(server: Server) -> None:
    answer = chat(server, "scores", n=2, seed=1, temperature=1, logprobs=True, top_logprobs=2)
    assert len(answer.choices) == 2
    for choice in answer.choices:
        scored = choice.logprobs.content
        assert "".join(entry.token for entry in scored).startswith(choice.message.content)
        assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in scored)
    assert answer.usage.completion_tokens == 2 * FEW
    assert answer.usage.prompt_tokens == answer.anaphora["prompt_tokens"]


def test_stop_strings_end_the_answer_in_both_apis(server: Server) -> None:
    free = chat(server, "stop here", max_tokens=6).choices[0].message.content
    stop = free.split()[1]
    by_openai = chat(server, "stop here", max_tokens=6, stop=[stop]).choices[0]
    by_anthropic = message(server, "stop here", max_tokens=6, stop_sequences=[stop])
    assert (by_openai.finish_reason, stop in by_openai.message.content) == ("stop", False)
    assert (by_anthropic.stop_reason, by_anthropic.stop_sequence) == ("stop_sequence", stop)


def test_answer_that_was_begun_is_continued(server: Server) -> None:
    begun: Any = [*turn("Count to five."), {"role": "assistant", "content": "1, 2, 3,"}]
    answer = server.anthropic().messages.create(
        model=MODEL, messages=begun, max_tokens=3, extra_body={"temperature": 0}
    )
    assert isinstance(answer.content[0], anthropic.types.TextBlock)
    assert answer.content[0].text.startswith(" 4")


def test_echoed_scores_are_equal_cached_and_computed(server: Server) -> None:
    fields: Any = {"model": MODEL, "prompt": "Echo: the quick brown fox", "max_tokens": 1, "echo": True, "logprobs": 1}
    cold, hit = (server.openai().completions.create(**fields, temperature=0).choices[0] for _ in range(2))
    assert cold.logprobs is not None
    assert hit.logprobs is not None
    assert cold.logprobs.tokens == hit.logprobs.tokens
    assert cold.logprobs.token_logprobs is not None
    assert hit.logprobs.token_logprobs is not None
    assert cold.logprobs.token_logprobs[0] is hit.logprobs.token_logprobs[0] is None
    assert hit.logprobs.token_logprobs[1:] == pytest.approx(cold.logprobs.token_logprobs[1:], abs=1e-3)
    placed = zip(cold.logprobs.tokens or [], cold.logprobs.text_offset or [], strict=True)
    assert all(cold.text.startswith(token, offset) for token, offset in placed)
    assert cold.text.startswith("Echo: the quick brown fox")


def test_batches_of_token_ids_are_completed_in_order(server: Server) -> None:
    fields: Any = {"model": MODEL, "max_tokens": 2, "temperature": 0}
    both = server.openai().completions.create(prompt=[[504, 2365], [504, 2365, 6354]], **fields)
    one = server.openai().completions.create(prompt=[504, 2365, 6354], **fields)
    assert [choice.index for choice in both.choices] == [0, 1]
    assert both.choices[1].text == one.choices[0].text
    assert both.usage is not None
    assert both.usage.prompt_tokens == 5


def test_async_clients_work_side_by_side(server: Server) -> None:
    async def both() -> tuple[Any, Any]:
        async with (
            openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="red-key", max_retries=0) as by_openai,
            anthropic.AsyncAnthropic(base_url=server.url, api_key="red-key", max_retries=0) as by_anthropic,
        ):
            return await asyncio.gather(
                by_openai.chat.completions.create(model=MODEL, messages=turn("async"), max_tokens=2),
                by_anthropic.messages.create(model=MODEL, messages=turn("async"), max_tokens=2),
            )

    chatted, messaged = asyncio.run(both())
    assert chatted.usage.completion_tokens == messaged.usage.output_tokens == 2


def test_models_are_listed_to_both_sdks(server: Server) -> None:
    assert [model.id for model in server.openai().models.list()] == [MODEL]
    assert [model.id for model in server.anthropic().models.list()] == [MODEL]
    assert server.openai().models.retrieve(MODEL).object == "model"
    assert server.anthropic().models.retrieve(MODEL).type == "model"


def test_tenants_share_nothing(server: Server) -> None:
    def reused(key: str) -> int:
        answer: Any = server.openai(key).chat.completions.create(
            model=MODEL, messages=turn("a secret that only red knows"), max_tokens=1
        )
        return int(answer.usage.prompt_tokens_details.cached_tokens)

    reused("red-key")
    assert reused("red-key") > 10
    assert reused("blue-key") == 0
