"""Figures of streaming queries for Prometheus.

    from pipeline.spark.metrics import export_metrics

    with export_metrics(spark, port=9464) as metrics:      # http://127.0.0.1:9464/metrics
        run_stream(...)

Spark reports the progress of each batch to a listener; the figures of qmd are in the `latestOffset`
of its sources (`pipeline/source/backlog.py`).  `metrics.write(path)` writes the same text to a file
for the textfile collector of node_exporter.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

PORT = 9464
_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Name -> type and help.
_METRICS = {
    "qmd_stream_backlog_messages": ("gauge", "Messages that the reader has not consumed yet."),
    "qmd_stream_lag_messages": ("gauge", "Messages that no batch of the stream has read yet."),
    "qmd_stream_oldest_message_age_seconds": (
        "gauge",
        "Age of the oldest message that is not consumed.",
    ),
    "qmd_stream_active": ("gauge", "1 while the query runs."),
    "qmd_stream_failed": ("gauge", "1 after the query ended with an error."),
    "qmd_stream_rows_total": ("counter", "Rows that the query has read."),
    "qmd_stream_batches_total": ("counter", "Batches with rows that the query has completed."),
    "qmd_stream_batch_duration_seconds": ("gauge", "Duration of the last batch."),
    "qmd_stream_rows_per_second": ("gauge", "Rows that the last batch processed in a second."),
    "qmd_stream_progress_timestamp_seconds": ("gauge", "Time of the last report of progress."),
}

_OF_QUEUES = {
    "qmd_stream_backlog_messages": "backlog",
    "qmd_stream_lag_messages": "lag",
    "qmd_stream_oldest_message_age_seconds": "age_s",
}

Labels = tuple[tuple[str, str], ...]


class StreamMetrics(StreamingQueryListener):
    """The figures of all streaming queries of a session; any thread may read them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, Labels], float] = {}
        self._names: dict[str, str] = {}

    # -- what Spark calls --

    def onQueryStarted(self, event: Any) -> None:
        with self._lock:
            self._names[str(event.runId)] = event.name or str(event.id)
            query = self._labels(event)
            self._values["qmd_stream_active", query] = 1.0
            self._values["qmd_stream_failed", query] = 0.0

    def onQueryProgress(self, event: Any) -> None:
        self.note(event.progress.name or str(event.progress.id), event.progress)

    def onQueryIdle(self, event: Any) -> None:
        with self._lock:
            self._values["qmd_stream_progress_timestamp_seconds", self._labels(event)] = time.time()

    def onQueryTerminated(self, event: Any) -> None:
        with self._lock:
            query = self._labels(event)
            self._values["qmd_stream_active", query] = 0.0
            self._values["qmd_stream_failed", query] = float(bool(event.exception))

    # -- figures --

    def note(self, name: str, progress: Any) -> None:
        """Take the figures of one report of progress."""
        query: Labels = (("query", name),)
        rows = float(progress.numInputRows)
        with self._lock:
            self._values["qmd_stream_progress_timestamp_seconds", query] = time.time()
            self._values["qmd_stream_batch_duration_seconds", query] = progress.batchDuration / 1000
            self._values["qmd_stream_rows_per_second", query] = progress.processedRowsPerSecond
            self._add("qmd_stream_rows_total", query, rows)
            self._add("qmd_stream_batches_total", query, float(rows > 0))
            queues = {
                (name, (*query, *labels)): each[key]
                for source in progress.sources
                for labels, each in _queues_of(source.latestOffset)
                for name, key in _OF_QUEUES.items()
            }
            if queues:  # queues that are gone have no backlog any more
                self._values = {
                    of: value
                    for of, value in self._values.items()
                    if of[0] not in _OF_QUEUES or of[1][:1] != query
                } | queues

    def text(self) -> str:
        """Return all figures in the text format of Prometheus."""
        with self._lock:
            values = dict(self._values)
        lines: list[str] = []
        for name, (type_, help_) in _METRICS.items():
            mine = [(labels, value) for (of, labels), value in values.items() if of == name]
            if mine:
                lines += [f"# HELP {name} {help_}", f"# TYPE {name} {type_}"]
                lines += [
                    f"{name}{{{_shown(labels)}}} {_number(value)}" for labels, value in sorted(mine)
                ]
        return "".join(f"{line}\n" for line in lines)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the figures to a file, which readers see complete or not at all."""
        target = Path(path)
        with tempfile.NamedTemporaryFile(
            "w", dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as part:
            part.write(self.text())
        os.chmod(part.name, 0o644)  # the collector runs as another user
        os.replace(part.name, target)

    def _add(self, name: str, labels: Labels, value: float) -> None:
        self._values[name, labels] = self._values.get((name, labels), 0.0) + value

    def _labels(self, event: Any) -> Labels:
        return (("query", self._names.get(str(event.runId), str(event.id))),)


class MetricsServer:
    """An HTTP server of the figures, until `close`; it serves nothing else."""

    def __init__(self, session: Any, metrics: StreamMetrics, address: str, port: int) -> None:
        self._session = session
        self.metrics = metrics

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_known = self.path.partition("?")[0] in ("/metrics", "/")
                body = metrics.text().encode() if is_known else b"see /metrics\n"
                self.send_response(200 if is_known else 404)
                self.send_header("Content-Type", _TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: a scrape every few seconds is no news."""

        self._server = ThreadingHTTPServer((address, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        session.streams.addListener(metrics)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the figures to a file; see `StreamMetrics.write`."""
        self.metrics.write(path)

    def close(self) -> None:
        self._session.streams.removeListener(self.metrics)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def export_metrics(session: Any, *, port: int = PORT, address: str = "127.0.0.1") -> MetricsServer:
    """Serve the figures of all streaming queries of a session to Prometheus.

    Port 0 chooses a free one.  Raises OSError if the port is in use.
    """
    return MetricsServer(session, StreamMetrics(), address, port)


def _queues_of(latest: str | None) -> Iterator[tuple[Labels, Mapping[str, Any]]]:
    """Yield labels and figures of each queue in the latest offset of a source of qmd."""
    try:
        offset = json.loads(latest or "null")
    except ValueError:
        return
    if not isinstance(offset, dict) or "qmd" not in offset:
        return
    for each in offset["queues"].values():
        if "backlog" in each:
            yield (
                (
                    ("reader", offset["reader"]),
                    ("queue", each["name"]),
                    ("endpoint", each["at"]),
                ),
                each,
            )


def _number(value: float) -> str:
    """Return a number without a loss of digits: a time has more than the six of `g`."""
    return repr(value).removesuffix(".0")


def _shown(labels: Labels) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
