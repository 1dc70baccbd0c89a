"""Five daemons in five networks, one of them the only way: exactly once, in order of commits."""

from pathlib import Path

import pytest

from tests.netns.relayed import lived
from tests.netns.star import why_not

MESSAGES = 4000  # messages in transit when the faults begin, also on a fast machine


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
def test_over_a_router_that_is_killed_too_each_queue_gets_its_messages_once_and_in_order(
    tmp_path: Path, ipv6: bool
) -> None:
    if why := why_not():
        pytest.skip(why)

    report = lived(
        tmp_path,
        MESSAGES,
        seed=1,
        settle_s=120.0,
        ipv6=ipv6,
        log=lambda _: None,
    )

    assert not report.wrong
    assert report.kills
    assert report.cuts
