"""Headers of NServiceBus, Rebus and MassTransit: their MSMQ transports use the extension.

NServiceBus writes XML, Rebus and MassTransit write a JSON object of texts; early releases of Rebus
in UTF-7.  MassTransit keeps most headers in an envelope around the body.  The formats are those of
the public sources of the three frameworks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from qmd.bodies.errors import UnreadableBody

FORMAT = "extension with headers of a service bus"
N_SERVICE_BUS, REBUS, MASS_TRANSIT = "NServiceBus", "Rebus", "MassTransit"
FRAMEWORKS = (N_SERVICE_BUS, REBUS, MASS_TRANSIT)

_XML_ROOT = b"ArrayOfHeaderInfo"
_XML_END = b"</ArrayOfHeaderInfo>"
_UTF_7 = b"+AHs"  # a brace
_ENVELOPE = "application/vnd.masstransit"
_REFERENCE = re.compile(rb"&#(?:x([0-9A-Fa-f]{1,8})|([0-9]{1,10}));")
_XML_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{6} Z")
_SHOWN_MAX = 200  # characters of one header for people


@dataclass(frozen=True, slots=True)
class BusHeaders:
    """The headers of a message, and the meaning that the three frameworks have in common.

    `headers` holds all headers by their names, with those in the envelope of MassTransit; a text is
    "" and a number or a time None if the message does not state it.  `return_address` and
    `failed_queue` are addresses of the framework, see `format_name`.  `retries`: delayed retries of
    NServiceBus, deferrals of Rebus, retries of MassTransit.  `is_control`: the framework itself
    handles the message, such as a subscription.
    """

    framework: str
    headers: Mapping[str, str]
    message_id: str = ""
    correlation_id: str = ""
    conversation_id: str = ""
    related_to: str = ""
    message_types: tuple[str, ...] = field(default=())
    content_type: str = ""
    intent: str = ""
    is_control: bool = False
    return_address: str = ""
    failed_queue: str = ""
    error: str = ""
    retries: int | None = None
    sent_at: datetime | None = None
    failed_at: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        """Return all fields for `json.dumps`; times in ISO 8601."""
        return {
            "framework": self.framework,
            "message_id": self.message_id,
            "correlation_id": self.correlation_id,
            "conversation_id": self.conversation_id,
            "related_to": self.related_to,
            "message_types": list(self.message_types),
            "content_type": self.content_type,
            "intent": self.intent,
            "control": self.is_control,
            "return_address": self.return_address,
            "failed_queue": self.failed_queue,
            "error": self.error,
            "retries": self.retries,
            "sent_at": None if self.sent_at is None else self.sent_at.isoformat(),
            "failed_at": None if self.failed_at is None else self.failed_at.isoformat(),
            "headers": dict(self.headers),
        }

    @property
    def summary(self) -> str:
        """The facts that a person looks for, in one line."""
        parts = ["control message"] if self.is_control else []
        parts += [_short_type(each) for each in self.message_types[:1]]
        if self.intent:
            parts.append(self.intent)
        if self.return_address:
            parts.append(f"replies to {self.return_address}")
        if self.retries:
            parts.append("1 retry" if self.retries == 1 else f"{self.retries} retries")
        if self.failed_queue:
            parts.append(f"failed in {self.failed_queue}")
        if self.error:
            parts.append(self.error.strip().partition("\n")[0].strip())
        cut = (part[:_SHOWN_MAX] for part in parts)
        return f"{self.framework}: {'; '.join(cut) or f'{len(self.headers)} headers'}"


def read_bus_headers(
    extension: bytes, body: bytes = b"", content_type: str = ""
) -> BusHeaders | None:
    """Return the headers in an extension; None if none of the three frameworks has written it.

    body: where MassTransit has its envelope.  content_type: the MIME type of the body, if the
    extension does not state it.
    """
    try:
        headers = parse_headers(extension) if extension else {}
    except UnreadableBody:
        return None
    if content_type.startswith(_ENVELOPE):
        headers.setdefault("Content-Type", content_type)
    return interpret_headers(headers, body)


def parse_headers(extension: bytes) -> dict[str, str]:
    """Return the headers of an extension in XML or JSON, by their names.  Raises UnreadableBody."""
    start = extension.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"<") and _XML_ROOT in start:
        return _from_xml(start)
    if start.startswith((b"{", _UTF_7)):
        return _from_json(start)
    raise _fault("it is neither XML nor JSON", 0)


def interpret_headers(headers: Mapping[str, str], body: bytes = b"") -> BusHeaders | None:
    """Return headers with their meaning; None if they are of none of the three frameworks."""
    if any(name.startswith(("rbs2-", "rebus-")) for name in headers):
        return _rebus(headers)
    if headers.get("Content-Type", "").startswith(_ENVELOPE):
        return _mass_transit(headers, body)
    if any(name.startswith("NServiceBus.") for name in headers):
        return _n_service_bus(headers)
    return None


def write_bus_headers(framework: str, headers: Mapping[str, str]) -> bytes:
    """Return the extension that a framework of FRAMEWORKS would write.

    Raises UnreadableBody for a character that XML cannot hold, ValueError for another framework.
    """
    if framework == N_SERVICE_BUS:
        from qmd.bodies.xml_formatter import escaped

        rows = "".join(
            f"<HeaderInfo><Key>{escaped(name)}</Key><Value>{escaped(text)}</Value></HeaderInfo>"
            for name, text in headers.items()
        )
        spaces = (
            ' xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
            ' xmlns:xsd="http://www.w3.org/2001/XMLSchema"'
        )
        root = _XML_ROOT.decode()
        return f'<?xml version="1.0" encoding="utf-8"?><{root}{spaces}>{rows}</{root}>'.encode()
    if framework in FRAMEWORKS:
        return json.dumps(dict(headers), separators=(",", ":")).encode()
    raise ValueError(f"{framework!r} is none of {', '.join(FRAMEWORKS)}")


def reply_headers(
    received: BusHeaders, message_type: str, content_type: str, *, id: str, sent_at: datetime
) -> dict[str, str]:
    """Return the headers of a reply to a message of NServiceBus or Rebus.

    message_type: the .NET type of the reply, such as "Shop.Accepted, Shop".  id: of the reply, a
    GUID.  sent_at: with a time zone.  Raises ValueError for MassTransit, whose headers are in the
    body.
    """
    correlation_id = received.correlation_id or received.message_id
    if received.framework == N_SERVICE_BUS:
        found = {
            "NServiceBus.MessageId": id,
            "NServiceBus.MessageIntent": "Reply",
            "NServiceBus.CorrelationId": correlation_id,
            "NServiceBus.ConversationId": received.conversation_id,
            "NServiceBus.RelatedTo": received.message_id,
            "NServiceBus.EnclosedMessageTypes": message_type,
            "NServiceBus.ContentType": content_type,
            "NServiceBus.TimeSent": f"{sent_at.astimezone(UTC):%Y-%m-%d %H:%M:%S:%f} Z",
        }
        saga = received.headers.get("NServiceBus.OriginatingSagaId", "")
        if saga:
            # A saga gets the reply only if the reply names the saga.
            found["NServiceBus.SagaId"] = saga
            found["NServiceBus.SagaType"] = received.headers.get(
                "NServiceBus.OriginatingSagaType", ""
            )
        return {name: text for name, text in found.items() if text}
    if received.framework == REBUS:
        before = _number(received.headers.get("rbs2-corr-seq", ""))
        found = {
            "rbs2-msg-id": id,
            "rbs2-msg-type": message_type,
            "rbs2-content-type": content_type,
            "rbs2-in-reply-to": received.message_id,
            "rbs2-corr-id": correlation_id,
            "rbs2-corr-seq": str((before or 0) + 1),
            "rbs2-intent": "p2p",
            "rbs2-senttime": sent_at.isoformat(timespec="microseconds"),
        }
        return {name: text for name, text in found.items() if text}
    raise ValueError("the headers of MassTransit are in the envelope of the body")


_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,253}[A-Za-z0-9_])?")
_QUEUE = re.compile(r'[^\\/;,+"@\x00-\x1f\x7f-\x9f]{1,124}')
_ADDRESS_4 = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}")
_MSMQ_URI = re.compile(r"msmq://([^/?#:]+)/([^?#]+)(\?[^#]*)?")
_OWN_HOSTS = frozenset({"", ".", "localhost", "127.0.0.1"})


def format_name(address: str) -> str | None:
    r"""Return the format name of an address such as "orders@web1" or "msmq://web1/orders".

    That is `DIRECT=OS:web1\private$\orders`.  None for an address without a host, which means the
    host of the sender, and for texts that are no address.
    """
    uri = _MSMQ_URI.fullmatch(address)
    if uri is not None:
        host, queue = uri[1], uri[2]
    else:
        queue, _, host = address.partition("@")
    queue = queue.removeprefix("private$\\").removeprefix("private$/")
    if host.lower() in _OWN_HOSTS or not _HOST.fullmatch(host) or not _QUEUE.fullmatch(queue):
        return None
    kind = "TCP" if _ADDRESS_4.fullmatch(host) else "OS"
    return f"DIRECT={kind}:{host}\\private$\\{queue}"


def _n_service_bus(headers: Mapping[str, str]) -> BusHeaders:
    def named(name: str) -> str:
        return headers.get(f"NServiceBus.{name}", "")

    types = named("EnclosedMessageTypes") or headers.get("SubscriptionMessageType", "")
    fault = (named("ExceptionInfo.ExceptionType"), named("ExceptionInfo.Message"))
    return BusHeaders(
        N_SERVICE_BUS,
        headers,
        message_id=named("MessageId"),
        correlation_id=named("CorrelationId") or headers.get("CorrId", ""),
        conversation_id=named("ConversationId"),
        related_to=named("RelatedTo"),
        message_types=_listed(types),
        content_type=named("ContentType"),
        intent=named("MessageIntent"),
        is_control="NServiceBus.ControlMessage" in headers,
        return_address=named("ReplyToAddress"),
        failed_queue=named("FailedQ"),
        error=": ".join(each for each in fault if each),
        retries=_number(named("Retries")),
        sent_at=_time(named("TimeSent")),
        failed_at=_time(named("TimeOfFailure")),
    )


def _rebus(headers: Mapping[str, str]) -> BusHeaders:
    def named(*names: str) -> str:
        return next((headers[name] for name in names if headers.get(name)), "")

    type = named("rbs2-msg-type")
    return BusHeaders(
        REBUS,
        headers,
        message_id=named("rbs2-msg-id", "rebus-msg-id"),
        correlation_id=named("rbs2-corr-id", "rebus-correlation-id"),
        related_to=named("rbs2-in-reply-to"),
        message_types=(type,) if type else (),
        content_type=named("rbs2-content-type", "rebus-content-type"),
        intent=named("rbs2-intent"),
        is_control=type.startswith("Rebus.Messages.Control."),
        return_address=named("rbs2-return-address", "rebus-return-address"),
        failed_queue=named("rbs2-source-queue", "rebus-source-queue"),
        error=named("rbs2-error-details", "rebus-error-message"),
        retries=_number(named("rbs2-defer-count")),
        sent_at=_time(named("rbs2-senttime")),
    )


def _mass_transit(headers: Mapping[str, str], body: bytes) -> BusHeaders:
    content_type = headers["Content-Type"]
    envelope = _envelope(body, content_type)

    def named(name: str) -> str:
        value = envelope.get(name)
        return value if isinstance(value, str) else ""

    inner = envelope.get("headers")
    texts = inner.items() if isinstance(inner, dict) else ()
    together = {str(name): text for name, text in texts if isinstance(text, str)}
    types = envelope.get("messageType") or []
    listed = [types] if isinstance(types, str) else types if isinstance(types, list) else []
    message_types = tuple(each for each in listed if isinstance(each, str))
    return BusHeaders(
        MASS_TRANSIT,
        {**together, **headers},
        message_id=named("messageId") or headers.get("Original-Message-Id", ""),
        correlation_id=named("correlationId"),
        conversation_id=named("conversationId"),
        related_to=named("requestId"),
        message_types=message_types,
        content_type=content_type,
        is_control=any(each.startswith("urn:message:MassTransit.") for each in message_types),
        return_address=named("responseAddress"),
        retries=_number(str(envelope.get("retryCount", ""))),
        sent_at=_time(named("sentTime")),
    )


def _envelope(body: bytes, content_type: str) -> dict[str, Any]:
    """Return the envelope of a body, {} if it cannot be read: it may be encrypted, or BSON."""
    from qmd.bodies.content import read_content

    kind = content_type.partition(";")[0].rpartition("+")[2].strip().lower()
    if kind not in ("json", "xml"):
        return {}
    try:
        found = read_content(body, format=kind).value
    except UnreadableBody:
        return {}
    if not isinstance(found, dict):
        return {}
    return {name[:1].lower() + name[1:]: value for name, value in found.items()}


def _from_xml(extension: bytes) -> dict[str, str]:
    from qmd.bodies.xml_formatter import local_name, parse_xml

    # Early releases left bytes behind the end, and the reader of NServiceBus ignores them.
    end = extension.rfind(_XML_END)
    if end >= 0:
        extension = extension[: end + len(_XML_END)]
    root = parse_xml(_REFERENCE.sub(_allowed_reference, extension))
    if local_name(root.tag) != _XML_ROOT.decode():
        raise _fault("its root is not ArrayOfHeaderInfo")
    found: dict[str, str] = {}
    for each in root:
        parts = {local_name(part.tag): part.text or "" for part in each}
        if local_name(each.tag) != "HeaderInfo" or not parts.keys() <= {"Key", "Value"}:
            raise _fault("an element is no HeaderInfo with Key and Value")
        if "Key" not in parts:
            continue
        if parts["Key"] in found:
            raise _fault(f"the header {parts['Key']!r:.60} stands twice")
        found[parts["Key"]] = parts.get("Value", "")
    return found


def _allowed_reference(found: re.Match[bytes]) -> bytes:
    """Replace a reference to a character that XML 1.0 forbids: .NET writes these unchecked."""
    code = int(found[1], 16) if found[1] is not None else int(found[2])
    is_allowed = code in (9, 10, 13) or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD
    return found[0] if is_allowed or 0x10000 <= code <= 0x10FFFF else b"&#xFFFD;"


def _from_json(extension: bytes) -> dict[str, str]:
    try:
        text = extension.decode("utf-7" if extension.startswith(_UTF_7) else "utf-8")
        found = json.loads(text, parse_constant=lambda name: name)
    except (ValueError, RecursionError) as error:
        raise _fault(f"it is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise _fault("its JSON is no object")
    headers = {}
    for name, value in found.items():
        if isinstance(value, dict | list):
            raise _fault(f"the header {name!r:.60} is no text")
        text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
        if any("\ud800" <= each <= "\udfff" for each in name + text):
            raise _fault(f"the header {name!r:.60} has half a character")
        headers[name] = text
    return headers


def _listed(types: str) -> tuple[str, ...]:
    return tuple(each for each in (part.strip() for part in types.split(";")) if each)


def _short_type(name: str) -> str:
    return name.removeprefix("urn:message:").partition(",")[0].strip()


def _number(text: str) -> int | None:
    """Return a count; None for anything else."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _time(text: str) -> datetime | None:
    """Return a time in the form of NServiceBus or of ISO 8601; None for anything else."""
    if _XML_TIME.fullmatch(text):
        text = f"{text[:10]}T{text[11:19]}.{text[20:26]}+00:00"
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _fault(rule: str, offset: int = -1) -> UnreadableBody:
    return UnreadableBody(FORMAT, offset, rule)
