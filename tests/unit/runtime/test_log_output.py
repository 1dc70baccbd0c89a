"""Log output into a pipe with a reader that pauses."""

from __future__ import annotations

import os
import queue
import select

from qmd.runtime.log_output import PENDING_BYTES_MAX, DirectOutput, ThreadedOutput, output_to


def test_lines_wait_in_order_for_the_reader_and_dropped_lines_are_counted() -> None:
    reader, writer = os.pipe()
    counts: queue.Queue[int] = queue.Queue()
    output = ThreadedOutput(writer, counts.put)
    lines = [b"%09d" % number + b"x" * 991 for number in range(3 * PENDING_BYTES_MAX // 1000)]

    for line in lines:
        output.write(line)
    found, dropped = b"", 0
    while found.count(b"\n") + dropped < len(lines):
        if select.select([reader], [], [], 0.05)[0]:
            found += os.read(reader, 65536)
        dropped += sum(counts.get_nowait() for _ in range(counts.qsize()))
    output.finish()
    os.close(writer)

    kept = found.splitlines()
    assert dropped > 0
    assert kept == sorted(set(kept)), "in order, and each once"
    assert set(kept) <= set(lines)
    assert len(kept) + dropped == len(lines)
    os.close(reader)


def test_a_closed_pipe_does_not_stop_the_caller() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    output = ThreadedOutput(writer, lambda count: None)

    output.write(b"one")
    output.write(b"two")
    output.finish()

    assert not output._bytes
    os.close(writer)


def test_a_file_is_written_at_once(tmp_path) -> None:
    with (tmp_path / "log").open("wb") as file:
        output = output_to(file, lambda count: None)
        output.write(b"line")

        assert isinstance(output, DirectOutput)
        assert (tmp_path / "log").read_bytes() == b"line\n"
