"""The OpenAPI description of the HTTP door, tried by requests that schemathesis makes from it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.process.http_door import HttpDoor, open_door


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpDoor]:
    yield from open_door(tmp_path_factory.mktemp("description"), "orders")


def test_no_request_of_the_description_fails_the_door(door: HttpDoor) -> None:
    """Each answer has a declared status, type and schema, and none is an error of the server."""
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
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
    ]
    headers = {"authorization": f"Bearer {door.token(name='admin')}"}
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path in ("/v1/events", "/v1/pushes", "/v1/pushes/{name}"):
            continue  # an endless answer; requests that reach other hosts

        @settings(
            max_examples=8,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def attempt(case: object) -> None:
            if isinstance(case.body, dict):  # type: ignore[attr-defined]
                case.body.pop("wait_s", None)  # type: ignore[attr-defined]
            if isinstance(case.query, dict):  # type: ignore[attr-defined]
                case.query.pop("wait_s", None)  # type: ignore[attr-defined]
            case.call_and_validate(headers=headers, checks=checks)  # type: ignore[attr-defined]

        attempt()
        tried += 1
    assert tried > 20
