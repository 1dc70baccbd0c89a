"""Traces: the context travels with messages, and spans reach a real collector process."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import END_S, LOOK_S
from tests.process.command_line import ROOT, environment_of_commands
from tests.process.harness import Daemon, free_port

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("opentelemetry.proto")

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


class Collector:
    """The process of the collector; its lines are the spans."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.process.otlp_collector", str(self.port)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            env=environment_of_commands(),
        )
        assert self._line() == {"ready": True}

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def export(self, daemon: Daemon, *options: str) -> list[dict[str, Any]]:
        """Export the spans of a daemon; return those that arrived, as many as were sent."""
        endpoint = f"http://127.0.0.1:{self.port}/v1/traces"
        state = daemon.folder / "traces.json"
        (done,) = daemon.json(
            "traces", "export", "--once", "--endpoint", endpoint, "--state", str(state), *options
        )
        return [self._line() for _ in range(done["spans"])]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Rotel(Collector):
    """A collector of another make: it takes spans, batches them, and forwards them to the first."""

    def __init__(self, folder: Path) -> None:
        found = importlib.util.find_spec("rotel")
        if found is None or found.origin is None:
            pytest.skip("rotel is not installed: .ci/run installs it")
        super().__init__()
        next_port, self.port = self.port, free_port()
        self._log = folder / "rotel.log"
        with self._log.open("ab") as log:
            self._rotel = subprocess.Popen(
                [
                    *(str(Path(found.origin).with_name("rotel-agent")), "start"),
                    *("--otlp-http-endpoint", f"127.0.0.1:{self.port}"),
                    *("--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}"),
                    *("--exporter", "otlp", "--otlp-exporter-protocol", "http"),
                    *("--otlp-exporter-endpoint", f"http://127.0.0.1:{next_port}"),
                    *("--pid-file", str(folder / "rotel.pid")),
                ],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment_of_commands(),
            )  # fmt: skip
        deadline = time.monotonic() + END_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except OSError:
                assert self._rotel.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline
                time.sleep(LOOK_S)
            else:
                return

    def close(self) -> None:
        self._rotel.kill()
        self._rotel.wait()
        super().close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(params=["ours", "rotel"])
def any_collector(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Collector]:
    collector = Rotel(tmp_path) if request.param == "rotel" else Collector()
    yield collector
    collector.close()


def test_the_spans_of_two_hosts_are_one_trace(tmp_path: Path, any_collector: Collector) -> None:
    collector = any_collector
    a, b = Daemon(tmp_path / "a"), Daemon(tmp_path / "b")
    try:
        a.start()
        b.start()
        b.create("inbox", transactional=True)
        name = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\inbox"
        traced = ("--transactional", "--property", f"traceparent={PARENT}")
        message = a.send(name, b"x", *traced)
        a.send(name, b"y", "--transactional")
        b.wait_for("inbox", 2)
        shown = b.receive("inbox")
        assert shown[0]["properties"]["traceparent"] == PARENT
        _until_released(a)

        sent, transfer = in_order(collector.export(a))
        receive, settle = in_order(collector.export(b))

        names = [each["name"].partition(" ")[0] for each in (sent, transfer, receive, settle)]
        assert names == ["send", "transfer", "receive", "settle"]
        assert [each["parent"] for each in (sent, transfer, receive, settle)] == [
            SPAN,
            sent["id"],
            transfer["id"],
            receive["id"],
        ]
        for each in (sent, transfer, receive, settle):
            assert each["trace"] == TRACE
            assert each["service"] == "qmd"
            assert each["attributes"]["messaging.message.id"] == message
            assert each["begin"] <= each["end"]
            assert not each["is_error"]
        assert settle["attributes"]["qmd.outcome"] == "received"
        assert transfer["begin"] < transfer["end"]
        # Exported spans are not exported again.
        assert collector.export(a) == []
    finally:
        a.kill()
        b.kill()


def in_order(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return spans in the order of the steps; a collector may forward them in another one."""
    steps = ("send", "transfer", "receive", "settle")
    return sorted(spans, key=lambda each: steps.index(each["name"].partition(" ")[0]))


def _until_released(daemon: Daemon) -> None:
    deadline = time.monotonic() + END_S
    while daemon.json("status")[0]["outgoing_messages"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_span_under_way_ends_in_a_later_run_and_an_end_without_a_receive_is_an_error(
    tmp_path: Path, collector: Collector
) -> None:
    daemon = Daemon(tmp_path / "a").start()
    try:
        daemon.create("orders")
        daemon.send("orders", b"x", "--property", f"traceparent={PARENT}")
        daemon.send("orders", b"y", "--property", f"traceparent=00-{TRACE}-{SPAN}-00")
        daemon.send("orders", b"z", "--property", "traceparent=nonsense")
        (sent,) = collector.export(daemon)
        daemon.cli("queue", "purge", "orders", "--yes")

        receive, settle = collector.export(daemon)

        assert receive["parent"] == sent["id"]
        assert settle["is_error"]
        assert settle["attributes"]["qmd.outcome"] == "purged"
    finally:
        daemon.kill()


def test_spans_that_the_collector_does_not_take_are_sent_again(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "a").start()
    try:
        daemon.create("orders")
        daemon.send("orders", b"x")
        state = str(tmp_path / "state")
        options = ("--once", "--all", "--state", state)
        nothing = f"http://127.0.0.1:{free_port()}/v1/traces"
        failed = daemon.cli("traces", "export", "--endpoint", nothing, *options, check=False)
        assert failed.returncode == 1
        assert b"did not take" in failed.stderr

        collector = Collector()
        try:
            (sent,) = collector.export(daemon, "--all")
        finally:
            collector.close()
        assert sent["name"].startswith("send ")
        assert sent["parent"] == ""
    finally:
        daemon.kill()


def test_an_application_that_traces_sends_the_context_of_its_span() -> None:
    from opentelemetry.sdk.trace import TracerProvider

    from qmd.client.message import Message  # noqa: F401 (imports no library of tracing)
    from qmd.client.new_message import new_message
    from qmd.properties.block import read_extension

    with TracerProvider().get_tracer("test").start_as_current_span("work") as span:
        new = new_message("orders", b"x", properties={"region": "east"})
        own = new_message("orders", b"x", properties={"traceparent": PARENT})
    plain = new_message("orders", b"x")

    context = span.get_span_context()
    properties = read_extension(new.extension)[0].application
    assert properties == {
        "region": "east",
        "traceparent": "-".join(
            (
                "00",
                f"{context.trace_id:032x}",
                f"{context.span_id:016x}",
                f"{context.trace_flags:02x}",
            )
        ),
    }
    assert read_extension(own.extension)[0].application == {"traceparent": PARENT}
    assert plain.extension == b""
