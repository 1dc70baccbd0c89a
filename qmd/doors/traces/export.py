"""Export of spans over OTLP: read events, send spans, and note how far they went.

The place in the log and the messages under way are stored after the collector has taken the spans.
After a crash some spans are sent again, with the same ids.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from qmd.doors.traces.spans import KINDS, Span, Tracker

if TYPE_CHECKING:
    from qmd.client import QueueManager

PAGE_EVENTS = 2000
WAIT_S = 5.0  # for the next event
SPANS_MAX = 500  # in one request to the collector
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 60.0  # after the collector has failed

_KINDS = {
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
    "client": SpanKind.CLIENT,
}
_SCOPE = InstrumentationScope("qmd")


class NotTaken(Exception):
    """The collector did not take spans."""


class TraceExporter:
    """The export of one queue manager's spans to one collector."""

    def __init__(
        self,
        endpoint: str,
        headers: Mapping[str, str],
        state_file: Path,
        *,
        all_messages: bool = False,
    ) -> None:
        """`endpoint` is the URL of OTLP over HTTP for traces, such as
        `http://localhost:4318/v1/traces`."""
        self._exporter = OTLPSpanExporter(endpoint=endpoint, headers=dict(headers), timeout=10)
        self._file = state_file
        saved = _read(state_file)
        self._cursor: str = saved.get("cursor", "")
        self._tracker = Tracker(all_messages=all_messages, state=saved.get("messages"))
        self.count = 0  # of exported spans

    async def run(self, qm: QueueManager, *, once: bool) -> None:
        """Export until it is cancelled; with `once` up to the present end of the log.

        Raises ClientError, and with `once` NotTaken.
        """
        while True:
            page = await qm.events(
                cursor=self._cursor,
                limit=PAGE_EVENTS,
                kinds=KINDS,
                timeout_s=0.0 if once else WAIT_S,
            )
            await self._send(self._tracker.spans(page["events"]), once=once)
            if page["cursor"] != self._cursor:
                self._cursor = page["cursor"]
                _write(self._file, {"cursor": self._cursor, "messages": self._tracker.state})
            if once and page["end"]:
                return

    def close(self) -> None:
        """End the connection to the collector."""
        self._exporter.shutdown()

    async def _send(self, spans: Sequence[Span], *, once: bool) -> None:
        for first in range(0, len(spans), SPANS_MAX):
            part = [_readable(span) for span in spans[first : first + SPANS_MAX]]
            pause_s = FIRST_PAUSE_S
            # The exporter of the SDK waits for its answer.
            while await asyncio.to_thread(self._exporter.export, part) != SpanExportResult.SUCCESS:
                if once:
                    raise NotTaken
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_PAUSE_S)
            self.count += len(part)


def _readable(span: Span) -> ReadableSpan:
    """Return the span as the SDK exports it."""
    trace_id = int(span.trace_id, 16)
    flags = TraceFlags(TraceFlags.SAMPLED)
    context = SpanContext(trace_id, int(span.span_id, 16), is_remote=False, trace_flags=flags)
    parent = (
        SpanContext(trace_id, int(span.parent_id, 16), is_remote=True, trace_flags=flags)
        if span.parent_id
        else None
    )
    return ReadableSpan(
        span.name,
        context=context,
        parent=parent,
        resource=Resource.create({"service.name": "qmd", "host.name": span.host}),
        attributes=span.attributes,
        kind=_KINDS[span.kind],
        instrumentation_scope=_SCOPE,
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
        start_time=span.begin_ms * 1_000_000,
        end_time=span.end_ms * 1_000_000,
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        saved = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return saved if isinstance(saved, dict) else {}


def _write(file: Path, state: dict[str, Any]) -> None:
    part = file.with_name(f"{file.name}.part")
    part.write_text(json.dumps(state))
    os.replace(part, file)
