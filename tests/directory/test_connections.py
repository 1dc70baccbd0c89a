"""Connections to a domain controller: authentication, encryption, and outages."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from qmd.directory.active_directory import ActiveDirectory
from qmd.directory.interface import DirectoryAway
from qmd.directory.ldap.access import PASSWORD_VARIABLE, Mechanism, Security, Server
from tests.directory.certificates import Authority
from tests.directory.domain import directory, server
from tests.directory.domain_controller import DomainController
from tests.directory.relay import Relay

SHORT_S = 1.0


def ask(controller: DomainController, *servers: Server, **changes: object) -> object:
    """Request all lists, on a connection of its own."""

    async def run() -> object:
        async with directory(controller, servers, **changes) as found:
            return await found.lists()

    return asyncio.run(run())


def refusal(controller: DomainController, *servers: Server, **changes: object) -> str:
    with pytest.raises(DirectoryAway) as refused:
        ask(controller, *servers, **changes)
    assert controller.password not in refused.value.text
    return refused.value.text


@pytest.mark.parametrize("security", [Security.TLS, Security.START_TLS])
def test_a_password_is_accepted_over_tls(controller, security):
    assert ask(controller, server(controller, security)) == ()


@pytest.mark.parametrize("user", ["MSMQ\\Administrator", "CN=Administrator,CN=Users,{}"])
def test_a_user_is_named_by_account_or_by_distinguished_name(controller, user):
    assert ask(controller, user=user.format(controller.base)) == ()


def test_a_password_is_not_sent_unencrypted(controller):
    plain = server(controller, Security.NONE)

    with Relay(plain.host, plain.port) as relay:
        relayed = Server(relay.address, relay.port, Security.NONE)
        text = refusal(controller, relayed)
        # The server itself refuses it as well, if the configuration permits it.
        theirs = refusal(controller, relayed, plain_allowed=True)

    assert "unencrypted" in text
    assert "encryption required" in theirs


def test_negotiate_by_ntlm_encrypts_connections_without_tls(controller):
    changes = {"mechanism": Mechanism.NEGOTIATE, "user": "MSMQ\\Administrator"}

    assert ask(controller, server(controller, Security.NONE), **changes) == ()


@pytest.mark.parametrize("security", [Security.TLS, Security.START_TLS])
def test_negotiate_by_ntlm_does_not_encrypt_over_tls(controller, security):
    changes = {"mechanism": Mechanism.NEGOTIATE, "user": "MSMQ\\Administrator"}

    assert ask(controller, server(controller, security), **changes) == ()


def test_negotiate_with_a_wrong_password_is_refused(controller, tmp_path):
    wrong = tmp_path / "password"
    wrong.touch(mode=0o600)
    wrong.write_text("Wrong-P@ss1")

    text = refusal(
        controller,
        server(controller, Security.NONE),
        mechanism=Mechanism.NEGOTIATE,
        user="MSMQ\\Administrator",
        password_file=wrong,
    )

    assert "refuses the bind as MSMQ\\Administrator" in text


def test_a_wrong_password_is_reported_with_the_servers_text(controller, tmp_path):
    wrong = tmp_path / "password"
    wrong.touch(mode=0o600)
    wrong.write_text("Wrong-P@ss1\n")

    text = refusal(controller, password_file=wrong)

    assert "refuses the bind as Administrator@msmq.test" in text
    assert "52e" in text  # the error of Active Directory for wrong passwords
    assert "Wrong-P@ss1" not in text


@pytest.mark.parametrize(
    ("content", "mode", "word"),
    [
        (b"", 0o600, "no password"),
        (b"\n", 0o600, "no password"),
        (b"x", 0o604, "accessible to all"),
    ],
)
def test_an_empty_or_world_readable_password_is_not_used(controller, tmp_path, content, mode, word):
    file = tmp_path / "password"
    file.write_bytes(content)
    file.chmod(mode)

    assert word in refusal(controller, password_file=file)


def test_a_password_may_come_from_the_environment(controller, monkeypatch):
    monkeypatch.setenv(PASSWORD_VARIABLE, controller.password)
    assert ask(controller, password_file=None) == ()

    monkeypatch.delenv(PASSWORD_VARIABLE)
    assert PASSWORD_VARIABLE in refusal(controller, password_file=None)


@pytest.mark.parametrize("security", [Security.TLS, Security.START_TLS])
def test_a_certificate_of_another_authority_is_refused(controller, tmp_path, security):
    text = refusal(controller, server(controller, security), ca_file=Authority(tmp_path).file)

    assert "certificate is not accepted" in text
    assert str(tmp_path) in text


@pytest.mark.parametrize("security", [Security.TLS, Security.START_TLS])
def test_a_certificate_of_another_name_is_refused(controller, security):
    text = refusal(controller, server(controller, security), server_name="dc2.msmq.test")

    assert "dc2.msmq.test" in text


def test_the_certificate_may_name_the_host_of_the_address(controller):
    assert ask(controller, server_name=controller.host) == ()


def test_an_invalid_ca_file_is_named(controller, tmp_path):
    assert str(tmp_path / "none.pem") in refusal(controller, ca_file=tmp_path / "none.pem")


def test_an_unreadable_own_certificate_is_named(controller, tmp_path):
    text = refusal(controller, certificate_file=tmp_path / "mine.pem")

    assert str(tmp_path / "mine.pem") in text


# An absent or failed server.


@contextlib.asynccontextmanager
async def going_on() -> AsyncIterator[Callable[[], int]]:
    """Count the rounds of the event loop; a blocked loop makes none."""
    count = 0

    async def run() -> None:
        nonlocal count
        while True:
            await asyncio.sleep(0.01)
            count += 1

    task = asyncio.create_task(run())
    try:
        yield lambda: count
    finally:
        task.cancel()


@pytest.mark.parametrize("security", [Security.TLS, Security.START_TLS])
def test_a_server_that_stalls_before_tls_delays_only_its_request(controller, security):
    async def run() -> tuple[str, int]:
        where = (server(controller, security),)
        changes = {"connect_timeout_s": SHORT_S, "timeout_s": SHORT_S * 2}
        async with directory(controller, where, **changes) as found, going_on() as rounds:
            with pytest.raises(DirectoryAway) as away:
                await found.lists()
            return away.value.text, rounds()

    controller.freeze()
    try:
        text, rounds = asyncio.run(run())
    finally:
        controller.thaw()

    assert re.search(r"no answer within [01][.\d]* s while", text)
    assert ("TLS handshake" in text) == (security is Security.TLS)
    assert rounds > 10


def test_a_server_that_stalls_in_the_tls_handshake_itself(controller):
    with Relay(controller.address, controller.ports[636]) as relay:
        relay.from_server_bytes_max = 100
        relayed = Server(relay.address, relay.port, Security.TLS)

        text = refusal(controller, relayed, connect_timeout_s=SHORT_S)

    assert "while in the TLS handshake" in text


def test_a_server_that_stalls_in_the_middle_of_a_search(controller):
    async def run() -> tuple[str, int, object]:
        changes = {"timeout_s": SHORT_S}
        async with directory(controller, **changes) as found, going_on() as rounds:
            await found.lists()
            controller.freeze()
            try:
                with pytest.raises(DirectoryAway) as away:
                    await found.sites()
                seen = rounds()
            finally:
                controller.thaw()
            return away.value.text, seen, await eventually(found.sites)

    text, rounds, sites = asyncio.run(run())

    assert re.search(r"no answer within [01][.\d]* s while", text)
    assert controller.url in text
    assert rounds > 10
    assert sites


async def eventually(act: Callable[[], Awaitable[object]]) -> object:
    """Return the result of `act`, once the directory is back."""
    while True:
        with contextlib.suppress(DirectoryAway):
            return await act()
        await asyncio.sleep(0.02)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  the status has no event
        await asyncio.sleep(0.01)


def test_silence_in_the_middle_of_an_answer_is_reported_with_the_request(controller):
    with Relay(controller.address, controller.ports[636]) as relay:

        async def run() -> str:
            relayed = (Server(relay.address, relay.port, Security.TLS),)
            async with directory(controller, relayed, timeout_s=SHORT_S) as found:
                await found.lists()
                relay.from_server_bytes_max = 0
                with pytest.raises(DirectoryAway) as away:
                    await found.machine_by_name("pc1")
                return away.value.text

        text = asyncio.run(run())

    assert "while searching below DC=msmq,DC=test" in text


def test_a_slow_server_is_waited_for(controller):
    with Relay(controller.address, controller.ports[636]) as relay:
        relay.delay_s = 0.1

        assert ask(controller, Server(relay.address, relay.port, Security.TLS)) == ()


def test_a_lost_connection_is_reopened_without_an_error(controller):
    with Relay(controller.address, controller.ports[636]) as relay:

        async def run() -> int:
            relayed = (Server(relay.address, relay.port, Security.TLS),)
            async with directory(controller, relayed) as found:
                await found.lists()
                await asyncio.sleep(1.1)  # an earlier loss counts as a failure
                relay.cut()
                await found.lists()
                return relay.connections

        assert asyncio.run(run()) == 2


def test_a_server_that_accepts_and_closes_connections_is_retried_with_a_delay(controller):
    with Relay(controller.address, controller.ports[636]) as relay:

        async def run() -> tuple[int, str]:
            relayed = (Server(relay.address, relay.port, Security.TLS),)
            async with directory(controller, relayed, retry_first_s=1.0) as found:
                await found.start()
                for _ in range(30):
                    with contextlib.suppress(DirectoryAway):
                        await found.lists()
                    relay.cut()
                    await asyncio.sleep(0.02)
                return relay.connections, found.status().problem

        connections, problem = asyncio.run(run())

    assert connections < 10
    assert problem


def test_a_second_server_is_used_when_the_first_is_gone_or_silent(controller, tmp_path):
    absent = Server(controller.address, 9, Security.TLS)
    with Relay(controller.address, controller.ports[636]) as relay:
        relay.from_server_bytes_max = 0
        silent = Server(relay.address, relay.port, Security.TLS)

        async def run() -> str:
            servers = (absent, silent, server(controller))
            async with directory(controller, servers, connect_timeout_s=SHORT_S) as found:
                await found.lists()
                return found.status().where

        assert asyncio.run(run()) == controller.url


def test_a_server_that_falls_silent_leaves_time_for_another(controller):
    with Relay(controller.address, controller.ports[636]) as relay:

        async def run() -> tuple[str, str]:
            servers = (Server(relay.address, relay.port, Security.TLS), server(controller))
            async with directory(controller, servers, timeout_s=3.0) as found:
                await found.lists()
                before = found.status().where
                relay.from_server_bytes_max = 0
                await found.lists()
                return before, found.status().where

        before, after = asyncio.run(run())

    assert before != after == controller.url


def test_an_outage_of_all_servers_is_reported_for_each_and_later_at_once(controller):
    absent = [Server(controller.address, port, Security.TLS) for port in (9, 11)]

    async def run() -> tuple[str, str, object]:
        async with directory(controller, absent, retry_first_s=1.0) as found:
            texts = []
            for _ in range(2):
                with pytest.raises(DirectoryAway) as away:
                    await found.lists()
                texts.append(away.value.text)
            return *texts, found.status()

    first, second, status = asyncio.run(run())

    assert f"{absent[0]}: " in first
    assert f"{absent[1]}: " in first
    assert "UTC; the next try is in 1 s" in second
    assert status.state == "away"
    assert status.since_s > 0


# A server that is killed, and started again.


@pytest.fixture
def mortal(template: Path, tmp_path: Path) -> AsyncIterator[DomainController]:
    """Yield a domain controller that a test may kill."""
    controller = DomainController(tmp_path / "dc")
    controller.copy(template)
    controller.start()
    yield controller
    controller.close()


def test_a_server_that_is_killed_in_a_search_fails_at_once_and_recovers(mortal):
    async def run() -> None:
        async with directory(mortal) as found:
            await found.start()
            await eventually(found.lists)
            mortal.freeze()
            asked = asyncio.create_task(found.sites())
            await asyncio.sleep(0.05)
            mortal.kill()
            with pytest.raises(DirectoryAway) as away:
                await asked
            assert mortal.url in away.value.text
            assert found.status().state == "away"

            mortal.start()

            assert await eventually(found.sites)
            assert found.status().state == "available"

    asyncio.run(run())


def test_the_directory_connects_by_itself_when_the_server_starts(mortal):
    mortal.stop()

    async def run() -> None:
        async with directory(mortal) as found:
            await found.start()
            await until(lambda: found.status().since_s > 0)
            assert found.status().state == "away"
            await asyncio.to_thread(mortal.start)
            await until(lambda: found.status().state == "available")

    asyncio.run(run())


def test_an_abandoned_search_leaves_the_connection_usable(controller):
    async def run(found: ActiveDirectory) -> None:
        await found.lists()
        for _ in range(20):
            asked = asyncio.create_task(found.sites())
            await asyncio.sleep(0)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
        assert await found.sites()

    async def whole() -> None:
        async with directory(controller) as found:
            await run(found)

    asyncio.run(whole())
