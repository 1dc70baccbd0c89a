"""Target: requests of SRMP, as the door gets them from any host."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime

from protocol.packets import parse_user_message
from qmd.doors.srmp.envelope import Envelope, MessageId, NotSrmp, Stream, StreamReceipt
from qmd.doors.srmp.messages import Posted, envelope_of, name_of, packet_of, read_request
from qmd.doors.srmp.messages import write_request as written
from tests.fuzz.limits import outcome
from tests.fuzz.target import Target

_GUID = uuid.UUID(int=7)
_SENT = datetime(2026, 6, 18, 21, 6, 54, tzinfo=UTC)
_URL = "http://hostb/msmq/private$/orders"


def requests() -> Iterable[bytes]:
    common = {"to": _URL, "id": MessageId(_GUID, 9), "sent_at": _SENT}
    stream = Stream(_GUID, 5 << 32, 3, 1, _URL)
    for posted in (
        Posted(Envelope(**common), b"body"),  # type: ignore[arg-type]
        Posted(Envelope(**common, durable=True, stream=stream, positive=True,  # type: ignore[arg-type]
                        commitment_receipt_to=_URL, response_to="MSMQ:DIRECT=OS:h\\q"), b"", b"e"),
        Posted(Envelope(**common, stream_receipt=StreamReceipt(_GUID, 5, 2),  # type: ignore[arg-type]
                        message_class=255)),
    ):  # fmt: skip
        body, content_type = written(posted)
        yield content_type.encode() + b"\n" + body


def check_request(data: bytes) -> None:
    """Read a request behind its content type; what is accepted has a packet, and an envelope."""
    content_type, _, body = data.partition(b"\n")

    def read(data: bytes) -> tuple[Posted, bytes]:
        posted = read_request(body, content_type.decode("latin-1"))
        return posted, packet_of(posted, name_of(posted.envelope.to), _GUID.bytes_le, 1)

    found, refused = outcome(NotSrmp, read, data)
    if found is None:
        assert str(refused)
        return
    posted, packet = found
    parse_user_message(packet)
    again = envelope_of(packet, _URL)
    assert (again.body, again.extension) == (posted.body, posted.extension)


TARGETS = (Target("srmp", check_request, requests),)
