"""Targets: everything that a bridge reads from the other end, and its own position.

Headers and bodies of NATS and Kafka, documents of S3, messages of AMQP, positions, definitions and
credentials: each becomes a message that the daemon can take, or an error with a reason.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from qmd.bridge.definition import BadDefinition, parse_definitions
from qmd.bridge.ends import Arrival, DoesNotFit, position_as
from qmd.bridge.envelope import Unusable, message_of, message_of_document
from qmd.bridge.inward import put_aside
from qmd.bridge.kinds.nats_credentials import BadCredentials, read_credentials
from qmd.control_protocol.messages import NewMessage
from tests.fuzz.limits import outcome
from tests.fuzz.target import Target

QUEUE = "inbox"
_ODD: tuple[Any, ...] = (
    *("", "\0", "x" * 300, "\ud800", "é", "1e999", "-1", "null", "[]", "{}", '"x"', "{" * 500),
    *('"\\ud800"', "99999999999999999999", "NaN", '{"a": {"type": "long", "value": 1}}'),
)
_NAMES = (
    *("content-type", "qmd-id", "qmd-label", "qmd-correlation-id", "qmd-response-queue"),
    *("qmd-group", "qmd-properties", "qmd-priority", "qmd-body-type", "qmd-application-tag"),
    *("qmd-extension-base64", "qmd-acknowledge", "qmd-admin-queue", "qmd-time-to-be-received-s"),
    *("qmd-delivery", "qmd-trace", "qmd-body", "qmd-body-base64", "QMD-LABEL", "x", "Nats-Msg-Id"),
)


def headers() -> Iterable[bytes]:
    """Return JSON arrays of a body and headers."""
    yield json.dumps(["10 screws", {"qmd-label": "order", "qmd-priority": "3"}]).encode()
    yield json.dumps(["", {"qmd-properties": '{"weight": 3}', "region": "east"}]).encode()
    yield json.dumps(["x", {"qmd-label": '"\\u00f6"', "content-type": "text/plain"}]).encode()
    for name in _NAMES:
        yield json.dumps(["x", {name: "1"}]).encode()


def check_headers(data: bytes) -> None:
    try:
        body, found = json.loads(data)
        given = {str(name): str(text) for name, text in found.items()}
        content = str(body).encode("utf-8", "surrogatepass")
    except (ValueError, TypeError, AttributeError, RecursionError):
        given, content = {"x": data.decode("latin-1")}, data
    message, refused = outcome(Unusable, lambda _: message_of(given, content, QUEUE), b"")
    _sent(message, refused, content)


def mutate_headers(data: bytes, size_max: int, random: Random) -> bytes:
    try:
        body, found = json.loads(data)
        found = dict(found)
    except (ValueError, TypeError):
        body, found = "", {}
    found[random.choice(_NAMES)] = random.choice(_ODD)
    return json.dumps([body, found]).encode()[:size_max]


def documents() -> Iterable[bytes]:
    yield json.dumps({"body_base64": "MTA=", "label": "x", "priority": 3, "id": "x"}).encode()
    yield json.dumps({"body_base64": "", "properties": {"a": [1]}, "delivery": "express"}).encode()
    yield b'{"body_base64":' * 5_000
    yield b"[" * 50_000


def check_document(data: bytes) -> None:
    message, refused = outcome(Unusable, lambda each: message_of_document(each, QUEUE), data)
    _sent(message, refused, data)


def _sent(message: object, refused: Exception | None, raw: bytes) -> None:
    """Check that a message, or the one that puts it aside, can be encoded for the daemon."""
    if message is None:
        assert str(refused)
        message = put_aside("in", Arrival("id", None, None, raw, str(refused)))
    assert isinstance(message, NewMessage)
    msgspec.msgpack.encode(message)


def positions() -> Iterable[bytes]:
    yield json.dumps({"sequence": 3, "stream_created": "2026-11-26"}).encode()
    yield json.dumps({"0": 5, "1": 7}).encode()
    yield json.dumps(["str:m1", "UUID:x"]).encode()
    yield json.dumps({"in/a": '"tag"'}).encode()
    yield b"7"


def check_position(data: bytes) -> None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return  # checked by the loop before a kind gets it
    kinds: list[Any] = [dict[str, int], list[str], dict[str, str]]
    if HAS_NATS:
        from qmd.bridge.kinds.nats import Place

        kinds.append(Place)
    for kind in kinds:
        found, refused = outcome(DoesNotFit, lambda _, kind=kind: position_as(kind, value), b"")
        assert found is not None or str(refused) or value is None


def definitions() -> Iterable[bytes]:
    yield b'[bridge.a]\nkind="nats"\ndirection="in"\nqueue="q"\nurl="nats://x"\nstream="s"\nsubject="t"\n'
    yield b'[bridge.a]\nkind="kafka"\ndirection="out"\nqueue="q"\nservers="x"\ntopic="t"\n' * 2
    yield b'[bridge.a]\nkind="amqp"\ndirection="out"\nqueue="q"\nurl="amqps://["\naddress="t"\n'
    yield b'[bridge.a]\nkind="s3"\ndirection="in"\nqueue="q"\nbucket="b"\nprefix=1\n'
    yield b"a=" + b"[" * 20_000


def check_definitions(data: bytes) -> None:
    def parse(data: bytes) -> object:
        return parse_definitions(data.decode("latin-1"), Path("/etc/qmd"))

    found, refused = outcome(BadDefinition, parse, data)
    assert found is not None or str(refused)


def credentials() -> Iterable[bytes]:
    begin, end = "-----BEGIN {}-----\n", "\n------END {}------\n"
    token, seed = "NATS USER JWT", "USER NKEY SEED"
    for text in ("SUAA", "SUA" + "A" * 55, "", "ö", "SU======"):
        yield (
            begin.format(token) + "a.b.c" + end.format(token)
            + begin.format(seed) + text + end.format(seed)
        ).encode()  # fmt: skip


def check_credentials(data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        found, refused = outcome(BadCredentials, lambda _: read_credentials(Path(file.name)), b"")
    assert found is not None or str(refused)


HAS_NATS = importlib.util.find_spec("nats") is not None
TARGETS: tuple[Target, ...] = (
    Target("bridge_headers", check_headers, headers, mutate_headers),
    Target("bridge_document", check_document, documents),
    Target("bridge_position", check_position, positions),
    Target("bridge_definitions", check_definitions, definitions),
    Target("bridge_credentials", check_credentials, credentials),
)


def amqp_targets() -> tuple[Target, ...]:
    """Return the target for messages of brokers of AMQP; it needs Proton."""
    import proton

    from qmd.bridge.kinds.amqp import _arrival, _id_of
    from tests.fuzz import amqp

    def check(data: bytes) -> None:
        arrival = _arrival(data, _id_of(data), QUEUE, 1_700_000_000_000, known=False)
        if arrival.message is None:
            assert arrival.reason
        _sent(arrival.message, ValueError(arrival.reason), data)

    def messages() -> Iterable[bytes]:
        yield from amqp.messages()
        yield b""
        yield bytes(proton.Message(id="identity", body="x").encode()).replace(
            b"ide", b"\xff\xfe\xa3"
        )

    return (Target("bridge_amqp", check, messages),)
