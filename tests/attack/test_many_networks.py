"""A flood of new connections from the addresses of one network, in a network of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attack.many_networks import CLIENTS
from tests.patience import END_S

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a network namespace"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("ip", "unshare", "openssl"))),
        reason="iproute2, util-linux or openssl is not installed",
    ),
]


def test_a_flood_of_one_network_delays_no_client_of_another_one(tmp_path: Path) -> None:
    (tmp_path / "qmd").mkdir()
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-m", "tests.attack.many_networks", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=4 * END_S,
    )  # fmt: skip

    assert (done.returncode, done.stdout.strip()) == (0, str(len(CLIENTS))), done.stderr[-3000:]
