"""Requests that are done in one turn of the event loop: how much they may ask for."""

from __future__ import annotations

import msgspec
import pytest

from qmd.control_protocol import bulk, links
from qmd.control_protocol.messages import NewMessage, Request, decode_request

LINK = links.LinkDeliveries(bytes(16), 0, 0, [])
MESSAGE = NewMessage("orders", b"")
NAMES = {f"q{at}": 0 for at in range(bulk.QUEUES_MAX + 1)}


@pytest.mark.parametrize(
    "request_",
    [
        links.SendOverLinks(1, [MESSAGE] * (links.AT_ONCE_MAX + 1), [LINK]),
        links.SendOverLinks(1, [MESSAGE], [LINK] * (links.AT_ONCE_MAX + 1)),
        bulk.Consume(1, "reader", 1, NAMES),
    ],
)
def test_a_request_with_more_is_not_understood(request_: Request) -> None:
    with pytest.raises(msgspec.DecodeError, match="length <="):
        decode_request(memoryview(msgspec.msgpack.encode(request_)))


def test_a_request_with_as_much_as_allowed_is_understood() -> None:
    request = links.SendOverLinks(1, [MESSAGE] * links.AT_ONCE_MAX, [LINK])

    assert decode_request(memoryview(msgspec.msgpack.encode(request))) == request
