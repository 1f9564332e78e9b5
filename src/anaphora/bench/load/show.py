"""A load run from wishes to files. What `anaphora bench load` calls."""

import asyncio
import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import httpx
from rich.console import Console

from anaphora.bench.load import report as reports
from anaphora.bench.load.calls import Ask, Failed, Pace, Wave
from anaphora.bench.load.cases import CASES, PLAIN, Case, Size, failure_lines
from anaphora.bench.load.client import Target, models_at, open_http, send
from anaphora.bench.load.drive import Progress, drive
from anaphora.bench.load.material import Material, load_material
from anaphora.bench.load.servers import ended_in_order, running_server, setting_from
from anaphora.bench.load.wires import Wire, wire_named
from anaphora.bench.load.workloads import Brief, user
from anaphora.bench.machine import this_machine
from anaphora.bench.report import table_of as line_table
from anaphora.errors import SettingsError

_SAMPLE_CHARS = (300, 1500)
"""Two lengths of text: what the longer one has more in tokens tells how long a token is, without the template."""

_MAX_ROUNDS = 1000
"""More than anyone waits for: every round of every seed draws anew."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user set. None: as the workload or case has it."""

    workload: str = "agent"
    case: str | None = None
    urls: tuple[str, ...] = ()  # NAME=URL, or a URL alone
    servers: tuple[str, ...] = ()  # NAME=FLAGS of servers to start
    model: str | None = None
    api: str | None = None
    api_key: str = ""
    num_requests: int | None = None
    concurrency: int | None = None
    rate_per_s: float | None = None
    num_rounds: int | None = None
    max_tokens: int | None = None
    prefix_tokens: int | None = None
    own_tokens: int | None = None
    document: Path | None = None
    is_primed: bool = False
    may_end: bool = False  # the model may end before max_tokens
    timeout_s: float = 600.0
    seed: int = 0
    salt: str | None = None


def show_load(wishes: Wishes, *, output: Path) -> bool:
    """Run it, print the tables, write the files; answer whether all targets were met and every server answered."""
    console = Console()
    with ended_in_order(), console.status("") as status:
        report = run_load(wishes, progress=lambda doing: status.update(f"{doing[:1].upper()}{doing[1:]}"))
    console.print(*reports.tables_of(report), sep="\n")
    if report.lines:
        console.print(line_table(report.lines, report.machine, title="Servers compared: medians of the rounds' ratios"))
    for line in reports.error_lines(report.results):
        console.print(line, highlight=False, markup=False, style="red")
    for path in reports.write_files(report, output, name=f"load-{_case(wishes).name}"):
        console.print(f"Wrote {path}")
    return all(line.verdict != "FAIL" for line in report.lines)


def run_load(wishes: Wishes, *, progress: Progress) -> reports.Report:
    """Start or find the servers, measure them, answer everything found.

    Raises: SettingsError.
    """
    case = _case(wishes)
    wire = _wire(wishes, case)
    size = Size(
        wishes.num_requests or case.num_requests,
        Pace(wishes.concurrency or case.concurrency, wishes.rate_per_s),
        wishes.is_primed,
    )
    num_rounds = wishes.num_rounds or case.num_rounds
    salt = wishes.salt or secrets.token_hex(4)
    material = load_material()
    with contextlib.ExitStack() as running:
        targets = [*_found(wishes, wire), *_started(wishes, case, wire, (running, progress))]
        progress("measuring how long a token is")
        chars_per_token = asyncio.run(measure_chars_per_token(targets, material, timeout_s=wishes.timeout_s))
        brief = _brief(wishes, case, material, chars_per_token)

        def waves_of(round_index: int) -> Sequence[Wave]:
            salted = replace(brief, salt=f"{salt}-{round_index}", seed=brief.seed * _MAX_ROUNDS + round_index)
            return case.waves(salted, size)

        results = drive(
            targets,
            waves_of,
            num_rounds=num_rounds,
            timeout_s=wishes.timeout_s,
            seed=wishes.seed,
            progress=progress,
        )
    lines = [*case.lines(results, size), *failure_lines(results)]
    options = {name: str(value) if isinstance(value, Path) else value for name, value in _told(wishes).items()}
    options |= {"case": case.name, "num_rounds": num_rounds, "salt": salt, "chars_per_token": chars_per_token}
    options |= {"wire": type(wire).__name__.lower(), **asdict(size)}
    return reports.Report(_title(case, size, num_rounds), options, results, lines, this_machine())


