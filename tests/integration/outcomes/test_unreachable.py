"""Failed connections: each cause has its own name."""

import errno
import socket

import pytest

from qmd.control_protocol.messages import TRANSACTIONAL
from qmd.peers.connect_errors import explain
from tests.integration.managers import Hosts, hosted, until


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (socket.gaierror(-2, "Name or service not known"), "peer_name_unknown", "QM-1618"),
        (UnicodeError("label empty or too long"), "peer_name_unknown", "label empty"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "peer_not_listening", "QM-1619"),
        (TimeoutError(), "peer_silent", "no answer within 10 s (QM-1620)"),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), "peer_silent", "no answer (QM-1620)"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "peer_no_route", "QM-1621"),
        (OSError(errno.EMFILE, "Too many open files"), "peer_unreachable", "Too many open files"),
    ],
)
def test_a_failed_attempt_names_its_cause(error, code, words):
    why = explain(error, waited_s=10)

    assert why.code == code
    assert words in why.text


@hosted
async def test_the_outgoing_queue_shows_the_cause_of_a_failed_connection(hosts: Hosts) -> None:
    a = await hosts.start()
    with socket.socket() as closed:  # bound, but not listening
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        name = f"DIRECT=TCP:127.0.0.1:{port}\\private$\\x"
        await a.send(name, b"1", delivery=TRANSACTIONAL)
        history = a.sending_to(name).link.retry.history

        await until(lambda: len(history) > 0)

    assert history[0].result == "the computer answers, but no program listens there (QM-1619)"
