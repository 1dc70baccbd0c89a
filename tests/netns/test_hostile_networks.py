"""Three real daemons with a hostile network and kills: exactly once, in order."""

from pathlib import Path

import pytest

from benchmarks.pair import run
from tests.netns.network import Network, why_not
from tests.netns.world import World
from tests.patience import END_S

HARM_S = 20.0
SETTLE_S = END_S


@pytest.mark.process
@pytest.mark.slow
def test_in_a_hostile_network_messages_arrive_once_and_in_order(tmp_path: Path):
    if why := why_not():
        pytest.skip(why)
    network = Network()
    network.open()

    async def live() -> None:
        world = World(network, tmp_path, seed=1)
        report = await world.run(HARM_S, settle_s=SETTLE_S)

        assert not report.wrong
        assert report.kills > 2
        assert report.harmed_packets > 20
        assert len(report.harm) == 9

    try:
        run(live())
    finally:
        network.close()
