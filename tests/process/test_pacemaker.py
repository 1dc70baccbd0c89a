"""The configuration for Pacemaker in docs/standby.md: Pacemaker accepts it, and decides as stated.

Its own simulator computes the decisions; disks, daemons and fencing devices are not there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.patience import END_S
from tests.process.command_line import ROOT

TOOLS = ("crm", "crm_simulate", "crm_verify", "cibadmin")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not all(map(shutil.which, TOOLS)), reason=f"not installed: {', '.join(TOOLS)}"
    ),
]
# The agent of DRBD gives each computer with the data a score; "one" has the better one.
NODES = """<nodes>
 <node id="1" uname="one"><instance_attributes id="a"><nvpair id="b" name="master-qmd-disk"
  value="10000"/></instance_attributes></node>
 <node id="2" uname="two"><instance_attributes id="c"><nvpair id="d" name="master-qmd-disk"
  value="1000"/></instance_attributes></node>
</nodes>"""


def run(*words: str, cib: Path | None = None, check: bool = True) -> str:
    environment = os.environ | ({"CIB_file": str(cib)} if cib else {}) | {"TERM": "dumb"}
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, check=False, timeout=END_S
    )
    assert not check or done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture
def running(tmp_path: Path) -> Path:
    """Return the state of a cluster of two computers that has started the configuration."""
    page = (ROOT / "docs" / "standby.md").read_text()
    section = page.partition("## Pacemaker with DRBD\n")[2].partition("\n## ")[0]
    lines = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    recipe, nodes, cib = (tmp_path / name for name in ("recipe", "nodes.xml", "cib.xml"))
    recipe.write_text("\n".join(lines) + "\n")
    nodes.write_text(NODES)
    cib.write_text(run("cibadmin", "--empty"))
    run("cibadmin", "--replace", "--scope", "nodes", "--xml-file", str(nodes), cib=cib)
    # It misses the agents of DRBD, systemd and IPMI, and enters the configuration all the same.
    run("crm", "-F", "configure", "load", "update", str(recipe), cib=cib, check=False)
    for step in (["-q", "true", "-u", "one", "-u", "two"], []):  # disks are promoted second
        run("crm_simulate", "-x", str(cib), "-S", *step, "--save-output", str(cib))
    run("crm_verify", "--xml-file", str(cib))
    return cib


def test_the_daemon_is_started_where_the_disk_is_promoted(running: Path) -> None:
    status = run("crm_simulate", "-x", str(running))
    assert "Promoted: [ one ]" in status
    for resource in ("qmd-fs", "qmd-ip", "qmd-daemon"):
        assert started_at(status, resource) == "one"
    assert (started_at(status, "fence-one"), started_at(status, "fence-two")) == ("two", "one")


def test_a_daemon_that_has_died_is_started_again(running: Path) -> None:
    died = "qmd-daemon_monitor_5000@one=7"
    plan = run("crm_simulate", "-x", str(running), "-S", "--op-inject", died)
    assert "Recover    qmd-daemon     (   one )" in plan


def test_a_lost_computer_is_switched_off_before_the_other_takes_over(running: Path) -> None:
    plan = run("crm_simulate", "-x", str(running), "-S", "--node-fail", "one")
    starts = [f"{name:16}start on two" for name in ("qmd-fs", "qmd-ip", "qmd-daemon")]
    steps = ["Fencing one (reboot)", "qmd-disk        promote on two", *starts]
    places = [plan.index(step) for step in steps]
    assert places == sorted(places)
    assert started_at(plan, "qmd-daemon") == "two"


def started_at(status: str, resource: str) -> str:
    """Return the computer at which the last status of an output shows a resource."""
    line = [line for line in status.splitlines() if f"* {resource}\t(" in line][-1]
    return line.rpartition("Started ")[2]
