"""A daemon that notes when it commits, checkpoints, vacuums and collects garbage.

    python -m benchmarks.tail_hooks FILE -m qmd --config CONFIG serve

It replaces a few functions of the storage and of the connections by ones that note the time around
them, so the product itself has no hook.  When the daemon stops, FILE gets one line of JSON for each
commit, each other span, and each kind of points: the times at which requests and packets were read,
and at which answers and packets were given to their sockets.  Times are those of CLOCK_MONOTONIC in
ns, which all processes of a host share; the time in which a thread wanted a processor and had none
is from /proc/thread-self/schedstat.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from qmd.control.server import ControlConnection
from qmd.peers.connection import PeerConnection
from storage.engine import commit, connection, writer_calls
from storage.engine.writer_calls import WriterCalls
from storage.tables import events
from storage.vault import VaultConnection

_now = time.monotonic_ns
_local = threading.local()
_spans: list[dict[str, Any]] = []
_points: dict[str, list[int]] = {}
_current: dict[str, Any] | None = None  # the commit that the writer's thread is at


def usage() -> tuple[int, int]:
    """Return for this thread the time on a processor, and the time of waiting for one, in ns."""
    file = getattr(_local, "file", None)
    if file is None:
        file = _local.file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    _, waited, _ = os.pread(file, 100, 0).split()
    # The first of these is as of the last switch of threads, which may be milliseconds ago.
    return time.thread_time_ns(), int(waited)


def noted(part: str, call: Callable[..., Any], *values: Any) -> Any:
    """Call, and add the wall, processor and waiting time to a part of the present commit."""
    began, (on, waited) = _now(), usage()
    try:
        return call(*values)
    finally:
        if _current is not None:
            on_after, waited_after = usage()
            spent = _current.setdefault(part, [0, 0, 0])
            for at, more in enumerate((_now() - began, on_after - on, waited_after - waited)):
                spent[at] += more


class Noted:
    """A piece of work for the connection's thread, which notes each of its steps."""

    def __init__(self, work: Callable[[sqlite3.Connection], Any]) -> None:
        inner = getattr(work, "keywords", {}).get("work", work)
        name = getattr(getattr(inner, "func", inner), "__name__", "")
        self._span: dict[str, Any] = {"name": name.strip("_"), "queued": _now()}
        self._work = work

    def __call__(self, db: sqlite3.Connection) -> Any:
        global _current
        self._span["begun"], _current = _now(), self._span
        try:
            return noted("all", self._work, db)
        finally:
            self._span["ended"], _current = _now(), None

    def heard(self) -> None:
        self._span["heard"] = _now()
        _spans.append(self._span)


def submit_then(
    where: Any,
    work: Callable[[sqlite3.Connection], Any],
    loop: Any,
    callback: Callable[[Any, BaseException | None], None],
) -> None:
    """Submit as `storage.engine.connection.submit_then`, and note each step."""
    noted_work = Noted(work)

    def heard(result: Any, error: BaseException | None) -> None:
        noted_work.heard()
        callback(result, error)

    connection.submit_then(where, noted_work, loop, heard)


def note_calls(owner: Any, method: str, name: str) -> None:
    """Note the times at which a method of a class is called, as the points of a name."""
    call, times = getattr(owner, method), _points.setdefault(name, [])

    def noting(self: Any, *values: Any) -> Any:
        times.append(_now())
        return call(self, *values)

    setattr(owner, method, noting)


def install() -> None:
    """Replace the functions that are noted."""
    note_calls(ControlConnection, "data_received", "request")
    note_calls(ControlConnection, "_write", "answer")
    note_calls(PeerConnection, "buffer_updated", "packet")
    note_calls(PeerConnection, "_write", "sent")
    execute, make_room, insert = VaultConnection.execute, commit._make_room, events.insert
    call_at_once = WriterCalls.at_once

    def timed_execute(db: sqlite3.Connection, sql: str, *values: Any) -> Any:
        if sql == "COMMIT":
            return noted("disk", execute, db, sql)
        return execute(db, sql, *values)

    def at_once(calls: WriterCalls, work: Callable[[sqlite3.Connection], Any]) -> Any:
        noted_work = Noted(work)
        try:
            return call_at_once(calls, noted_work)
        finally:
            noted_work.heard()

    def collected(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            _local.began = _now()
        else:
            name = f"collection of generation {info['generation']}"
            _spans.append({"name": name, "begun": _local.began, "ended": _now()})

    VaultConnection.execute = timed_execute  # type: ignore[method-assign]
    commit._make_room = lambda *values: noted("vacuum", make_room, *values)
    events.insert = lambda *values: noted("history", insert, *values)
    WriterCalls.at_once = at_once  # type: ignore[method-assign]
    writer_calls.submit_then = submit_then
    gc.callbacks.append(collected)


def main() -> None:
    file, _, module, *rest = sys.argv[1:]
    install()

    def write() -> None:
        with open(file, "w") as out:
            out.writelines(json.dumps(span) + "\n" for span in _spans)
            points = [{"name": name, "points": times} for name, times in _points.items()]
            out.writelines(json.dumps(each) + "\n" for each in points)

    atexit.register(write)
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
