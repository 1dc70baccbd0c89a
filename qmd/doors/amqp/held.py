"""Links and sessions of proton that hold what they belong to.

Proton frees a link together with its session.  If the session has ended and the last reference to
the link holds the session as well, then proton frees the link while it gives up that reference,
and frees it again afterwards; a session and its connection likewise.  So each of these
objects gives up its own reference first, and those to its parents after it.
"""

from __future__ import annotations

from typing import Any

import proton
from cproton import lib


class _Held:
    """An object of proton with references to its parents, the nearest first."""

    _impl: Any

    def _hold(self, *parents: Any) -> None:
        for parent in parents:
            lib.pn_incref(parent)
        self.__dict__["_parents"] = parents  # proton keeps other attributes in the object itself

    def __del__(self) -> None:
        for pointer in (self._impl, *self.__dict__.get("_parents", ())):
            lib.pn_decref(pointer)


class HeldSession(_Held, proton.Session):  # type: ignore[misc]
    """A session that holds its connection."""

    def __init__(self, pointer: Any) -> None:
        proton.Session.__init__(self, pointer)
        self._hold(lib.pn_session_connection(pointer))


class _HeldLink(_Held):
    def _hold_session(self) -> None:
        session = lib.pn_link_session(self._impl)
        self._hold(session, lib.pn_session_connection(session))


class HeldSender(_HeldLink, proton.Sender):  # type: ignore[misc]
    """A link to a receiver that holds its session and its connection."""

    def __init__(self, pointer: Any) -> None:
        proton.Sender.__init__(self, pointer)
        self._hold_session()


class HeldReceiver(_HeldLink, proton.Receiver):  # type: ignore[misc]
    """A link to a sender that holds its session and its connection."""

    def __init__(self, pointer: Any) -> None:
        proton.Receiver.__init__(self, pointer)
        self._hold_session()


def session_of(event: Any) -> HeldSession:
    """Return the session of an event."""
    return HeldSession(event.session._impl)


def link_of(event: Any) -> HeldSender | HeldReceiver:
    """Return the link of an event."""
    link = event.link
    return (HeldSender if link.is_sender else HeldReceiver)(link._impl)
