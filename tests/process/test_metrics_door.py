"""The door for metrics: a real process beside real daemons, read by the parser of OpenMetrics."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.patience import END_S

pytest.importorskip("prometheus_client")
pytest.importorskip("httptools")

from qmd.config.settings import MetricsSettings
from qmd.doors.http.listening import CannotServe
from qmd.doors.metrics.program import tls_context
from tests.process.harness import Daemon
from tests.process.metrics_door import MetricsDoor, Scrape

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetricsDoor]:
    beating = {"delivery": {"heartbeat": "1s"}}
    daemon = Daemon(tmp_path_factory.mktemp("metrics") / "qmd", settings=beating)
    door = MetricsDoor(daemon, queues_max=2)
    try:
        daemon.start()
        daemon.create("orders", "few", "empty", transactional=False)
        yield door.start()
    finally:
        door.kill()
        daemon.kill()


def until(door: MetricsDoor, is_there: Callable[[Scrape], object]) -> Scrape:
    """Scrape until a condition holds: figures may be a second old."""
    deadline = time.monotonic() + END_S
    while True:
        found = door.scrape()
        if is_there(found):
            return found
        assert time.monotonic() < deadline, found.samples
        time.sleep(0.2)


def orders(found: Scrape, figure: str, name: str = "private$\\orders") -> float:
    samples = found.all(f"qmd_queue_{figure}", queue=name)
    return float(samples[0].value) if samples else -1.0


def test_the_figures_of_queues_follow_the_messages(door: MetricsDoor) -> None:
    for _ in range(3):
        door.daemon.send("orders", b"hello")
    door.daemon.cli("receive", "orders")

    found = until(door, lambda each: orders(each, "left_total") == 1)

    assert orders(found, "messages") == 2
    assert orders(found, "arrived_total") == 3
    assert orders(found, "bytes") > 0
    assert orders(found, "oldest_message_age_seconds") > 0
    assert found("qmd_sent_total") >= 3
    assert found("qmd_up") == 1
    assert found("qmd_resident_memory_bytes") > 1_000_000
    assert found("qmd_start_time_seconds") <= time.time()
    # Of the three queues, two have series; the last one is among the others.
    assert {each.labels["queue"] for each in found.all("qmd_queue_messages", kind="queue")} < {
        "private$\\orders",
        "private$\\few",
        "private$\\empty",
    }
    assert found("qmd_queue_messages", queue="other") == 0


def test_an_exemplar_of_a_commit_is_the_id_of_a_message(door: MetricsDoor) -> None:
    source = door.daemon.send("orders", b"hello").partition("\\")[0]

    found = until(door, lambda each: _examples(each))

    assert all(example.startswith(f"{source}\\") for example in _examples(found))
    assert found("qmd_commit_seconds_count") > 0


def _examples(found: Scrape) -> list[str]:
    buckets = found.all("qmd_commit_seconds_bucket")
    return [each.exemplar.labels["message_id"] for each in buckets if each.exemplar]


def test_dead_letters_are_counted_by_their_reason(door: MetricsDoor) -> None:
    door.daemon.send("few", b"x", "--dead-letter")
    door.daemon.cli("reject", "few", "--yes")

    rejected = "nack_receive_rejected"
    found = until(door, lambda each: each("qmd_dead_letters_total", reason=rejected) == 1)

    # A reason without dead letters is there too, so that its first one is an increase.
    assert found("qmd_dead_letters_total", reason="nack_access_denied") == 0
    assert found("qmd_dead_letter_messages") >= 1


def test_the_figures_of_a_destination_show_its_backlog_and_its_round_trip(
    door: MetricsDoor, tmp_path: Path
) -> None:
    other = Daemon(tmp_path / "other").start()
    try:
        other.create("inbox")
        name = f"DIRECT=TCP:127.0.0.1:{other.port}\\private$\\inbox"
        door.daemon.send(name, b"hello", "--transactional")
        sent = "qmd_destination_round_trip_seconds"
        found = until(door, lambda each: each.all(sent, destination=name))
        assert found(sent, destination=name) > 0
        assert found("qmd_destination_transmitted_total", destination=name) >= 1
        assert found("qmd_destination_state", destination=name, state="connected") == 1
        until(door, lambda each: each("qmd_destination_messages", destination=name) == 0)
        beat = "qmd_destination_heartbeat_seconds"
        assert until(door, lambda each: each.all(beat, destination=name))(beat) > 0
        other.kill()

        door.daemon.send(name, b"late", "--transactional")

        found = until(
            door, lambda each: each("qmd_destination_state", destination=name, state="waiting")
        )
        assert found("qmd_destination_messages", destination=name) == 1
        until(
            door, lambda each: each("qmd_destination_oldest_message_age_seconds", destination=name)
        )
    finally:
        other.kill()


def test_the_manual_lists_every_metric_of_a_scrape(door: MetricsDoor) -> None:
    manual = set(re.findall(r"`(qmd_\w+)`", (ROOT / "docs/metrics.md").read_text()))
    families = door.scrape().families.values()

    shown = {
        each.name + {"counter": "_total", "info": "_info"}.get(each.type, "") for each in families
    }

    assert shown - manual == set()
    optional = {"qmd_certificate_expires_seconds"}  # of hosts with TLS
    assert manual - shown - optional == set()


def test_a_page_in_a_browser_and_a_wrong_path_get_nothing(door: MetricsDoor) -> None:
    assert door.get(origin="http://example.com")[0] == 403
    # A page can direct a name of its own site to this address.
    assert door.get(host=f"rebound.example:{door.port}")[0] == 403
    assert door.get(host=f"localhost:{door.port}")[0] == 200
    assert door.get("/other")[0] == 404
    assert door.get("/healthz")[0] == 200


def test_a_scrape_needs_the_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret-of-the-scraper\n")
    token.chmod(0o600)
    daemon = Daemon(tmp_path / "qmd")
    door = MetricsDoor(daemon, token_file=str(token))
    try:
        door.start()
        assert door.get()[0] == 401
        assert door.get(authorization="Bearer other")[0] == 401
        status, text = door.get(authorization="Bearer secret-of-the-scraper")
        # The daemon does not run: the scrape says so.
        assert status == 200
        assert Scrape(text)("qmd_up") == 0
        # The checks need no token.
        assert door.get("/healthz")[0] == 200
        assert door.get("/readyz")[0] == 503
        daemon.start()
        assert door.get("/readyz")[0] == 200
        assert Scrape(door.get(authorization="Bearer secret-of-the-scraper")[1])("qmd_up") == 1
    finally:
        door.kill()
        daemon.kill()


def test_it_does_not_listen_beyond_loopback_without_tls_and_a_token(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "qmd")
    daemon.configure({"metrics": {"address": "0.0.0.0"}})
    result = daemon.cli("door", "metrics", check=False)
    assert result.returncode == 78
    assert b"metrics_not_secret" in result.stderr
    settings = MetricsSettings(address="0.0.0.0", certificate=Path("c"), key=Path("k"))
    with pytest.raises(CannotServe, match="need a token"):
        tls_context(settings)
