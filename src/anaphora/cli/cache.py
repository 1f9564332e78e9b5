"""`anaphora cache`: what is kept on disk."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anaphora.config import load_settings

if TYPE_CHECKING:
    from anaphora.cli.kept import Kept

app = typer.Typer(no_args_is_help=True, help="Look into the keys and values on disk, and put them in order.")

_Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="The folder; else disk_cache_dir, else kv in cache_dir.", show_default=False),
]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="A prompt of `anaphora cache ls`; the first letters do.")]
_Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Prompts of `anaphora cache ls`.")]
_Request = Annotated[
    Path, typer.Argument(help="A request body (JSON) as either API takes it, or a log of them (JSON lines).")
]
_Tenant = Annotated[str, typer.Option(help="Whose cache it is; empty where the server has no API keys.")]
_Model = Annotated[str | None, typer.Option(help="The model; else the one of the settings.", show_default=False)]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@app.command("ls")
def list_prompts(folder: _Folder = None, *, json: _Json = False) -> None:
    """List the prompts that are kept, the one used last first."""
    with _kept(folder) as kept:
        kept.show_list(as_json=json)


@app.command()
def show(name: _Name, folder: _Folder = None) -> None:
    """Show one prompt: whose it is, and the records that it is made of."""
    with _kept(folder) as kept:
        kept.show_prompt(name)


@app.command()
def evict(names: _Names, folder: _Folder = None) -> None:
    """Delete prompts, from the record named on to all that go on from it. Pinned ones stay."""
    with _kept(folder) as kept:
        kept.evict(names)


@app.command()
def clear(
    folder: _Folder = None,
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.", show_default=False)] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
) -> None:
    """Delete everything that is kept, or all of one tenant's, pinned or not."""
    if not yes:
        typer.confirm("Delete " + ("everything" if tenant is None else f"all of tenant {tenant!r}") + "?", abort=True)
    with _kept(folder) as kept:
        kept.clear(tenant)


@app.command()
def pin(name: _Name, folder: _Folder = None) -> None:
    """Keep a prompt whatever else wants its place, until it is unpinned."""
    with _kept(folder) as kept:
        kept.pin(name)


@app.command()
def unpin(name: _Name, folder: _Folder = None) -> None:
    """Let a pinned prompt be evicted again."""
    with _kept(folder) as kept:
        kept.unpin(name)


@app.command()
def verify(folder: _Folder = None) -> None:
    """Read every record and check it; damaged ones are deleted. Exit status 1 if there were any."""
    with _kept(folder) as kept:
        if not kept.verify():
            raise typer.Exit(1)


@app.command("export")
def export_prompt(name: _Name, file: Annotated[Path, typer.Argument()], folder: _Folder = None) -> None:
    """Write one prompt to a new file, to take to another machine."""
    with _kept(folder) as kept:
        kept.export(name, file)


@app.command("import")
def import_prompt(
    file: Annotated[Path, typer.Argument()],
    folder: _Folder = None,
    *,
    tenant: Annotated[str | None, typer.Option(help="For whom; else whose it was.", show_default=False)] = None,
    model: _Model = None,
) -> None:
    """Take in a prompt that was exported elsewhere. Refused unless it is of the same model, to the bit."""
    from anaphora.cli.warming import digest_of

    with _kept(folder, cap=True) as kept:
        kept.take_in(file, tenant=tenant, model=digest_of(load_settings({"model": model})))


@app.command()
def warm(
    request: _Request,
    folder: _Folder = None,
    *,
    tenant: _Tenant = "",
    model: _Model = None,
    keep: Annotated[bool, typer.Option("--pin", help="Pin it, too.")] = False,
) -> None:
    """Compute what requests like this one open with, whatever the user says last, and keep it before anybody asks."""
    from anaphora.cli.warming import warm as warm_up

    name = warm_up(load_settings({"model": model, "disk_cache_dir": folder}), request, tenant=tenant)
    if keep and name is not None:
        with _kept(folder) as kept:
            kept.pin(name)


@app.command()
def check(request: _Request, folder: _Folder = None, *, tenant: _Tenant = "", model: _Model = None) -> None:
    """Say whether a request would find something on disk, and where that would stop. Computes nothing."""
    from anaphora.cli.warming import check as dry_run

    dry_run(load_settings({"model": model, "disk_cache_dir": folder}), request, tenant=tenant)


def _kept(folder: Path | None, *, cap: bool = False) -> "Kept":
    from anaphora.cli.kept import Kept

    settings = load_settings({"disk_cache_dir": folder})
    cap_bytes = settings.disk_cache_bytes if cap else None
    return Kept(settings.disk_cache_dir or settings.cache_dir / "kv", cap_bytes=cap_bytes)
