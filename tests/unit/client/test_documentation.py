"""The examples in docs/client.md run as they stand there."""

import re
from pathlib import Path

import pytest

from tests.unit.client.packets import packet
from tests.unit.client.peer import peer_in_thread

TEXT = (Path(__file__).parents[3] / "docs" / "client.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(example, tmp_path):
    path = tmp_path / "socket"
    with peer_in_thread(path) as peer:
        peer.packet = packet

        exec(compile(example.replace("/run/qmd/qmd.sock", str(path)), "client.md", "exec"), {})

        assert all(not connection.taken for connection in peer.connections)


def test_there_are_examples():
    assert len(EXAMPLES) >= 6
