"""`qmd pipeline finish` closes a stream from its checkpoint alone."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

from pipeline.source.options import Options
from pipeline.source.stream import StreamReader
from qmd.client import blocking, new_message
from tests.process.harness import Hosts

pytestmark = pytest.mark.process


@pytest.fixture
def daemon():
    hosts = Hosts()
    yield hosts.daemon()
    hosts.close()


def written(folder, *, offsets, commits):
    """Write a checkpoint as Spark leaves it."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, offset in enumerate(offsets):
        lines = ["v1", '{"batchWatermarkMs":0}', json.dumps(offset)]
        (folder / "offsets" / str(number)).write_text("\n".join(lines))
    for number in commits:
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return str(folder)


def test_committed_messages_are_received_and_reserved_ones_stay(daemon, tmp_path):
    socket = str(daemon.folder / "qmd.sock")
    options = {"endpoint": socket, "queue": "orders", "readerId": "lake"}
    with blocking.connect(socket) as qm:
        qm.create_queue("orders")
        qm.send_many([new_message("orders", str(number)) for number in range(10)])
        reader = StreamReader(Options({**options, "maxMessagesPerTrigger": "4"}, "readStream"))
        offsets = [reader.initialOffset()]
        for _ in range(2):
            offsets.append(reader.latestOffset(offsets[-1], reader.getDefaultReadLimit()))
        reader.stop()
        # Batches 1 and 2 were planned; only batch 1 was written to the sink.
        checkpoint = written(tmp_path / "checkpoint", offsets=offsets, commits=[0, 1])

        def left():
            return qm.show_queue("orders")["messages"]

        (would,) = daemon.json("pipeline", "finish", "--checkpoint", checkpoint, "--dry-run")
        assert (would["messages"], left()) == (4, 10)
        (done,) = daemon.json("pipeline", "finish", "--checkpoint", checkpoint)
        assert (done["reader"], done["batch"], done["messages"]) == ("lake", 1, 4)
        assert left() == 6
        (again,) = daemon.json("pipeline", "finish", "--checkpoint", checkpoint)
        assert (again["messages"], left()) == (0, 6)
        # The next run reads the second batch again, and no message in between.
        later = StreamReader(Options(options, "readStream"))
        planned = later.partitions(offsets[1], offsets[2])
        bodies = [
            int(body)
            for one in planned
            for batch in later.read(one)
            for body in batch["body"].to_pylist()
        ]
        later.stop()
        assert bodies == [4, 5, 6, 7]


def test_a_folder_that_is_no_checkpoint_is_refused_with_its_id(daemon, tmp_path):
    done = daemon.cli("pipeline", "finish", "--checkpoint", str(tmp_path), check=False)

    assert done.returncode == 1
    assert b"QM-1882" in done.stderr
    assert b"is not a checkpoint of a streaming query" in done.stderr
