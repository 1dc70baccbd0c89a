"""The SOAP envelope of a message: read strictly, and written.  [MC-MQSRM] 2.2

Document types are refused, so that no entity expands; depth and size are limited.  Elements of
other namespaces are ignored unless the sender says that they must be understood.
"""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element  # nosec B405: parsed by expat, without a DTD
from xml.sax.saxutils import escape  # nosec B406: writes only

from qmd.bodies.errors import UnreadableBody
from qmd.bodies.xml_formatter import parse_xml

SOAP = "http://schemas.xmlsoap.org/soap/envelope/"
ROUTING = "http://schemas.xmlsoap.org/rp/"
SRMP = "http://schemas.xmlsoap.org/srmp/"
MSMQ = "msmq.namespace.xml"
SIGNATURE = "http://www.w3.org/2000/02/xmldsig#"
ENVELOPE_BYTES_MAX = 256 * 1024
ELEMENTS_MAX = 2000  # those of SRMP and of signatures are some hundred at most
TEXT_MAX = 4096
LIST_TEXT_MAX = 128 * 1024
NAMES_MAX = 1000  # of a list, as in a packet
ORDER_ACK_LABEL = "QM Ordering Ack"
#: The time by which MSMQ says that there is no limit.
NO_LIMIT = datetime(2038, 1, 19, 3, 14, 7, tzinfo=UTC)
_UNDERSTOOD = ("path", "properties", "services", "stream", "Stream", "deliveryReceipt",
               "commitmentReceipt", "streamReceipt", "Msmq", "Signature")  # fmt: skip
#: Names of a list stand between white space, which may also be a part of a name.
_BETWEEN_NAMES = re.compile(r"(?<!\s)\s++(?=https?://|MSMQ:)", re.IGNORECASE)
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


class NotSrmp(Exception):
    """The envelope is not valid; the text says why."""


class MessageId(NamedTuple):
    """The id of a message: the GUID of its source, 16 bytes, and its number."""

    source: uuid.UUID
    number: int

    def __str__(self) -> str:
        return f"uuid:{self.number}@{self.source}"

    @property
    def name(self) -> str:
        """The id as commands and the log show it."""
        return f"{self.source}\\{self.number}"


class Stream(NamedTuple):
    """The place of a message in a stream; `receipts_to` in the first message only."""

    owner: uuid.UUID
    id: int
    number: int
    previous: int
    receipts_to: str = ""


