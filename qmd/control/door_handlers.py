"""Handlers of the verbs that doors need besides those of all applications."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from qmd.control.acting import act_for
from qmd.control_protocol import doors as frames
from qmd.control_protocol import links as link_frames
from qmd.control_protocol.access import ActFor

if TYPE_CHECKING:
    from qmd.control.handler import Handler
    from qmd.control.server import ControlConnection


def _act_for(connection: ControlConnection, request: ActFor) -> None:
    connection.done(request.number, act_for(connection, request.principals))


def _stop_waiting(connection: ControlConnection, request: frames.StopWaiting) -> None:
    components = connection.components
    queue = components.destinations.find_queue(request.queue)
    if request.lock:
        count = components.locks.stop_waiting(request.lock, queue)
    else:
        count = components.message_receiver.stop_waiting_at(connection.reader, queue)
    connection.done(request.number, count)


def _send_over_links(connection: ControlConnection, request: link_frames.SendOverLinks) -> None:
    connection.components.link_records.send(
        request.messages,
        request.links,
        connection.serial,
        partial(connection.done, request.number),
        connection.rights.owner,
    )


def _resume_link(connection: ControlConnection, request: link_frames.ResumeLink) -> None:
    work = connection.components.link_records.resume(
        request.link, connection.serial, connection.rights.owner
    )
    connection.look(request.number, work)


def _forget_link(connection: ControlConnection, request: link_frames.ForgetLink) -> None:
    work = connection.components.link_records.forget(
        request.link, connection.serial, connection.rights.owner
    )
    connection.change(request.number, work)


HANDLERS: dict[type, Handler] = {
    ActFor: _act_for,
    frames.StopWaiting: _stop_waiting,
    link_frames.SendOverLinks: _send_over_links,
    link_frames.ResumeLink: _resume_link,
    link_frames.ForgetLink: _forget_link,
}
