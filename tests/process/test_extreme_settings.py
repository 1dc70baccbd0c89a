"""A daemon with every number of its configuration at its lowest, and at its greatest value."""

from __future__ import annotations

import re
from typing import Any

import pytest

from qmd.config.settings import SECTIONS, settings_of
from qmd.config.value_types import Durations, Kind
from tests.process.harness import Hosts

#: Settings of which the lowest value contradicts that of another one, or refuses this test.
LEFT_OUT = {
    ("quotas", "message_bytes_max"),
    ("delivery", "time_to_reach_queue"),
    ("delivery", "connect_timeout"),
}
_RANGE = re.compile(r'"([^"]+)" to "([^"]+)"|(?:from )?(\d+) to (\d+)')


def ends(kind: Kind[object]) -> tuple[Any, Any] | None:
    """Return the lowest and the greatest value, as the file has them; None if it is no number."""
    found = _RANGE.search(kind.allowed.rpartition("each ")[2])
    if found is None or "port" in kind.allowed:
        return None
    low, high, first, last = found.groups()
    if low is None:
        return int(first), int(last)
    return ([low], [high]) if isinstance(kind, Durations) else (low, high)


def extremes(which: int) -> dict[str, dict[str, Any]]:
    """Return all numbers at one of their ends, by section and key."""
    values: dict[str, dict[str, Any]] = {}
    for section in SECTIONS:
        for key, setting in settings_of(section).items():
            found = ends(setting.kind)
            if found and (section, key) not in LEFT_OUT and not key.endswith("port"):
                values.setdefault(section, {})[key] = found[which]
    return values


@pytest.mark.parametrize("which", [0, 1], ids=["lowest", "greatest"])
def test_a_daemon_serves_with_all_settings_at_their_ends(hosts: Hosts, which: int) -> None:
    values = extremes(which)
    assert len(values) > 15
    assert sum(map(len, values.values())) > 80
    a, b = hosts.daemon(start=False, **values).start(), hosts.daemon()
    for daemon in (a, b):
        daemon.create("orders", transactional=True)

    a.cli("send", "orders", "here")
    a.cli("send", f"orders@127.0.0.1:{b.port}", "there", "--transactional")
    b.cli("send", f"orders@127.0.0.1:{a.port}", "back", "--transactional")
    b.wait_for("orders", 1)
    a.wait_for("orders", 2)
    a.cli("config", "check")
    a.restart()
    assert len(a.receive("orders")) == 2
    assert len(b.receive("orders")) == 1
    assert a.terminate() == 0