class StreamReceipt(NamedTuple):
    """All messages of a stream up to a number have arrived."""

    owner: uuid.UUID
    id: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The content of an envelope; times are UTC."""

    to: str
    id: MessageId
    sent_at: datetime
    expires_at: datetime = NO_LIMIT
    label: str | None = ""
    response_to: str = ""
    durable: bool = False
    delivery_receipt_to: str = ""
    commitment_receipt_to: str = ""
    positive: bool = False
    negative: bool = False
    stream: Stream | None = None
    stream_receipt: StreamReceipt | None = None
    delivered_at: datetime | None = None  # of a delivery receipt
    decided_at: datetime | None = None  # of a commitment receipt
    decision: str = ""
    about: MessageId | None = None  # the message of a delivery or commitment receipt
    is_msmq: bool = True  # whether it has the element of MSMQ
    message_class: int = 0
    priority: int = 3
    journal: bool = False
    dead_letter: bool = False
    correlation: bytes = b""
    trace: bool = False
    application_tag: int = 0
    body_type: int = 0
    is_first: bool = False  # of its transaction
    is_last: bool = False
    connector_type: uuid.UUID | None = None
    connector: uuid.UUID | None = None  # the queue manager of the connector of a transaction
    reach_by: datetime | None = None
    is_signed: bool = False
    #: All queues of a message to several, and all that get its acknowledgments and answers.
    destinations: tuple[str, ...] = ()
    admins: tuple[str, ...] = ()
    responses: tuple[str, ...] = ()


def read_envelope(data: bytes) -> Envelope:
    """Return the content of an envelope.  Raises NotSrmp."""
    if len(data) > ENVELOPE_BYTES_MAX:
        raise NotSrmp(f"the envelope has more than {ENVELOPE_BYTES_MAX} bytes")
    try:
        root = parse_xml(data, ELEMENTS_MAX)
    except UnreadableBody as error:
        raise NotSrmp(str(error)) from error
    if root.tag != f"{{{SOAP}}}Envelope":
        raise NotSrmp("the root is no envelope of SOAP")
    children = list(root)
    if [each.tag for each in children] != [f"{{{SOAP}}}Header", f"{{{SOAP}}}Body"]:
        raise NotSrmp("the envelope does not consist of a header and a body")
    return _Reader(children[0]).read()


class _Reader:
    """One header."""

    def __init__(self, header: Element) -> None:
        self._header = header
        for element in header:
            name = element.tag.rpartition("}")[2]
            must = element.get(f"{{{SOAP}}}mustUnderstand", "0").strip()
            if must == "1" and name not in _UNDERSTOOD:
                raise NotSrmp(f"the element {name} must be understood, and is not")

    def read(self) -> Envelope:
        path = self._only(self._header, ROUTING, "path")
        properties = self._only(self._header, SRMP, "properties")
        if path is None or properties is None:
            raise NotSrmp("path or properties are missing")
        msmq = self._only(self._header, MSMQ, "Msmq")
        action, to = self._text(path, ROUTING, "action"), self._text(path, ROUTING, "to")
        if action is None or not to:
            raise NotSrmp("action or to is missing in path")
        expires = self._text(properties, SRMP, "expiresAt")
        if expires is None:
            raise NotSrmp("expiresAt is missing")
        sent = self._text(properties, SRMP, "sentAt")
        return Envelope(
            to=to,
            id=self._id(path, msmq),
            label=action[5:] if action.startswith("MSMQ:") else None,
            response_to=self._response(path),
            sent_at=_time(sent) if sent else datetime.now(UTC),
            expires_at=_time(expires),
            is_signed=self._only(self._header, SIGNATURE, "Signature") is not None,
            **self._services(),
            **self._receipts(),
            **({"is_msmq": False} if msmq is None else self._msmq(msmq)),
        )

    def _id(self, path: Element, msmq: Element | None) -> MessageId:
        text = self._text(path, ROUTING, "id")
        if text is None:
            raise NotSrmp("id is missing in path")
        if msmq is None:
            return MessageId(uuid.UUID(int=0), 1)
        found = message_id(text)
        source = self._text(msmq, MSMQ, "SourceQmGuid")
        # If the two differ, Windows uses that of the element.
        return found._replace(source=_guid(source)) if source else found

    def _response(self, path: Element) -> str:
        rev = self._only(path, ROUTING, "rev")
        return "" if rev is None else self._text(rev, ROUTING, "via") or ""

    def _services(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        services = self._only(self._header, SRMP, "services")
        if services is not None:
            found["durable"] = self._has(services, "durable")
            delivery = self._only(services, SRMP, "deliveryReceiptRequest")
            if delivery is not None:
                found["delivery_receipt_to"] = self._needed(delivery, "sendTo")
            commitment = self._only(services, SRMP, "commitmentReceiptRequest")
            if commitment is not None:
                found["commitment_receipt_to"] = self._needed(commitment, "sendTo")
                found["positive"] = self._has(commitment, "positiveOnly")
                found["negative"] = self._has(commitment, "negativeOnly")
        stream = self._only(self._header, SRMP, "stream")
        if stream is None:
            stream = self._only(self._header, SRMP, "Stream")  # the spelling of the examples
        if stream is not None:
            found["stream"] = self._stream(stream)
        return found

    def _stream(self, stream: Element) -> Stream:
        owner, number = _stream_id(self._needed(stream, "streamId"))
        current = _number(self._needed(stream, "current"), 0xFFFFFFFF)
        previous = self._text(stream, SRMP, "previous")
        start = self._only(stream, SRMP, "start")
        if current == 0:
            raise NotSrmp("the numbers of a stream begin with 1")
        return Stream(
            owner,
            number,
            current,
            current - 1 if previous is None else _number(previous, current - 1),
            "" if start is None else self._needed(start, "sendReceiptsTo"),
        )

    def _receipts(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        receipt = self._only(self._header, SRMP, "streamReceipt")
        if receipt is not None:
            owner, number = _stream_id(self._needed(receipt, "streamId"))
            last = _number(self._needed(receipt, "lastOrdinal"), 0xFFFFFFFF)
            found["stream_receipt"] = StreamReceipt(owner, number, last)
        delivery = self._only(self._header, SRMP, "deliveryReceipt")
        if delivery is not None:
            found["delivered_at"] = _time(self._needed(delivery, "receivedAt"))
            found["about"] = message_id(self._needed(delivery, "id"))
        commitment = self._only(self._header, SRMP, "commitmentReceipt")
        if commitment is not None:
            found["decided_at"] = _time(self._needed(commitment, "decidedAt"))
            found["decision"] = self._needed(commitment, "decision")
            found["about"] = message_id(self._needed(commitment, "id"))
        return found

    def _msmq(self, msmq: Element) -> dict[str, Any]:
        def number(name: str, highest: int, default: int | None = None) -> int:
            text = self._text(msmq, MSMQ, name)
            if text is None and default is None:
                raise NotSrmp(f"{name} is missing")
            return default or 0 if text is None else _number(text, highest)

        correlation = self._text(msmq, MSMQ, "Correlation")
        reach_by = self._text(msmq, MSMQ, "TTrq")
        eod = self._only(msmq, MSMQ, "Eod")
        kind = self._text(msmq, MSMQ, "ConnectorType")
        connector = None if eod is None else self._text(eod, MSMQ, "ConnectorId")
        return {
            "is_first": eod is not None and self._only(eod, MSMQ, "First") is not None,
            "is_last": eod is not None and self._only(eod, MSMQ, "Last") is not None,
            "connector_type": _guid(kind) if kind else None,
            "connector": _guid(connector) if connector else None,
            "message_class": number("Class", 0xFFFF),
            "priority": number("Priority", 7),
            "journal": self._only(msmq, MSMQ, "Journal") is not None,
            "dead_letter": self._only(msmq, MSMQ, "DeadLetter") is not None,
            "correlation": _correlation(correlation) if correlation else b"",
            "trace": self._only(msmq, MSMQ, "Trace") is not None,
            "application_tag": number("App", 0xFFFFFFFF, 0),
            "body_type": number("BodyType", 0xFFFFFFFF),
            "reach_by": _time(reach_by) if reach_by else None,
            "destinations": self._list(msmq, "DestinationMqf"),
            "admins": self._list(msmq, "AdminMqf"),
            "responses": self._list(msmq, "ResponseMqf"),
        }

    def _list(self, msmq: Element, name: str) -> tuple[str, ...]:
        text = self._text(msmq, MSMQ, name, LIST_TEXT_MAX)
        found = _BETWEEN_NAMES.split(text, NAMES_MAX) if text else []
        if len(found) > NAMES_MAX:
            raise NotSrmp(f"{name} has more than {NAMES_MAX} names")
        return tuple(found)

    def _only(self, parent: Element, namespace: str, name: str) -> Element | None:
        found = parent.findall(f"{{{namespace}}}{name}")
        if len(found) > 1:
            raise NotSrmp(f"there are {len(found)} elements {name}")
        return found[0] if found else None

    def _text(
        self, parent: Element, namespace: str, name: str, longest: int = TEXT_MAX
    ) -> str | None:
        element = self._only(parent, namespace, name)
        if element is None:
            return None
        text = (element.text or "").strip() if name != "action" else element.text or ""
        if len(text) > longest:
            raise NotSrmp(f"{name} has more than {longest} characters")
        return text

    def _needed(self, parent: Element, name: str) -> str:
        text = self._text(parent, SRMP, name)
        if not text:
            raise NotSrmp(f"{name} is missing or empty")
        return text

    def _has(self, parent: Element, name: str) -> bool:
        return self._only(parent, SRMP, name) is not None


def write_envelope(it: Envelope) -> bytes:
    """Return the envelope, with all elements that MSMQ writes."""
    rev = f"<rev><via>{_safe(it.response_to)}</via></rev>" if it.response_to else ""
    parts = [
        f'<se:Envelope xmlns:se="{SOAP}" xmlns="{SRMP}"><se:Header>',
        f'<path xmlns="{ROUTING}" se:mustUnderstand="1"><action>MSMQ:{_safe(it.label or "")}',
        f"</action><to>{_safe(it.to)}</to>{rev}<id>{it.id}</id></path>",
        f'<properties se:mustUnderstand="1"><expiresAt>{time_text(it.expires_at)}</expiresAt>',
        f"<sentAt>{time_text(it.sent_at)}</sentAt></properties>",
        _written_services(it),
        _written_stream(it),
        _written_receipts(it),
        _written_msmq(it),
        "</se:Header><se:Body></se:Body></se:Envelope>",
    ]
    return "".join(parts).encode()


def _written_services(it: Envelope) -> str:
    inner = "<durable/>" if it.durable else ""
    if it.delivery_receipt_to:
        to = _safe(it.delivery_receipt_to)
        inner += f"<deliveryReceiptRequest><sendTo>{to}</sendTo></deliveryReceiptRequest>"
    if it.commitment_receipt_to:
        kinds = ("<positiveOnly/>" if it.positive else "") + (
            "<negativeOnly/>" if it.negative else ""
        )
        to = _safe(it.commitment_receipt_to)
        inner += f"<commitmentReceiptRequest><sendTo>{to}</sendTo>{kinds}"
        inner += "</commitmentReceiptRequest>"
    return f'<services se:mustUnderstand="1">{inner}</services>' if inner else ""


def _written_stream(it: Envelope) -> str:
    stream = it.stream
    if stream is None:
        return ""
    start = ""
    if stream.receipts_to:
        to = _safe(stream.receipts_to)
        start = f"<start><sendReceiptsTo>{to}</sendReceiptsTo></start>"
    return (
        f'<stream se:mustUnderstand="1"><streamId>uid:{stream.owner}\\{stream.id}</streamId>'
        f"<current>{stream.number}</current><previous>{stream.previous}</previous>{start}</stream>"
    )


def _written_receipts(it: Envelope) -> str:
    written = ""
    if it.delivered_at is not None:
        written += f"<deliveryReceipt><receivedAt>{time_text(it.delivered_at)}</receivedAt>"
        written += f"<id>{it.about}</id></deliveryReceipt>"
    if (receipt := it.stream_receipt) is not None:
        written += f"<streamReceipt><streamId>uid:{receipt.owner}\\{receipt.id}</streamId>"
        written += f"<lastOrdinal>{receipt.number}</lastOrdinal></streamReceipt>"
    if it.decided_at is not None:
        written += f"<commitmentReceipt><decidedAt>{time_text(it.decided_at)}</decidedAt>"
        written += f"<decision>{it.decision}</decision><id>{it.about}</id></commitmentReceipt>"
    return written


def _written_msmq(it: Envelope) -> str:
    journals = ("<Journal/>" if it.journal else "") + ("<DeadLetter/>" if it.dead_letter else "")
    trace = "<Trace/>" if it.trace else ""
    kind = (
        "" if it.connector_type is None else f"<ConnectorType>{it.connector_type}</ConnectorType>"
    )
    ends = ("<First/>" if it.is_first else "") + ("<Last/>" if it.is_last else "")
    if it.connector is not None:
        ends += f"<ConnectorId>{it.connector}</ConnectorId>"
    eod = f"<Eod>{ends}</Eod>" if ends else ""
    correlation = base64.b64encode(it.correlation.ljust(20, b"\0")).decode()
    return (
        f'<Msmq xmlns="{MSMQ}"><Class>{it.message_class}</Class><Priority>{it.priority}</Priority>'
        f"{journals}<Correlation>{correlation}</Correlation>{trace}{kind}"
        f"<App>{it.application_tag}</App><BodyType>{it.body_type}</BodyType>"
        f"<HashAlgorithm>32772</HashAlgorithm>{eod}<SourceQmGuid>{it.id.source}</SourceQmGuid>"
        f"{_written_list('DestinationMqf', it.destinations)}"
        f"{_written_list('AdminMqf', it.admins)}{_written_list('ResponseMqf', it.responses)}"
        f"<TTrq>{time_text(it.reach_by or NO_LIMIT)}</TTrq></Msmq>"
    )


def _written_list(element: str, names: tuple[str, ...]) -> str:
    inner = "".join(f"{_safe(name)}\n" for name in names)
    return f"<{element}>{inner}</{element}>" if names else ""


def message_id(text: str) -> MessageId:
    """Return the id in a text such as `uuid:26626@32221eda-...`.  Raises NotSrmp."""
    found = re.fullmatch(r"uuid:(\d{1,10})@([0-9A-Fa-f-]{36})", text.strip(), re.ASCII)
    if found is None or int(found[1]) > 0xFFFFFFFF:
        raise NotSrmp(f"{text[:80]!r} is no id of a message")
    return MessageId(_guid(found[2]), int(found[1]))


def time_text(moment: datetime) -> str:
    """Return a time as SRMP writes it: YYYYMMDDThhmmss."""
    return min(moment, NO_LIMIT).astimezone(UTC).strftime("%Y%m%dT%H%M%S")


def _time(text: str) -> datetime:
    if not re.fullmatch(r"\d{8}T\d{6}", text, re.ASCII):
        raise NotSrmp(f"{text[:40]!r} is no time")
    try:
        return datetime.strptime(text, "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        raise NotSrmp(f"{text!r} is no time") from None


def _stream_id(text: str) -> tuple[uuid.UUID, int]:
    found = re.fullmatch(r"uid:([0-9A-Fa-f-]{36})\\(\d{1,20})", text, re.ASCII)
    if found is None:
        raise NotSrmp(f"{text[:80]!r} is no id of a stream")
    return _guid(found[1]), _number(found[2], (1 << 64) - 1)


def _guid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise NotSrmp(f"{text[:80]!r} is no GUID") from None


def _number(text: str, highest: int) -> int:
    if not re.fullmatch(r"\d{1,20}", text, re.ASCII) or int(text) > highest:
        raise NotSrmp(f"{text[:40]!r} is no number up to {highest}")
    return int(text)


def _correlation(text: str) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NotSrmp("the correlation id is not base64") from None
    if len(found) != 20:
        raise NotSrmp(f"the correlation id has {len(found)} bytes")
    return found if any(found) else b""


def _safe(text: str) -> str:
    return escape(_FORBIDDEN.sub("�", text))
