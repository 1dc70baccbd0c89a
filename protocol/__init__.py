"""MSMQ's vocabulary and its wire: names, identifiers, packets (MS-MQMQ, MS-MQQB).

    errors            ProtocolError: the field, the place, the rule
    identifiers       GUIDs, message identifiers, sequence identifiers
    format_name       names of queues, as people write them and as packets have them
    message_class     what a message is; how it is delivered
    flags, headers    the headers of a packet, each declared once
    packets           the packets of a session: reading, building, patching
    framing           packets out of a stream of bytes
    ping              the datagram that asks whether a queue manager is there

What packets, framing and ping define can be had from here by name.  It is loaded when it is first
asked for: construct and the derived code cost 60 ms, which a command line that only needs names
should not pay.
"""

# The star imports are for the type checker only: it must know what `__getattr__` finds.
# ruff: noqa: F403, F405

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
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

# In this order: what is cheap to load comes first.
_LAZY = ("identifiers", "message_class", "names.format_name", "packets", "framing", "ping")


def __getattr__(name: str) -> Any:
    # `from protocol import framing` asks here first, and must not load the rest.
    if not name.startswith("_") and name not in {it.name for it in iter_modules(__path__)}:
        for module in _LAZY:
            it = import_module(f"protocol.{module}")
            if hasattr(it, name):
                found = globals()[name] = getattr(it, name)  # asked for once
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
