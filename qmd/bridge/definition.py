"""The file of bridges: TOML, read strictly.

[bridge.orders]
kind = "nats"
direction = "out"
queue = "orders"
url = "nats://127.0.0.1:4222"
stream = "ORDERS"
subject = "orders.new"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

FILE_BYTES_MAX = 1024 * 1024
BATCH_MAX = 1000
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=2000)]
Batch = Annotated[int, msgspec.Meta(ge=1, le=BATCH_MAX)]


class BadDefinition(ValueError):
    """A file of bridges that cannot be used; the text names the bridge and the key."""


class Common(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of every kind."""

    direction: Literal["out", "in"]
    queue: Text
    batch: Batch = 100

    @property
    def remote(self) -> str:
        """Return the identity of the other end; a position is valid for one of them."""
        raise NotImplementedError


class Tls(Common, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of kinds that connect to a URL."""

    url: Text
    user: str = ""
    password_file: Path | None = None
    ca_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    @property
    def password(self) -> str | None:
        """Return the password.  Raises OSError."""
        if self.password_file is None:
            return None
        return self.password_file.read_text(encoding="utf-8-sig").rstrip("\n")


class Nats(
    Tls, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="nats"
):
    """A subject of a stream of NATS JetStream."""

    stream: Text
    subject: Text
    credentials_file: Path | None = None
    start: Literal["beginning", "end"] = "beginning"

    @property
    def remote(self) -> str:
        return f"nats {self.stream} {self.subject}"


class Amqp(
    Tls, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="amqp"
):
    """An address of a broker of AMQP 1.0, such as a queue of RabbitMQ or Azure Service Bus."""

    address: Text
    #: An application property that gets the id of the message, for brokers that find duplicates.
    duplicate_property: str = ""

    @property
    def remote(self) -> str:
        return f"amqp {urlsplit(self.url).hostname} {self.address}"


class Kafka(
    Common, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="kafka"
):
    """A topic of Kafka; `options` are those of librdkafka."""

    servers: Text
    topic: Text
    start: Literal["beginning", "end"] = "beginning"
    options: dict[str, str | int | bool] = {}

    @property
    def remote(self) -> str:
        return f"kafka {self.topic}"


class S3(Common, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="s3"):
    """Objects of a bucket whose keys begin with a prefix."""

    bucket: Text
    prefix: Annotated[str, msgspec.Meta(max_length=500)] = ""
    endpoint: str = ""
    region: str = ""

    @property
    def remote(self) -> str:
        return f"s3 {self.endpoint} {self.bucket} {self.prefix}"


Definition = Nats | Amqp | Kafka | S3


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bridge: dict[str, Definition] = {}


def parse_definitions(text: str, folder: Path) -> dict[str, Definition]:
    """Return the bridges of a file by name; relative paths start at `folder`.

    Raises BadDefinition.
    """
    try:
        found = msgspec.convert(tomllib.loads(text), _File, dec_hook=_paths_from(folder)).bridge
    except (ValueError, RecursionError) as error:  # of tomllib, and of msgspec
        raise BadDefinition(str(error)) from error
    for name, definition in found.items():
        if not _NAME.fullmatch(name):
            raise BadDefinition(
                f"bridge.{name}: a name has small letters, digits and hyphens, up to 63"
            )
        if isinstance(definition, Tls):
            _check_url(name, definition)
        if isinstance(definition, S3) and definition.direction == "in" and not definition.prefix:
            raise BadDefinition(f"bridge.{name}: an inward bridge of S3 needs a prefix")
    _check_loops(found)
    return found


def read_definitions(path: Path) -> dict[str, Definition]:
    """Read a file.  Raises BadDefinition and OSError."""
    with path.open("rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise BadDefinition(f"{path} has more than {FILE_BYTES_MAX} bytes")
    try:
        return parse_definitions(content.decode(), path.parent)
    except (BadDefinition, UnicodeDecodeError) as error:
        raise BadDefinition(f"{path}: {error}") from error


def _paths_from(folder: Path) -> Callable[[type, Any], Any]:
    def convert(kind: type, value: Any) -> Any:
        if kind is Path and isinstance(value, str):
            return folder / value
        raise TypeError(f"{value!r} is not a path")

    return convert


_SCHEMES = {Nats: ("nats", "tls", "ws", "wss"), Amqp: ("amqp", "amqps")}


def _check_url(name: str, definition: Tls) -> None:
    try:
        parts = urlsplit(definition.url)
        _ = parts.port
    except ValueError as error:
        raise BadDefinition(f"bridge.{name}: url: {error}") from error
    schemes = _SCHEMES[type(definition)]
    if parts.scheme not in schemes or not parts.hostname:
        expected = " or ".join(f"{each}://" for each in schemes)
        raise BadDefinition(f"bridge.{name}: url: it must begin with {expected} and name a host")
    if parts.password is not None:
        raise BadDefinition(f"bridge.{name}: url: give a password in password_file, not here")


def _check_loops(found: dict[str, Definition]) -> None:
    """Refuse a message that would come back: two bridges between one queue and one other end."""
    ways: dict[tuple[str, str], str] = {}
    for name, definition in found.items():
        way = definition.queue.casefold(), definition.remote
        if (other := ways.setdefault(way, name)) != name:
            raise BadDefinition(
                f"bridge.{name} and bridge.{other} join the same queue and the same other end:"
                " messages would go in circles, or be divided"
            )
