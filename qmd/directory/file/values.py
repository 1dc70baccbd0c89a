"""Values of the keys in a directory file: each reader refuses what does not fit with ValueError."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

from protocol.errors import InvalidName, MalformedPacket
from protocol.identifiers import NULL_GUID, guid_bytes
from protocol.names.direct_name import parse_address
from protocol.names.path_name import COMPUTER, QUEUE, parse_path_name
from protocol.security_data import CERTIFICATE_BYTES_MAX, parse_published_keys
from protocol.security_id import parse_security_id, security_id_text
from qmd.directory.interface import CERTIFICATES_MAX
from qmd.directory.spelling import ENTRY_NAME
from qmd.queues.local_queue import PRIVACY_LEVELS

LABEL_CHARACTERS_MAX = 124  # of a queue in Active Directory
COST_MAX = 999_999


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError("text is required")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false is required")
    return value


def _texts(value: object) -> list[str]:
    if not isinstance(value, list):
        raise ValueError("a list of texts is required")
    return [_text(each) for each in value]


def _guid(value: object) -> bytes:
    try:
        guid = guid_bytes(_text(value))
    except InvalidName as error:
        raise ValueError(
            "a GUID such as 0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0 is required"
        ) from error
    if guid == NULL_GUID:
        raise ValueError("the GUID of zeros is not allowed")
    return guid


def _cost(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= COST_MAX:
        raise ValueError(f"a whole number from 1 to {COST_MAX} is required")
    return value


def _computer(value: object) -> str:
    return COMPUTER.check(_text(value), "name", 0)


def _entry_name(value: object) -> str:
    return ENTRY_NAME.check(_text(value), "name", 0)


def _addresses(value: object) -> tuple[str, ...]:
    found = _texts(value)
    for address in found:
        parse_address(address, 0, "address", None)
    return tuple(found)


def _label(value: object) -> str:
    text = _text(value)
    if len(text) > LABEL_CHARACTERS_MAX:
        raise ValueError(f"at most {LABEL_CHARACTERS_MAX} characters are allowed")
    return text


def _privacy(value: object) -> str:
    if value not in PRIVACY_LEVELS:
        raise ValueError(f"one of {', '.join(PRIVACY_LEVELS)} is required")
    return str(value)


def _base64(value: object) -> bytes:
    try:
        return base64.b64decode(_text(value), validate=True)
    except binascii.Error as error:
        raise ValueError("base64 is required") from error


def _encryption_keys(value: object) -> bytes:
    keys = _base64(value)
    try:
        parse_published_keys(keys)
    except MalformedPacket as error:
        raise ValueError(
            f"MQDSPUBLICKEYS, as of `qmd key export`, are required: {error}"
        ) from error
    return keys


def _certificates(value: object) -> tuple[bytes, ...]:
    found = tuple(map(_base64, _texts(value)))
    if len(found) > CERTIFICATES_MAX or any(len(each) > CERTIFICATE_BYTES_MAX for each in found):
        raise ValueError(f"at most {CERTIFICATES_MAX} certificates of 64 KiB are allowed")
    return found


def _sid(value: object) -> str:
    text = security_id_text(parse_security_id(_text(value)))
    assert text is not None
    return text


def _path(value: object) -> str:
    path = parse_path_name(_text(value))
    if path.private or path.system or path.suffix or path.subqueue or path.computer == ".":
        raise ValueError("the path of a public queue is computer\\queue")
    QUEUE.check(path.queue, "path.queue", 0)
    return str(path)


_Kind = Callable[[object], Any]
# Kind of entry -> its keys. The number is the count of required keys, which come first.
TABLES: dict[str, tuple[int, dict[str, _Kind]]] = {
    "machine": (
        2,
        {
            "name": _computer,
            "guid": _guid,
            "addresses": _addresses,
            "sites": _texts,
            "in_routers": _texts,
            "out_routers": _texts,
            "routes": _flag,
            "foreign": _flag,
            "encryption_keys": _encryption_keys,
            "certificates": _certificates,
        },
    ),
    "queue": (
        1,
        {
            "path": _path,
            "guid": _guid,
            "label": _label,
            "transactional": _flag,
            "type": _guid,
            "authenticate": _flag,
            "privacy": _privacy,
        },
    ),
    "list": (1, {"name": _entry_name, "guid": _guid, "members": _texts}),
    "alias": (2, {"name": _entry_name, "target": _text, "guid": _guid}),
    "site": (1, {"name": _entry_name, "guid": _guid, "gates": _texts}),
    "link": (2, {"sites": _texts, "cost": _cost, "gates": _texts}),
    "sender": (2, {"sid": _sid, "certificates": _certificates}),
}
