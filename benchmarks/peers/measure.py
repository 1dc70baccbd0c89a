"""One turn of one peer: fresh servers, a warm-up, and its loads with everything around them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.servers import Peer, Place, Running, started

CALM_S = 2.0  # after the start, before the idle memory is read
WARM_UP_MESSAGES = 3000
RATE_PER_S = 200
TIMEOUT_S = 180.0

Figures = dict[str, float]


class CannotMeasure(Exception):
    """A client failed or got messages out of order; the text has the reason."""


@dataclass(frozen=True)
class Sizes:
    """How many messages each load has."""

    window: int = 40_000
    paced: int = 2_000
    single: int = 1_500
    batches: int = 30_000


def link(peer: Peer, sizes: Sizes, tree: Path | None) -> dict[str, Figures]:
    """Measure a link: a window of 1,000, and 200 messages a second."""
    with _running(peer, tree, is_link=True) as (running, figures):
        figures["W1"] = load(running, sizes.window) | figures.pop("idle")
        steady = ("--rate-per-s", str(RATE_PER_S))
        _, got = _exchange(running, sizes.paced, steady, ("--acknowledge-every", "1"))
        figures["W1"] |= {name: got[name] for name in ("given_p50_ms", "given_p99_ms")}
        return figures


def local(peer: Peer, sizes: Sizes, tree: Path | None) -> dict[str, Figures]:
    """Measure a queue of one server: messages one by one, and in batches of 100."""
    with _running(peer, tree, is_link=False) as (running, figures):
        del figures["idle"]
        figures["W2, one by one"] = load(running, sizes.single, batch=1)
        figures["W2, by hundreds"] = load(running, sizes.batches, batch=100)
        return figures


class _running:
    """A context of warm servers, in a temporary folder, and their idle memory."""

    def __init__(self, peer: Peer, tree: Path | None, *, is_link: bool) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="qmd-peers-")
        self._peer, self._tree, self._is_link = peer, tree, is_link

    def __enter__(self) -> tuple[Running, dict[str, Figures]]:
        place = Place(Path(self._folder.name), self._tree)
        place.folder.chmod(0o755)
        try:
            self._started = started(self._peer, place, is_link=self._is_link)
            running = self._started.__enter__()
        except BaseException:
            self._folder.cleanup()
            raise
        try:
            time.sleep(CALM_S)
            idle = {"idle_rss_mb": max(server.rss_mb() for server in running.servers)}
            _exchange(running, WARM_UP_MESSAGES, (), ())
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return running, {"idle": idle}

    def __exit__(self, *error: Any) -> None:
        try:
            self._started.__exit__(*error)
        finally:
            self._folder.cleanup()
            if self._tree is not None:  # where the tree showed the folder
                with contextlib.suppress(FileNotFoundError):
                    Path(f"{self._tree}{self._folder.name}").rmdir()


def load(running: Running, messages: int, *, batch: int = 0) -> Figures:
    """Send and receive; return rate, CPU time, writes and memory.  Raises CannotMeasure."""
    servers = running.servers
    for server in servers:
        server.forget_peak()
    os.sync()
    before_s = sum(server.cpu_s() for server in servers)
    written = sum(server.written_bytes() for server in servers)
    send = ("--batch", str(batch)) if batch else ()
    every = batch or 250
    receive = ("--acknowledge-every", str(every), "--prefetch", str(max(4 * batch, 1000)))
    sent, got = _exchange(running, messages, send, receive)
    spent_s = sum(server.cpu_s() for server in servers) - before_s
    written = sum(server.written_bytes() for server in servers) - written
    return {
        "messages_per_s": messages / (got["last_ns"] - sent["first_ns"]) * 1e9,
        "cpu_s_per_1000": spent_s / messages * 1000,
        "clients_cpu_s_per_1000": (sent["cpu_s"] + got["cpu_s"]) / messages * 1000,
        "written_bytes": written / messages,
        "peak_rss_mb": max(server.peak_rss_mb() for server in servers),
    }


def _exchange(
    running: Running, messages: int, send: tuple[str, ...], receive: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run both clients; return the reports of the sending and of the receiving one."""
    count = ("--messages", str(messages))
    receiver = _client("receive", running.protocol, running.target, *count, *receive)
    clients = [receiver]
    timer = threading.Timer(TIMEOUT_S, lambda: [client.kill() for client in clients])
    timer.start()
    try:
        assert receiver.stdout is not None
        if receiver.stdout.readline() != "ready\n":
            raise CannotMeasure("the receiving client did not start")
        clients.append(_client("send", running.protocol, running.source, *count, *send))
        sent, got = _report(clients[1]), _report(receiver)
    finally:
        timer.cancel()
        for client in clients:
            client.kill()
            client.wait()
            assert client.stdout is not None
            client.stdout.close()
    if got["doubles"] or got["disorder"]:
        raise CannotMeasure(f"{got['doubles']} messages came twice, {got['disorder']} out of order")
    return sent, got


def _client(role: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        (sys.executable, "-m", "benchmarks.peers.clients", role, *arguments),
        stdout=subprocess.PIPE,
        text=True,
    )


def _report(client: subprocess.Popen[str]) -> dict[str, Any]:
    assert client.stdout is not None
    line = client.stdout.readline()
    if not line:
        raise CannotMeasure("a client failed or took too long")
    report: dict[str, Any] = json.loads(line)
    return report
