"""Spark Connect: the same source behind a server, with a client without Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

from pipeline.spark.session import NoJava, require_java
from tests.optional import needs
from tests.pipeline.live import TIMEOUT, Place, orders
from tests.process.harness import Hosts

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    needs("grpc", reason="the extra pyspark[connect] is not installed"),
]
ROOT = Path(__file__).parents[2]


@TIMEOUT
def test_tables_writes_and_streams_work_over_spark_connect(tmp_path):
    try:
        require_java()
    except NoJava as none:
        pytest.skip(str(none))
    hosts = Hosts()
    place = Place(hosts.daemon())
    with place.qm:
        for queue in ("orders", "moved"):
            place.queue(queue)
        place.send("orders", 3)
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SPARK_", "PYSPARK_")) and name != "PYTHONASYNCIODEBUG"
        }
        ended = subprocess.run(
            [sys.executable, "-m", "tests.pipeline.connect_program", place.socket, str(tmp_path)],
            cwd=ROOT,
            env={**environment, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert ended.returncode == 0, ended.stdout[-5000:]
        found = json.loads((tmp_path / "found.json").read_text())

        assert found["labels"] == orders(3)
        assert (found["filtered"], found["again"]) == (1, 3)
        assert found["received"] == 4
        assert 'option "onGap" is' in found["refused"]
        assert sorted(place.labels("moved")) == sorted([*orders(3), "written"])
        assert place.labels("orders") == []
    hosts.close()
