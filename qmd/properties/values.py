"""Values of properties that applications define, and the properties of one message.

A value is None, a bool, an int, a float, a str, bytes, a UUID, a datetime, a list or a dictionary
of values, or `Typed`: a value of another type of AMQP 1.0, of which the type is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID


class Typed(NamedTuple):
    """A value of an AMQP type that Python has no type for, such as `Typed("uint", 5)`.

    `value` is of the nearest other type: an int for "ubyte", "ushort", "uint", "ulong", "byte",
    "short", "int" and for "timestamp" (milliseconds since 1970), a float for "float", a str for
    "symbol" and "char", bytes for "decimal32", "decimal64", "decimal128".  Other names are allowed:
    they reach the receiver unchanged.
    """

    type: str
    value: Value


Value = (
    None | bool | int | float | str | bytes | UUID | datetime | list[Any] | dict[Any, Any] | Typed
)

# Names of standard properties: those of AMQP 1.0, clauses 3.2.1 and 3.2.4.  A sender sets those
# that MSMQ has no field for, or no field of that type.
MESSAGE_ID = "message-id"  # of the application; MSMQ's own is assigned by the queue manager
USER_ID = "user-id"
TO = "to"
SUBJECT = "subject"  # if it differs from the label
REPLY_TO = "reply-to"
CORRELATION_ID = "correlation-id"  # if it is not the id of an MSMQ message
CONTENT_TYPE = "content-type"
CONTENT_ENCODING = "content-encoding"
EXPIRES_AT = "absolute-expiry-time"
CREATED_AT = "creation-time"
GROUP = "group-id"
GROUP_SEQUENCE = "group-sequence"
REPLY_TO_GROUP = "reply-to-group-id"
PRIORITY = "priority"  # of AMQP, 0 to 9, if it is not the priority of the packet


class MessageProperties(NamedTuple):
    """The properties of one message that are not fields of its packet, by name.

    `application`: those that the application defines.  `standard`: those with names of AMQP 1.0.
    `annotations` and `footer`: the sections of AMQP messages with these names.  `more`: anything
    else that a door keeps between its ends.
    """

    application: Mapping[str, Value] = {}
    standard: Mapping[str, Value] = {}
    annotations: Mapping[Any, Value] = {}
    footer: Mapping[Any, Value] = {}
    more: Mapping[str, Value] = {}

    @property
    def group(self) -> str:
        """The id of the group that the message belongs to; "": none."""
        return text_of(self.standard.get(GROUP))

    @property
    def content_type(self) -> str:
        return text_of(self.standard.get(CONTENT_TYPE))


NO_PROPERTIES = MessageProperties()


def plain(value: Value) -> Value:
    """Return the value without its AMQP type."""
    return value.value if isinstance(value, Typed) else value


def text_of(value: Value) -> str:
    """Return a text, or "" for a value of another type."""
    value = plain(value)
    return value if isinstance(value, str) else ""
