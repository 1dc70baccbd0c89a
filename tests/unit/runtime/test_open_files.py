"""Descriptors for the configured connections."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from qmd.config.settings import Settings
from qmd.runtime.open_files import PLACES_MIN, fit, needed_files

CODE = """
import resource
from qmd.runtime.open_files import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 500))
print(raise_limit({wanted}), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_settings_that_fit_are_not_changed():
    settings = Settings()

    assert fit(settings, needed_files(settings)) is settings


@pytest.mark.parametrize("limit", [64, 256, 1024, 2000])
def test_with_few_descriptors_fewer_connections_are_allowed(limit: int):
    settings = Settings()

    fitting = fit(settings, limit)

    places = (
        fitting.peers.sessions_max,
        fitting.peers.handshakes_max,
        fitting.control.clients_max,
    )
    assert all(each >= PLACES_MIN for each in places)
    assert fitting.peers.sessions_max < settings.peers.sessions_max
    assert fitting.peers.sessions_per_peer_max <= fitting.peers.sessions_max
    if limit >= 256:
        assert sum(places) <= limit - 64


@pytest.mark.parametrize(("wanted", "limit"), [(50, 100), (300, 300), (9999, 500)])
def test_the_limit_is_raised_as_far_as_possible(wanted: int, limit: int):
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 500

    shown = subprocess.run(
        [sys.executable, "-c", CODE.format(wanted=wanted)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert shown.split() == [str(limit)] * 2
