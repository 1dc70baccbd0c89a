"""The verbs of pipelines on the socket: a decoded request equals the one that was sent."""

from qmd.client.pipeline import STAGE_BYTES, _pieces, each_message
from qmd.control_protocol import bulk as pipeline_frames
from qmd.control_protocol import messages as frames
from qmd.control_protocol.bulk import Attempt, Filter, Publish, ReadRange, Rows
from qmd.control_protocol.messages import NewMessage


def test_requests_of_pipelines_are_encoded_and_decoded_unchanged() -> None:
    for request in (
        ReadRange(1, "orders", 5, 9, 10, 100, "archive", Filter(sequence_from=3)),
        Publish(2, "etl", 7, [Attempt(0, "a", 3)]),
        pipeline_frames.Consume(3, "archive", 4, {"guid": 17}),
    ):
        assert frames.decode_request(frames.frame(request)[4:]) == request


def test_rows_are_read_from_their_columns_one_by_one() -> None:
    rows = Rows(
        count=2,
        next=None,
        until=9,
        positions=b"".join(n.to_bytes(8, "little") for n in (1, 2)),
        lookup_ids=b"".join(n.to_bytes(8, "little") for n in (11, 12)),
        arrived_at_ms=b"".join(n.to_bytes(8, "little") for n in (21, 22)),
        expires_at_s=b"".join(n.to_bytes(8, "little", signed=True) for n in (-1, 32)),
        abort_counts=bytes(4) + (1).to_bytes(4, "little"),
        move_counts=bytes(8),
        offsets=b"".join(n.to_bytes(4, "little") for n in (0, 3, 5)),
        packets=b"abcde",
        reasons=None,
    )
    first, second = each_message(rows)
    assert first[0] == 1
    assert (first[1].lookup_id, first[1].packet, first[1].expires_at_s) == (11, b"abc", None)
    assert (second[1].packet, second[1].expires_at_s, second[1].abort_count) == (b"de", 32, 1)


def test_a_long_attempt_is_staged_in_pieces_without_loss() -> None:
    messages = [NewMessage("q", bytes(STAGE_BYTES // 3), str(at)) for at in range(7)]
    pieces = list(_pieces(messages))
    assert len(pieces) > 2
    assert [message for _, piece in pieces for message in piece] == messages
    assert [start for start, _ in pieces] == [
        sum(len(piece) for _, piece in pieces[:at]) for at in range(len(pieces))
    ]
