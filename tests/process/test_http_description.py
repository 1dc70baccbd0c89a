"""The OpenAPI description of the HTTP door, tried by requests that schemathesis makes from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.process.http_door import HttpDoor, open_door

EXAMPLES = {"positive": 6, "negative": 4}


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpDoor]:
    yield from open_door(tmp_path_factory.mktemp("description"), "orders")


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_no_request_of_the_description_fails_the_door(door: HttpDoor, mode: str) -> None:
    """Each answer has a declared status, type and schema, and none is an error of the server.

    Requests that the description forbids are refused.
    """
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        negative_data_rejection,
        response_schema_conformance,
        status_code_conformance,
    )

    client = door.client()
    description = client.json("GET", "/openapi.json")
    schema = schemathesis.openapi.from_dict(description)
    schema.config.update(base_url=f"http://127.0.0.1:{door.port}")
    checks = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
        *([negative_data_rejection] if mode == "negative" else []),
    ]
    generation = schemathesis.GenerationMode(mode)
    headers = {"authorization": f"Bearer {door.token(name='admin')}", "accept": "application/json"}
    tried = set()
    for result in schema.get_all_operations():
        operation = result.ok()
        if mode == "negative" and not (operation.body or operation.query or operation.headers):
            continue  # nothing that could be wrong

        @settings(
            max_examples=EXAMPLES[mode],
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=generation))
        def attempt(case: Any) -> None:
            for part in (case.body, case.query):
                if isinstance(part, dict) and isinstance(part.get("wait_s"), int | float):
                    part["wait_s"] = min(part["wait_s"], 0)
            case.call_and_validate(headers=headers, checks=checks)

        attempt()
        tried.add((operation.method, operation.path))
    declared = sum(len(each) for each in description["paths"].values())
    assert len(tried) == declared if mode == "positive" else len(tried) > 20
