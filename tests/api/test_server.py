"""What is wrong with the server's settings is told before a model is loaded, in one line that names the setting.

Method: a model that does not exist, so that loading it would be a different error.
"""

from socket import create_server, socket

import pytest

from anaphora.api.server import bind, serve
from anaphora.config import load_settings
from anaphora.engine.engine import Engine
from anaphora.engine.settings import EngineSettings
from anaphora.errors import SettingsError

NO_MODEL = "/no/such/model"


def test_taken_port_is_told_before_the_model_is_loaded() -> None:
    with create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = load_settings(flags={"host": "127.0.0.1", "port": port, "model": NO_MODEL})
        with pytest.raises(SettingsError, match=f"port = {port} can't be listened on"):
            serve(settings)


def test_host_that_is_no_address_of_this_machine_is_told() -> None:
    with pytest.raises(SettingsError, match=r"host = '192\.0\.2\.1'"):
        bind("192.0.2.1", 0)
    with pytest.raises(SettingsError, match=r"host = 'no host' is no address"):
        bind("no host", 0)


def test_bound_address_accepts_nothing_until_it_listens() -> None:
    with bind("127.0.0.1", 0) as bound, socket() as client:
        with pytest.raises(ConnectionRefusedError):
            client.connect(bound.getsockname())
        bound.listen()
        client.connect(bound.getsockname())


@pytest.mark.parametrize(
    ("field", "value"), [("policy", "newest"), ("device", "abacus"), ("device", "cuda:99"), ("max_sequences", 0)]
)
def test_setting_that_no_engine_can_have_is_told_before_the_model_is_loaded(field: str, value: object) -> None:
    with pytest.raises(SettingsError, match=field):
        Engine.load(NO_MODEL, EngineSettings(**{field: value}))
