"""The attack of `slow_names.py`, in a network and with files of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attack.slow_names import KNOWN
from tests.patience import END_S

ROOT = Path(__file__).resolve().parents[2]
INSIDE = """
ip link set lo up
mount --bind "$1/resolv.conf" /etc/resolv.conf
mount --bind "$1/hosts" /etc/hosts
exec "$2" -m tests.attack.slow_names
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "ip", "mount"))),
    reason="it needs root, and the programs unshare, ip and mount",
)
def test_slow_names_in_packets_do_not_delay_the_names_of_applications(tmp_path: Path):
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:15 attempts:2\n")
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n127.0.0.1 {KNOWN}\n")

    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-ec", INSIDE, "sh", str(tmp_path), sys.executable],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * END_S,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "attacked"
