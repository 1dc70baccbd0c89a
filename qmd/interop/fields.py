"""Fields of packets by the names of the specification."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from protocol.flags import (
    BaseFlags,
    DebugFlags,
    FlagWord,
    InternalFlags,
    OperatingSystem,
    PropertyFlags,
    SecurityFlags,
    TransactionFlags,
    UserFlags,
)
from protocol.headers import (
    BaseHeader,
    DebugHeader,
    DirectQueueName,
    MessagePropertiesHeader,
    PrivateQueueName,
    SecurityHeader,
    SessionHeader,
    SoapHeader,
    TransactionHeader,
    UserHeader,
)
from protocol.identifiers import guid_text
from protocol.message_class import MessageClass
from protocol.names.multi_queue import MqfAddressHeader, MqfSignatureHeader, MultiQueueFormatHeader
from protocol.records import (
    ConnectionParameters,
    EstablishConnection,
    FinalAckBody,
    InternalHeader,
    OrderAckBody,
    SessionAck,
)
from protocol.text import plain_text

BYTES_SHOWN_MAX = 32  # of a body, a signature and the like

_FLAGS: dict[type[FlagWord], dict[str, str]] = {
    BaseFlags: {
        **{"priority": "PR", "internal": "IN", "session_header": "SH"},
        **{"debug_header": "DH", "tracing": "TR"},
    },
    InternalFlags: {"packet_type": "PT", "connection_refused": "CS"},
    OperatingSystem: {
        **{"constant": "RE", "no_ping": "SE", "server": "OS", "quality_of_service": "QS"},
    },
    UserFlags: {
        **{"hops": "RC", "delivery": "DM", "negative_journal": "JN", "positive_journal": "JP"},
        **{"destination_type": "DQ", "admin_type": "AQ", "response_type": "RQ"},
        **{"security_header": "SH", "transaction_header": "TH", "properties_header": "MP"},
        **{"connector_type": "CQ", "multi_queue_header": "MQ", "http_header": "AH"},
        "soap_header": "HH",
    },
    TransactionFlags: {
        **{"connector": "CG", "final_ack": "FA", "first": "FM", "last": "LM"},
        "index": "TxID",
    },
    SecurityFlags: {
        **{"sender_type": "ST", "authenticated": "AU", "body_encrypted": "EB"},
        **{"default_provider": "DE", "data_present": "AI", "signature_type": "AS"},
    },
    PropertyFlags: {
        **{"positive_arrival": "PA", "positive_receive": "PR"},
        **{"negative_arrival": "NA", "negative_receive": "NR"},
    },
    DebugFlags: {"queue_type": "QT"},
}
_HEADERS: dict[type[Any], str] = {
    BaseHeader: "BaseHeader",
    InternalHeader: "InternalHeader",
    EstablishConnection: "EstablishConnectionHeader",
    ConnectionParameters: "ConnectionParametersHeader",
    SessionAck: "SessionAck",
    SessionHeader: "SessionHeader",
    UserHeader: "UserHeader",
    TransactionHeader: "TransactionHeader",
    SecurityHeader: "SecurityHeader",
    MessagePropertiesHeader: "MessagePropertiesHeader",
    DebugHeader: "DebugHeader",
    SoapHeader: "SoapHeader",
    MultiQueueFormatHeader: "MultiQueueFormatHeader",
    OrderAckBody: "OrderAckBody",
    FinalAckBody: "FinalAckBody",
}
#: Names that are not those of our records in another spelling.
_NAMES = {
    (BaseHeader, "version"): "VersionNumber",
    (EstablishConnection, "client"): "ClientGuid",
    (EstablishConnection, "server"): "ServerGuid",
    (EstablishConnection, "timestamp"): "TimeStamp",
    (UserHeader, "message_number"): "MessageID",
    (SessionHeader, "ack_number"): "AckSequenceNumber",
    (SessionHeader, "recoverable_ack_number"): "RecoverableMsgAckSeqNumber",
    (SessionHeader, "recoverable_ack_flags"): "RecoverableMsgAckFlags",
    (SessionHeader, "sent_number"): "UserMsgSequenceNumber",
    (SessionHeader, "recoverable_sent_number"): "RecoverableMsgSeqNumber",
    (TransactionHeader, "sequence_id"): "TxSequenceID",
    (TransactionHeader, "sequence_number"): "TxSequenceNumber",
    (TransactionHeader, "previous_number"): "PreviousTxSequenceNumber",
    (TransactionHeader, "connector"): "ConnectorQMGuid",
    (OrderAckBody, "sequence_id"): "TxSequenceID",
    (OrderAckBody, "sequence_number"): "TxSequenceNumber",
    (OrderAckBody, "previous_number"): "TxPreviousSequenceNumber",
    (FinalAckBody, "sequence_id"): "TxSequenceID",
    (FinalAckBody, "sequence_number"): "TxSequenceNumber",
    (FinalAckBody, "previous_number"): "TxPreviousSequenceNumber",
    (FinalAckBody, "message_number"): "MessageID",
    (SecurityHeader, "certificate_size"): "SenderCertSize",
    (SecurityHeader, "certificate"): "SenderCert",
    (SecurityHeader, "provider_size"): "ProviderInfoSize",
    (SecurityHeader, "provider"): "ProviderInfo",
    (SecurityHeader, "sender_id"): "SecurityID",
    (MessagePropertiesHeader, "extension"): "ExtensionData",
    (MessagePropertiesHeader, "body"): "MessageBody",
    (DebugHeader, "queue"): "QueueIdentifier",
}
_GUIDS = {"client", "server", "source_queue_manager", "queue_manager_address", "connector"}
_GUIDS |= {"queue_manager", "connector_type", "queue"}
_HEX = {"signature", "hash_algorithm", "encryption_algorithm", "privacy_level", "sequence_id"}
_HEX |= {"recoverable_ack_flags"}


def fields(record: Any) -> Iterator[tuple[str, str]]:
    """Yield the fields of a packet: `UserHeader.MessageID` and its value, as text."""
    header = _HEADERS.get(type(record), "")
    for name, value in zip(record._fields, record, strict=True):
        if value is None:
            continue
        title = _NAMES.get((type(record), name)) or _title(name)
        if type(value) in _HEADERS:
            yield from fields(value)
        elif isinstance(value, MqfAddressHeader | MqfSignatureHeader):
            yield from _listed(f"{header}.{title}", value)
        elif isinstance(value, FlagWord):
            yield from _flags(f"{header}.{title}", value)
        else:
            yield f"{header}.{title}", shown(name, value)


def unknown_bits(flags: FlagWord) -> int:
    """Return the bits of a flag word that have no meaning."""
    known = 0
    for place in type(flags).ranges.values():
        known |= place.mask << place.low
    return int(flags) & ~known


def shown(name: str, value: Any) -> str:
    """Return the value of a field as text."""
    if isinstance(value, DirectQueueName):
        return f"DIRECT={plain_text(value.name)}"
    if isinstance(value, PrivateQueueName):
        return f"PRIVATE={guid_text(value.queue_manager)}\\{value.number:08x}"
    if isinstance(value, bytes):
        if name in _GUIDS or name.endswith("_queue"):
            return guid_text(value) if len(value) == 16 else value.hex()
        if name in ("label", "header"):
            return repr(plain_text(value)) if value else "''"
        more = f"... ({len(value)} bytes)" if len(value) > BYTES_SHOWN_MAX else ""
        return value[:BYTES_SHOWN_MAX].hex() + more
    if name == "message_class":
        with_name = {each.value: each.name for each in MessageClass}.get(value, "")
        return f"0x{value:04X} {with_name}".rstrip()
    if name in _HEX and isinstance(value, int):
        return f"0x{value:X}"
    return str(value)


def _flags(place: str, flags: FlagWord) -> Iterator[tuple[str, str]]:
    names = _FLAGS[type(flags)]
    for name in type(flags).ranges:
        yield f"{place}.{names[name]}", str(flags[name])
    if odd := unknown_bits(flags):
        yield f"{place}.reserved", f"0x{odd:X}"


def _listed(place: str, value: MqfAddressHeader | MqfSignatureHeader) -> Iterator[tuple[str, str]]:
    if isinstance(value, MqfSignatureHeader):
        if value.signature:
            yield place, shown("signature_bytes", value.signature)
        return
    for number, element in enumerate(value.elements):
        name: Any = element.name
        if isinstance(name, bytes) and len(name) != 16:
            text = f"DIRECT={plain_text(name)}"
        else:
            text = shown("queue", name)
        yield f"{place}[{number}]", text


def _title(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
