"""Logging with structlog: lines for people on a terminal, JSON objects elsewhere.

Events are facts in the past tense with keys: `log.info("session_opened", peer=...)`. Contents of
messages are not logged: a body, label or extension given as a key is replaced by its length. A line
that cannot be written is dropped, because a full log must not stop messages; and no line makes the
event loop wait for its reader (`log_output.py`).
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import BinaryIO

import msgspec
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from qmd.catalogue import find_by_code
from qmd.runtime.log_output import output_to

LIMITED_WINDOW_S = 60.0
LIMITED_LINES_MAX = 10  # per key and window
LIMITED_KEYS_MAX = 32  # per event: a flood may come from many addresses

_OTHER_KEYS = "others"
_CONTENTS = ("body", "label", "extension")
_OF_FAULTS = ("warning", "error", "critical")  # levels of lines that name a remedy
#: Priorities of syslog by level.
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
_CAUSES = ("reason", "error", "cause", "exc_info", "explanation", "problem")


def set_up_logging(level: str, format: str, stream: BinaryIO | None = None) -> None:
    """Configure structlog for this process.

    `level` and `format` are those of the configuration's [log]; `stream` (bytes) is standard error
    by default.
    """
    target = sys.stderr.buffer if stream is None else stream
    if format == "auto":
        format = "console" if target.isatty() else "json"
    output = output_to(target, _log_dropped)
    render: list[Processor] = (
        _render_console(colors=target.isatty())
        if format == "console"
        else [_render_for_journal if is_journal(target, os.environ) else _render_json]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            _hide_contents,
            _add_from_catalogue,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: output,
        cache_logger_on_first_use=True,
    )


def forward_standard_logging() -> None:
    """Forward records of `logging` to structlog, with the name of their logger."""
    logging.basicConfig(level=logging.INFO, handlers=[_Forward()])


class _Forward(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # A custom level between two of the usual ones is written as the lower one.
        level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL)
        structlog.get_logger().log(
            level, record.getMessage(), logger=record.name, exc_info=record.exc_info
        )


def _log_dropped(count: int) -> None:
    structlog.get_logger().warning("log_lines_dropped", count=count)


def _hide_contents(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    for key in _CONTENTS:
        if key in event:
            content = event[key]
            event[key] = f"<{len(content)} long>" if isinstance(content, Sized) else "<hidden>"
    return event


def _add_from_catalogue(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Add the entry of the error catalog for the `code` of the line, or else for the event.

    The id is always added; the cause and the remedy only to lines about a fault that lack them.
    """
    entry = find_by_code(event.get("code") or event["event"])
    if entry is None:
        return event
    event["id"] = entry.id
    if event["level"] in _OF_FAULTS:
        if not any(event.get(key) for key in _CAUSES):
            event["cause"] = entry.cause
        if not event.get("remedy"):
            event["remedy"] = entry.remedy
    return event


_encoder = msgspec.json.Encoder(enc_hook=repr)
# JSON escapes those below a space only; terminals obey the others too.  In UTF-8: DEL, and C1.
_CONTROLS = re.compile(rb"\x7f|\xc2[\x80-\x9f]")


def _render_json(_: WrappedLogger, __: str, event: EventDict) -> bytes:
    return _CONTROLS.sub(lambda found: b"\\u00%02x" % found[0][-1], _json(event))


def _json(event: EventDict) -> bytes:
    line = {"time": event.pop("time"), "level": event.pop("level"), "event": event.pop("event")}
    line.update(event)
    try:
        return _encoder.encode(line)
    except (UnicodeEncodeError, OverflowError, TypeError):
        # Half a surrogate pair, an integer beyond 64 bits, a key that is no text.
        return _encoder.encode({str(key): ascii(value) for key, value in line.items()})


