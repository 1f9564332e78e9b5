"""`anaphora bench load`: put load on servers, ours or others', and compare them."""

from pathlib import Path
from typing import Annotated, Any

import typer


def _what(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="What is sent", **more)


def _whom(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Servers", **more)


Workload = Annotated[str, _what("agent, chat, document, few-shot, no-sharing or mixed.")]
Case = Annotated[str | None, _what("Instead: shared-prefix, no-sharing, identical or first-token, with targets.")]
Requests = Annotated[int | None, _what("Requests of a round.", min=1)]
Concurrency = Annotated[int | None, _what("Conversations at a time.", min=1)]
Rate = Annotated[float | None, _what("Instead: requests a second, at random times (Poisson).", min=0.001)]
Rounds = Annotated[int | None, _what("Rounds; the servers take turns in each.", min=1, max=999)]
MaxTokens = Annotated[int | None, _what("Tokens of an answer.", min=1)]
LetEnd = Annotated[bool, _what("Let the model end its answers; else servers are told to ignore its end.")]
PrefixTokens = Annotated[int | None, _what("About so many tokens are shared.", min=1)]
OwnTokens = Annotated[int | None, _what("About so many tokens are a request's own.", min=1)]
Document = Annotated[Path | None, _what("Text to ask about, for the workload document.")]
Primed = Annotated[bool, _what("One request over the shared prefix goes ahead, uncounted.")]
Seed = Annotated[int, _what("Seed of texts and arrivals.", min=0)]
Salt = Annotated[str | None, _what("What texts open with; default: drawn, so that no earlier run warms this one.")]
Url = Annotated[list[str] | None, _whom("NAME=URL of a running server; may be repeated.")]
Serve = Annotated[
    list[str] | None, _whom("NAME=FLAGS of a server to start; may be repeated. Without --url: on, and off=--no-cache.")
]
Model = Annotated[str | None, _whom("Model to ask for, and to load in servers started here.")]
Api = Annotated[str | None, _whom("chat or completions (OpenAI), or anthropic. Default: chat.")]
ApiKey = Annotated[str, _whom("API key.", envvar="ANAPHORA_API_KEY", show_envvar=True)]
Timeout = Annotated[float, _whom("Seconds without a byte until a request is given up.", min=0.001)]
Output = Annotated[Path, typer.Option(help="Folder for the JSON file and the plot.")]


def load(
    *,
    workload: Workload = "agent",
    case: Case = None,
    requests: Requests = None,
    concurrency: Concurrency = None,
    rate: Rate = None,
    rounds: Rounds = None,
    max_tokens: MaxTokens = None,
    let_end: LetEnd = False,
    prefix_tokens: PrefixTokens = None,
    own_tokens: OwnTokens = None,
    document: Document = None,
    primed: Primed = False,
    seed: Seed = 0,
    salt: Salt = None,
    url: Url = None,
    serve: Serve = None,
    model: Model = None,
    api: Api = None,
    api_key: ApiKey = "",
    timeout: Timeout = 600.0,
    output: Output = Path("bench-results"),
) -> None:
    """Put load on any server of the OpenAI or Anthropic API, or compare several.

    Exit status 1 if a target is missed, or a request was not answered.
    """
    from anaphora.bench.load.show import Wishes, show_load

    wishes = Wishes(
        workload=workload,
        case=case,
        num_requests=requests,
        concurrency=concurrency,
        rate_per_s=rate,
        num_rounds=rounds,
        max_tokens=max_tokens,
        may_end=let_end,
        prefix_tokens=prefix_tokens,
        own_tokens=own_tokens,
        document=document,
        is_primed=primed,
        seed=seed,
        salt=salt,
        urls=tuple(url or ()),
        servers=tuple(serve or ()),
        model=model,
        api=api,
        api_key=api_key,
        timeout_s=timeout,
    )
    if not show_load(wishes, output=output):
        raise typer.Exit(1)
