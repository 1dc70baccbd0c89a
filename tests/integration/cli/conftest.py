"""Fixtures for the command line: it runs in this process, against a peer in a thread."""

import pytest
from click.testing import CliRunner, Result

from qmd.cli import main
from tests.integration.client.peer import peer_in_thread
from tests.unit.client.packets import packet


@pytest.fixture
def config(tmp_path):
    """Return a configuration file with the control socket `socket` beside it."""
    path = tmp_path / "qmd.toml"
    path.write_text('[queue_manager]\nname = "hosta"\n[control]\nsocket = "socket"\n')
    return path


@pytest.fixture
def peer(config):
    with peer_in_thread(config.parent / "socket") as peer:
        peer.packet = packet
        yield peer


@pytest.fixture
def qmd(config):
    def run(*arguments: str, **named) -> Result:
        return CliRunner().invoke(main, ["--config", str(config), *arguments], **named)

    return run
