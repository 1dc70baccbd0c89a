"""Names, identifiers and packets of MSMQ (MS-MQMQ, MS-MQQB).

    errors            ProtocolError: the field, the offset and the rule that was broken
    identifiers       GUIDs, message identifiers, sequence identifiers
    format_name       queue names, as people write them and as packets carry them
    message_class     message classes and delivery modes
    flags, headers    the headers of a packet, each declared once
    packets           the packets of a session: parse, build, patch
    framing           splits a stream of bytes into packets
    ping              the datagram that asks whether a queue manager is running

The names that packets, framing and ping define can be imported from this package.  These modules
are loaded on first use: the records and the derived code cost 20 ms, which a command line that only
needs names should not pay.
"""

# The star imports are for the type checker only: it must know what `__getattr__` finds.
# ruff: noqa: F403

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from protocol.errors import InvalidName as InvalidName
from protocol.errors import MalformedPacket as MalformedPacket
from protocol.errors import ProtocolError as ProtocolError

if TYPE_CHECKING:
    from protocol.framing import *
    from protocol.identifiers import *
    from protocol.message_class import *
    from protocol.names.format_name import *
    from protocol.packets import *
    from protocol.ping import *

# Searched in this order: modules that load quickly come first.
_LAZY = ("identifiers", "message_class", "names.format_name", "packets", "framing", "ping")


def __getattr__(name: str) -> Any:
    # `from protocol import framing` calls this function first and must not load the other modules.
    if not name.startswith("_") and find_spec(f"protocol.{name}") is None:
        for module in _LAZY:
            it = import_module(f"protocol.{module}")
            if hasattr(it, name):
                found = globals()[name] = getattr(it, name)  # later lookups skip __getattr__
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
