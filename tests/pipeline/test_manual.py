"""The examples of docs/pipeline.md: they do what the manual says."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

from qmd.client import blocking, new_message
from tests.process.command_line import ROOT
from tests.process.harness import Hosts

MANUAL = ROOT / "docs" / "pipeline.md"

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def daemon():
    hosts = Hosts()
    yield hosts.daemon()
    hosts.close()


def test_the_examples_run_in_their_order(spark, daemon, tmp_path, capsys):
    examples = re.findall(r"```python\n(.*?)```", MANUAL.read_text(), re.DOTALL)
    socket = str(daemon.folder / "qmd.sock")
    with blocking.connect(socket) as qm:
        qm.create_queue("orders")
        qm.send_many([new_message("orders", "ten screws", label="order 17") for _ in range(3)])
        names: dict[str, object] = {}

        for example in examples:
            here = example.replace("/run/qmd/qmd.sock", socket).replace("/lake", str(tmp_path))
            exec(compile(here, str(MANUAL), "exec"), names)

        assert "|order 17|    3|" in capsys.readouterr().out
        assert names["spark"] is spark
        assert spark.read.parquet(str(tmp_path / "orders")).count() == 3
        (left,) = qm.peek_each("orders")
        assert (left.body, left.label) == (b"ten screws", "order 17")
