"""Handlers of the verbs of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qmd.control_protocol import topics as frames
from qmd.control_protocol.messages import NewMessage
from qmd.errors import Refusal
from qmd.naming.topics import is_topic

if TYPE_CHECKING:
    from qmd.control.handler import Handler
    from qmd.control.server import ControlConnection


def _check_destination(connection: ControlConnection, destination: str) -> None:
    """Raise Refusal for a name that is none, or that is known not to take messages."""
    if is_topic(destination):
        raise Refusal(
            "topic_in_topic",
            f"{destination} is a topic, and messages of a topic go to queues",
            "Subscribe its queues to the other topic.",
        )
    connection.components.send_checks.check_here(NewMessage(destination, b""))


def _create(connection: ControlConnection, request: frames.CreateTopic) -> None:
    if request.unmatched:
        _check_destination(connection, request.unmatched)
    work = connection.components.topics.create(request.name, request.unmatched)
    connection.change(request.number, work)


def _delete(connection: ControlConnection, request: frames.DeleteTopic) -> None:
    connection.change(request.number, _delete_with_rights(connection, request.name))


async def _delete_with_rights(connection: ControlConnection, name: str) -> object:
    deleted = await connection.components.topics.delete(name)
    connection.components.access_register.topic_removed(deleted["name"])
    return deleted


def _subscribe(connection: ControlConnection, request: frames.Subscribe) -> None:
    _check_destination(connection, request.destination)
    work = connection.components.topics.subscribe(
        request.topic, request.name, request.destination, request.where
    )
    connection.change(request.number, work)


def _unsubscribe(connection: ControlConnection, request: frames.Unsubscribe) -> None:
    work = connection.components.topics.unsubscribe(request.topic, request.name)
    connection.change(request.number, work)


def _show(connection: ControlConnection, request: frames.ShowTopic) -> None:
    connection.done(request.number, connection.components.topics.shown(request.name))


def _list(connection: ControlConnection, request: frames.ListTopics) -> None:
    connection.done(request.number, connection.components.topics.listed())


HANDLERS: dict[type, Handler] = {
    frames.CreateTopic: _create,
    frames.DeleteTopic: _delete,
    frames.Subscribe: _subscribe,
    frames.Unsubscribe: _unsubscribe,
    frames.ShowTopic: _show,
    frames.ListTopics: _list,
}