def _told(wishes: Wishes) -> dict[str, object]:
    """The wishes that a report may repeat: all but the key."""
    return {name: value for name, value in asdict(wishes).items() if name != "api_key"}


def _title(case: Case, size: Size, num_rounds: int) -> str:
    pace = f"{size.pace.rate_per_s:g} requests/s" if size.pace.rate_per_s else f"{size.pace.concurrency} at a time"
    primed = ", prefix primed" if size.is_primed else ""
    return f"{case.name}: {size.num_requests} requests, {pace}{primed}, {num_rounds} rounds"


def _case(wishes: Wishes) -> Case:
    known: Mapping[str, Case] = PLAIN if wishes.case is None else CASES
    name = wishes.workload if wishes.case is None else wishes.case
    if name not in known:
        kind = "workload" if wishes.case is None else "case"
        raise SettingsError(f"There is no {kind} {name!r}. There are: {', '.join(known)}.")
    return known[name]


def _wire(wishes: Wishes, case: Case) -> Wire:
    wire = wire_named(wishes.api or case.wire, full_length=not wishes.may_end)
    if wire is None:
        raise SettingsError(f"There is no API {wishes.api!r}. There are: chat, completions, anthropic.")
    return wire


def _found(wishes: Wishes, wire: Wire) -> Iterator[Target]:
    """The servers at the given addresses."""
    for text in wishes.urls:
        name, url = _named_url(text)
        model = wishes.model or models_at(url, wishes.api_key)[0]
        yield Target(name, url, model, wire, wishes.api_key)


def _named_url(text: str) -> tuple[str, str]:
    """A name and an address without /v1. An address alone is its own name."""
    name, equals, url = text.partition("=")
    if not equals or "/" in name:
        name, url = text, text
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise SettingsError(
            f"--url {text!r} has no address of a server. One that has: --url theirs=http://127.0.0.1:8000"
        )
    return name, url.rstrip("/").removesuffix("/v1")


def _started(
    wishes: Wishes, case: Case, wire: Wire, running: tuple[contextlib.ExitStack, Progress]
) -> Iterator[Target]:
    """Servers of our own: those asked for, or the case's where no address was given. The stack stops them."""
    stack, progress = running
    settings = tuple(setting_from(text) for text in wishes.servers)
    if not settings and not wishes.urls:
        settings = case.servers
    for setting in settings:
        progress(f"starting the server {setting.name}")
        flags = ("--model", wishes.model) if wishes.model else ()
        url = stack.enter_context(running_server(setting, flags=flags))
        yield Target(setting.name, url, models_at(url, wishes.api_key)[0], wire, wishes.api_key, is_ours=True)


async def measure_chars_per_token(targets: Sequence[Target], material: Material, *, timeout_s: float) -> float:
    """Ask the first server that answers how many tokens two texts have. All servers then get the same texts.

    Raises: SettingsError if no server answers, with what each said.
    """
    text = "\n\n".join(material.paragraphs())
    problems: list[str] = []
    async with open_http(timeout_s) as http:
        for target in targets:
            counts: list[int] = []
            for num_chars in _SAMPLE_CHARS:
                ask = Ask("sample", text[:num_chars], (user("Go on."),), 1)
                outcome = await send(http, target, ask, wave_began=0.0, due=0.0)
                if isinstance(outcome, Failed):
                    problems.append(f"{target.name}: {outcome.problem} {outcome.message}".strip())
                    break
                counts.append(outcome.prompt_tokens)
            else:
                return (_SAMPLE_CHARS[1] - _SAMPLE_CHARS[0]) / max(1, counts[1] - counts[0])
    raise SettingsError(f"No server answers a first request. {'; '.join(problems)}")


def _brief(wishes: Wishes, case: Case, material: Material, chars_per_token: float) -> Brief:
    document = None
    if wishes.document is not None:
        try:
            document = wishes.document.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"The document {wishes.document} can't be read: {error}.") from None
    return Brief(
        material=material,
        salt="",
        seed=wishes.seed,
        chars_per_token=chars_per_token,
        max_tokens=wishes.max_tokens or case.max_tokens,
        prefix_tokens=wishes.prefix_tokens or case.prefix_tokens,
        own_tokens=wishes.own_tokens or case.own_tokens,
        document=document,
    )
