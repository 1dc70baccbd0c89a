"""The trace context in the properties of a message."""

from __future__ import annotations

import pytest

from qmd.control_protocol.messages import NewMessage
from qmd.doors.http.trace_context import traced
from qmd.properties.block import read_extension, with_properties
from qmd.properties.trace import text_of, trace_of
from qmd.properties.values import MessageProperties

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def extension(**application: str) -> bytes:
    return with_properties(MessageProperties(application), b"of the application")


def test_it_is_found_among_other_properties() -> None:
    found = trace_of(extension(region="east", traceparent=PARENT, weight="3"))

    assert len(found) == 25
    assert text_of(found) == PARENT


@pytest.mark.parametrize(
    "given",
    [
        PARENT.upper(),
        PARENT[:-1],
        "01" + PARENT[2:],
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
        "x" * 55,
    ],
)
def test_a_property_that_is_no_context_is_none(given: str) -> None:
    assert trace_of(extension(traceparent=given)) == b""


def test_bytes_of_an_application_are_not_read() -> None:
    assert trace_of(extension(traceparent=PARENT)[1:]) == b""
    assert trace_of(b"") == b""


def test_the_headers_of_a_request_become_properties() -> None:
    new = NewMessage("orders", b"x", extension=extension(region="east"))

    done = traced(new, {"traceparent": PARENT, "tracestate": "a=1"})

    properties, own = read_extension(done.extension)
    assert properties.application == {
        "region": "east",
        "traceparent": PARENT,
        "tracestate": "a=1",
    }
    assert own == b"of the application"
    assert traced(new, {"traceparent": "nonsense"}) is new
    with_own = NewMessage("orders", b"x", extension=extension(traceparent=PARENT))
    assert traced(with_own, {"traceparent": PARENT.replace("01", "00")}) is with_own
