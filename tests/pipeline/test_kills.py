"""A few kills of each kind; `make soak-pipeline` runs as many as requested."""

import pytest

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

from tests.pipeline.kills import Kills, differences

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
]


def test_every_message_is_in_both_sinks_once_in_spite_of_kills(spark, tmp_path):
    # At the end it kills the driver too, and the session of the tests reads what is left.
    Kills(tmp_path, seed=1, pause_s=3, session=spark).run(2, ["worker", "daemon"])


def test_lost_duplicated_and_unordered_messages_are_detected():
    streams = [(f"stream {number}", at) for number in range(5) for at in range(4)]

    assert list(differences(iter(streams), 4)) == []
    assert len(list(differences(iter(streams[:-1]), 4))) == 1
    assert len(list(differences(iter([*streams, streams[0]]), 4))) == 1
    assert "out of order" in " ".join(differences(iter([streams[1], streams[0], *streams[2:]]), 4))