def is_journal(stream: BinaryIO, environment: Mapping[str, str]) -> bool:
    """Return whether a stream leads to the journal of systemd.  systemd.exec(5), JOURNAL_STREAM"""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):  # a stream in memory, or closed
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _render_for_journal(logger: WrappedLogger, method: str, event: EventDict) -> bytes:
    """Return the line with its priority, which the journal takes off.  sd-daemon(3)"""
    priority = _PRIORITIES.get(event["level"], _PRIORITIES["info"])
    return b"<%d>" % priority + _render_json(logger, method, event)


def _render_console(*, colors: bool) -> list[Processor]:
    import structlog.dev  # not for JSON: see plain_structlog.py

    renderer = structlog.dev.ConsoleRenderer(
        colors=colors,
        timestamp_key="time",
        # Never use a formatter that shows local variables: these may hold contents of messages.
        exception_formatter=structlog.dev.plain_traceback,
    )

    def render(logger: WrappedLogger, method: str, event: EventDict) -> bytes:
        return renderer(logger, method, event).encode("utf-8", "backslashreplace")

    return [_escape_controls, render]


def _escape_controls(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Escape control characters, so that data from the network cannot move the cursor or forge a
    line."""
    for key, value in event.items():
        if not isinstance(value, str) or value.isprintable():
            continue
        if key in ("exception", "stack"):
            event[key] = "\n".join(map(_escaped, value.split("\n")))
        else:
            event[key] = _escaped(value)
    return event


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


@dataclass(slots=True)
class _Window:
    opened_at: float
    level: str
    lines: int = 0
    suppressed: int = 0


class LimitedLog:
    """Rate-limited log: writes some lines of an event per minute, then only counts it.

    Each event and key (for example a peer's address) has windows of `window_s`: the first
    `lines_max` events of a window are written, and one line at its end reports the number of
    suppressed ones. The keys of an event beyond `keys_max` at once share a window. `now` is any
    clock in seconds that does not go backwards.
    """

    def __init__(
        self,
        logger: FilteringBoundLogger,
        *,
        lines_max: int = LIMITED_LINES_MAX,
        window_s: float = LIMITED_WINDOW_S,
        keys_max: int = LIMITED_KEYS_MAX,
    ) -> None:
        self._logger = logger
        self._lines_max = lines_max
        self._window_s = window_s
        self._keys_max = keys_max
        self._windows: dict[tuple[str, str], _Window] = {}  # the oldest first
        self._keys: Counter[str] = Counter()  # number of windows by event

    def log(self, level: str, event: str, *, key: str, now: float, **fields: object) -> None:
        """Write `event` with `fields`, or count it. `key` is not written with it."""
        self.handle_timer(now)
        window = self._window(level, event, key, now)
        if window.lines < self._lines_max:
            window.lines += 1
            getattr(self._logger, level)(event, **fields)
        else:
            window.suppressed += 1

    def next_timer(self) -> float | None:
        """Return when the next window ends."""
        oldest = next(iter(self._windows.values()), None)
        return None if oldest is None else oldest.opened_at + self._window_s

    def handle_timer(self, now: float) -> None:
        """End the windows that are over; `log` calls this method first."""
        while self._windows:
            place, window = next(iter(self._windows.items()))
            if now < window.opened_at + self._window_s:
                break
            self._end(place)

    def finish(self) -> None:
        """End all windows, when the daemon stops."""
        while self._windows:
            self._end(next(iter(self._windows)))

    def _window(self, level: str, event: str, key: str, now: float) -> _Window:
        place = (event, key)
        if place not in self._windows and self._keys[event] >= self._keys_max:
            place = (event, _OTHER_KEYS)
        window = self._windows.get(place)
        if window is None:
            window = self._windows[place] = _Window(now, level)
            self._keys[event] += 1
        return window

    def _end(self, place: tuple[str, str]) -> None:
        window = self._windows.pop(place)
        event, key = place
        self._keys[event] -= 1
        if window.suppressed:
            getattr(self._logger, window.level)(
                "events_suppressed",
                suppressed_event=event,
                key=key,
                count=window.suppressed,
                window_s=self._window_s,
            )
