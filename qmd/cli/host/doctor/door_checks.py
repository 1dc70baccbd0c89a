"""Checks of the doors: those that were set up must answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from qmd.cli.host.doctor.finding import Finding, fault, ok, warning
from qmd.cli.host.doctor.listeners import find_listener
from qmd.config.effective import read_effective

if TYPE_CHECKING:
    from qmd.config.file import Settings

ANSWER_S = 5.0
#: The units of the doors, by their sections.
UNITS = {
    "http": "qmd-door-http",
    "amqp": "qmd-door-amqp",
    "srmp": "qmd-door-srmp",
    "metrics": "qmd-door-metrics",
}


def check_doors(settings: Settings, path: Path) -> Iterator[Finding]:
    """Check the doors for which the configuration `path` has keys: others may not be wanted."""
    given = [row for row in read_effective(path) if not row.is_default]
    off = {row.section for row in given if (row.key, row.value) == ("enabled", "false")}
    for section, unit in UNITS.items():
        chosen = getattr(settings, section)
        is_wanted = section in {row.section for row in given} - off
        if is_wanted and chosen.port and getattr(chosen, "socket", None) is None:
            yield _check(section, unit, chosen.address, chosen.port)


def _check(section: str, unit: str, address: str, port: int) -> Finding:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # nosec B104: dials, binds not
    try:
        socket.create_connection((host, port), timeout=ANSWER_S).close()
    except OSError as error:
        return warning(
            "door",
            f"The section [{section}] is in use, and nothing answers at {address} port {port}"
            f" ({error.strerror or error}).",
            f"systemctl start {unit}, and journalctl -u {unit}; or remove the keys of [{section}].",
        )
    program = find_listener(port)
    if program is not None and not program.is_ours:
        return fault(
            "door",
            f"Another program listens at {address} port {port} of the section [{section}]"
            f" ({program}).",
            f"End it, or set another port in [{section}].",
        )
    return ok("door", f"[{section}]: {address} port {port} answers.")
