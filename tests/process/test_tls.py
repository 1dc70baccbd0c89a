"""Sessions over TLS between real daemons: policies, identities, wrong certificates."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.process.harness import Daemon, Hosts, free_port
from tests.process.tls_hosts import (
    Authority,
    direct,
    guid_of,
    install,
    number_of,
    own_certificate,
    problem,
    required,
    sessions,
    status,
    tls_daemon,
    tls_port,
    wait_log,
)


@pytest.fixture
def pair(hosts: Hosts) -> tuple[Daemon, Daemon]:
    """Return a sender that requires TLS of the receiver, and the receiver with queue `q`."""
    receiver = tls_daemon(hosts)
    receiver.create("q")
    return tls_daemon(hosts, tls={"policy": required(tls_port(receiver))}), receiver


@pytest.fixture
def authority(hosts: Hosts) -> Authority:
    return Authority(hosts.folder)


Issued = Callable[..., tuple[Daemon, Daemon]]


@pytest.fixture
def issued(hosts: Hosts, authority: Authority) -> Issued:
    """Return a function that makes a pair of which both have certificates of one authority."""

    def make(**certificate: object) -> tuple[Daemon, Daemon]:
        section = {"authorities": str(authority.file), "revoked": str(authority.revoked)}
        receiver = tls_daemon(hosts, tls=section)
        receiver.create("q")
        policy = required(tls_port(receiver))
        sender = tls_daemon(hosts, tls={**section, "policy": policy})
        for each, changes in ((sender, {}), (receiver, certificate)):
            guid = guid_of(each)
            install(each, authority.issue(guid, **changes))  # type: ignore[arg-type]
            each.restart()
        return sender, receiver

    return make


def test_two_hosts_with_tls_required_exchange_messages_over_tls(pair: tuple[Daemon, Daemon]):
    sender, receiver = pair
    bodies = [b"%d" % number for number in range(100)]

    sender.send_all(direct(receiver.port, "q"), bodies)
    receiver.wait_for("q", 100)

    assert receiver.bodies("q") == bodies
    assert status(receiver)["accepted"] == 1
    (session,) = sessions(sender)
    assert session["address"] == f"127.0.0.1:{tls_port(receiver)}"


def test_a_large_message_arrives_over_tls(pair: tuple[Daemon, Daemon]):
    sender, receiver = pair
    content = b"0123456789abcde-" * 200_000

    sender.send_all(direct(receiver.port, "q"), [content])
    receiver.wait_for("q", 1)

    assert receiver.bodies("q") == [content]


def test_a_host_without_tls_gets_nothing_where_tls_is_required(hosts: Hosts):
    receiver = hosts.daemon()
    receiver.create("q")
    sender = tls_daemon(hosts, tls={"policy": required(free_port())})

    sender.send(direct(receiver.port, "q"), b"secret")

    problem(sender, "no program listens there")
    assert receiver.count("q") == 0


def test_a_key_is_bound_on_first_use(pair: tuple[Daemon, Daemon]):
    sender, receiver = pair
    sender.send(direct(receiver.port, "q"), b"1")
    receiver.wait_for("q", 1)

    install(receiver, own_certificate(guid_of(receiver)))
    receiver.restart()
    sender.send(direct(receiver.port, "q"), b"2")

    problem(sender, "another key than the queue manager")
    wait_log(receiver, "refused the certificate of this host")
    assert status(sender)["refused"] > 0
    assert receiver.count("q") == 1


@pytest.mark.parametrize("command", ["tls", "peer"])
def test_an_operator_can_let_a_queue_manager_have_a_new_key(
    pair: tuple[Daemon, Daemon], command: str
):
    sender, receiver = pair
    sender.send(direct(receiver.port, "q"), b"1")
    receiver.wait_for("q", 1)
    install(receiver, own_certificate(guid_of(receiver)))
    receiver.restart()
    sender.send(direct(receiver.port, "q"), b"2")
    problem(sender, "another key than the queue manager")

    options = ("--yes",) if command == "peer" else ()
    sender.cli(command, "forget", guid_of(receiver), *options)

    receiver.wait_for("q", 2)


def test_a_binding_survives_a_restart(pair: tuple[Daemon, Daemon]):
    sender, receiver = pair
    sender.send(direct(receiver.port, "q"), b"1")
    receiver.wait_for("q", 1)
    sender.restart()

    install(receiver, own_certificate(guid_of(receiver)))
    receiver.restart()
    sender.send(direct(receiver.port, "q"), b"2")

    problem(sender, "another key than the queue manager")


def test_certificates_of_an_authority_are_accepted_by_both(issued: Issued):
    sender, receiver = issued()

    sender.send(direct(receiver.port, "q"), b"1")

    receiver.wait_for("q", 1)


@pytest.mark.parametrize(
    ("certificate", "reason", "there"),
    [
        pytest.param(
            {"starts": timedelta(days=-20)}, "has expired", "has expired there", id="expired"
        ),
        pytest.param(
            {"starts": timedelta(days=2)}, "is not valid yet", "refused the certificate", id="early"
        ),
        pytest.param(
            {"names": ("elsewhere.example",)},
            "127.0.0.1 was dialled",
            "refused the certificate",
            id="name",
        ),
    ],
)
def test_a_wrong_certificate_is_refused_with_a_reason_at_both_ends(
    issued: Issued, certificate: dict[str, object], reason: str, there: str
):
    sender, receiver = issued(**certificate)

    sender.send(direct(receiver.port, "q"), b"1")

    problem(sender, reason)
    wait_log(sender, "tls_refused")
    wait_log(receiver, there)
    assert receiver.count("q") == 0


def test_a_certificate_of_another_authority_is_refused_at_both_ends(issued: Issued, hosts: Hosts):
    sender, receiver = issued()
    other = Authority(hosts.folder, "other authority")

    install(receiver, other.issue(guid_of(receiver)))
    receiver.restart()
    sender.send(direct(receiver.port, "q"), b"1")

    problem(sender, "no authority of this host")
    wait_log(receiver, "refused the certificate")


def test_a_self_signed_certificate_is_refused_where_authorities_are_configured(issued: Issued):
    sender, receiver = issued()

    install(receiver, own_certificate(guid_of(receiver)))
    receiver.restart()
    sender.send(direct(receiver.port, "q"), b"1")

    problem(sender, "no authority of this host")


def test_a_wrong_certificate_of_the_dialling_host_is_refused_at_both_ends(issued: Issued):
    sender, receiver = issued()

    install(sender, own_certificate(guid_of(sender)))
    sender.restart()
    sender.send(direct(receiver.port, "q"), b"1")

    problem(sender, "refused the certificate of this host")
    wait_log(receiver, "no authority of this host")
    assert receiver.count("q") == 0


def test_a_revoked_certificate_ends_open_sessions_and_is_refused(
    issued: Issued, authority: Authority
):
    sender, receiver = issued()
    sender.send(direct(receiver.port, "q"), b"1")
    receiver.wait_for("q", 1)

    authority.revoke(number_of(receiver))
    wait_log(sender, "certificate revoked")
    sender.send(direct(receiver.port, "q"), b"2")

    problem(sender, "is revoked")
    wait_log(receiver, "revoked there")
    assert receiver.count("q") == 1


def test_a_pin_decides_about_the_key(pair: tuple[Daemon, Daemon]):
    sender, receiver = pair
    sender.cli("tls", "pin", guid_of(receiver), "0" * 64)
    sender.send(direct(receiver.port, "q"), b"1")
    problem(sender, "none of those that are pinned")

    sender.cli("tls", "pin", guid_of(receiver), status(receiver)["identity"])

    receiver.wait_for("q", 1)


def test_a_pin_ends_an_open_session_with_another_key(pair: tuple[Daemon, Daemon]):
    sender, receiver = pair
    sender.send(direct(receiver.port, "q"), b"1")
    receiver.wait_for("q", 1)

    sender.cli("tls", "pin", guid_of(receiver), "0" * 64)

    wait_log(sender, "none of those that are pinned")


def test_a_rule_never_leaves_tls_out(hosts: Hosts):
    receiver = tls_daemon(hosts)
    receiver.create("q")
    sender = tls_daemon(hosts, tls={"policy": ["* never"]})

    sender.send(direct(receiver.port, "q"), b"1")

    receiver.wait_for("q", 1)
    assert status(receiver)["accepted"] == 0


def test_a_peer_of_which_tls_is_required_is_refused_without_it(hosts: Hosts):
    receiver = tls_daemon(hosts, tls={"policy": required(free_port())})
    receiver.create("q")
    sender = hosts.daemon()

    sender.send(direct(receiver.port, "q"), b"1")

    wait_log(receiver, "TLS is required of it")
    assert receiver.count("q") == 0


def test_tls_is_preferred_with_a_peer_that_offers_it(hosts: Hosts):
    receiver, sender = tls_daemon(hosts), tls_daemon(hosts)
    receiver.create("q")

    sender.send(direct(receiver.port, "q"), b"1")
    receiver.wait_for("q", 1)

    assert [each["address"] for each in sessions(sender)] == [f"127.0.0.1:{tls_port(receiver)}"]
    assert receiver.count("q") == 1
    (met, *_) = [each for each in sender.json("tls", "show", "--peers") if "-" in each["peer"]]
    assert met["peer"] == guid_of(receiver)


def test_a_peer_that_needs_tls_is_dialled_over_it(hosts: Hosts):
    sender = tls_daemon(hosts)
    receiver = tls_daemon(hosts, tls={"policy": ["* required"]})
    receiver.create("q")

    sender.send(direct(receiver.port, "q"), b"1")

    receiver.wait_for("q", 1)
    assert status(receiver)["accepted"] == 1


def test_if_tls_is_only_preferred_and_fails_it_is_left_out_and_reported(hosts: Hosts):
    receiver = tls_daemon(hosts)
    receiver.create("q")
    sender = tls_daemon(hosts, tls={"policy": [f"127.0.0.1 preferred {free_port()}"]})

    sender.send(direct(receiver.port, "q"), b"1")

    receiver.wait_for("q", 1)
    wait_log(sender, "tls_not_used")
    assert len(status(sender)["left_out"]) == 1


def test_a_host_without_tls_exchanges_messages_with_one_that_offers_it(hosts: Hosts):
    receiver, plain = tls_daemon(hosts), hosts.daemon()
    receiver.create("q")
    plain.create("q")

    plain.send(direct(receiver.port, "q"), b"1")
    receiver.wait_for("q", 1)
    receiver.send(direct(plain.port, "q"), b"2")

    plain.wait_for("q", 1)


def test_a_proxy_that_cuts_tls_loses_and_doubles_nothing(hosts: Hosts):
    receiver = tls_daemon(hosts)
    receiver.create("q", transactional=True)
    receiver.create("recoverable")
    proxy = hosts.proxy(tls_port(receiver))
    sender = tls_daemon(hosts, tls={"policy": required(proxy.port)})
    bodies: list[bytes] = []
    for _ in range(4):
        batch = [b"%d" % (len(bodies) + number) for number in range(100)]
        bodies.extend(batch)
        for queue, options in (("q", ["--transactional"]), ("recoverable", [])):
            proxy.cut_after(12_000)  # of 25,000, of which a handshake has 4,600
            sender.send_all(direct(receiver.port, queue), batch, *options)
            proxy.wait_cut()

    receiver.wait_for("q", len(bodies))
    receiver.wait_for("recoverable", len(bodies))

    assert receiver.bodies("q") == bodies
    assert sorted(receiver.bodies("recoverable")) == sorted(bodies)


def test_an_authority_between_is_sent_along_and_a_change_of_files_ends_no_session(
    hosts: Hosts, authority: Authority
):
    middle = Authority(hosts.folder, "between", above=authority)
    receiver = tls_daemon(hosts, tls={"authorities": str(authority.file)})
    receiver.create("q")
    section = {"authorities": str(authority.file), "policy": required(tls_port(receiver))}
    sender = tls_daemon(hosts, tls=section)
    for each in (sender, receiver):
        install(each, middle.issue(guid_of(each)))
        each.restart()
    sender.send(direct(receiver.port, "q"), b"1")
    receiver.wait_for("q", 1)

    install(sender, middle.issue(guid_of(sender)))
    wait_log(sender, "tls_files_loaded")
    sender.send(direct(receiver.port, "q"), b"2")
    receiver.wait_for("q", 2)

    assert status(receiver)["accepted"] == 1
