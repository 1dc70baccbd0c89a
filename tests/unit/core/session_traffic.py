"""Messages that an open session receives and sends."""

from __future__ import annotations

from qmd.core.session import MessageReceived, Session
from tests.unit.core.session_wire import message, only


def take(session: Session, kinds: str, now: float = 0.0) -> list[MessageReceived]:
    """Give messages to the session: "e" express, "r" recoverable, "t" transactional.

    Returns the events of the received messages.
    """
    names = {"e": "express", "r": "recoverable", "t": "transactional"}
    stream = [message(at, names[kind]) for at, kind in enumerate(kinds, 1)]
    return only(MessageReceived, session.receive(stream, now))


def send(session: Session, kinds: str, now: float = 0.0) -> None:
    """Send messages over the session; their tokens are e1, r2 and so on."""
    for at, kind in enumerate(kinds, 1):
        packet = message(at, "express" if kind == "e" else "recoverable")
        session.send(packet, recoverable=kind != "e", token=f"{kind}{at}", now=now)
