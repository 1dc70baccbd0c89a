"""The recipe for keepalived of docs/standby.md, as it is written there."""

import os
import shutil
from pathlib import Path

import pytest

from tests.netns.star import why_not
from tests.netns.takeover import take_over

MESSAGES = 1000


@pytest.mark.process
@pytest.mark.slow
def test_keepalived_moves_the_address_and_the_service_with_all_messages(tmp_path: Path) -> None:
    if shutil.which("keepalived") is None or os.geteuid() != 0:
        pytest.skip("keepalived or root is missing")
    if why := why_not():
        pytest.skip(why)
    take_over(MESSAGES, tmp_path)
