"""A continuous audit, and alerts about findings: real logs, real webhooks, real commands."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

import pyarrow as pa
from click.testing import CliRunner
from pyarrow import parquet

from pipeline.commands.watch import Watching
from pipeline.generator import Fleet, generate, parse_faults
from pipeline.results.places import Place
from pipeline.ship.inventory import SCHEMA
from pipeline.watch.alerts import AlertFailed, Alerts, receivers
from pipeline.watch.announced import Announced
from qmd.cli import main
from tests.pipeline.foreign_fleet import MIDNIGHT
from tests.pipeline.live import Place as Live
from tests.process.harness import Hosts

pytestmark = [pytest.mark.process, pytest.mark.slow]
PATIENCE_S = 300


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """Return the logs of three hosts, with a lost and a duplicated message."""
    folder = tmp_path / "fleet"
    faults = parse_faults("lost=1,duplicated=1")
    generate(Fleet(hosts=3, streams=4, messages=400, days=1, seed=5, faults=faults), folder)
    return folder


class Webhook:
    """A server that keeps the alerts that it gets; its answers are given."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        self.answers: list[int] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = outer.answers.pop(0) if outer.answers else 200
                if status == 200:
                    outer.alerts.append(json.loads(body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/secret"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    found = Webhook()
    yield found
    found.close()


def qmd(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "qmd", "pipeline", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
    )


def test_findings_are_announced_once_and_the_exit_code_says_that_there_are_some(
    fleet, tmp_path, webhook
):
    output, metrics = tmp_path / "watch", tmp_path / "qmd.prom"
    given = ("watch", "--input", str(fleet), "--output", str(output), "--rounds", "1")

    first = qmd(*given, "--metrics", str(metrics), QMD_ALERT_URL=webhook.url)

    assert first.returncode == 1, first.stdout
    [alert] = webhook.alerts
    assert (alert["status"], alert["counts"]) == ("findings", {"lost": 1, "duplicated": 1})
    assert [one["kind"] for one in alert["new"]] == ["lost", "duplicated"]
    assert "found: lost" in first.stdout
    assert "qmd why '" in alert["text"]
    assert 'qmd_watch_findings{kind="lost"} 1' in metrics.read_text()
    assert (output / "report.html").exists()
    again = qmd(*given, QMD_ALERT_URL=webhook.url)
    assert again.returncode == 1
    assert len(webhook.alerts) == 1, "it was announced before"


def test_an_alert_that_was_not_taken_is_tried_again(fleet, tmp_path, webhook):
    output = tmp_path / "watch"
    (tmp_path / "url").write_text(webhook.url)
    given = ("watch", "--input", str(fleet), "--output", str(output), "--rounds", "1")
    given += ("--alert-url-file", str(tmp_path / "url"), "--fail-on", "lost")
    webhook.answers = [404]

    refused = qmd(*given)

    assert "the webhook at 127.0.0.1 did not take the alert: it answers 404" in refused.stdout
    assert "secret" not in refused.stdout
    assert webhook.alerts == []
    qmd(*given)
    assert [one["kind"] for one in webhook.alerts[0]["new"]] == ["lost"]


def test_cron_announces_the_findings_of_an_audit_and_its_failures(fleet, tmp_path):
    output, got = tmp_path / "audit", tmp_path / "got"
    audit = qmd("run", "audit", "--input", str(fleet), "--output", str(output))
    given = (
        "alert",
        "--output",
        str(output),
        "--alert-command",
        f"sh -c 'cat >> {got}; echo >> {got}'",
    )

    first = qmd(*given, "--status", str(audit.returncode))
    again = qmd(*given, "--status", "1")
    failed = qmd(*given, "--status", "70")

    assert (audit.returncode, first.returncode, again.returncode) == (1, 1, 1)
    assert "no news" in again.stdout
    assert failed.returncode == 70
    alerts = [json.loads(line) for line in got.read_text().splitlines()]
    assert [alert["status"] for alert in alerts] == ["findings", "failed"]
    assert len(alerts[0]["new"]) == 2
    nothing = qmd("alert", "--output", str(tmp_path / "none"))
    assert nothing.returncode == 3


def test_live_queue_managers_are_watched_until_the_end_is_requested(tmp_path):
    hosts = Hosts()
    place = Live(hosts.daemon())
    output = tmp_path / "watch"
    with place.qm:
        queue = place.queue("watched", transactional=True)
        place.send(queue, 20)
        place.qm.receive_many(queue, 20)
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "qmd", "pipeline", "watch", "--every", "0.2"),
                *("--from", place.socket, "--from", str(tmp_path / "nowhere.sock")),
                *("--output", str(output)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        deadline = time.monotonic() + PATIENCE_S

        def commits() -> int:
            return len(list((output / "_commits").glob("*.json")))

        def wait_for(count: int) -> None:
            while commits() < count:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)

        wait_for(1)
        place.send(queue, 5)
        wait_for(2)
        process.send_signal(signal.SIGTERM)
        text, _ = process.communicate(timeout=PATIENCE_S)

        assert process.returncode == 0, text
        assert text.count("not done: ") == 1, "each failure is reported once"
        assert "nowhere.sock" in text
    hosts.close()


def test_findings_about_logs_are_news_only_when_they_stay(tmp_path):
    late = {"kind": "late_log", "host": "hosta"}
    lost = {"kind": "lost", "host": "hostb", "message_id": "x\\1"}
    known = Announced(Place(tmp_path))

    def news(*findings: dict[str, Any]) -> tuple[list[str], list[str]]:
        nonlocal known
        found = known.news(findings, {"late_log", "lost"}, patient_runs=3)
        known.take(found)
        known.save()
        known = Announced(Place(tmp_path))
        return [one["kind"] for one in found.new], [one["kind"] for one in found.withdrawn]

    assert news(late, lost) == (["lost"], [])
    assert news(lost) == ([], [])
    assert news(late, lost) == ([], [])
    assert news(late, lost) == ([], [])
    assert news(late, lost) == (["late_log"], [])
    assert news(late, {**lost, "detail": "other words"}) == ([], [])
    assert news(late) == ([], ["lost"])
    (tmp_path / "announced.json").write_text("[]")
    with pytest.raises(ValueError, match="remove it"):
        Announced(Place(tmp_path))


def test_the_address_of_a_webhook_is_checked(tmp_path, monkeypatch):
    monkeypatch.setenv("QMD_ALERT_URL", "file:///etc/passwd")
    with pytest.raises(AlertFailed, match="holds no address of http or https"):
        receivers(None, "")
    with pytest.raises(AlertFailed, match="cannot be read"):
        receivers(tmp_path / "missing", "")
    with pytest.raises(AlertFailed, match="cannot be read: it has more than 1048576 bytes"):
        receivers(Path("/dev/zero"), "")
    (tmp_path / "binary").write_bytes(b"http://\xff")
    with pytest.raises(AlertFailed, match="it is no text in UTF-8: byte 7 is wrong"):
        receivers(tmp_path / "binary", "")
    with pytest.raises(AlertFailed, match="exit code 3"):
        Alerts(command=("sh", "-c", "exit 3")).send({"text": "x"})


def test_a_webhook_that_is_busy_is_tried_again(webhook, monkeypatch):
    monkeypatch.setattr("pipeline.watch.alerts.PAUSE_S", 0.0)
    webhook.answers = [503, 429]

    Alerts(webhook.url).send({"text": "x"})

    assert webhook.alerts == [{"text": "x"}]


def test_no_shell_runs_the_command_of_alerts(tmp_path: Path) -> None:
    from pipeline.watch.alerts import AlertFailed, receivers

    got, trap = tmp_path / "got", tmp_path / "trap"
    alerts = receivers(None, f"tee {got} 'a b; touch {trap}' $(touch {trap})")
    assert alerts.command[:3] == ("tee", str(got), f"a b; touch {trap}")

    receivers(None, f"tee {got}").send({"text": f"$(touch {trap})"})

    assert json.loads(got.read_text()) == {"text": f"$(touch {trap})"}
    assert not trap.exists()
    for wrong in ("no-such-program-at-all x", "tee 'open"):
        with pytest.raises(AlertFailed):
            receivers(None, wrong)


GUID = "0a000000-0000-0000-0000-000000000001"


def write_log(lake: Path, kinds: str) -> None:
    """Write the log of a host that has sent messages to a queue of its own, one for each kind."""
    about = {"schema": 1, "host": "alpha", "queue_manager": GUID, "index": 0, "peer": "",
             "queue": "private$\\orders", "delivery": "recoverable", "class": "", "bytes": 100,
             "lookup_id": None, "sequence_id": None, "sequence_number": None}  # fmt: skip
    lines = [
        about | {"block": block, "at_ms": MIDNIGHT + block, "kind": kind,
                 "message_id": f"{GUID}\\{block}"}
        for block, kind in enumerate(kinds.split(), 1)
    ]  # fmt: skip
    lake.mkdir(exist_ok=True)
    (lake / "log.ndjson").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_inventory(lake: Path, *, at_ms: int) -> None:
    """Write an inventory of that host, which names no message, after its two events."""
    folder = lake / "inventory" / "day=2026-01-01" / "host=alpha"
    folder.mkdir(parents=True, exist_ok=True)
    row = {"host": "alpha", "queue_manager": GUID, "epoch": 1, "block": 2,
           "at_ms": MIDNIGHT + 2, "taken_at_ms": MIDNIGHT + at_ms}  # fmt: skip
    name = folder / f"{GUID}-{2:016}-{2:016}.parquet"
    parquet.write_table(pa.Table.from_pylist([row], schema=SCHEMA), name)


def watching(lake: Path, output: Path, alerts: Alerts) -> Watching:
    return Watching([], (str(lake),), Place(output), frozenset({"vanished", "clock"}), alerts)


def test_an_inventory_alone_lets_a_watch_find_a_message_that_vanished(tmp_path, webhook):
    lake = tmp_path / "lake"
    write_log(lake, "sent sent")
    watch = watching(lake, tmp_path / "out", Alerts(webhook.url))
    watch.round()
    assert watch.counts == {}

    write_inventory(lake, at_ms=10)
    webhook.answers = [404]
    for _ in range(3):  # of which the first one cannot announce it
        watch.round()

    assert watch.counts == {"vanished": 2}
    assert [len(alert["new"]) for alert in webhook.alerts] == [2]
    commits = len(list((tmp_path / "out" / "_commits").iterdir()))
    write_inventory(lake, at_ms=20)
    watch.round()
    assert len(list((tmp_path / "out" / "_commits").iterdir())) == commits, "nothing has changed"


def test_a_watch_survives_a_full_disk_and_a_store_that_does_not_answer(tmp_path, capsys):
    lake = tmp_path / "lake"
    write_log(lake, "sent")
    watch = watching(lake, tmp_path / "out", Alerts())
    watch.metrics = tmp_path / "missing" / "qmd.prom"
    watch.round()
    (tmp_path / "blocked").write_text("")
    watch.place = Place(tmp_path / "blocked" / "out")
    watch.round()
    watch.place = Place(tmp_path / "out")
    watch.round()

    said = capsys.readouterr().err.splitlines()
    assert ["not done" in line for line in said] == [True, True, False]
    assert "blocked" in said[1]
    assert said[2].endswith("well again: audit")


def pipeline(*words: object) -> Any:
    return CliRunner().invoke(main, ["pipeline", *map(str, words)])


def test_alerts_read_results_at_any_address_and_take_signals(fleet, tmp_path):
    store = "memory://alerts"
    assert pipeline("run", "audit", "--input", fleet, "--output", store).exit_code == 1

    first, again = (pipeline("alert", "--output", store, "--status", 1) for _ in range(2))
    killed = pipeline("alert", "--output", store, "--status", "KILL")
    lost = pipeline("alert", "--output", "memory://alerts", "--status", "1", "--fail-on", "")
    copied = pipeline("watch", "--from", "/nowhere.sock", "--output", store)

    assert (first.exit_code, again.exit_code) == (1, 1)
    assert "found: lost" in first.output
    assert again.output == "no news\n"
    assert (killed.exit_code, killed.output) == (137, "the audit failed with exit code 137\n")
    assert (lost.exit_code, copied.exit_code) == (2, 2)
    assert "it names no finding" in lost.output
    assert "--from copies logs to a folder of this host" in copied.output
    assert not Path("memory:").exists()
