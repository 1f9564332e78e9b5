"""`anaphora serve`: the HTTP server."""

from pathlib import Path
from typing import Any

from anaphora.cli.flags import with_settings_flags


@with_settings_flags
def serve(*, config: Path | None = None, **flags: Any) -> None:
    """Serve a model over the OpenAI and Anthropic APIs.

    Each setting may also stand in a TOML file (--config) or in the environment (the name in brackets).
    Flags win over the environment, the environment over the file.
    """
    from anaphora.config import load_settings

    settings = load_settings(flags, config=config)
    from anaphora.api.server import serve as run_server

    run_server(settings)
