"""Links and sessions of the engine outlive neither twice nor too early what they belong to."""

from __future__ import annotations

import gc
from typing import Any

import pytest

proton = pytest.importorskip("proton")
from cproton import ffi  # noqa: E402

from qmd.doors.amqp import held  # noqa: E402
from qmd.doors.amqp.engine import OF_CLIENTS, Engine, Limits  # noqa: E402

REMOTE_OPEN = {proton.Event.SESSION_REMOTE_OPEN, proton.Event.LINK_REMOTE_OPEN}


class Client:
    """The engine of a client, whose bytes go to that of the door and back."""

    def __init__(self) -> None:
        self.transport, self.connection = proton.Transport(), proton.Connection()
        self.connection.container = "client"
        self.transport.bind(self.connection)
        self.connection.open()

    def exchange(self, engine: Engine) -> None:
        """Pass the bytes of both engines on, until neither has any."""
        for _ in range(10):
            while (pending := self.transport.pending()) > 0:
                engine.receive(bytes(self.transport.peek(pending)))
                self.transport.pop(pending)
            if data := engine.output(1 << 20):
                self.transport.push(data)


@pytest.fixture
def engine() -> Engine:
    return Engine("door", Limits(65_536, 10, 60.0))


def references(pointer: Any) -> int:
    """Return how many references proton counts: the number before the object."""
    return int(ffi.cast("int *", ffi.cast("char *", pointer) - 8)[0])


def opened(engine: Engine) -> tuple[Any, Any]:
    """Return the session and the link that a client has opened."""
    found = {}
    for kind, event in engine.events():
        if kind in OF_CLIENTS and event.type in REMOTE_OPEN:
            if event.type == proton.Event.LINK_REMOTE_OPEN:
                found["link"] = held.link_of(event)
            else:
                found["session"] = held.session_of(event)
    return found["session"], found["link"]


@pytest.mark.parametrize("kind", ["sender", "receiver"])
def test_a_link_holds_its_session_that_has_ended(engine: Engine, kind: str) -> None:
    client = Client()
    session = client.connection.session()
    session.open()
    getattr(session, kind)("a link").open()
    client.exchange(engine)
    here, link = opened(engine)
    engine.connection.open()
    here.open()
    link.open()
    client.exchange(engine)
    session.close()
    client.exchange(engine)
    here.close()
    link.free()
    here.free()
    client.exchange(engine)
    list(engine.events())  # they hold the session
    pointer = here._impl
    del here
    gc.collect()
    # One of the link of proton, and one of ours: the first does not end the session.
    assert references(pointer) == 2
    del link


def test_a_session_holds_its_connection(engine: Engine) -> None:
    client = Client()
    client.connection.session().open()
    client.exchange(engine)
    [session] = [
        held.session_of(event)
        for kind, event in engine.events()
        if kind in OF_CLIENTS and event.type in REMOTE_OPEN
    ]
    with_both = references(engine.connection._impl)
    del session
    # One of the session of proton, and one of ours.
    assert references(engine.connection._impl) == with_both - 2
