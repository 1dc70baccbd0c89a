"""Short random walks of a daemon and the strict host; `python -m tests.strict_host` has more."""

from __future__ import annotations

import pytest

from tests.process.harness import Hosts
from tests.strict_host.walk import DELIVERY, Walk


@pytest.mark.parametrize("seed", [1, 2])
def test_a_walk_over_legal_behaviour_loses_and_doubles_nothing(hosts: Hosts, seed: int) -> None:
    daemon = hosts.daemon(delivery=DELIVERY)
    daemon.create("plain")
    daemon.create("orders", transactional=True)
    Walk(daemon, seed, steps=25, kills=seed == 2).run()
