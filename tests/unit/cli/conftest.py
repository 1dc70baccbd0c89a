"""The command line in this process, and a queue manager for it to talk to."""

import pytest
from click.testing import CliRunner, Result

from protocol.format_name import parse_destination
from qmd import frames
from qmd.cli import main
from qmd.compose import NO_ADDRESS, compose, queue_address
from tests.unit.client.peer import peer_in_thread


def packet(message: frames.NewMessage) -> bytes:
    return compose(
        message,
        source=bytes(15) + b"\xaa",
        destination=queue_address(parse_destination(message.destination, local_host=".")),
        admin=NO_ADDRESS,
        response=NO_ADDRESS,
        message_number=1,
        sent_time_s=1_700_000_000,
        delivery=frames.RECOVERABLE,
        position=None,
    )


@pytest.fixture
def config(tmp_path):
    """A configuration whose control socket is `socket`, beside it."""
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
