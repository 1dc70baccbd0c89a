"""Handlers of the verbs about delayed messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qmd.access.demands import ADMIN, TO_PEEK, Demand
from qmd.control import validate as checked
from qmd.control_protocol import delayed as delayed_frames
from qmd.core.access import PURGE

if TYPE_CHECKING:
    from qmd.control.handler import Handler
    from qmd.control.server import ControlConnection
    from storage.tables.delayed import DelayedRow

TO_CANCEL = Demand(ADMIN, (PURGE,))


def _list_delayed(connection: ControlConnection, request: delayed_frames.ListDelayed) -> None:
    queue = _queue_of(connection, request.queue) if request.queue else ""
    start, limit = checked.place(request.start), checked.limit(request.limit)
    work = connection.components.delayed.page(queue, start, limit, bodies=request.bodies)
    connection.look(request.number, work)


def _queue_of(connection: ControlConnection, text: str) -> str:
    """Return the destination as the rows of delayed messages have it.  Raises Refusal, MustAsk."""
    components = connection.components
    return components.delayed.name_of(components.destinations.aims(text))


def _cancel_delayed(connection: ControlConnection, request: delayed_frames.CancelDelayed) -> None:
    connection.change(request.number, _cancel(connection, request.ids))


async def _cancel(connection: ControlConnection, ids: list[str]) -> object:
    rights, things = connection.rights, connection.components.things

    def check(row: DelayedRow) -> bool:
        if row.owner and row.owner == rights.owner:
            return True
        found = tuple(things.named(row.queue))
        if not (rights.may(TO_CANCEL, found) or rights.may(TO_PEEK, found)):
            return False  # ids can be counted through: to this client it looks like an unknown one
        rights.require(TO_CANCEL, found, "cancel_delayed")
        return True

    return await connection.components.delayed.cancel(ids, check)


HANDLERS: dict[type, Handler] = {
    delayed_frames.ListDelayed: _list_delayed,
    delayed_frames.CancelDelayed: _cancel_delayed,
}
