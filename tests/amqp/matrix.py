"""Send one message for each line of values, or receive them and print what came.

python -m tests.amqp.matrix send|receive PORT ADDRESS COUNT < LINES     (each line: TYPE TEXT)
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

import proton
from proton import Message
from proton.utils import BlockingConnection

TIMEOUT_S = 120.0
LIST = [proton.int32(1), "two", [True, None], {"k": 2.5}]
WITHOUT_PROPERTIES = ("null", "list", "map", "large")


def _bytes(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


MAKE: dict[str, Callable[[str], Any]] = {
    "null": lambda text: None,
    "boolean": lambda text: text == "true",
    "ubyte": lambda text: proton.ubyte(int(text)),
    "ushort": lambda text: proton.ushort(int(text)),
    "uint": lambda text: proton.uint(int(text)),
    "ulong": lambda text: proton.ulong(int(text)),
    "byte": lambda text: proton.byte(int(text)),
    "short": lambda text: proton.short(int(text)),
    "int": lambda text: proton.int32(int(text)),
    "long": int,
    "float": lambda text: proton.float32(struct.unpack(">f", bytes.fromhex(text))[0]),
    "double": lambda text: struct.unpack(">d", bytes.fromhex(text))[0],
    "decimal32": lambda text: proton.decimal32(int(text, 16)),
    "decimal64": lambda text: proton.decimal64(int(text, 16)),
    "decimal128": lambda text: proton.decimal128(bytes.fromhex(text)),
    "char": lambda text: proton.char(chr(int(text))),
    "timestamp": lambda text: proton.timestamp(int(text)),
    "uuid": UUID,
    "binary": bytes.fromhex,
    "string": lambda text: bytes.fromhex(text).decode(),
    "symbol": proton.symbol,
    "list": lambda text: LIST,
    "map": lambda text: {"k": LIST},
    "large": lambda text: _bytes(int(text)),
}
SHOW: dict[str, Callable[[Any], str]] = {
    "null": lambda value: "null",
    "boolean": lambda value: str(value).lower(),
    "float": lambda value: struct.pack(">f", value).hex(),
    "double": lambda value: struct.pack(">d", value).hex(),
    "decimal32": lambda value: f"{int(value):08x}",
    "decimal64": lambda value: f"{int(value):016x}",
    "decimal128": lambda value: bytes(value).hex(),
    "char": lambda value: str(ord(value)),
    "binary": lambda value: bytes(value).hex(),
    "string": lambda value: value.encode().hex(),
    "list": lambda value: str(value == LIST).lower(),
    "map": lambda value: str(value == {"k": LIST}).lower(),
    "large": lambda value: str(bytes(value) == _bytes(len(value)) and len(value)),
}
JMS = {
    "id": "ID:1", "correlation_id": "c-1", "subject": "type", "reply_to": "answers",
    "address": "jms", "content_type": "text/plain", "content_encoding": "gzip",
    "creation_time": 1700000000.0, "group_id": "g", "group_sequence": 7, "reply_to_group_id": "r",
}  # fmt: skip


def message_of(kind: str, text: str) -> Message:
    if kind == "jms":
        message = Message(body="jms", durable=True, priority=9, ttl=600, user_id=b"ann")
        for name, value in JMS.items():
            setattr(message, name, value)
        return message
    value = MAKE[kind](text)
    message = Message(body=value, durable=True)
    if kind not in WITHOUT_PROPERTIES:
        message.properties = {"p": value}
        message.annotations = {proton.symbol("x-opt-v"): value}
    return message


def shown(kind: str, text: str, message: Message) -> str:
    """Return the values of a message; a value of another type is shown with the type."""
    if kind == "jms":
        parts = [getattr(message, name) for name in JMS]
        parts[7] = int(message.creation_time * 1000)
        is_alive = str(0 < message.ttl <= 600).lower()
        return " ".join(map(str, [*parts, message.priority, is_alive, message.user_id.decode()]))
    values = [message.body]
    if message.properties:
        values += [message.properties["p"], message.annotations[proton.symbol("x-opt-v")]]
    expected = type(MAKE[kind](text))
    return " ".join(_shown(kind, expected, value) for value in values)


def _shown(kind: str, expected: type, value: Any) -> str:
    found = bytes if isinstance(value, memoryview) else type(value)
    if found is not expected:
        return f"{found.__name__}:{value}"
    return (
        SHOW[kind](value) if kind in SHOW else str(int(value) if isinstance(value, int) else value)
    )


def main(act: str, port: str, address: str, rounds: str) -> None:
    values = [line.rstrip("\n").partition(" ")[::2] for line in sys.stdin]
    connection = BlockingConnection(f"amqp://127.0.0.1:{port}", timeout=TIMEOUT_S)
    if act == "send":
        sender = connection.create_sender(address)
        for kind, text in values:
            sender.send(message_of(kind, text))
    else:
        receiver = connection.create_receiver(address, credit=20)
        for kind, text in values * int(rounds):
            print(kind, shown(kind, text, receiver.receive(timeout=TIMEOUT_S)))
            receiver.accept()
    connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
