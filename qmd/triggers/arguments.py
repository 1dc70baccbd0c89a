"""The values that a message gives to a program or a URL."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime

from qmd.client.message import Message
from qmd.triggers.conditions import body_text
from qmd.triggers.definition import Trigger, is_argument


def values_of(given: Sequence[str], trigger: Trigger, message: Message) -> list[str]:
    """Return the arguments of an action with the values of a message in their places."""
    return [value_of(each, trigger, message) for each in given]


def value_of(argument: str, trigger: Trigger, message: Message) -> str:
    """Return the value of one argument; a text that is no argument of MSMQ stands for itself.

    A value that the message does not have is an empty text.
    """
    if not is_argument(argument):
        return argument[1:] if argument.startswith("$$") else argument
    match argument:
        case "$MSG_BODY":
            text = body_text(message)
            return base64.b64encode(message.body).decode() if text is None else text
        case "$MSG_BODY_AS_STRING":
            text = body_text(message)
            return message.body.decode("utf-8", "replace") if text is None else text
        case "$MSG_ARRIVEDTIME":
            return _time(message.arrived_at)
        case "$MSG_SENTTIME":
            return _time(message.sent_at)
        case "$MSG_QUEUE_PATHNAME":
            return trigger.queue
        case "$MSG_QUEUE_FORMATNAME":
            return message.destination or ""
        case "$TRIGGER_NAME":
            return trigger.name
        case "$TRIGGER_ID":
            return trigger.id
        case _:
            return _plain(argument, message)


def _plain(argument: str, message: Message) -> str:
    values: dict[str, object] = {
        "$MSG_ID": message.id,
        "$MSG_LABEL": message.label,
        "$MSG_PRIORITY": message.priority,
        "$MSG_CORRELATION_ID": message.correlation_id,
        "$MSG_APPSPECIFIC": message.application_tag,
        "$MSG_RESPONSE_QUEUE_FORMATNAME": message.response_queue,
        "$MSG_ADMIN_QUEUE_FORMATNAME": message.admin_queue,
        "$QMD_DESTINATION": message.destination,
        "$MSG_SRCMACHINEID": message.source,
        "$QMD_LOOKUP_ID": message.lookup_id,
    }
    value = values[argument]
    return "" if value is None else str(value)


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
