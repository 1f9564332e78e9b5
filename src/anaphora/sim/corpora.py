"""Traces made of published texts: who says what is theirs, when they say it is drawn with a seed.

Each reads a folder as its publisher lays it out, and gives a trace of request bodies, a byte a token.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from anaphora.sim.bodies import render_body
from anaphora.sim.formats import to_tokens
from anaphora.sim.trace import Trace, TraceRequest

Body = dict[str, Any]

_BFCL_DOCS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}


def tau_bench(folder: Path, *, seed: int = 0) -> Trace:
    """Conversations of an airline's agent (tau-bench, MIT): each answer of it is a request over all before it.

    A conversation begins every 20 s, a turn follows 30 s after the one before, both on average.
    """
    found = json.loads((folder / "historical_trajectories" / "gpt-4o-airline.json").read_text())
    talks = [list(_turns_before_answers(one["traj"])) for one in found]
    return _interleaved("tau-bench", talks, seed=seed, gaps_s=(20.0, 30.0))


def bfcl(folder: Path, *, seed: int = 0) -> Trace:
    """Dialogues that use tools, and single calls with tools of their own (BFCL, Apache-2.0).

    A dialogue begins every 5 s, a turn follows 60 s after the one before, both on average.
    """
    docs = {name: _rows(folder / f"{stem}.json") for name, stem in _BFCL_DOCS.items()}
    talks: list[list[Body]] = []
    for file in sorted(folder.glob("BFCL_v4_multi_turn_*.json")):
        for row in _rows(file):
            tools = [tool for name in row["involved_classes"] for tool in docs[name]]
            talks.append([{"tools": tools, "messages": turns} for turns in _growing(row["question"])])
    for row in _rows(folder / "BFCL_v4_live_multiple.json"):
        talks.append([{"tools": row["function"], "messages": row["question"][0]}])
    random.Random(seed).shuffle(talks)
    return _interleaved("bfcl", talks, seed=seed, gaps_s=(5.0, 60.0))


def mmlu_cot(folder: Path, *, num_requests: int = 4000, seed: int = 0) -> Trace:
    """Few-shot prefixes of 57 subjects (MMLU chain of thought, MIT), each under many short questions.

    Subjects are drawn by Zipf's law with exponent 1, in an order of popularity drawn with the seed.
    """
    prefixes = list(json.loads((folder / "_cot_prompts.json").read_text()).values())
    rng = random.Random(seed)
    rng.shuffle(prefixes)
    weights = [1 / rank for rank in range(1, len(prefixes) + 1)]
    chosen = rng.choices(prefixes, weights, k=num_requests)
    requests = [
        TraceRequest(float(index), to_tokens(f"{prefix}\n\nQ: question {index}, {rng.random()}\nA:", None))
        for index, prefix in enumerate(chosen)
    ]
    return Trace("mmlu-cot", tuple(requests), block_tokens=1)


def scan_mix(*, num_documents: int = 32, document_tokens: int = 20_000, num_chats: int = 4) -> Trace:
    """A hot chat, a sweep of long documents that come once, and the chat again.

    Chats share a system prompt of 2,000 tokens and have 8 turns of 500 tokens each before the sweep and one behind it.
    """
    rng = random.Random(0)
    lines: list[tuple[str, list[int]]] = []

    def fresh(num_tokens: int) -> list[int]:
        return rng.choices(range(50_000), k=num_tokens)

    system = fresh(2_000)
    chats = {f"chat {index}": [*system] for index in range(num_chats)}
    for _ in range(8):
        chats = {name: [*text, *fresh(500)] for name, text in chats.items()}
        lines += chats.items()
    lines += [(f"document {index}", fresh(document_tokens)) for index in range(num_documents)]
    lines += [(name, [*text, *fresh(500)]) for name, text in chats.items()]
    requests = [
        TraceRequest(float(index), np.array(tokens, dtype=np.int32), session=name)
        for index, (name, tokens) in enumerate(lines)
    ]
    return Trace("scan-mix", tuple(requests), block_tokens=1)


def _turns_before_answers(messages: list[Body]) -> Iterator[Body]:
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            yield {"messages": messages[:index]}


def _growing(turns: list[list[Body]]) -> Iterator[list[Body]]:
    """Give the messages of each turn with all before them. Turns in which nobody says anything are left out."""
    messages: list[Body] = []
    for turn in turns:
        messages = [*messages, *turn]
        if turn:
            yield messages


def _interleaved(name: str, talks: list[list[Body]], *, seed: int, gaps_s: tuple[float, float]) -> Trace:
    """Let talks begin at random, and their turns follow at random."""
    rng = random.Random(seed)
    requests: list[TraceRequest] = []
    begin_s = 0.0
    for index, bodies in enumerate(talks):
        begin_s += rng.expovariate(1 / gaps_s[0])
        time_s = begin_s
        for body in bodies:
            requests.append(TraceRequest(time_s, to_tokens(render_body(body), None), session=f"{name} {index}"))
            time_s += rng.expovariate(1 / gaps_s[1])
    requests.sort(key=lambda request: request.time_s)
    return Trace(name, tuple(requests), block_tokens=1)


def _rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
