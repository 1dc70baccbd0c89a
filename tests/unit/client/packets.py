"""Real packets that the peer stores."""

from protocol.names.format_name import parse_destination
from qmd.control_protocol import messages as frames
from qmd.message.addresses import NO_ADDRESS, queue_address
from qmd.message.build import compose


def packet(message: frames.NewMessage) -> bytes:
    return compose(
        message,
        source=bytes(15) + b"\xaa",
        destination=queue_address(parse_destination(message.destination, local_host=".")),
        admin=NO_ADDRESS,
        response=NO_ADDRESS,
        message_number=1,
        sent_time_s=1_700_000_000,
        delivery=frames.RECOVERABLE,
        position=None,
    )
