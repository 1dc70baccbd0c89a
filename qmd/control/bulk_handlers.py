"""Handlers of the verbs in `qmd/control_protocol/bulk.py`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from qmd.bulk.reader import id_text
from qmd.bulk.reserve_next import Bounds
from qmd.control_protocol import bulk as frames
from storage.tables.keys import ARRIVAL_MAX

if TYPE_CHECKING:
    from qmd.access.rights import Rights
    from qmd.control.components import Components
    from qmd.control.handler import Handler
    from qmd.control.server import ControlConnection
    from qmd.control_protocol.messages import Request

Work = Coroutine[Any, Any, object]


async def _open(components: Components, rights: Rights, request: frames.OpenReader) -> object:
    return await components.reservations.open(
        request.reader,
        request.queues,
        shared=request.shared,
        start=request.start,
        starts=request.starts,
        fence=request.fence,
        rights=rights,
    )


async def _reserve(components: Components, rights: Rights, request: frames.Reserve) -> object:
    return await components.reservations.reserve(
        request.reader,
        request.fence,
        request.queue,
        request.start,
        request.messages_max,
        request.bytes_max,
        one_always=request.one_always,
        bounds=Bounds(min(request.until or ARRIVAL_MAX, ARRIVAL_MAX), request.until_ms),
    )


async def _read(components: Components, rights: Rights, request: frames.ReadRange) -> object:
    if request.reader:
        return await components.reservations.read(
            request.reader,
            request.queue,
            request.after,
            request.until,
            limit=request.limit,
            bytes_max=request.bytes_max,
            wanted=request.filter,
            bodies=request.bodies,
        )
    return await components.ranges.read(
        components.readers.find_queue(request.queue),
        request.after,
        request.until,
        limit=request.limit,
        bytes_max=request.bytes_max,
        wanted=request.filter,
        bodies=request.bodies,
    )


async def _split(components: Components, rights: Rights, request: frames.SplitRange) -> object:
    queue = components.readers.find_queue(request.queue)
    split = await components.ranges.split(queue, request.parts, request.after, request.until)
    return {"queue": id_text(queue), "name": queue.name, **split}


async def _consume(components: Components, rights: Rights, request: frames.Consume) -> object:
    return await components.reservations.consume(request.reader, request.fence, request.ends)


async def _list_readers(
    components: Components, rights: Rights, request: frames.ListReaders
) -> object:
    return components.readers.overview()


async def _release(components: Components, rights: Rights, request: frames.ReleaseReader) -> object:
    return await components.reservations.release(
        request.reader,
        request.queue,
        dry_run=request.dry_run,
        forget=request.forget,
        rights=rights,
    )


async def _stage(components: Components, rights: Rights, request: frames.Stage) -> object:
    return await components.staging.stage(
        request.query,
        request.epoch,
        request.partition,
        request.attempt,
        request.first_row,
        request.rows,
        rights,
    )


async def _publish(components: Components, rights: Rights, request: frames.Publish) -> object:
    return await components.publisher.publish(
        request.query, request.epoch, request.attempts, rights
    )


async def _discard(components: Components, rights: Rights, request: frames.DiscardStages) -> object:
    return await components.staging.discard(
        request.query,
        request.epoch,
        request.partition,
        request.attempt,
        request.older_than_s,
        rights,
    )


async def _list_stages(
    components: Components, rights: Rights, request: frames.ListStages
) -> object:
    return components.stage_store.overview()


async def _mark_shipped(
    components: Components, rights: Rights, request: frames.MarkShipped
) -> object:
    return await components.event_log_limits.mark_shipped(request.block)


def _handler(
    work: Callable[[Components, Rights, Any], Work], *, changes: bool = True, is_page: bool = False
) -> Handler:
    """Return the handler of a verb.

    `changes`: it changes data, and continues when its connection ends.  `is_page`: it reads
    messages, one page at a time for each client.
    """

    def handle(connection: ControlConnection, request: Request) -> None:
        working = work(connection.components, connection.rights, request)
        if is_page:
            working = _page_of(connection, working)
        start = connection.change if changes else connection.look
        start(request.number, working)

    return handle


async def _page_of(connection: ControlConnection, work: Work) -> object:
    try:
        async with connection.turn():
            return await work
    finally:
        work.close()  # it has not started if its turn never came


HANDLERS: dict[type, Handler] = {
    frames.OpenReader: _handler(_open),
    frames.Reserve: _handler(_reserve),
    frames.ReadRange: _handler(_read, changes=False, is_page=True),
    frames.SplitRange: _handler(_split, changes=False),
    frames.Consume: _handler(_consume),
    frames.ListReaders: _handler(_list_readers, changes=False),
    frames.ReleaseReader: _handler(_release),
    frames.Stage: _handler(_stage),
    frames.Publish: _handler(_publish),
    frames.DiscardStages: _handler(_discard),
    frames.ListStages: _handler(_list_stages, changes=False),
    frames.MarkShipped: _handler(_mark_shipped),
}
