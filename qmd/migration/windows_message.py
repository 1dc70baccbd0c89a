r"""Copies of messages that `Export-MsmqMessage.ps1` wrote, as packets for an import.

Each line is a JSON object with the properties that a Windows program can read; docs/migration.md
lists them.  The packet is built from these, with the id, the times and the kind of the original.
Its place in the sender's sequence is not readable on Windows, so the import has none.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import replace
from typing import Annotated, NamedTuple

import msgspec

from protocol import DirectQueueName
from protocol.errors import InvalidName, ProtocolError
from protocol.headers import DIRECT_QUEUE
from protocol.identifiers import NULL_GUID, guid_bytes
from protocol.names.format_name import FormatName, parse_format_name
from qmd.control_protocol.messages import (
    EXPRESS,
    MOMENT_MS_MAX,
    RECOVERABLE,
    TRANSACTIONAL,
    ImportedMessage,
    NewMessage,
)
from qmd.errors import Refusal
from qmd.message.addresses import NO_ADDRESS, QueueAddress, queue_address, reply_address
from qmd.message.build import compose
from qmd.message.limits import check
from qmd.migration.collection import Strict
from qmd.migration.errors import BadSource

VERSION = 1
_DIRECT = "DIRECT="
LINE_BYTES_MAX = 16 * 1024 * 1024
_NO_CORRELATION = "00000000-0000-0000-0000-000000000000\\0"
_U32 = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_Moment = Annotated[int, msgspec.Meta(ge=0, le=MOMENT_MS_MAX)]
_Text = Annotated[str, msgspec.Meta(max_length=4096)]


class Row(Strict, frozen=True, kw_only=True, rename={"class_": "class"}):
    """A line of the file."""

    qmd_windows_message: int
    computer: _Text
    queue: _Text
    id: _Text
    lookup_id: _Text = ""
    label: _Text | None = ""
    body_base64: str = ""
    body_type: _U32 = 0
    priority: Annotated[int, msgspec.Meta(ge=0, le=7)] = 3
    recoverable: bool | None = True
    transaction_id: _Text | None = None
    first_in_transaction: bool | None = None
    last_in_transaction: bool | None = None
    correlation_id: _Text | None = ""
    application_tag: int = 0
    extension_base64: str = ""
    response_queue: _Text | None = None
    admin_queue: _Text | None = None
    acknowledge: int = 0
    class_: int = 0
    sent_at_ms: _Moment | None = None
    arrived_at_ms: _Moment | None = None
    time_to_be_received_s: int | None = None
    dead_letter: bool | None = None
    journal: bool | None = None
    sender_id_base64: str = ""


class WindowsMessage(NamedTuple):
    """A message: its queue on Windows, its id there, and itself as an import takes it."""

    queue: str
    id: str
    imported: ImportedMessage


_decoder = msgspec.json.Decoder(Row)


def read_line(line: bytes) -> WindowsMessage:
    """Parse a line.  Raises BadSource."""
    if len(line) > LINE_BYTES_MAX:
        raise BadSource(f"the line has {len(line)} bytes; {LINE_BYTES_MAX} are allowed")
    try:
        row = _decoder.decode(line.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadSource(f"it is not a copy of a message: {error}") from error
    if row.qmd_windows_message != VERSION:
        raise BadSource(
            f"it has version {row.qmd_windows_message} of the format; this qmd reads {VERSION}"
        )
    try:
        packet = _packet(row)
    except (Refusal, ProtocolError, OverflowError) as error:
        raise BadSource(f"message {row.id}: {error}") from error
    arrived_at_ms = row.arrived_at_ms or row.sent_at_ms or 0
    left_s = None
    if row.time_to_be_received_s is not None and 0 <= row.time_to_be_received_s < 1 << 32:
        left_s = row.time_to_be_received_s
    return WindowsMessage(
        row.queue, row.id, ImportedMessage(packet, arrived_at_ms, expires_in_s=left_s)
    )


def local_name(path: str) -> str:
    r"""Return the queue here for a path of Windows such as `.\private$\orders\journal$`.

    A journal is `private$\orders;journal`; system queues have their format names.
    """
    parts = path.replace("/", "\\").split("\\")
    folded = [part.casefold() for part in parts]
    system = {"deadletter$": "DEADLETTER", "xactdeadletter$": "DEADXACT", "journal$": "JOURNAL"}
    if len(parts) == 2 and folded[1] in system:
        return f"DIRECT=OS:.\\SYSTEM$;{system[folded[1]]}"
    journal = ";journal" if folded[-1] == "journal$" else ""
    parts = parts[:-1] if journal else parts
    if len(parts) == 3 and folded[1] == "private$" and parts[2]:
        return f"private$\\{parts[2].lower()}{journal}"
    if len(parts) == 2 and parts[1]:
        return f".\\{parts[1].lower()}{journal}"
    raise BadSource(f"{path!r} is not the path of a queue")


def _packet(row: Row) -> bytes:
    source, number = _message_id(row.id)
    transactional = bool(row.transaction_id) and row.transaction_id != _NO_CORRELATION
    delivery = RECOVERABLE if row.recoverable else EXPRESS
    new = NewMessage(
        row.queue,
        _bytes(row.body_base64, "body"),
        label=row.label or "",
        delivery=TRANSACTIONAL if transactional else delivery,
        priority=row.priority,
        dead_letter=bool(row.dead_letter),
        journal=bool(row.journal),
        body_type=row.body_type,
        correlation_id=_correlation(row.correlation_id),
        application_tag=row.application_tag & 0xFFFFFFFF,
        extension=_bytes(row.extension_base64, "extension"),
        response_queue=row.response_queue or "",
        admin_queue=row.admin_queue or "",
        acknowledge=row.acknowledge & 0x0F if row.admin_queue else 0,
        sender_id=_bytes(row.sender_id_base64, "sender_id"),
        time_to_be_received_s=row.time_to_be_received_s,
        message_class=row.class_ & 0xFFFF,
    )
    # A class is that of a queue manager here: `check` knows only those of applications.
    check(_without_replies(msgspec.structs.replace(new, message_class=0)))
    index = _message_id(row.transaction_id or "", "a transaction")[1] if transactional else 0
    return compose(
        new,
        source=source,
        destination=_destination(row),
        admin=_reply(row.admin_queue),
        response=_reply(row.response_queue),
        message_number=number,
        sent_time_s=(row.sent_at_ms or 0) // 1000,
        delivery=new.delivery,
        position=(0, 0, index) if transactional else None,
        dead_letter=bool(row.dead_letter),
        is_first=bool(row.first_in_transaction),
        is_last=bool(row.last_in_transaction),
    )


def _without_replies(new: NewMessage) -> NewMessage:
    """An administration queue without acknowledgments is legal on Windows."""
    return msgspec.structs.replace(new, admin_queue="", acknowledge=0)


def _message_id(text: str, of: str = "a message") -> tuple[bytes, int]:
    guid, _, number = text.partition("\\")
    try:
        found = guid_bytes(guid), int(number)
    except (ValueError, InvalidName) as error:
        raise BadSource(f"{text[:80]!r} is not the id of {of}") from error
    if not 0 <= found[1] < 1 << 32:
        raise BadSource(f"{text[:80]!r} is not the id of {of}")
    return found


def _correlation(text: str | None) -> bytes:
    if not text or text == _NO_CORRELATION:
        return b""
    source, number = _message_id(text)
    return source + number.to_bytes(4, "little")


def _bytes(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadSource(f"{name}_base64 is not base64: {error}") from error


def _destination(row: Row) -> QueueAddress:
    """Return the direct name under which the queue was on Windows."""
    name = local_name(row.queue)
    if "=" not in name:
        name = f"DIRECT=OS:{row.computer}\\{name.removeprefix('.').lstrip(chr(92))}"
    return queue_address(_parsed(name))


def _reply(text: str | None) -> QueueAddress:
    """Return the address of administration or response queues."""
    if not text:
        return NO_ADDRESS
    try:
        return reply_address(_parsed(text))
    except BadSource:
        found = tuple(_as_it_is(each) for each in text.split(","))
        return replace(found[0], several=found) if len(found) > 1 else found[0]


def _as_it_is(text: str) -> QueueAddress:
    """Return the address of a direct name, of which one that is not valid here stays as it is.

    Old programs have named computers by SPX, for example.  The import is not the place to lose the
    address of an answer, or to refuse all other messages for it.
    """
    try:
        return reply_address(_parsed(text))
    except BadSource:
        if text[: len(_DIRECT)].upper() != _DIRECT:
            raise
    wire = f"{text[len(_DIRECT) :]}\0".encode("utf-16-le", "replace")
    size = 2 + len(wire) + 3 & ~3
    padded = (len(wire).to_bytes(2, "little") + wire).ljust(size, b"\0")
    return QueueAddress(
        DIRECT_QUEUE, DirectQueueName(len(wire), wire), NULL_GUID, size, wire=padded
    )


def _parsed(text: str) -> FormatName:
    try:
        return parse_format_name(text)
    except InvalidName as error:
        raise BadSource(f"the name {text[:100]!r} is not valid: {error}") from error
