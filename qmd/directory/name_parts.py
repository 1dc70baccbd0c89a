"""Parts of a parsed name as plain values."""

from __future__ import annotations

from typing import Any

from protocol.identifiers import guid_text
from protocol.names.format_name import (
    ConnectorName,
    DirectName,
    DistributionListName,
    MachineName,
    MulticastName,
    PrivateName,
    PublicName,
)
from qmd.directory.spelling import AliasPath, ListPath, QueuePath, Spelled


def parts_of(meant: Spelled) -> dict[str, Any]:
    """Return `kind`, and the other parts of a name of that kind."""
    match meant:
        case DirectName():
            return {
                "kind": "direct",
                "transport": meant.transport.lower(),
                "host": meant.host,
                "port": meant.port,
                "queue": meant.queue or None,
                "private": meant.private,
                "system": meant.system,
                "subqueue": meant.subqueue,
                "part": None if meant.suffix is None else meant.suffix.lower(),
                "in_packets": meant.wire_text(),
            }
        case PrivateName():
            owner = guid_text(meant.queue_manager)
            return {"kind": "private", "queue_manager": owner, "number": meant.number}
        case PublicName():
            return {"kind": "public", "queue": guid_text(meant.queue)}
        case MachineName():
            return {"kind": "machine", "queue_manager": guid_text(meant.queue_manager)}
        case ConnectorName():
            return {"kind": "connector", "connector": guid_text(meant.connector)}
        case DistributionListName():
            group = guid_text(meant.distribution_list)
            return {"kind": "distribution list", "list": group, "domain": meant.domain}
        case MulticastName():
            return {"kind": "multicast", "address": meant.address, "port": meant.port}
        case QueuePath():
            return {"kind": "path of a public queue", "path": meant.path}
        case ListPath():
            return {"kind": "distribution list", "path": meant.name}
        case AliasPath():
            return {"kind": "alias", "path": meant.name}
