"""`anaphora chat`: talk to a running server in the terminal."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from anaphora.cli.conversation import Conversation

HELP = """/system TEXT   set the system prompt and start anew (without TEXT: show it)
/new           start anew
/help          this list
/quit          leave (also Ctrl-D)"""


def chat(
    url: Annotated[str, typer.Option(help="Where the server is.")] = "http://127.0.0.1:8000",
    model: Annotated[str, typer.Option(help="Model to ask for; default: the first that is served.")] = "",
    system: Annotated[str, typer.Option(help="System prompt.")] = "",
    api_key: Annotated[str, typer.Option(help="API key.", envvar="ANAPHORA_API_KEY", show_envvar=True)] = "",
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer, in tokens.", min=1)] = None,
) -> None:
    """Talk to a running server. After each answer a line says how much of the prompt was reused."""
    import httpx
    from rich.console import Console

    from anaphora.cli.conversation import Conversation, address_of, first_model

    url = address_of(url)
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(600, connect=10)) as client:
        console = Console(highlight=False)
        conversation = Conversation(client, model or first_model(client), max_tokens, system=system or None)
        console.print(f"[bold]{conversation.model}[/bold] at {url}. /help lists commands.")
        while (line := _read(console)) is not None:
            if not _obey(line, conversation, console):
                return


def _read(console: "Console") -> str | None:
    """The next line, or None at the end of input."""
    try:
        return console.input("[bold cyan]> [/bold cyan]").strip()
    except (EOFError, KeyboardInterrupt):
        console.print()
        return None


def _obey(line: str, conversation: "Conversation", console: "Console") -> bool:
    """Do what the line asks for. False: leave."""
    command, _, rest = line.partition(" ")
    if command in ("/quit", "/exit"):
        return False
    if command == "/help":
        console.print(HELP)
    elif command == "/new":
        conversation.forget()
    elif command == "/system" and rest:
        conversation.system = rest.strip()
        conversation.forget()
    elif command == "/system":
        console.print(conversation.system or "No system prompt is set.", markup=False)
    elif line.startswith("/"):
        console.print(f"There is no command {command}. /help lists commands.", markup=False)
    elif line:
        _answer(line, conversation, console)
    return True


def _answer(question: str, conversation: "Conversation", console: "Console") -> None:
    from anaphora.cli.conversation import ChatFailed, receipt_line

    try:
        for piece in conversation.ask(question):
            console.print(piece, end="", markup=False, soft_wrap=True)
    except ChatFailed as error:
        console.print(f"[red]{error}[/red]")
        return
    except KeyboardInterrupt:
        console.print("[dim] (stopped)[/dim]")
        return
    console.print()
    if conversation.receipt is not None:
        console.print(f"[dim]{receipt_line(conversation.receipt)}[/dim]")
