"""The application over a small real engine, in process: what comes back, and that no body whatever breaks it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from anaphora.api.app import ApiSettings, build_app
from anaphora.api.auth import keys_of
from anaphora.engine.engine import Engine

CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
COUNT = "/v1/messages/count_tokens"
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[TestClient]:
    settings = ApiSettings(served_names=("tiny", "alias"), max_body_bytes=20_000)
    with TestClient(build_app(engine, settings), raise_server_exceptions=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def locked(engine: Engine) -> Iterator[TestClient]:
    settings = ApiSettings(("tiny",), keys_of({"red-key": "red", "blue-key": "blue"}), metrics_key="watch")
    with TestClient(build_app(engine, settings)) as opened:
        yield opened


def chat(client: TestClient, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 4, "temperature": 0, **fields}
    response = client.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def sse(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_second_identical_request_computes_one_token(client: TestClient) -> None:
    first = chat(client, messages=asked("one token"))
    second = chat(client, messages=asked("one token"))
    assert second["choices"] == first["choices"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == second["usage"]["prompt_tokens"] - 1
    assert second["anaphora"]["computed_tokens"] == 1


def test_receipt_stands_in_the_headers_too(client: TestClient) -> None:
    body = {"model": "tiny", "messages": asked("headers"), "max_tokens": 2}
    for stream in (False, True):
        response = client.post(CHAT, json={**body, "stream": stream})
        prompt, reused = (int(response.headers[f"x-anaphora-{name}-tokens"]) for name in ("prompt", "reused"))
        assert reused == (prompt - 1 if stream else reused)
        assert response.headers["request-id"] == response.headers["x-request-id"]


def test_streamed_and_whole_answers_agree(client: TestClient) -> None:
    body = {"model": "tiny", "messages": asked("stream me"), "max_tokens": 6, "temperature": 0}
    client.post(CHAT, json=body)
    whole = client.post(CHAT, json=body).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = client.post(CHAT, json={**body, **options})
    chunks = sse(streamed.text)
    assert streamed.text.endswith("data: [DONE]\n\n")
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"] == whole["usage"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_both_apis_count_the_same_request_alike(client: TestClient) -> None:
    turns = [{"role": "user", "content": "count"}, {"role": "assistant", "content": "me"}, *asked("twice")]
    shared = {"model": "tiny", "max_tokens": 3, "temperature": 0}
    by_chat = {**shared, "messages": [{"role": "system", "content": "S"}, *turns]}
    by_messages = {**shared, "system": [{"type": "text", "text": "S"}], "messages": turns}
    client.post(CHAT, json=by_chat)
    openai = client.post(CHAT, json=by_chat).json()["usage"]
    messaged = client.post(MESSAGES, json=by_messages).json()
    anthropic, receipt = messaged["usage"], messaged["anaphora"]
    counted = client.post(COUNT, json={"model": "tiny", "system": "S", "messages": turns}).json()["input_tokens"]
    total = anthropic["input_tokens"] + anthropic["cache_creation_input_tokens"] + anthropic["cache_read_input_tokens"]
    assert openai["prompt_tokens"] == total == counted
    assert openai["prompt_tokens_details"]["cached_tokens"] == receipt["reused_tokens"] == total - 1
    assert openai["completion_tokens"] == anthropic["output_tokens"]


def test_text_and_one_block_of_text_are_the_same_prompt(client: TestClient) -> None:
    blocks = [{"role": "user", "content": [{"type": "text", "text": "same"}]}]
    body = {"model": "tiny", "max_tokens": 2, "system": "X"}
    client.post(MESSAGES, json={**body, "messages": asked("same")})
    receipt = client.post(MESSAGES, json={**body, "messages": blocks}).json()["anaphora"]
    assert receipt["computed_tokens"] == 1


def test_next_turn_reuses_prompt_and_reply(client: TestClient) -> None:
    first = chat(client, messages=asked("reply too"), max_tokens=8)
    reply = first["choices"][0]["message"]["content"]
    turns = [*asked("reply too"), {"role": "assistant", "content": reply}, *asked("go on")]
    second = chat(client, messages=turns)
    known = first["anaphora"]["prompt_tokens"]
    assert second["anaphora"]["reused_tokens"] >= known


def test_prefill_only_request_answers_nothing_and_warms_the_cache(client: TestClient) -> None:
    body = {"model": "tiny", "messages": asked("warm"), "max_tokens": 0}
    answer = client.post(MESSAGES, json=body).json()
    assert (answer["content"], answer["stop_reason"], answer["usage"]["output_tokens"]) == ([], "max_tokens", 0)
    again = client.post(MESSAGES, json={**body, "max_tokens": 2}).json()
    assert again["anaphora"]["computed_tokens"] == 1


def test_answer_that_fills_the_context_says_so(client: TestClient) -> None:
    room = client.get("/v1/models").json()["data"][0]["max_model_len"]
    body = {"model": "tiny", "messages": asked("x" * (room - 60)), "max_tokens": room, "temperature": 0}
    answer = client.post(MESSAGES, json=body)
    assert answer.status_code == 200
    assert answer.json()["stop_reason"] in ("model_context_window_exceeded", "end_turn")


def test_several_answers_share_one_prompt(client: TestClient) -> None:
    answer = chat(client, messages=asked("three"), n=3, temperature=1.0, seed=1)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["prompt_tokens"] == answer["anaphora"]["prompt_tokens"]


def test_batch_of_token_prompts_is_answered_in_order(client: TestClient) -> None:
    prompts = [[65, 66, 67], [70, 71], [65, 66, 67, 68]]
    body = {"model": "tiny", "prompt": prompts, "max_tokens": 2, "temperature": 0, "n": 2}
    whole = client.post(COMPLETIONS, json=body).json()
    assert [choice["index"] for choice in whole["choices"]] == list(range(6))
    assert whole["usage"]["prompt_tokens"] == sum(map(len, prompts))
    chunks = sse(client.post(COMPLETIONS, json={**body, "stream": True}).text)
    texts = [""] * 6
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]


def test_scores_of_an_echoed_prompt_are_complete_and_the_same_when_cached(client: TestClient) -> None:
    body = {"model": "tiny", "prompt": "score this text", "max_tokens": 0, "echo": True, "logprobs": 2}
    first, second = (client.post(COMPLETIONS, json=body).json()["choices"][0] for _ in range(2))
    scores = first["logprobs"]
    assert first["text"] == "score this text"
    assert "".join(scores["tokens"]) == "score this text"
    assert scores["token_logprobs"][0] is None
    assert all(isinstance(value, float) for value in scores["token_logprobs"][1:])
    placed = zip(scores["tokens"], scores["text_offset"], strict=True)
    assert all(first["text"].startswith(token, offset) for token, offset in placed)
    assert second["logprobs"]["token_logprobs"][1:] == pytest.approx(scores["token_logprobs"][1:], abs=1e-4)


def test_demanded_call_opens_the_answer(client: TestClient) -> None:
    tool = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    body = {"model": "tiny", "messages": HELLO, "tools": [tool], "max_tokens": 3, "temperature": 0}
    free = client.post(COUNT, json=body).json()["input_tokens"]
    forced = client.post(COUNT, json={**body, "tool_choice": {"type": "tool", "name": "f"}}).json()["input_tokens"]
    assert forced > free
    answer = client.post(MESSAGES, json={**body, "tool_choice": {"type": "any"}}).json()
    assert answer["content"][0]["text"].startswith('<tool_call>\n{"name": "f", "arguments":')


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (CHAT, b"{", 400),
        (CHAT, b"x" * 30_000, 413),
        (MESSAGES, b"x" * 30_000, 413),
        (CHAT, json.dumps({"model": "other", "messages": HELLO}).encode(), 404),
        (MESSAGES, json.dumps({"model": "other", "max_tokens": 1, "messages": HELLO}).encode(), 404),
        (CHAT, json.dumps({"model": "tiny", "messages": asked("x" * 5000)}).encode(), 400),
        (MESSAGES, json.dumps({"model": "tiny", "max_tokens": 1, "messages": asked("x" * 5000)}).encode(), 400),
        (MESSAGES, json.dumps({"model": "tiny", "max_tokens": 10**6, "messages": HELLO}).encode(), 400),
        (COMPLETIONS, json.dumps({"model": "tiny", "prompt": [10**6]}).encode(), 400),
        (COMPLETIONS, json.dumps({"model": "tiny", "prompt": [-1]}).encode(), 400),
        (COMPLETIONS, json.dumps({"model": "tiny", "prompt": ["a"] * 1000}).encode(), 400),
        (CHAT, json.dumps({"model": "tiny", "messages": HELLO, "logit_bias": {"999999": 1}}).encode(), 400),
        ("/v1/nothing", b"{}", 404),
        ("/v1/models", b"{}", 405),
    ],
)
def test_bad_input_gets_its_status_in_the_protocols_shape(
    client: TestClient, path: str, body: bytes, status: int
) -> None:
    response = client.post(path, content=body)
    assert response.status_code == status
    error = response.json()["error"]
    assert error["message"]
    assert response.headers["request-id"]
    assert set(error) == ({"type", "message"} if path == MESSAGES else {"message", "type", "param", "code"})


def test_prompt_beyond_the_context_names_the_messages(client: TestClient) -> None:
    body = {"model": "tiny", "messages": asked("x" * 5000), "max_tokens": 1}
    openai = client.post(CHAT, json=body).json()["error"]
    assert (openai["param"], openai["code"]) == ("messages", "context_length_exceeded")
    assert "prompt is too long" in client.post(MESSAGES, json=body).json()["error"]["message"]


def test_unknown_fields_and_beta_headers_are_tolerated(client: TestClient) -> None:
    headers = {"anthropic-beta": "prompt-caching-2024-07-31,extended-cache-ttl-2025-04-11", "openai-beta": "x"}
    chat_body = {"model": "alias", "messages": HELLO, "max_tokens": 1, "user": "u", "novelty": [1]}
    assert client.post(CHAT, json=chat_body, headers=headers).json()["model"] == "alias"
    assert client.post(MESSAGES, json=chat_body, headers=headers).status_code == 200


def test_models_answer_in_the_asking_apis_shape(client: TestClient) -> None:
    anthropic = {"anthropic-version": "2023-06-01"}
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["tiny", "alias"]
    assert client.get("/v1/models", headers=anthropic).json()["first_id"] == "tiny"
    assert client.get("/v1/models/alias").json()["object"] == "model"
    assert client.get("/v1/models/alias", headers=anthropic).json()["type"] == "model"
    assert client.get("/v1/models/x", headers=anthropic).json()["type"] == "error"
    assert client.get("/v1/models?limit=0", headers=anthropic).status_code == 400


def test_root_and_health_answer(client: TestClient) -> None:
    assert client.head("/").status_code == 200
    assert client.get("/").json()["name"] == "anaphora"
    assert client.get("/health").json()["status"] == "ok"


def test_metrics_count_requests_and_tokens(client: TestClient) -> None:
    chat(client, messages=asked("metrics"))
    text = client.get("/metrics").text
    assert 'anaphora_http_requests_total{endpoint="/v1/chat/completions",status="200"}' in text
    assert "anaphora_reused_tokens_total" in text
    assert 'anaphora_pool_slots{state="leased"} 0.0' in text
    assert "anaphora_time_to_first_token_seconds_bucket" in text


def test_keys_keep_tenants_apart(locked: TestClient) -> None:
    body = {"model": "tiny", "messages": asked("a secret of red"), "max_tokens": 2, "temperature": 0}

    def reused(key: str) -> int:
        response = locked.post(CHAT, json=body, headers={"authorization": f"Bearer {key}"})
        return int(response.json()["anaphora"]["reused_tokens"])

    assert reused("red-key") == 0
    assert reused("red-key") > 0
    assert reused("blue-key") == 0


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, COUNT])
def test_wrong_key_is_refused_before_the_body_is_read(locked: TestClient, path: str) -> None:
    response = locked.post(path, content=b"{", headers={"x-api-key": "wrong"})
    assert response.status_code == 401
    assert locked.get("/v1/models").status_code == 401
    assert locked.get("/health").status_code == 200


def test_metrics_ask_for_their_own_key(locked: TestClient) -> None:
    assert locked.get("/metrics").status_code == 401
    assert locked.get("/metrics", headers={"authorization": "Bearer red-key"}).status_code == 401
    assert locked.get("/metrics", headers={"authorization": "Bearer watch"}).status_code == 200


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
parts = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["text", "image_url", "tool_use", "tool_result", "thinking", "document"]) | json_values,
        "text": st.text(max_size=5) | json_values,
        "id": json_values,
        "name": st.just("f") | json_values,
        "input": json_values,
        "content": json_values,
        "tool_use_id": json_values,
        "source": json_values,
        "cache_control": json_values,
    },
)
turns = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "system", "developer", "tool"]) | json_values,
        "content": st.text(max_size=8) | st.lists(parts, max_size=3) | json_values,
        "tool_calls": st.lists(json_values, max_size=2),
        "tool_call_id": json_values,
    },
)
numbers = st.integers(-2, 5) | json_values
NUMBER_FIELDS = ("n", "temperature", "top_p", "top_k", "min_p", "seed", "logprobs", "top_logprobs", "echo", "best_of")
OBJECT_FIELDS = ("stop_sequences", "stream_options", "thinking", "output_config", "cache_control")
bodies = st.fixed_dictionaries(
    {"model": st.just("tiny") | json_values, "max_tokens": st.integers(0, 2) | json_values},
    optional={
        "messages": st.just(HELLO) | st.lists(turns, max_size=3) | json_values,
        "prompt": st.text(max_size=8) | st.lists(st.integers(-1, 400), max_size=4) | json_values,
        "system": st.text(max_size=8) | st.lists(parts, max_size=2) | json_values,
        "tools": st.lists(parts, max_size=2) | json_values,
        "tool_choice": st.sampled_from(["auto", "required", "none"]) | json_values,
        "stream": st.booleans() | json_values,
        "stop": st.text(max_size=3) | json_values,
        "logit_bias": st.dictionaries(st.text("0123456789x", max_size=4), st.integers(-101, 101), max_size=2),
        **dict.fromkeys(NUMBER_FIELDS, numbers),
        **dict.fromkeys(OBJECT_FIELDS, json_values),
    },
)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, COUNT])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=bodies)
def test_no_body_breaks_the_server(client: TestClient, path: str, body: dict[str, Any]) -> None:
    if isinstance(body.get("n"), int):
        body["n"] = min(body["n"], 3)
    response = client.post(path, json=body)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert response.json()["error"]["message"]
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert "error" not in response.text.split("data: ")[-1]
