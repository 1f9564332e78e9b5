"""Goal: the server does what its own OpenAPI document says, whatever it is sent. Method: schemathesis makes requests
from the document, valid ones and spoiled ones, and holds the answers of a real server against it.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from hosted_world import KEYS
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode, checks
from served import served
from starlette.testclient import TestClient

from anaphora.api.app import ApiSettings, build_app
from anaphora.api.auth import keys_of
from anaphora.api.openapi import OPERATIONS, document
from anaphora.engine.engine import Engine

KEY = {"authorization": "Bearer red-key"}
EXAMPLES = 3
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def url(roomy: Engine) -> Iterator[str]:
    with served(roomy, ApiSettings(("tiny",), keys_of(KEYS), request_timeout_s=20.0)) as where:
        yield where


@pytest.fixture(scope="module")
def warm() -> None:
    """Make one request of every kind before a server's threads run: what is loaded for that is parsed by the way, and
    Python 3.11's parser fails when another thread comes in between.
    """
    for one in schemathesis.openapi.from_dict(document("0")).get_all_operations():
        for mode in GenerationMode:
            run_examples(one.ok().as_strategy(generation_mode=mode), lambda case: None, max_examples=1)


def run_examples(strategy: Any, check: Callable[[Any], None], *, max_examples: int) -> None:
    @settings(
        max_examples=max_examples, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=strategy)
    def run(case: Any) -> None:
        check(case)

    run()


@pytest.mark.parametrize("mode", list(GenerationMode), ids=["valid", "spoiled"])
def test_the_server_does_what_its_document_says(warm: None, url: str, mode: GenerationMode) -> None:
    schema: Any = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [one.ok() for one in schema.get_all_operations()]
    assert len(operations) > 20
    for operation in operations:
        run_examples(
            operation.as_strategy(generation_mode=mode),
            lambda case: case.call_and_validate(headers=KEY, checks=CHECKS),
            max_examples=EXAMPLES,
        )


def test_every_route_is_described_and_every_described_path_is_a_route(roomy: Engine) -> None:
    app = build_app(roomy, ApiSettings())
    routes = {
        (method.lower(), route.path.replace(":path", ""))  # type: ignore[attr-defined]
        for route in app.routes
        for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
        if route.path.startswith("/v1/") and "anaphora" not in route.path  # type: ignore[attr-defined]
    }
    assert routes == {(one.method, one.path) for one in OPERATIONS} | {("post", "/v1/files")}


def test_the_document_is_served_and_names_what_it_refers_to(roomy: Engine) -> None:
    with TestClient(build_app(roomy, ApiSettings())) as client:
        assert client.get("/openapi.json").json() == document("0.1.0")
    text = str(document("0.1.0"))
    for name in document("0.1.0")["components"]["schemas"]:
        assert f"#/components/schemas/{name}" in text
