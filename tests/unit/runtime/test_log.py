"""The log: its formats, hidden contents of messages, and rate limits."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import structlog

from qmd.runtime.log import LimitedLog, set_up_logging


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _leave_structlog_as_it_was() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def lines(stream: io.BytesIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_without_a_terminal_each_event_is_one_json_object() -> None:
    stream = io.BytesIO()
    set_up_logging("info", "auto", stream)

    structlog.get_logger().info("session_opened", peer="10.0.0.5", session=7)

    [line] = lines(stream)
    assert list(line) == ["time", "level", "event", "peer", "session"]
    assert (line["level"], line["event"], line["session"]) == ("info", "session_opened", 7)


def test_the_time_is_utc_in_iso_format() -> None:
    stream = io.BytesIO()
    set_up_logging("info", "json", stream)

    structlog.get_logger().info("started")

    time = str(lines(stream)[0]["time"])
    assert time.endswith("Z")
    assert abs((datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()) < 60


def test_a_terminal_gets_lines_for_people() -> None:
    stream = Terminal()
    set_up_logging("info", "auto", stream)

    structlog.get_logger().info("session_opened", peer="10.0.0.5")

    assert b"session_opened" in stream.getvalue()
    assert b'"event"' not in stream.getvalue()


def test_a_terminal_gets_json_on_request() -> None:
    stream = Terminal()
    set_up_logging("info", "json", stream)

    structlog.get_logger().info("started")

    assert lines(stream)[0]["event"] == "started"


def test_a_file_gets_lines_without_colours_on_request() -> None:
    stream = io.BytesIO()
    set_up_logging("info", "console", stream)

    structlog.get_logger().warning("disk_low", free="1MB")

    assert b"disk_low" in stream.getvalue()
    assert b"\x1b" not in stream.getvalue()


def test_events_below_the_level_are_not_written() -> None:
    stream = io.BytesIO()
    set_up_logging("warning", "json", stream)
    log = structlog.get_logger()

    log.debug("a")
    log.info("b")
    log.warning("c")
    log.error("d")

    assert [line["event"] for line in lines(stream)] == ["c", "d"]


@pytest.mark.parametrize("format", ["json", "console"])
def test_the_contents_of_messages_are_not_written(format: str) -> None:
    stream = io.BytesIO()
    set_up_logging("info", format, stream)

    structlog.get_logger().info("seen", body=b"secret", label="secret", extension=5)

    assert b"secret" not in stream.getvalue()
    assert stream.getvalue().count(b"<6 long>") == 2


@pytest.mark.parametrize("format", ["json", "console"])
def test_an_exception_is_written_without_local_variables(format: str) -> None:
    stream = io.BytesIO()
    set_up_logging("info", format, stream)

    body = bytes([99, 100]) * 3
    try:
        raise KeyError("queue")
    except KeyError:
        structlog.get_logger().exception("failed")

    assert body not in stream.getvalue()
    assert b"KeyError: 'queue'" in stream.getvalue()


def test_a_traceback_keeps_its_lines_on_a_terminal() -> None:
    stream = io.BytesIO()
    set_up_logging("info", "console", stream)

    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger().exception("failed")

    assert b"\nValueError: broken" in stream.getvalue()


@pytest.mark.parametrize("format", ["json", "console"])
def test_control_characters_cannot_forge_a_line_or_move_the_cursor(format: str) -> None:
    stream = io.BytesIO()
    set_up_logging("info", format, stream)

    structlog.get_logger().info(
        "refused\nforged", reason="\x1b[2Jx\r\ny\x7f\x9b2J", names=["ß\x9b"]
    )
    try:
        raise ValueError("\x1b[2Jz")
    except ValueError:
        structlog.get_logger().exception("failed")

    for control in ("\x1b", "\x7f", "\x9b"):
        assert control.encode() not in stream.getvalue()
    assert b"\r" not in stream.getvalue()
    assert not any(line.startswith((b"forged", b"y")) for line in stream.getvalue().splitlines())


@pytest.mark.parametrize("format", ["json", "console"])
@pytest.mark.parametrize("value", ["\udc80", 1 << 70, {(1, 2): object()}, b"\xff", float("nan")])
def test_any_value_can_be_written(format: str, value: object) -> None:
    stream = io.BytesIO()
    set_up_logging("info", format, stream)

    structlog.get_logger().info("odd", value=value)

    assert stream.getvalue().count(b"\n") == 1
    assert b"odd" in stream.getvalue()


def test_a_log_that_cannot_be_written_does_not_stop_the_caller() -> None:
    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(28, "No space left on device")

    set_up_logging("info", "json", Full())

    structlog.get_logger().info("lost")


def test_a_closed_log_does_not_stop_the_caller() -> None:
    stream = io.BytesIO()
    set_up_logging("info", "json", stream)
    stream.close()

    structlog.get_logger().info("lost")


def test_the_log_goes_to_standard_error() -> None:
    program = (
        "import structlog; from qmd.runtime.log import set_up_logging; "
        "set_up_logging('info', 'auto'); structlog.get_logger().info('started')"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    assert done.stdout == b""
    assert json.loads(done.stderr)["event"] == "started"


# Floods


def limited(stream: io.BytesIO, **limits: float) -> LimitedLog:
    set_up_logging("info", "json", stream)
    return LimitedLog(structlog.get_logger(), **limits)  # type: ignore[arg-type]


def test_a_flood_is_written_ten_times_and_then_counted() -> None:
    stream = io.BytesIO()
    log = limited(stream)

    for step in range(500):
        log.log("warning", "session_refused", key="10.0.0.5", now=step / 10, peer="10.0.0.5")
    log.handle_timer(60.0)

    *written, summary = lines(stream)
    assert [line["event"] for line in written] == ["session_refused"] * 10
    assert written[0]["peer"] == "10.0.0.5"
    assert summary["event"] == "events_suppressed"
    assert summary["level"] == "warning"
    assert summary["suppressed_event"] == "session_refused"
    assert (summary["key"], summary["count"], summary["window_s"]) == ("10.0.0.5", 490, 60)


def test_after_a_window_events_are_written_again() -> None:
    stream = io.BytesIO()
    log = limited(stream, lines_max=1)

    for now in (0.0, 59.9, 60.0, 61.0, 120.0):
        log.log("info", "refused", key="a", now=now)

    events = [line["event"] for line in lines(stream)]
    assert events == ["refused", "events_suppressed", "refused", "events_suppressed", "refused"]


def test_no_summary_is_written_without_suppressed_events() -> None:
    stream = io.BytesIO()
    log = limited(stream, lines_max=2)

    log.log("info", "refused", key="a", now=0)
    log.log("info", "refused", key="a", now=1)
    log.handle_timer(100)

    assert [line["event"] for line in lines(stream)] == ["refused", "refused"]
    assert log.next_timer() is None


def test_each_key_and_each_event_has_its_own_window() -> None:
    stream = io.BytesIO()
    log = limited(stream, lines_max=1)

    log.log("info", "refused", key="a", now=0)
    log.log("info", "refused", key="b", now=0)
    log.log("info", "closed", key="a", now=0)

    assert len(lines(stream)) == 3


def test_the_timer_is_set_to_the_end_of_the_oldest_window() -> None:
    log = limited(io.BytesIO(), window_s=60)

    assert log.next_timer() is None
    log.log("info", "refused", key="a", now=5)
    log.log("info", "refused", key="b", now=9)
    assert log.next_timer() == 65
    log.handle_timer(65)
    assert log.next_timer() == 69


def test_many_keys_share_a_window_instead_of_memory() -> None:
    stream = io.BytesIO()
    log = limited(stream, lines_max=1, keys_max=3)

    for number in range(1000):
        log.log("info", "refused", key=f"10.0.{number}", now=1)
    log.finish()

    assert [line["event"] for line in lines(stream)] == ["refused"] * 4 + ["events_suppressed"]
    assert (lines(stream)[-1]["key"], lines(stream)[-1]["count"]) == ("others", 996)


def test_the_keys_of_one_event_leave_room_for_other_events() -> None:
    stream = io.BytesIO()
    log = limited(stream, lines_max=1, keys_max=2)

    for event in ("refused", "closed"):
        for number in range(4):
            log.log("info", event, key=f"10.0.{number}", now=1)
    log.handle_timer(100)
    log.log("info", "refused", key="10.0.3", now=101)

    events = [line["event"] for line in lines(stream)]
    assert events == ["refused"] * 3 + ["closed"] * 3 + ["events_suppressed"] * 2 + ["refused"]


def test_the_end_of_the_daemon_writes_the_open_summaries() -> None:
    stream = io.BytesIO()
    log = limited(stream, lines_max=1)
    for _ in range(3):
        log.log("error", "refused", key="a", now=0)

    log.finish()

    assert lines(stream)[-1]["count"] == 2
    assert log.next_timer() is None
