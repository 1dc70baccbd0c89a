"""Running a stream to its end and closing its last batch, for scripts and timers.

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

from pipeline.source.checkpoint import FinishedBatch, finish
from pipeline.source.options import Endpoint
from pipeline.spark.checkpoint_files import local_files
from pipeline.spark.session import use_here

LOOK_S = 0.5


def run_stream(
    writer: Any,
    checkpoint: str,
    *,
    once: bool = False,
    every: str = "",
    secrets: Endpoint | None = None,
) -> list[FinishedBatch]:
    """Start a query, wait until it ends, and consume the messages of its last batch.

    `writer` is a `DataStreamWriter`.  With `once` the query reads the messages that are there now
    and ends; otherwise it runs until it fails or this process gets SIGTERM or SIGINT, and the next
    run repeats an unfinished batch.  `every` ("10 seconds") is the interval of the trigger.
    `secrets`: as for `finish`.  Raises the query's error, after consuming the committed messages.
    """
    session = getattr(writer, "_spark", None)
    use_here(session)
    writer = writer.option("checkpointLocation", checkpoint)
    if once:
        writer = writer.trigger(availableNow=True)
    elif every:
        writer = writer.trigger(processingTime=every)
    with _stop_request() as stopped:
        with local_files(session, checkpoint) if session is not None else contextlib.nullcontext():
            query = writer.start()
        try:
            # Wait in short steps: Python handles signals only between them.
            while not query.awaitTermination(LOOK_S):
                if stopped.is_set():
                    break
        finally:
            query.stop()
            done = finish(checkpoint, secrets)
    return done


@contextlib.contextmanager
def _stop_request() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set, if this is the main thread."""
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
