"""`qmd config`, and a running daemon that reads its configuration again."""

from __future__ import annotations

import json
import os
import signal
import time

from tests.patience import END_S, LOOK_S
from tests.process.command_line import run
from tests.process.harness import Daemon, Hosts, free_port


def reloaded(daemon: Daemon) -> None:
    """Send SIGHUP, and wait until the log reports its result."""
    before = daemon.tail(1_000_000).count("configuration_reloaded")
    os.kill(daemon.pid, signal.SIGHUP)
    deadline = time.monotonic() + END_S
    while daemon.tail(1_000_000).count("configuration_reloaded") == before:
        assert time.monotonic() < deadline, daemon.tail()
        time.sleep(0.05)


def test_errors_are_printed_with_their_lines(hosts: Hosts) -> None:
    daemon = hosts.daemon(start=False)
    assert b"is valid" in daemon.cli("config", "check").stdout
    daemon.configure({"listen": {"prot": 1}, "quotas": {"queue": "much"}})

    done = daemon.cli("config", "check", check=False)

    assert done.returncode == 78
    assert b"did you mean port?" in done.stderr
    assert b"[quotas] queue" in done.stderr
    assert done.stderr.count(b"qmd.toml:") == 2


def test_each_value_has_its_source(hosts: Hosts) -> None:
    daemon = hosts.daemon(start=False, quotas={"queue": "1GB"})
    config = ["--config", str(daemon.config), "config", "show"]
    environment = {"QMD_LOG_LEVEL": "warning"}
    done = run([*config, "--json"], environment=environment, warm=True)
    rows = {row["key"]: row for row in map(json.loads, done.stdout.splitlines())}
    chosen = [*config, "quotas.queue", "log", "--source"]
    text = run(chosen, environment=environment, warm=True).stdout.decode()

    line = daemon.config.read_text().splitlines().index('"queue" = "1GB"') + 1
    assert rows["quotas.queue"]["source"] == f"{daemon.config}:{line}"
    assert rows["log.level"]["source"] == "environment QMD_LOG_LEVEL"
    assert rows["quotas.journal"]["source"] == "default"
    assert f'queue = "1GB"  # {daemon.config}:{line}' in text
    assert "[log]" in text
    assert "[peers]" not in text


def test_a_reload_takes_over_live_keys_and_names_the_others(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    assert daemon.json("config", "diff") == []
    daemon.configure(
        {
            "quotas": {"computer": "2MB"},
            "log": {"level": "debug"},
            "listen": {"port": free_port()},
        }
    )
    done = daemon.cli("config", "diff", "--json", check=False)
    assert done.returncode == 1
    assert done.stdout.count(b'"reload"') == 2
    assert done.stdout.count(b'"restart"') == 1

    reloaded(daemon)

    assert daemon.json("status")[0]["quota_bytes"] == 2_000_000
    assert '"needs_restart":["listen.port"]' in daemon.tail(1_000_000).replace(" ", "")
    done = daemon.cli("config", "diff", "--json", check=False)
    assert done.stdout.count(b"listen.port") == 1
    assert b"quotas" not in done.stdout
    daemon.configure({"log": {"level": "info"}, "listen": {"port": daemon.port}})
    (answer,) = daemon.json("config", "reload")
    assert answer == {"changed": ["log.level"], "needs_restart": [], "error": ""}


def test_a_faulty_configuration_changes_nothing(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    daemon.configure({"quotas": {"computer": "2MB", "queue": "much"}})

    done = daemon.cli("config", "reload", check=False)

    assert done.returncode == 78
    assert b"[quotas] queue" in done.stderr
    daemon.configure({"quotas": {"queue": "1GB"}})
    assert daemon.json("status")[0]["quota_bytes"] != 2_000_000


def test_a_host_that_is_allowed_no_more_loses_its_session(hosts: Hosts) -> None:
    daemon, peer = hosts.daemon(), hosts.daemon()
    daemon.create("orders")
    peer.send(f"DIRECT=TCP:127.0.0.1:{daemon.port}\\private$\\orders", b"1")
    daemon.wait_for("orders", 1)
    assert daemon.json("session", "list")

    daemon.configure({"peers": {"allow": ["192.0.2.0/24"]}})
    reloaded(daemon)

    deadline = time.monotonic() + END_S
    while daemon.json("session", "list"):
        assert time.monotonic() < deadline
        time.sleep(LOOK_S)
    assert "is not in [peers] allow any more" in daemon.tail(1_000_000)


def test_a_route_is_used_without_a_restart(hosts: Hosts) -> None:
    there, daemon = hosts.daemon(), hosts.daemon()
    there.create("orders")
    destination = "DIRECT=TCP:192.0.2.9\\private$\\orders"
    before = daemon.json("name", "explain", destination)[0]["resolved"]
    assert str(there.port) not in str(before)

    daemon.configure({"routing": {"routes": [f"192.0.2.9 via 127.0.0.1:{there.port}"]}})
    reloaded(daemon)

    after = daemon.json("name", "explain", destination)[0]["resolved"]
    assert str(there.port) in str(after)
