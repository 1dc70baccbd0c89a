"""The units of a booted computer: the daemon, its doors, and what runs beside it, as installed."""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Iterator

import pytest

from tests.patience import END_S
from tests.systemd.machine import ROOT, SPARK_COMMAND, Machine, booted

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]

DOORS = {
    "qmd-door-http": "http://127.0.0.1:1808/openapi.json",
    "qmd-door-metrics": "http://127.0.0.1:1809/metrics",
    "qmd-console": "http://127.0.0.1:1810/static/console.css",
}
_GET = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())"
#: A web server that takes requests, answers with 200, and writes their bodies to a file.
_HOOK = """
import http.server, sys
class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open(sys.argv[2], "ab") as file:
            file.write(body.replace(b"\\n", b" ") + b"\\n")
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Hook).serve_forever()
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with booted(tmp_path_factory.mktemp("machine")) as machine:
        machine.start("qmd")
        yield machine


def get(machine: Machine, url: str) -> str:
    """Return a page."""
    return machine.run("/usr/bin/python3", "-c", _GET, url)


def lines_of(machine: Machine, place: str, wanted: int) -> list[str]:
    """Wait until a file has so many lines; return them."""
    deadline = time.monotonic() + END_S
    while True:
        found = machine.run("sh", "-c", 'cat "$0" 2>/dev/null || true', place).splitlines()
        if len(found) >= wanted:
            return found
        assert time.monotonic() < deadline, (place, found)
        time.sleep(0.1)


def hook(machine: Machine, port: int, place: str) -> None:
    """Start a web server that writes what it gets."""
    machine.write("/usr/local/bin/hook.py", _HOOK)
    words = ["/usr/bin/python3", "/usr/local/bin/hook.py", str(port), place]
    machine.run("systemd-run", f"--unit=hook-{port}", *words)


def recipe(page: str, unit: str) -> str:
    """Return the lines that a page of the manual gives to `systemctl edit`."""
    text = (ROOT / "docs" / page).read_text()
    found = re.search(rf"^    systemctl edit {re.escape(unit)}\n((?: {{8}}.*\n)+)", text, re.M)
    assert found is not None, (page, unit)
    return re.sub(r"/opt/qmd-\w+/bin/qmd", SPARK_COMMAND, found[1].replace("        ", ""))


def test_the_daemon_serves_again_after_a_kill_and_after_a_hang(machine: Machine) -> None:
    machine.edit("qmd.service", "[Service]\nWatchdogSec=2s\n")
    machine.systemctl("restart", "qmd")
    machine.qmd("queue", "create", "kept", "--transactional")
    machine.qmd("send", "kept", "acknowledged")
    for signal, restarts in (("KILL", "1"), ("STOP", "2")):
        killed = machine.state("qmd", "MainPID")

        machine.run("kill", f"-{signal}", killed)

        machine.wait("qmd", restarts, "NRestarts")
        machine.wait("qmd", "active")
        assert machine.state("qmd", "MainPID") != killed
        assert "acknowledged" in machine.qmd("peek", "kept")
    assert "Watchdog timeout" in machine.log("qmd")
    machine.run("rm", "/etc/systemd/system/qmd.service.d/override.conf")
    machine.systemctl("daemon-reload")


def test_a_changed_configuration_is_read_and_a_wrong_one_refused(machine: Machine) -> None:
    main = machine.state("qmd", "MainPID")
    file = "/etc/qmd/qmd.toml"
    machine.run("sed", "-i", 's/^# level = "info"/level = "debug"/', file)
    machine.systemctl("reload", "qmd")
    assert machine.state("qmd", "MainPID") == main

    machine.run("sed", "-i", 's/^level = "debug"/level = "loud"/', file)
    machine.run("systemctl", "restart", "qmd", fails=True)

    # A restart does not repair a configuration: systemd does not try one.
    assert machine.state("qmd", "ExecMainStatus") == "78"
    assert machine.state("qmd") == "failed"
    assert "level" in machine.log("qmd")
    machine.run("sed", "-i", 's/^level = "loud"/# level = "info"/', file)
    machine.start("qmd")
    assert machine.state("qmd") == "active"


def test_the_first_connection_starts_the_daemon(machine: Machine) -> None:
    machine.systemctl("stop", "qmd")
    assert machine.state("qmd", "Result") == "success"
    machine.start("qmd.socket")
    assert machine.state("qmd") == "inactive"

    machine.run(
        "/usr/bin/python3", "-c", "import socket; socket.create_connection(('127.0.0.1', 1801))"
    )

    machine.wait("qmd", "active")
    machine.systemctl("stop", "qmd.socket", "qmd")
    machine.start("qmd")


def test_every_door_serves_with_the_installed_configuration(machine: Machine) -> None:
    machine.qmd("acl", "grant", "user:qmd-door", "see-status,read-events", "host")
    others = ("qmd-door-amqp", "qmd-door-srmp", "qmd-trigger", "qmd-traces")

    for unit in (*DOORS, *others):
        machine.start(unit)

    for unit, url in DOORS.items():
        assert len(get(machine, url)) > 1000, unit
    time.sleep(2.5)  # one that ends at once is started again after two seconds
    for unit in (*DOORS, *others):
        found = machine.state(unit), machine.state(unit, "NRestarts")
        assert found == ("active", "0"), (unit, machine.log(unit)[-2000:])
    # Without bridges there is nothing to run.
    machine.start("qmd-bridge")
    assert machine.state("qmd-bridge", "ConditionResult") == "no"


def test_a_service_reads_what_commands_of_root_wrote_for_it(machine: Machine) -> None:
    """The process of each has a user of its own."""
    machine.qmd("queue", "create", "orders", "--transactional")
    machine.qmd("queue", "create", "calls", "--transactional")
    password = "a long password\n"
    for words in (("console", "user", "add", "vera"), ("door", "user", "add", "ann")):
        machine.qmd(*words, "--password-file", "-", input=password)
    file = "/etc/qmd/qmd.toml"
    machine.run("sed", "-i", r's/^# push_targets = .*/push_targets = ["127.0.0.1"]/', file)
    machine.systemctl("restart", "qmd-door-http")
    machine.qmd("acl", "grant", "user:qmd-door", "receive,peek,get-properties", "calls")
    machine.qmd("acl", "grant", "user:qmd-trigger", "receive,peek,get-properties", "orders")
    hook(machine, 7001, "/run/pushed")
    machine.qmd("push", "create", "out", "--queue", "calls", "--url", "http://127.0.0.1:7001/")
    words = ("--run", "/usr/bin/touch", "--argument", "/run/qmd-trigger/ran")
    machine.qmd("trigger", "create", "bill", "--queue", "orders", *words)

    machine.qmd("send", "calls", "pushed body")
    machine.qmd("send", "orders", "x")

    assert any("pushed body" in line for line in lines_of(machine, "/run/pushed", 1))
    deadline = time.monotonic() + END_S
    while "ran" not in machine.run("ls", "/run/qmd-trigger"):
        assert time.monotonic() < deadline, machine.log("qmd-trigger")[-3000:]
        time.sleep(0.1)
    for user, place in (("qmd-console", "qmd-console/users"), ("qmd-door", "qmd-door-amqp/users")):
        words = ("setpriv", f"--reuid={user}", "--regid=qmd", "--clear-groups", "cat")
        assert ":" in machine.run(*words, f"/var/lib/{place}")


@pytest.mark.parametrize("principal", ["user:qmd-service", "service:qmd-service@orders.service"])
def test_a_queued_service_runs_with_its_rights(machine: Machine, principal: str) -> None:
    release = tuple(int(part) for part in re.findall(r"[0-9]+", platform.release())[:2])
    if principal.startswith("service:") and release < (6, 5):
        pytest.skip("this kernel is older than 6.5")
    machine.write(
        "/srv/orders/orders.py",
        "from qmd.service import service\n\n\n"
        '@service("work")\n'
        "async def place(article: str) -> None:\n"
        '    print("placing", article, flush=True)\n',
    )
    machine.write("/etc/qmd/services/orders.env", "SERVICE=orders:place\nOPTIONS=\n")
    machine.qmd("queue", "create", "work", "--transactional")
    machine.qmd("acl", "grant", principal, "receive,peek", "work")
    machine.start("qmd-service@orders")

    machine.qmd("send", "work", "--transactional", "--label", "place", '{"article": "screws"}')

    deadline = time.monotonic() + END_S
    while "placing screws" not in machine.log("qmd-service@orders"):
        assert time.monotonic() < deadline, machine.log("qmd-service@orders")[-3000:]
        time.sleep(0.1)
    machine.systemctl("stop", "qmd-service@orders")
    assert machine.state("qmd-service@orders", "Result") == "success"
    machine.qmd("queue", "delete", "work", "--yes")


def test_the_log_is_shipped_and_audited_by_timers_and_findings_are_announced(
    machine: Machine,
) -> None:
    """As the manual says, line by line; only the times of the timers are other ones."""
    units = [f"qmd-{job}.{kind}" for job in ("ship", "audit") for kind in ("service", "timer")]
    machine.run("cp", *(f"/opt/qmd-source/deploy/{unit}" for unit in units), "/etc/systemd/system")
    machine.run("install", "-d", "-o", "qmd", "-g", "qmd", "-m", "0750", "/srv/lake/qmd")
    soon = "[Timer]\nOnCalendar=\nOnActiveSec=1s\nAccuracySec=10ms\nRandomizedDelaySec=0\n"
    for timer in ("qmd-ship.timer", "qmd-audit.timer"):
        assert re.search(r"\n\S", machine.systemctl("cat", timer))
        machine.edit(timer, soon)
    machine.qmd("queue", "create", "sold", "--transactional")
    machine.qmd("send", "sold", "one")
    machine.qmd("receive", "sold")
    machine.edit("qmd-ship.service", recipe("ship.md", "qmd-ship.service"))

    machine.systemctl("enable", "--now", "qmd-ship.timer")

    ended(machine, "qmd-ship.service")
    assert machine.state("qmd-ship.service", "Result") == "success", machine.log("qmd-ship")
    assert ".parquet" in machine.run("find", "/srv/lake/qmd", "-type", "f")

    # The audit of it, of one user with the files, finds nothing.
    hook(machine, 7002, "/run/announced")
    machine.write("/etc/qmd/alert.env", "QMD_ALERT_URL=http://127.0.0.1:7002/\n")
    shipped_here = "DynamicUser=no\nUser=qmd\n"
    machine.edit("qmd-audit.service", recipe("watch.md", "qmd-audit.service") + shipped_here)
    machine.systemctl("enable", "--now", "qmd-audit.timer")
    ended(machine, "qmd-audit.service")
    assert machine.state("qmd-audit.service", "Result") == "success", machine.log("qmd-audit")
    assert machine.state("qmd-audit.service", "ExecMainStatus") == "0", machine.log("qmd-audit")
    assert "report.html" in machine.run("find", "/var/lib/qmd-audit/results")

    # A fleet that lost messages: findings are a success of the unit, and announced once.
    words = ("--hosts", "2", "--messages", "500", "--faults", "lost=2", "--seed", "5")
    machine.run(SPARK_COMMAND, "pipeline", "generate", "/srv/lake/lost", *words)
    machine.run("chmod", "-R", "a+rX", "/srv/lake/lost")
    dropped = recipe("watch.md", "qmd-audit.service").replace("/srv/lake/qmd", "/srv/lake/lost")
    machine.edit("qmd-audit.service", dropped + "Environment=AUDIT_OUTPUT=%S/qmd-audit/lost\n")
    for _ in range(2):
        machine.start("qmd-audit.service")
        assert machine.state("qmd-audit.service", "ExecMainStatus") == "1"
        assert machine.state("qmd-audit.service", "Result") == "success"
    (found,) = map(json.loads, lines_of(machine, "/run/announced", 1))
    assert (found["status"], found["counts"]["lost"]) == ("findings", 2)

    # An audit that fails is a failed unit, and announced too.
    machine.edit("qmd-audit.service", dropped.replace("/srv/lake/lost", "/srv/lake/none"))
    machine.run("systemctl", "start", "qmd-audit.service", fails=True)
    assert machine.state("qmd-audit.service", "Result") == "exit-code"
    assert json.loads(lines_of(machine, "/run/announced", 2)[1])["status"] == "failed"


def ended(machine: Machine, unit: str) -> None:
    """Wait until a timer has started a unit of one run, and the run has ended."""
    deadline = time.monotonic() + END_S
    while not int(machine.state(unit, "ExecMainExitTimestampMonotonic") or 0) or (
        machine.state(unit) not in ("inactive", "failed")
    ):
        assert time.monotonic() < deadline, machine.log(unit)[-3000:]
        time.sleep(0.2)


def test_a_watch_announces_within_its_rounds(machine: Machine) -> None:
    machine.run("cp", "/opt/qmd-source/deploy/qmd-watch.service", "/etc/systemd/system")
    hook(machine, 7003, "/run/watched")
    machine.write("/etc/qmd/watch-url", "http://127.0.0.1:7003/\n")
    options = "--from /run/qmd/qmd.sock --every 1 --alert-url-file /etc/qmd/watch-url"
    machine.edit(
        "qmd-watch.service",
        f'[Service]\nEnvironment=QMD={SPARK_COMMAND} "WATCH_OPTIONS={options}"\n',
    )
    machine.start("qmd-watch")
    machine.qmd("queue", "create", "watched", "--transactional")
    machine.qmd("send", "watched", "x" * 40)
    deadline = time.monotonic() + END_S
    while "report.html" not in machine.run("ls", "/var/lib/qmd-watch"):
        assert time.monotonic() < deadline, machine.log("qmd-watch")[-3000:]
        time.sleep(0.2)
    assert machine.state("qmd-watch") == "active"

    machine.systemctl("stop", "qmd-watch")

    assert machine.state("qmd-watch", "Result") == "success", machine.log("qmd-watch")[-3000:]
