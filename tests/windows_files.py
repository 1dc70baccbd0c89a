"""Files as the scripts for Windows write them, made from the published formats.

No file here was written on Windows.  Sources: [MS-DTYP] 2.4 for security descriptors, [MS-MQMQ]
2.2.24 for rights, the reference of System.Messaging for properties of queues and messages.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from protocol.security_id import parse_security_id

EVERYONE, ANONYMOUS, SYSTEM = "S-1-1-0", "S-1-5-7", "S-1-5-18"
ADMINISTRATORS, AUTHENTICATED = "S-1-5-32-544", "S-1-5-11"
ANN = "S-1-5-21-1004336348-1177238915-682003330-1104"

RECEIVE, PEEK, WRITE, RECEIVE_JOURNAL = 0x3, 0x2, 0x4, 0xA
SET_PROPERTIES, GET_PROPERTIES = 0x10, 0x20
GET_PERMISSIONS, FULL = 0x20000, 0xF003F
#: The rights that everyone has on a new queue of Windows.
USUAL = WRITE | GET_PROPERTIES | GET_PERMISSIONS

Entry = tuple[str, bool, int]  # SID, allows, mask
#: The usual access list: everyone and anonymous senders may send.
DEFAULT: tuple[Entry, ...] = (
    (ADMINISTRATORS, True, FULL),
    (EVERYONE, True, USUAL),
    (ANONYMOUS, True, WRITE),
)


def descriptor(entries: Iterable[Entry] | None, owner: str = ADMINISTRATORS) -> bytes:
    """Return a self-relative security descriptor; None: without an access list."""
    sid = parse_security_id(owner)
    header_bytes = 20
    control = 0x8000 | (0 if entries is None else 0x4)
    acl = b""
    if entries is not None:
        aces = [
            struct.pack("<BBHI", 0 if allows else 1, 0, 8 + len(raw), mask) + raw
            for one, allows, mask in entries
            for raw in (parse_security_id(one),)
        ]
        size = 8 + sum(map(len, aces))
        acl = struct.pack("<BBHHH", 2, 0, size, len(aces), 0) + b"".join(aces)
    acl_at = 0 if entries is None else header_bytes + len(sid)
    return struct.pack("<BBHIIII", 1, 0, control, header_bytes, 0, 0, acl_at) + sid + acl


def queue(name: str, **changes: Any) -> dict[str, Any]:
    """Return a queue as `Export-MsmqDefinition.ps1` writes it."""
    return {
        "name": f"private$\\{name}",
        "public": False,
        "format_name": f"DIRECT=OS:hosta\\private$\\{name}",
        "instance": "00000000-0000-0000-0000-000000000000",
        "label": f"private$\\{name}",
        "transactional": True,
        "journal": False,
        "quota_kb": 0xFFFFFFFF,
        "journal_quota_kb": 0xFFFFFFFF,
        "authenticate": False,
        "privacy": "optional",
        "base_priority": 0,
        "type": "00000000-0000-0000-0000-000000000000",
        "multicast": "",
        "created_at": "2019-03-01T08:00:00Z",
        "modified_at": "2019-03-01T08:00:00Z",
        "security_base64": base64.b64encode(descriptor(DEFAULT)).decode(),
        "accounts": {},
        "messages": 0,
        "journal_messages": 0,
        **changes,
    }


def collection(*queues: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a collection as `Export-MsmqDefinition.ps1` writes it."""
    return {
        "qmd_windows_collection": 1,
        "computer": "HOSTA",
        "collected_at": "2026-11-01T12:00:00Z",
        "windows": "Microsoft Windows NT 10.0.17763.0",
        "queue_manager": {"properties": {}, "parameters": {}, "machine": {}},
        "queues": list(queues),
        "outgoing": [],
        "triggers": [],
        "rules": [],
        "lists": [],
        "notes": [],
        **changes,
    }


def message(number: int, body: bytes, queue: str = "orders", **changes: Any) -> bytes:
    """Return a line as `Export-MsmqMessage.ps1` writes it."""
    row = {
        "qmd_windows_message": 1,
        "computer": "HOSTA",
        "queue": f".\\private$\\{queue}",
        "id": f"6b7d7cf2-64a5-4f1b-9e5d-3f0f5d3f2a11\\{number}",
        "lookup_id": str(72057594037927936 + number),
        "label": f"order {number}",
        "body_base64": base64.b64encode(body).decode(),
        "body_type": 0,
        "priority": 3,
        "recoverable": True,
        "transaction_id": f"6b7d7cf2-64a5-4f1b-9e5d-3f0f5d3f2a11\\{number}",
        "first_in_transaction": True,
        "last_in_transaction": True,
        "correlation_id": "00000000-0000-0000-0000-000000000000\\0",
        "application_tag": 7,
        "extension_base64": "",
        "response_queue": "DIRECT=OS:web\\private$\\replies",
        "admin_queue": None,
        "acknowledge": 0,
        "class": 0,
        "sent_at_ms": 1_760_000_000_000 + number,
        "arrived_at_ms": 1_760_000_000_500 + number,
        "time_to_be_received_s": None,
        "dead_letter": False,
        "journal": False,
        "sender_id_base64": "",
        **changes,
    }
    return json.dumps(row).encode() + b"\n"


def lqs(**changes: str) -> bytes:
    """Return a file of the folder `storage\\lqs`."""
    values = {
        "QueueName": "\\private$\\orders",
        "Label": "Orders",
        "Type": "00000000000000000000000000000000",
        "Journal": "01",
        "Quota": "4294967295",
        "JournalQuota": "1024",
        "Transaction": "01",
        "Authenticate": "00",
        "CreateTime": "1551427200",
        "ModifyTime": "1551427200",
        "BasePriority": "0",
        "PrivLevel": "1",
        "Security": descriptor(DEFAULT).hex(),
        **changes,
    }
    lines = "".join(f"{key}={value}\r\n" for key, value in values.items())
    return f"[Properties]\r\n{lines}\r\n".encode("cp1252")
