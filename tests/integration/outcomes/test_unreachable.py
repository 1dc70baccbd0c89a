"""Failed connections: each cause has its own name."""

import errno
import socket

import pytest

from qmd.control_protocol.messages import TRANSACTIONAL
from qmd.peers.connect_errors import explain
from qmd.tls.errors import TlsFailed
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


@pytest.mark.parametrize(
    ("error", "status", "hresult"),
    [
        (socket.gaierror(-2, "unknown"), "DnsFailure", 0x80072AF9),
        (UnicodeError("label empty"), "DnsFailure", 0x80072AF9),
        (ConnectionRefusedError(errno.ECONNREFUSED, ""), "SocketConnectFailure", 0x8007274D),
        (TimeoutError(), "SocketConnectFailure", 0x8007274C),
        (OSError(errno.EHOSTUNREACH, ""), "SocketConnectFailure", 0x80072751),
        (OSError(errno.EMFILE, ""), "LowResource", 0xC00E0027),
        (OSError(errno.EAFNOSUPPORT, ""), "TcpNotEnabled", 0x8007273F),
        (OSError(errno.EADDRNOTAVAIL, ""), "SocketBindFailure", 0x80072741),
        (PermissionError(errno.EACCES, ""), "SocketCreateFailure", 0x8007271D),
        (TlsFailed("its certificate is unknown"), "CertificateValidationFailure", 0x800B0109),
    ],
)
def test_a_failed_attempt_has_the_status_and_the_error_of_windows(error, status, hresult):
    """[MS-MQDMPR] 3.1.1.3 ConnectionHistory"""
    why = explain(error, waited_s=10)

    assert (why.status.value, why.error) == (status, hresult)


@hosted
async def test_the_outgoing_queue_shows_the_cause_of_a_failed_connection(hosts: Hosts) -> None:
    a = await hosts.start()
    with socket.socket() as closed:  # bound, but not listening
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        name = f"DIRECT=TCP:127.0.0.1:{port}\\private$\\x"
        await a.send(name, b"1", delivery=TRANSACTIONAL)
        retry = a.sending_to(name).link.retry

        await until(lambda: retry.last is not None)

    assert retry.last is not None
    assert retry.last.result == "the computer answers, but no program listens there (QM-1619)"
    assert a.sending_to(name).link.state(a.sending_to(name)).value == "waiting"


@hosted
async def test_a_queue_of_an_unknown_host_needs_validation(hosts: Hosts) -> None:
    """[MS-MQQB] 3.1.5.2.1"""
    a = await hosts.start()
    name = "DIRECT=OS:nowhere.invalid\\private$\\x"
    await a.send(name, b"1", delivery=TRANSACTIONAL)
    queue = a.sending_to(name)

    await until(lambda: queue.link.retry.last is not None)

    assert queue.link.state(queue).windows_name == "NEED VALIDATION"
    assert queue.link.retry.last.status.value == "DnsFailure"
