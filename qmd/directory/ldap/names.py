r"""Distinguished names, and the names of Message Queuing objects.

Distinguished names are split and built by RFC 4514; no value is inserted unescaped.
`queue_object_name` and `queue_name` are [MS-MQDSSM] 3.1.6.1.2.5 and 3.1.6.11.2.1: a queue name of
more than 63 characters is split, and a hash replaces its end (2.2.5).
"""

from __future__ import annotations

from typing import Final

OBJECT_NAME_CHARACTERS_MAX: Final = 64  # of cn, as [MS-MQDSSM] counts
EXTENSION_CHARACTERS_MAX: Final = 92  # of mSMQQueueNameExt, by the schema
_HEAD_CHARACTERS: Final = 55
_HASH_POLYNOMIAL: Final = 0x9B619023  # the table of [MS-MQDSSM] 2.2.5 is that of this CRC-32

_SPECIAL = '"+,;<>=\\'
_ALIAS_SPECIAL = "\n/#><="  # [MS-MQDSSM] 3.1.6.1.2.5
_HEX = "0123456789abcdefABCDEF"


def escape_value(value: str) -> str:
    """Return `value` escaped for a distinguished name. RFC 4514 2.4"""
    if not value:
        return ""
    escaped = "".join(
        f"\\{ord(c):02x}" if ord(c) < 0x20 or c == "\x7f" else f"\\{c}" if c in _SPECIAL else c
        for c in value
    )
    if escaped[0] in " #":
        escaped = f"\\{escaped}"
    if value[-1] == " " and len(value) > 1:
        escaped = f"{escaped[:-1]}\\ "
    return escaped


def child(name: str, parent: str) -> str:
    """Return the distinguished name of the object `name` (its unescaped cn) below `parent`."""
    return f"CN={escape_value(name)},{parent}"


def split(dn: str) -> tuple[str, str]:
    """Return the first part of a distinguished name, as spelled, and the parent's name."""
    escaped = quoted = False
    for index, character in enumerate(dn):
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == '"':
            quoted = not quoted
        elif character in ",;" and not quoted:
            return dn[:index], dn[index + 1 :].lstrip(" ")
    return dn, ""


def first_value(dn: str) -> str:
    """Return the unescaped value of the first part of a distinguished name; "" if it has none."""
    part, _ = split(dn)
    value = part.partition("=")[2].lstrip(" ")
    if len(value) >= 2 and value[0] == value[-1] == '"':
        value = value[1:-1]
    out = bytearray()
    at = 0
    while at < len(value):
        character = value[at]
        if character == "\\" and at + 1 < len(value):
            pair = value[at + 1 : at + 3]
            if len(pair) == 2 and pair[0] in _HEX and pair[1] in _HEX:
                out.append(int(pair, 16))
                at += 3
                continue
            character = value[at + 1]
            at += 1
        out += character.encode(errors="surrogatepass")
        at += 1
    return out.decode(errors="replace")


def queue_object_name(queue: str) -> tuple[str, str]:
    """Return the cn of a queue's object, and its mSMQQueueNameExt ("" for most)."""
    spelled = "".join(f"\\{c}" if c in _ALIAS_SPECIAL else c for c in queue)
    if len(spelled) < OBJECT_NAME_CHARACTERS_MAX:
        return queue, ""
    head = f"{spelled[:_HEAD_CHARACTERS]}-{name_hash(spelled)}"
    # The backslashes are escapes of the distinguished name, not part of the value.
    return head.replace("\\", ""), spelled[_HEAD_CHARACTERS:].replace("\\", "")


def queue_name(object_name: str, extension: str) -> str:
    """Return the queue's name from its object's cn and its mSMQQueueNameExt."""
    name = object_name.replace("\\", "")
    if extension:
        name = f"{name[:-9]}{extension}"
    return name


def name_hash(name: str) -> str:
    """Return a hash of a long name in eight hexadecimal digits. [MS-MQDSSM] 2.2.5"""
    value = 0
    for byte in name.lower().encode("utf-16-be"):
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 0xFF]
    return f"{value:08x}"


def _table() -> tuple[int, ...]:
    table = []
    for index in range(256):
        value = index
        for _ in range(8):
            value = (value >> 1) ^ (_HASH_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE: Final = _table()
