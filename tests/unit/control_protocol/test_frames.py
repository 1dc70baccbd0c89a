"""Frames of the control socket: decoding of requests, and one error for invalid ones."""

from __future__ import annotations

import struct

import msgspec
import pytest

from qmd.control_protocol import messages as frames
from qmd.control_protocol.bulk import Rows, answer_buffers
from qmd.control_protocol.frame_buffer import LENGTH, FrameBuffer
from qmd.control_protocol.messages import LONG_BYTES

NO_REQUESTS = [
    b"",
    b"\xc1",
    b"\x91" * 2000,  # arrays in arrays
    b"\x92\xa6status",
    b"\x92\xa6statu\xff\x01",  # a verb that is not UTF-8
    b"\x93\xa4peek\x07\xa2\xff\xfe",
    b"\x99\xa6status\x07" + b"\x91" * 2000,  # after the fields that are read
    b"\xdd\xff\xff\xff\xff",
]


@pytest.mark.parametrize("inside", NO_REQUESTS)
def test_an_invalid_request_is_refused_with_one_kind_of_error(inside: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        frames.decode_request(inside)
    with pytest.raises(msgspec.DecodeError):
        frames.decode_reply(inside)

    assert frames.request_number(inside) in (0, 7)


def test_an_invalid_request_still_has_a_number() -> None:
    assert frames.request_number(b"\x93\xa4nope\x2a\xc0") == 42
    assert frames.request_number(b"\x92\xa4peek\xcd\x01\x00") == 256
    assert frames.request_number(b"\x92\x01\x2a") == 0


@pytest.mark.parametrize("count", [frames.MESSAGES_MAX, frames.MESSAGES_MAX + 1])
def test_a_request_names_a_limited_number_of_messages(count: int) -> None:
    array = b"\xdd" + struct.pack(">I", count)
    removal = b"\x94\xa6remove\x01\xa1q" + array + b"\x01" * count
    sending = b"\x93\xa4send\x01" + array + b"\x92\xa1q\xc4\0" * count

    for inside in (removal, sending):
        if count <= frames.MESSAGES_MAX:
            assert frames.decode_request(inside).number == 1
        else:
            with pytest.raises(msgspec.ValidationError, match=f"length <= {frames.MESSAGES_MAX}"):
                frames.decode_request(inside)


def test_the_length_of_a_token_is_limited() -> None:
    request = frames.Outcome(1, b"t" * (frames.TOKEN_BYTES_MAX + 1))

    with pytest.raises(msgspec.ValidationError, match="length"):
        frames.decode_request(frames.frame(request)[4:])


def test_a_read_with_many_frames_is_split_in_parts() -> None:
    buffer, sent = FrameBuffer(), [bytes([number]) * number for number in range(1, 8)]
    written = b"".join(LENGTH.pack(len(each)) + each for each in sent)

    found = [bytes(each) for each in buffer.feed(written[:-2], 3)]
    assert buffer.has_more
    found += map(bytes, buffer.feed(written[-2:], 2))
    while buffer.has_more:
        found += map(bytes, buffer.more(1))

    assert found == sent
    buffer.feed(written, 1)
    buffer.clear()
    assert not buffer.has_more
    assert buffer.more(9) == []


def test_an_answer_with_rows_has_the_frame_of_any_other() -> None:
    rows = Rows(1, None, 7, *[b"12345678"] * 4, b"1234", b"1234", b"\0" * 8, b"p" * 100_000)

    assert answer_buffers(frames.Done(3, rows)) == (frames.frame(frames.Done(3, rows)),)


@pytest.mark.parametrize("size", [0, 100, LONG_BYTES, 1_000_000])
def test_the_buffers_of_an_answer_are_its_frame(size: int) -> None:
    answer = frames.Done(3, {"packets": bytes(size)})

    found = answer_buffers(answer)

    assert b"".join(found) == frames.frame(answer)
    assert len(found) == 1 + (size >= LONG_BYTES)
