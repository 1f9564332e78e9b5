"""What an application's tests are told: method: bodies, and the two real SDKs over a transport that answers here."""

import anthropic
import httpx2
import openai
import pytest

from anaphora.testing.prompt_cache import RehearsedCalls, prompt_cache

__all__ = ["prompt_cache"]

HANDBOOK = "You are the assistant of a camera store. " * 40


def body(question: str, system: str = HANDBOOK) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}]}


def test_a_second_call_hits_all_that_stays(prompt_cache: RehearsedCalls) -> None:
    first = prompt_cache.send(body("Where?"))
    assert (first.num_read, first.miss.reason) == (0, "first_seen")
    second = prompt_cache.send(body("When is the store open?"))
    second.assert_hits(at_least=360)
    assert second.num_read == second.num_reused < second.num_tokens
    assert len(prompt_cache.calls) == 2


def test_a_miss_fails_the_test_and_says_why(prompt_cache: RehearsedCalls) -> None:
    prompt_cache.send(body("Where?", f"It is 10:00:01. {HANDBOOK}"))
    with pytest.raises(AssertionError, match=r"fewer than 300\. Reuse stops at messages\[0\].content, byte 12: A time"):
        prompt_cache.send(body("Where?", f"It is 10:00:59. {HANDBOOK}")).assert_hits(at_least=300)


def test_a_hosts_rules_count_where_a_profile_is_named() -> None:
    calls = RehearsedCalls("anthropic:claude-opus-4-8")
    long = HANDBOOK * 5
    request = {"model": "m", "max_tokens": 9, "system": long, "messages": [{"role": "user", "content": "Hi"}]}
    calls.send(request)
    assert calls.send(request).miss.reason == "no_breakpoint"
    marked = {**request, "system": [{"type": "text", "text": long, "cache_control": {"type": "ephemeral"}}]}
    assert calls.send(marked).num_written > 1024
    calls.send(marked).assert_hits(at_least=1024)
    assert calls.send(marked, at_s=9_999.0).miss.reason == "expired"


def test_the_real_sdks_run_over_the_transport(prompt_cache: RehearsedCalls) -> None:
    transport = prompt_cache.transport(httpx2, answer="nine to six")
    with httpx2.Client(transport=transport) as http:
        claude = anthropic.Anthropic(api_key="any", http_client=http, max_retries=0)
        marked = [{"type": "text", "text": HANDBOOK, "cache_control": {"type": "ephemeral"}}]
        for question in ("Where?", "When?"):
            said = claude.messages.create(
                model="m", max_tokens=9, system=marked, messages=[{"role": "user", "content": question}]
            )
        assert said.content[0].text == "nine to six"
        assert said.usage.cache_read_input_tokens == prompt_cache.calls[-1].num_read > 300
        gpt = openai.OpenAI(api_key="any", base_url="http://rehearsed/v1", http_client=http, max_retries=0)
        for question in ("Where?", "When?"):
            answer = gpt.chat.completions.create(model="m", messages=body(question)["messages"])
        assert answer.choices[0].message.content == "nine to six"
        assert answer.usage.prompt_tokens_details.cached_tokens > 300
        for question in ("Where?", "When?"):
            response = gpt.responses.create(model="m", instructions=HANDBOOK, input=question)
        assert response.output_text == "nine to six"
        assert response.usage.input_tokens_details.cached_tokens > 300
        with pytest.raises(openai.BadRequestError, match="stream"):
            gpt.chat.completions.create(model="m", messages=body("Hi")["messages"], stream=True)
        with pytest.raises(openai.BadRequestError, match="messages"):
            gpt.chat.completions.create(model="m", messages=[])
        with pytest.raises(openai.BadRequestError, match="not rehearsed"):
            gpt.embeddings.create(model="m", input="x")
