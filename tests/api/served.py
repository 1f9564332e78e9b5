"""The application behind a real server, in this process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from anaphora.api.app import ApiSettings, build_app
from anaphora.api.server import AnnouncingServer, bind
from anaphora.engine.engine import Engine


@contextmanager
def served(engine: Engine, settings: ApiSettings) -> Iterator[str]:
    """Where it listens, until the block ends."""
    found: list[str] = []
    is_ready = threading.Event()

    def announce(where: str) -> None:
        found.append(where)
        is_ready.set()

    config = uvicorn.Config(build_app(engine, settings), log_level="critical", access_log=False)
    server = AnnouncingServer(config, announce)
    with bind("127.0.0.1", 0) as bound:
        thread = threading.Thread(target=lambda: server.run(sockets=[bound]), daemon=True)
        thread.start()
        try:
            assert is_ready.wait(30)
            yield found[0]
        finally:
            server.should_exit = True
            thread.join(30)
