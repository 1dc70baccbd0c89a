"""Handlers of the verbs of figures, for monitoring.

A page has at most ROWS_MAX rows, some hundred microseconds of work; the clients put the pages
together, and choose the queues that they show.
"""

from __future__ import annotations

import platform
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import qmd
from protocol.identifiers import message_id_text
from protocol.message_class import MessageClass
from qmd.control import status as overview
from qmd.control.handler import Handler
from qmd.control_protocol.figures import (
    ROWS_MAX,
    DestinationFigures,
    HostFigures,
    OldestMessages,
    QueueFigures,
)
from storage.engine.figures import SQLITE_VERSION
from storage.tables import oldest

if TYPE_CHECKING:
    import sqlite3

    from qmd.control.components import Components
    from qmd.control.server import ControlConnection
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.outgoing_queue import OutgoingQueue
    from storage.engine.histogram import Histogram

Value = dict[str, Any]
#: Classes of messages that ended without being received.  [MS-MQMQ] 2.2.18.1.6
NACKS = tuple(int(each) for each in MessageClass if each.name.startswith("NACK"))


def _host(connection: ControlConnection, request: HostFigures) -> None:
    connection.done(request.number, host_figures(connection.components))


def host_figures(components: Components) -> Value:
    """Return the figures of the queue manager as a whole."""
    services = components.services
    environment, figures = services.environment, services.storage.figures
    # The client adds up the queues: a walk through all of them would hold up others.
    found = overview.identity(components) | overview.storage(components)
    found |= overview.traffic(components)
    found |= {
        "outgoing_messages": sum(each.messages for each in components.outgoing.queues),
        "awaiting_messages": sum(each.awaiting.messages for each in components.outgoing.queues),
        "delayed_messages": components.delayed.totals[0],
        "dead_letters_by_class": _dead_letters(components),
        "duplicates": components.incoming.duplicate_count,
        "out_of_order": components.incoming.rejected_count,
        "connections_of_clients": components.client_accounts.connections,
        "commits": _histogram(figures.commits),
        "checkpoints": _histogram(figures.checkpoints),
        "loop_lags": _histogram(components.loop_lag.lags),
        "log_bytes": figures.log_bytes,
        "rows_waiting": services.storage.pressure,
        "resident_bytes": environment.resident_bytes(),
        "processor_s": environment.processor_time(),
        "express_bytes": components.usage.express_bytes,
        "budgets": overview.memory(components),
        "identity_conflicts": len(components.identities.conflicts),
        "events_not_listed": components.recorder.shares.left_out,
        "directory_problem": bool(overview.directory(components).get("problem")),
        "certificate_expires_s": components.tls.expires_s,
        "started_at_s": environment.time() - found["uptime_s"],
        "versions": {
            "release": qmd.__version__,
            "python": platform.python_version(),
            "sqlite": SQLITE_VERSION,
        },
    }
    return found


def _dead_letters(components: Components) -> dict[str, int]:
    """Return the counts by class; a class without dead letters has 0, so that its first one is
    an increase."""
    counts = dict.fromkeys(NACKS, 0) | components.dead_letters.counts
    return {MessageClass.name_of(each): count for each, count in counts.items()}


def _histogram(measured: Histogram) -> Value:
    return {
        "bounds": measured.bounds,
        "counts": measured.counts,
        "sum": measured.total,
        "examples": [
            None if each is None else (each.value, message_id_text(each.source, each.number))
            for each in measured.examples
        ],
    }


def _queues(connection: ControlConnection, request: QueueFigures) -> None:
    queues = connection.components.queues.by_key
    if request.changes:
        known = connection.components.figure_readers.known(connection)
        changed, following, gone = known.changes(queues, request.start)
        rows = list(map(_queue, changed))
        connection.done(request.number, {"rows": rows, "next": following, "gone": gone})
        return
    page = islice(queues.values(), request.start, request.start + ROWS_MAX)
    _page(connection, request.number, list(map(_queue, page)), request.start, len(queues))


def _destinations(connection: ControlConnection, request: DestinationFigures) -> None:
    queues = connection.components.outgoing.queues
    page = queues[request.start : request.start + ROWS_MAX]
    _page(
        connection,
        request.number,
        [_destination(connection.components, queue) for queue in page],
        request.start,
        len(queues),
    )


def _page(
    connection: ControlConnection, number: int, rows: list[tuple[Any, ...]], start: int, total: int
) -> None:
    end = start + len(rows)
    connection.done(number, {"rows": rows, "next": end if rows and end < total else None})


def _queue(queue: LocalQueue) -> tuple[Any, ...]:
    if queue.is_system:
        kind = "system"
    elif queue.parent is None:
        kind = "queue"
    else:
        kind = "journal" if queue.is_journal else "subqueue"
    messages, left = queue.messages, queue.left_count
    return (
        queue.name,
        kind,
        messages,
        queue.own_bytes,
        messages + left - queue.messages_at_start,  # those that have arrived
        left,
        queue.reserved.unready,
        len(queue.waiters),
        queue.quota_bytes,
    )


def _destination(components: Components, queue: OutgoingQueue) -> tuple[Any, ...]:
    link = queue.link
    pulse = components.heartbeats.pulse(link)
    connection = link.connection
    session = None if connection is None else connection.session
    return (
        queue.destination,
        link.state(queue).value,
        queue.messages,
        queue.bytes,
        len(queue.transmitted) + len(queue.in_flight),
        queue.awaiting.messages,
        queue.handed_count,
        queue.resent_count,
        None if session is None else session.outgoing.round_trip_s,
        bool(queue.doubt),
        None if pulse is None else (pulse.sent, pulse.lost, pulse.missed, pulse.latency_s),
    )


def _oldest(connection: ControlConnection, request: OldestMessages) -> None:
    known = connection.components.figure_readers.known(connection)
    queues = known.find(request.queues, connection.components.queues.by_key)
    connection.look(request.number, _ages(connection.components, queues, request))


async def _ages(
    components: Components, queues: list[LocalQueue | None], request: OldestMessages
) -> Value:
    """Return the arrival of the oldest messages; the disk is read beside the event loop."""
    outgoing = [components.outgoing.find(name.casefold()) for name in request.destinations]
    read = partial(
        _read,
        queue_ids=[each.id for each in queues if each is not None and each.messages],
        outgoing_ids=[each.id for each in outgoing if each is not None and each.messages],
    )
    arrived, sent = await components.services.storage.read(read)
    return {
        "queues": [
            None if each is None else _earlier(arrived.get(each.id), _express_at_ms(each))
            for each in queues
        ],
        "destinations": [None if each is None else sent.get(each.id) for each in outgoing],
    }


def _read(
    db: sqlite3.Connection, *, queue_ids: list[int], outgoing_ids: list[int]
) -> tuple[dict[int, int], dict[int, int]]:
    return oldest.arrived_at_ms(db, queue_ids), oldest.sent_at_ms(db, outgoing_ids)


def _express_at_ms(queue: LocalQueue) -> int | None:
    """Return when the first of its express messages arrived; they are in order of arrival."""
    first = next(iter(queue.express.values()), None)
    return None if first is None else first.arrived_at_ms


def _earlier(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


HANDLERS: dict[type, Handler] = {
    HostFigures: _host,
    QueueFigures: _queues,
    DestinationFigures: _destinations,
    OldestMessages: _oldest,
}
