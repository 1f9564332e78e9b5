"""Serve OpenVINO GenAI's continuous batching over the OpenAI Chat Completions API, so that a load tool can ask it.

    pip install openvino-genai starlette uvicorn
    python openvino_server.py MODEL --port 8803        MODEL: a GGUF file, or a folder exported for OpenVINO

Greedy answers, streamed. Only what `anaphora bench load` sends is understood.
"""

import argparse
import asyncio
import itertools
import json
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import openvino_genai
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


class Pipeline:
    """The pipeline and the thread that steps it."""

    def __init__(self, model: str, *, num_threads: int, cache_gib: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.cache_size = cache_gib
        properties = {"INFERENCE_NUM_THREADS": num_threads}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self._tokenizer = self._pipeline.get_tokenizer()
        self._handles: dict[int, tuple[Any, asyncio.Queue[tuple[list[int], bool]], asyncio.AbstractEventLoop]] = {}
        self._lock = threading.Lock()
        self._is_needed = threading.Event()
        self._ids = itertools.count()
        threading.Thread(target=self._run, daemon=True).start()

    def prompt(self, messages: list[dict[str, str]]) -> Any:
        """Messages -> token ids [1, num_tokens]."""
        text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        return self._tokenizer.encode(text, add_special_tokens=False).input_ids

    def text(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids))

    async def stream(self, prompt: Any, *, max_tokens: int, ignores_end: bool) -> AsyncIterator[list[int]]:
        """Yield new token ids as they come."""
        wanted = openvino_genai.GenerationConfig(max_new_tokens=max_tokens, ignore_eos=ignores_end, do_sample=False)
        pieces: asyncio.Queue[tuple[list[int], bool]] = asyncio.Queue()
        with self._lock:
            number = next(self._ids)
            handle = self._pipeline.add_request(number, prompt, wanted)
            self._handles[number] = (handle, pieces, asyncio.get_running_loop())
        self._is_needed.set()
        while True:
            token_ids, is_last = await pieces.get()
            yield token_ids
            if is_last:
                return

    def _run(self) -> None:
        while True:
            self._is_needed.wait()
            with self._lock:
                if not self._pipeline.has_non_finished_requests():
                    self._is_needed.clear()
                    continue
                self._pipeline.step()
                self._hand_out()
            time.sleep(0)  # let requests in

    def _hand_out(self) -> None:
        for number, (handle, pieces, loop) in list(self._handles.items()):
            token_ids: list[int] = []
            while handle.can_read():
                for output in handle.read().values():
                    token_ids += output.generated_ids
            is_last = handle.get_status() != openvino_genai.GenerationStatus.RUNNING
            if token_ids or is_last:
                loop.call_soon_threadsafe(pieces.put_nowait, (token_ids, is_last))
            if is_last:
                del self._handles[number]


def application(pipeline: Pipeline, name: str) -> Starlette:
    """Make the two routes that the load tool asks."""

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model", "owned_by": "openvino"}]})

    async def chat(request: Request) -> Response:
        body = await request.json()
        prompt = pipeline.prompt(body["messages"])
        pieces = pipeline.stream(
            prompt,
            max_tokens=body.get("max_completion_tokens") or body.get("max_tokens") or 16,
            ignores_end=bool(body.get("ignore_eos")),
        )
        return StreamingResponse(_events(pieces, pipeline, prompt.shape[1], name), media_type="text/event-stream")

    return Starlette(routes=[Route("/v1/models", models), Route("/v1/chat/completions", chat, methods=["POST"])])


async def _events(
    pieces: AsyncIterator[list[int]], pipeline: Pipeline, num_prompt: int, name: str
) -> AsyncIterator[str]:
    frame = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": int(time.time()), "model": name}
    num_tokens = 0
    async for token_ids in pieces:
        num_tokens += len(token_ids)
        delta = {"index": 0, "delta": {"role": "assistant", "content": pipeline.text(token_ids)}, "finish_reason": None}
        yield f"data: {json.dumps({**frame, 'choices': [delta]})}\n\n"
    last = {"index": 0, "delta": {}, "finish_reason": "length"}
    usage = {"prompt_tokens": num_prompt, "completion_tokens": num_tokens, "total_tokens": num_prompt + num_tokens}
    yield f"data: {json.dumps({**frame, 'choices': [last]})}\n\n"
    yield f"data: {json.dumps({**frame, 'choices': [], 'usage': usage})}\n\n"
    yield "data: [DONE]\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8803)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache-gib", type=int, default=2)
    parser.add_argument("--name", default="smollm2-135m-instruct")
    chosen = parser.parse_args()
    pipeline = Pipeline(chosen.model, num_threads=chosen.threads, cache_gib=chosen.cache_gib)
    uvicorn.run(application(pipeline, chosen.name), host="127.0.0.1", port=chosen.port, log_level="warning")


if __name__ == "__main__":
    main()
