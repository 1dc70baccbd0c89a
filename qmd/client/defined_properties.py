"""The properties of a received message that are in its extension: `Message` inherits them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from qmd.properties.values import MessageProperties, Typed, Value


class DefinedProperties:
    """Properties of `Message` that applications and doors define."""

    __slots__ = ()

    @property
    def extension(self) -> bytes:
        """Return the bytes of the application beside the body, without the block of properties."""
        return self._extension[1]

    @property
    def all_properties(self) -> MessageProperties:
        """Return all sections of properties, as the sender gave them."""
        return self._extension[0]

    @property
    def properties(self) -> Mapping[str, Value]:
        """Return the properties that the application defined, by name."""
        return self._extension[0].application

    @property
    def standard_properties(self) -> Mapping[str, Value]:
        """Return the properties with names of AMQP, such as "content-type"."""
        return self._extension[0].standard

    @property
    def group(self) -> str:
        """Return the id of the group of the message, "" for none."""
        return self._extension[0].group

    @property
    def content_type(self) -> str:
        """Return the MIME type of the body, "" if the sender gave none."""
        return self._extension[0].content_type

    @property
    def _extension(self) -> tuple[MessageProperties, bytes]:
        raise NotImplementedError  # `Message` has it


def json_value(value: Any) -> Any:
    """Return a property for `json.dumps`: bytes in base64, times in ISO 8601, UUIDs as text."""
    if isinstance(value, Typed):
        return json_value(value.value)
    if isinstance(value, Mapping):
        return {str(json_value(key)): json_value(each) for key, each in value.items()}
    if isinstance(value, list):
        return [json_value(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, float) and value - value != 0:  # JSON has no infinity and no NaN
        return str(value)
    return value
