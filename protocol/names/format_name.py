r"""Format names: all spellings of a queue name, parsed and printed by one grammar.  [MS-MQMQ] 2.1

    DIRECT=TCP:10.0.0.5\private$\orders      direct_name.py    [MS-MQMQ] 2.1.2
    PUBLIC=guid[;JOURNAL]                                              2.1.3
    PRIVATE=guid\number[;JOURNAL]                                      2.1.4
    DL=guid[@domain]                                                   2.1.5
    MACHINE=guid[;JOURNAL|;DEADLETTER|;DEADXACT]                       2.1.6, 2.2.7
    CONNECTOR=guid[;XACTONLY]                                          2.1.6, 2.2.7
    MULTICAST=224.0.0.1:8001                                           2.1.6
    any of them but MACHINE, separated by commas                       2.1.7

`str(name)` is canonical and parses to an equal name; `name.key` is equal for all spellings of one
destination.  GUIDs are 16 wire bytes.  `parse_destination` parses the input of users.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from protocol.errors import InvalidName, ReadOnlyElement
from protocol.names.direct_name import (
    PORT,
    PROTOCOLS,
    DirectName,
    Transport,
    parse_address,
    parse_direct,
    parse_wire_name,
    queue_key,
)
from protocol.names.path_name import (
    LocalPath,
    PathName,
    Suffix,
    parse_local_path,
    parse_path_name,
)
from protocol.names.single_name import (
    PARSERS,
    ConnectorName,
    DistributionListName,
    MachineName,
    MulticastName,
    Name,
    PrivateName,
    PublicName,
    SingleName,
    parse_single,
)

__all__ = [
    "PORT",
    "ConnectorName",
    "DirectName",
    "DistributionListName",
    "FormatName",
    "LocalPath",
    "MachineName",
    "MulticastName",
    "MultipleName",
    "PathName",
    "PrivateName",
    "PublicName",
    "SingleName",
    "Suffix",
    "Transport",
    "parse_destination",
    "parse_format_name",
    "parse_path_name",
    "parse_wire_name",
    "queue_key",
]

ELEMENTS_MAX = 1000  # ours; the specification has no limit

_DOTNET_JOURNAL = "\\journal$"
_DOTNET_SYSTEM_QUEUES = {
    "journal$": Suffix.JOURNAL,
    "deadletter$": Suffix.DEADLETTER,
    "xactdeadletter$": Suffix.DEADXACT,
}


@dataclass(frozen=True, slots=True)
class MultipleName(Name):
    """Several destinations, in the order of the text, with repetitions."""

    elements: tuple[SingleName, ...]

    def __post_init__(self) -> None:
        if not 2 <= len(self.elements) <= ELEMENTS_MAX:
            rule = f"found {len(self.elements)} elements; 2 to {ELEMENTS_MAX} are allowed"
            raise InvalidName("format_name", 0, rule)
        place = 0
        for index, element in enumerate(self.elements):
            _check_element(element, place, index)
            place += len(str(element)) + 1

    def __str__(self) -> str:
        return ",".join(map(str, self.elements))


FormatName = SingleName | MultipleName


def parse_format_name(text: str) -> FormatName:
    """Parse a format name.  Raises InvalidName; its offset counts from the start of `text`."""
    return _parse_elements(text, 0, parse_single)


def parse_destination(text: str, *, local_host: str) -> FormatName:
    r"""Parse any spelling of a destination; "." and a missing computer name mean `local_host`.

    Accepts format names, also without `DIRECT=` or after `FormatName:`; path names, also those of
    .NET that end in `\Journal$`; `orders@hostb`, `orders@10.0.0.5:1802` and `orders` for private
    queues; and lists of these.  Raises InvalidName as parse_format_name does.
    """
    prefix = "formatname:"
    offset = len(prefix) if text[: len(prefix)].lower() == prefix else 0

    def parse_any(part: str, place: int, field: str) -> SingleName:
        name = _parse_any_spelling(part, place, field)
        if isinstance(name, DirectName) and (name.transport, name.host) == (Transport.OS, "."):
            transport, host, port = parse_address(local_host, 0, "local_host", None)
            if name.port != PORT:  # another queue manager of this computer
                port = name.port
            name = replace(name, transport=transport, host=host, port=port)
        return name

    return _parse_elements(text[offset:], offset, parse_any)


def _parse_elements(
    text: str, offset: int, parse: Callable[[str, int, str], SingleName]
) -> FormatName:
    parts = text.split(",", ELEMENTS_MAX)
    if len(parts) == 1:
        return parse(text, offset, "")
    elements = []
    for index, part in enumerate(parts[:ELEMENTS_MAX]):
        field = f"element[{index}]"
        element = parse(part, offset, f"{field}.")
        _check_element(element, offset, index)
        elements.append(element)
        offset += len(part) + 1
    if len(parts) > ELEMENTS_MAX:
        rule = f"found another element; at most {ELEMENTS_MAX} are allowed"
        raise InvalidName("format_name", offset, rule)
    return MultipleName(tuple(elements))


def _check_element(element: SingleName, offset: int, index: int) -> None:
    if element.read_only:
        rule = f"{element} cannot be sent to, and so cannot be one of several destinations"
        raise ReadOnlyElement(f"element[{index}]", offset, rule, index + 1)


def _parse_any_spelling(text: str, offset: int, prefix: str) -> SingleName:
    keyword, equals, _ = text.partition("=")
    if equals and keyword.lower() in PARSERS:
        return parse_single(text, offset, prefix)
    protocol, colon, _ = text.partition(":")
    if colon and protocol.lower() in PROTOCOLS:
        return parse_direct(text, offset, f"{prefix}direct")
    field = f"{prefix}destination"
    head, backslash, rest = text.partition("\\")
    if backslash and head.lower() != "private$":
        transport, host, port = parse_address(head, offset, field, None)
        path = _parse_dotnet_path(rest, offset + len(head) + 1, field)
        return DirectName(transport, host, port, *path)
    queue, at, host = text.rpartition("@")
    if not at:
        queue, host = text, "."
    parse_path = _parse_dotnet_path if backslash else parse_local_path
    path = parse_path(queue, offset, field)
    transport, host, port = parse_address(host, offset + len(queue) + 1, field, None)
    return DirectName(transport, host, port, *path._replace(private=not path.system))


def _parse_dotnet_path(text: str, offset: int, field: str) -> LocalPath:
    r"""Parse a local path, also in the spelling of .NET: `orders\Journal$`, `DeadLetter$`."""
    suffix = _DOTNET_SYSTEM_QUEUES.get(text.lower())
    if suffix:
        return LocalPath(system=True, suffix=suffix)
    if text.lower().endswith(_DOTNET_JOURNAL):
        text = f"{text[: -len(_DOTNET_JOURNAL)]};{Suffix.JOURNAL}"
    return parse_local_path(text, offset, field)
