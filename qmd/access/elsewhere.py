"""Queues of other computers as one object with rights: `*@HOST` and `*@*`.

`*@hostb` are all queues of the computer that names state as `hostb`, by OS, HTTP or HTTPS;
`*@10.0.0.5` those of that address, and `*@hostb:1802` those at another port.  `*@*` are all queues
of all other computers, by whatever name, also by GUID.

A computer has several names.  A grant is therefore good for names with the stated host only, and
whoever wants to close a computer closes `*@*` and grants the others.
"""

from __future__ import annotations

from functools import lru_cache

from protocol.errors import InvalidName
from protocol.names.direct_name import PORT, DirectName, Transport
from protocol.names.format_name import parse_destination
from qmd.errors import Refusal

ANYWHERE = "*@*"
_BEGIN = "*@"
_DEFAULT_PORTS = {
    Transport.TCP: PORT,
    Transport.OS: PORT,
    Transport.HTTP: 80,
    Transport.HTTPS: 443,
}


def is_of_computers(text: str) -> bool:
    """Return whether a text names all queues of one or all other computers."""
    return text.startswith(_BEGIN)


def computer_key(text: str) -> tuple[str, DirectName | None]:
    """Return the key of `*@HOST`, and a queue there; None for `*@*`.  Raises Refusal."""
    if text == ANYWHERE:
        return ANYWHERE, None
    try:
        name = parse_destination(f"q@{text.removeprefix(_BEGIN)}", local_host=".")
    except InvalidName as error:
        raise _not_a_computer(text) from error
    if not isinstance(name, DirectName) or name.queue != "q" or "*" in name.host:
        raise _not_a_computer(text)
    return _key_of(name), name


@lru_cache(4096)
def computer_of(key: str) -> str | None:
    """Return the key of the computer that a format name states, or None."""
    try:
        name = parse_destination(key, local_host=".")
    except InvalidName:
        return None
    return _key_of(name) if isinstance(name, DirectName) else None


def shown(key: str) -> str:
    """Return the name of `*@HOST` or `*@*` for people."""
    if key == ANYWHERE:
        return "all queues of other computers"
    return f"all queues of {key.removeprefix(_BEGIN)}"


def _key_of(name: DirectName) -> str:
    host = name.host.casefold()
    if name.port != _DEFAULT_PORTS[name.transport]:
        host = f"[{host}]:{name.port}" if ":" in host else f"{host}:{name.port}"
    return f"{_BEGIN}{host}"


def _not_a_computer(text: str) -> Refusal:
    return Refusal(
        "name_not_understood",
        f"'{text}' is not a computer with all its queues",
        "Write *@HOST or *@HOST:PORT, or *@* for all other computers.",
    )
