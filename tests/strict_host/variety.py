"""User messages in every combination of headers that [MS-MQMQ] 2.2.20 allows, drawn from a seed."""

from __future__ import annotations

import random
import struct
from typing import Any

from tests.strict_host.encoding import JN, JP, Name, Secrets, direct, wide

GUID = bytes(range(0x40, 0x50))
SID = bytes.fromhex("010500000000000515000000") + bytes(range(16))  # 28 bytes
PROVIDER = struct.pack("<L", 1) + wide("Another provider")
UNICODE = "Жалоба № 7 / 注文 \U0001f4e8"
ELSEWHERE = [
    direct("OS:elsewhere\\private$\\answers"),
    direct("TCP:10.1.2.3\\private$\\answers"),
    direct("HTTP://elsewhere/msmq/private$/answers"),
    direct("OS:сервер\\private$\\очередь"),
    Name(5, guid=GUID),
    Name(6, guid=GUID, number=0x77),
]
LISTS: list[Any] = [
    ([direct("OS:a\\private$\\x"), Name(5, guid=GUID), Name(6, guid=GUID, number=3)], [], []),
    (
        [Name(8, guid=GUID), direct("OS:b\\y")],
        [direct("OS:c\\private$\\acks")],
        [Name(5, guid=GUID)],
    ),
    ([direct("OS:lonely\\q")], [], [direct("OS:d\\r"), direct("OS:e\\rr")]),
]
SECRETS = [
    Secrets(0x81, (SID, b"", b"", b"", b"")),
    Secrets(0x01, (SID, b"", b"", b"", b"")),  # AI clear, as in the example of QB 4.1.7: notes 25
    Secrets(0xC0, (b"", b"", b"", b"certificate of 25 bytes..", b"")),
    Secrets(0x81, (SID[:12], b"", b"", b"", b"")),
    Secrets(0x80, (b"", b"", b"", b"", PROVIDER)),
]
#: A field of `Draft`, and its values; the first is the plain one.
FIELDS: dict[str, list[Any]] = {
    "body": [b"abc", b"", b"x", b"xy", bytes(range(256)) * 7, b"\0" * 65_537],
    "label": ["", "a", "ab", "abc", UNICODE, "ü" * 249],
    "extension": [b"", b"\0", b"<x/>", bytes(17), bytes(300)],
    "body_type": [0, 1, 2, 3, 8, 11, 17, 30, 31, 0x1011],
    "tag": [0, 1, 0xFFFFFFFF],
    "priority": [3, 0, 7],
    "recoverable": [False, True],
    "journal": [0, JN, JP, JN | JP],
    "hops": [0, 1, 29],
    "reach_s": [345_600, 600, 0xFFFFFFFE, 0xFFFFFFFF],
    "receive_s": [0xFFFFFFFF, 3600, 0xFFFFFFFE],
    "acks": [0, 1, 2, 4, 5, 8, 10, 14, 15],
    "response": [
        Name(),
        Name(1),
        Name(2, number=8),
        Name(3, number=9),
        Name(4, number=9),
        *ELSEWHERE,
    ],
    "connector_type": [b"", GUID],
    "correlation": [bytes(20), bytes(range(20))],
    "secrets": [None, *SECRETS],
    "hash_algorithm": [0x8004, 0x8001, 0x8002, 0x8003, 0x800C, 0x800E],
    "cipher": [0x6801, 0x6602],
    "spare_bytes": [0, 1, 3000],
    "report_queue": [None, b"", GUID],
    "soap": [None, ("", ""), ("<h/>", "<b>ü</b>"), ("<odd/>", "x")],
    "lists": [None, *LISTS],
    "list_padding_counts": [False, True],
    "trailer": [b"", bytes.fromhex("0c0000000000000000000000")],
    "untidy": [False, True],
}
ADMIN = [Name(2, number=8), Name(3, number=9), *ELSEWHERE]


def drawn_fields(source: random.Random) -> dict[str, Any]:
    """Draw the fields of a message; from few to all of them differ from the plain one."""
    names = source.sample(sorted(FIELDS), source.randint(1, len(FIELDS)))
    fields = {"body": b"abc", **{name: source.choice(FIELDS[name]) for name in names}}
    # MQ 2.2.19.2: an AdminQueue if and only if acknowledgments are requested.
    if fields.get("acks"):
        fields["admin"] = source.choice(ADMIN)
    return fields
