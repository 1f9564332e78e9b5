"""The main job in one minute: two questions over one long system prompt, and proof that the second is still right."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor

from anaphora.bench.machine import this_machine
from anaphora.bench.pair import plain_copy
from anaphora.bench.texts import handbook
from anaphora.engine.engine import Engine
from anaphora.engine.models.fetch import default_cache_dir
from anaphora.engine.models.loading import load_model
from anaphora.engine.models.spec import LoadedModel
from anaphora.engine.passing_thread import in_passing_thread
from anaphora.engine.request import Receipt, Sampling
from anaphora.engine.runner import Runner
from anaphora.engine.settings import EngineSettings
from anaphora.engine.step import StepPlan

QUESTIONS = ("Can I return a lens after two weeks?", "When is the store open?")
SYSTEM_TOKENS = 2000
MAX_ANSWER_TOKENS = 40
MAX_DIFFERENCE = 1e-3
"""Largest difference of scores that counts as rounding. A wrong token in the cache moves them by 0.1 and more."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Answered:
    """One question, answered."""

    question: str
    text: str
    receipt: Receipt
    tokens: list[int]  # the prompt
    scores: Tensor  # [vocab_size] of the answer's first token
    first_token_s: float


class ScoreTape:
    """Keeps the scores that an engine's steps end with, one row for each step.

    Goes in with `Engine(loaded, settings, wrap=tape.over)`.
    """

    def __init__(self) -> None:
        self.rows: list[Tensor] = []
        self._runner: Runner | None = None

    def over(self, runner: Runner) -> Runner:
        """Stand between an engine and its runner."""
        self._runner = runner
        return self

    def run(self, tokens: NDArray[Any], positions: NDArray[Any], plan: StepPlan, logit_rows: Sequence[int]) -> Tensor:
        """See `Runner.run`."""
        assert self._runner is not None, "the tape was put over no runner"
        logits = self._runner.run(tokens, positions, plan, logit_rows)
        self.rows.append(logits[-1].clone())
        return logits

    def forget(self, sequence_id: int) -> None:
        """See `Runner.forget`."""
        assert self._runner is not None, "the tape was put over no runner"
        self._runner.forget(sequence_id)


def show_demo(model: str, *, cache_dir: Path | None) -> bool:
    """Run it and print it; answer whether all scores equal a full recompute."""
    console = Console()
    folder = cache_dir or default_cache_dir()
    loaded = in_passing_thread(lambda: load_model(model, cache_dir=folder, device=torch.device("cpu")))
    tape = ScoreTape()
    with in_passing_thread(lambda: Engine(loaded, EngineSettings(), cache_dir=folder, wrap=tape.over)) as engine:
        for line in engine.start_up_lines:
            console.print(line, highlight=False, soft_wrap=True)
        console.print(f"\nTwo questions over one system prompt, a store's handbook of {SYSTEM_TOKENS:,} tokens.\n")
        answers = ask(engine, tape, questions=QUESTIONS, say=lambda piece: _say(console, piece))
    with console.status("Computing both prompts again in full, by an untouched copy of the model"):
        untouched = plain_copy(model, folder)
        differences = [difference(answer, untouched) for answer in answers]
    console.print(_table(answers, differences))
    console.print(this_machine().stamp, style="dim", highlight=False)
    return all(found <= MAX_DIFFERENCE for found in differences)


def ask(
    engine: Engine, tape: ScoreTape, *, questions: tuple[str, ...], say: Say, num_system_tokens: int = SYSTEM_TOKENS
) -> list[Answered]:
    """Ask the questions one after another over one system prompt, saying each answer as it comes."""
    engine.generate("Warm up: the first forward pass of a process is slow.", temperature=0.0, max_tokens=2)
    system = handbook(num_system_tokens, lambda text: len(engine.tokenizer(text).input_ids))
    return [_ask_one(engine, tape, system, question, say) for question in questions]


def _ask_one(engine: Engine, tape: ScoreTape, system: str, question: str, say: Say) -> Answered:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    tokens = engine.tokenise(messages).tolist()
    tape.rows.clear()
    say(f"> {question}\n")
    start, arrivals, pieces = time.perf_counter(), [], []
    stream = engine.stream(tokens, Sampling(temperature=0.0, max_tokens=MAX_ANSWER_TOKENS))
    for delta in stream:
        arrivals.append(time.perf_counter() - start)
        pieces.append(delta.text)
        say(delta.text)
    say("\n\n")
    assert stream.receipt is not None
    # Every token after the first took one more forward pass.
    scores = tape.rows[-stream.receipt.num_generated_tokens]
    return Answered(question, "".join(pieces), stream.receipt, tokens, scores, arrivals[0])


def difference(answer: Answered, untouched: LoadedModel) -> float:
    """Compute an answer's prompt in full, without any cache; answer the largest absolute difference of scores."""
    ids = torch.tensor([answer.tokens], dtype=torch.int64)
    with torch.inference_mode():
        expected = untouched.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]
    return float((answer.scores - expected).abs().max())


def _say(console: Console, piece: str) -> None:
    """Print as it comes: no markup, no wrapping of half a line."""
    console.print(piece, end="", markup=False, highlight=False, soft_wrap=True)


def _table(answers: list[Answered], differences: list[float]) -> Table:
    table = Table(title="What it took", title_justify="left", show_lines=True)
    table.add_column("question")
    for heading in ("computed", "first token", "scores"):
        table.add_column(heading, justify="right", no_wrap=True)
    cold_s = answers[0].first_token_s
    for index, (answer, found) in enumerate(zip(answers, differences, strict=True)):
        receipt = answer.receipt
        speed = "cold" if index == 0 else f"{cold_s / answer.first_token_s:.0f} x as fast"
        verdict = "equal a full recompute" if found <= MAX_DIFFERENCE else "[bold red]DIFFERENT[/]"
        table.add_row(
            answer.question,
            f"{receipt.num_computed_tokens:,} of\n{receipt.num_prompt_tokens:,} tokens",
            f"{1e3 * answer.first_token_s:,.0f} ms\n{speed}",
            f"{verdict}\nlargest difference {found:.1e}",
        )
    return table
