"""Running a stream to its end, and closing its last batch: what a script or a timer calls.

from pipeline.spark.streams import run_stream

orders = spark.readStream.format("qmd").option(...).load()
run_stream(orders.writeStream.format("parquet").option("path", "/lake/orders"),
           checkpoint="/lake/checkpoints/orders", once=True)
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from pipeline.source.checkpoint import Finished, finish
from pipeline.source.options import Endpoint
from pipeline.spark.session import use_here

LOOK_S = 0.5


def run_stream(
    writer: Any,
    checkpoint: str,
    *,
    once: bool = False,
    every: str = "",
    secrets: Endpoint | None = None,
) -> list[Finished]:
    """Start a query and wait until it ends; then what its last batch has read is received.

    `writer` is a `DataStreamWriter`.  `once`: read what is there now, and end; else the query runs
    until it fails, or until this process is told to stop (SIGTERM, SIGINT); a batch that is under
    way then comes again with the next run.  `every` ("10 seconds") is how often it looks.
    `secrets`: as for `finish`.  Raises what the query raised, after closing what was committed.
    """
    use_here(getattr(writer, "_spark", None))
    writer = writer.option("checkpointLocation", checkpoint)
    if once:
        writer = writer.trigger(availableNow=True)
    elif every:
        writer = writer.trigger(processingTime=every)
    with _told_to_stop() as stopped:
        query = writer.start()
        try:
            # In pieces: a signal is only noticed between them.
            while not query.awaitTermination(LOOK_S):
                if stopped.is_set():
                    break
        finally:
            query.stop()
            done = finish(checkpoint, secrets)
    return done


@contextlib.contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """Set by SIGTERM and SIGINT, as far as this thread may ask for them."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    kept = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
