"""Queued services as processes of their own, and the three transactions of a call."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from qmd.client import QueueManager, TransactionAborted, connect
from qmd.service import ServiceError, proxy
from tests.patience import END_S, LOOK_S
from tests.process.command_line import COMMAND, ROOT
from tests.process.harness import DEADXACT, Daemon, Hosts
from tests.process.shop import Loose, Shop, Volatile, greet
from tests.process.test_two_daemons import QUICK, direct, wait_count


@pytest.fixture
def daemon(hosts: Hosts) -> Daemon:
    daemon = hosts.daemon(delivery=QUICK)
    daemon.create("shop", "seen", transactional=True)
    daemon.create("loose")
    return daemon


class Services:
    """The service processes of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.running: list[subprocess.Popen[bytes]] = []
        self.log = daemon.folder / "services.log"

    def start(self, name: str = "Shop", *options: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [
                    *(*COMMAND, "--config", str(self.daemon.config)),
                    *("service", "run", f"tests.process.shop:{name}", "--log-format", "json"),
                    *options,
                ],
                cwd=ROOT,
                stderr=log,
            )
        self.running.append(process)
        return process

    def lines(self, event: str) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        lines = [
            json.loads(line) for line in self.log.read_bytes().splitlines() if line[:1] == b"{"
        ]
        return [line for line in lines if line["event"] == event]

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + END_S
        while not (found := condition()):
            assert time.monotonic() < deadline, f"waited for {what}: {self.log.read_text()[-3000:]}"
            time.sleep(LOOK_S)
        return found

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


@pytest.fixture
def services(daemon: Daemon) -> Iterator[Services]:
    services = Services(daemon)
    try:
        yield services
    finally:
        services.close()


def with_client(daemon: Daemon, work: Callable[[QueueManager], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with connect(daemon.folder / "qmd.sock") as qm:
            await work(qm)

    asyncio.run(run())


class _Changed(Exception):
    """The client has decided to abort."""


async def posted_in_vain(qm: QueueManager, *calls: Coroutine[Any, Any, Any]) -> None:
    """Post a call in a transaction that is aborted."""
    with contextlib.suppress(_Changed):
        async with qm.transaction():
            for call in calls:
                await call
            raise _Changed


def seen(daemon: Daemon, count: int) -> list[str]:
    """Return the messages that operations have sent, in order."""
    wait_count(daemon, "seen", count)
    return [each.decode() for each in daemon.bodies("seen")]


def test_calls_that_are_posted_while_no_service_runs_are_played_in_their_order(
    daemon: Daemon, services: Services
):
    async def post(qm: QueueManager) -> None:
        shop = proxy(Shop, qm)
        for number in range(5):
            await shop.order(number)

    with_client(daemon, post)
    (waiting, *_) = daemon.peek("shop")
    assert waiting["label"] == "order"
    process = services.start()
    assert seen(daemon, 5) == [f"{number} for the 1. time" for number in range(5)]
    process.terminate()
    assert process.wait(END_S) == 0
    assert daemon.count("shop") == 0
    assert all(line["message_id"] for line in services.lines("call_played"))


def test_calls_in_a_clients_transaction_are_posted_with_it_or_cancelled(
    daemon: Daemon, services: Services
):
    async def post(qm: QueueManager) -> None:
        shop, other = proxy(Shop, qm), proxy(Shop, qm, "seen")
        await posted_in_vain(qm, shop.order(1), other.order(1))
        async with qm.transaction():
            await shop.order(2)
            await shop.order(3)
            assert await qm.peek("shop") == []

    with_client(daemon, post)
    assert daemon.count("seen") == 0
    services.start()
    assert seen(daemon, 2) == ["2 for the 1. time", "3 for the 1. time"]


def test_a_failed_playback_has_no_effect_and_is_retried(daemon: Daemon, services: Services):
    with_client(daemon, lambda qm: proxy(Shop, qm).order(7, fails=1))
    services.start()
    assert seen(daemon, 1) == ["7 for the 2. time"]
    (failed,) = services.lines("call_failed")
    assert failed["attempt"] == 1
    assert "cannot be fulfilled" in failed["exception"]


def test_a_call_that_keeps_failing_waits_for_retries_and_becomes_poison(
    daemon: Daemon, services: Services
):
    async def post(qm: QueueManager) -> None:
        shop = proxy(Shop, qm)
        await shop.order(1, fails=3)
        await shop.order(2, fails=99)
        await shop.order(3)

    with_client(daemon, post)
    services.start()
    services.until(lambda: services.lines("call_poisoned"), "the poison")
    services.until(lambda: daemon.count("shop") == 0, "its move")
    assert seen(daemon, 2) == ["3 for the 1. time", "1 for the 4. time"]
    (poison,) = daemon.peek("shop;poison")
    assert poison["abort_count"] == 4
    assert [line["cycle"] for line in services.lines("call_delayed")] == [1, 1]
    assert daemon.count("shop") == daemon.count("shop;retry") == 0
    (line,) = services.lines("call_poisoned")
    words = (
        "it failed 4 times; the last time: order failed: ValueError: order 2 cannot be fulfilled"
    )
    assert line["reason"] == words
    why = json.loads(daemon.cli("why", poison["id"], "--json").stdout)
    assert f"where it was moved because: {words} (that was at 2" in why["sentences"][0]
    (remedy,) = why["remedies"]
    assert f"shop;poison' 'private$\\shop' --lookup-id {poison['lookup_id']}" in remedy
    assert all(each["remedy"] for each in services.lines("call_failed"))


def test_the_reason_of_a_poison_call_survives_a_restart_of_its_service(
    daemon: Daemon, services: Services
):
    with_client(daemon, lambda qm: proxy(Shop, qm).order(2, fails=99))
    process = services.start()
    services.until(lambda: services.lines("call_delayed"), "the wait")
    process.kill()
    process.wait()
    daemon.cli("move", "shop;retry", "shop", "--all")
    services.start("Rejecting")
    services.until(lambda: services.lines("call_poisoned"), "the poison")
    (dead,) = [each for each in daemon.peek(DEADXACT) if "failed 2 times" in each["reason"]]
    why = daemon.cli("why", dead["id"]).stdout.decode()
    assert "order failed: ValueError: order 2 cannot be fulfilled" in why


def test_many_calls_may_wait_for_retries_by_two_processes(daemon: Daemon, services: Services):
    count = 150

    async def post(qm: QueueManager) -> None:
        async with qm.transaction():
            for number in range(count):
                await proxy(Shop, qm).order(number)
        await qm.move("shop", "shop;retry")

    with_client(daemon, post)
    services.start()
    services.start()
    wait_count(daemon, "seen", count)
    assert sorted(daemon.bodies("seen")) == sorted(
        b"%d for the 1. time" % number for number in range(count)
    )
    assert daemon.count("shop;retry") == 0


@pytest.mark.parametrize("name", ["Rejecting", "Dropping", "Faulting"])
def test_the_service_decides_about_its_poison_calls(daemon: Daemon, services: Services, name: str):
    with_client(daemon, lambda qm: proxy(Shop, qm).order(2, fails=99))
    process = services.start(name)
    if name == "Faulting":
        assert process.wait(END_S) == 1
        assert b"cannot be played" in services.log.read_bytes()
        assert daemon.count("shop") == 1
        return
    services.until(lambda: daemon.count("shop") == 0, "its end")
    dead = daemon.peek(DEADXACT)
    assert len(dead) == (1 if name == "Rejecting" else 0)
    assert all("failed 1 times" in each["reason"] for each in dead)


def test_a_message_that_is_no_call_is_poison_at_once(daemon: Daemon, services: Services):
    daemon.send("shop", b"{}", "--transactional", "--label", "order")
    daemon.send("shop", b'{"number": 1}', "--transactional", "--label", "unknown")
    daemon.send("shop", b'{"number": 4}', "--transactional", "--label", "order")
    services.start()
    assert seen(daemon, 1) == ["4 for the 1. time"]
    services.until(lambda: len(services.lines("call_poisoned")) == 2, "the poison")
    services.until(lambda: daemon.count("shop") == 0, "their moves")
    assert daemon.count("shop;poison") == 2
    reasons = [line["reason"] for line in services.lines("call_poisoned")]
    assert "its arguments cannot be read" in reasons[0]
    assert reasons[1] == "there is no operation 'unknown'"
    for poison, reason in zip(daemon.peek("shop;poison"), reasons, strict=True):
        assert f"because: {reason}" in daemon.cli("why", poison["id"]).stdout.decode()


def test_an_operation_may_ignore_the_playback_or_have_its_own_transaction(
    daemon: Daemon, services: Services
):
    async def post(qm: QueueManager) -> None:
        shop = proxy(Shop, qm)
        await shop.note(1, fails=True)
        await shop.book(2, fails=True)
        await shop.book(3)
        await shop.forward(4)

    with_client(daemon, post)
    services.start()
    assert seen(daemon, 3) == ["noted 1", "booked 3", "4 for the 1. time"]
    assert {line["then"] for line in services.lines("call_failed")} == {"it is not played again"}
    assert daemon.count("shop") == 0


def test_work_of_an_operation_with_the_client_is_part_of_the_playback(
    daemon: Daemon, services: Services
):
    daemon.create("parts", "noted", transactional=True)
    daemon.send("parts", b"a part", "--transactional")
    with_client(daemon, lambda qm: proxy(Shop, qm).relay(1, fails=1))
    services.start()
    assert seen(daemon, 1) == ["relayed 1 for the 2. time"]
    services.until(lambda: daemon.count("shop") == 0, "the end of the call")
    assert daemon.count("parts") == 0
    assert daemon.bodies("noted") == [b"1", b"1"]


def test_a_service_that_is_killed_in_a_call_plays_it_again(daemon: Daemon, services: Services):
    with_client(daemon, lambda qm: proxy(Shop, qm).order(1, slow_s=30))
    first = services.start()
    services.until(lambda: daemon.count("shop") and daemon.json("transaction", "list"), "the call")
    services.until(lambda: daemon.json("transaction", "list")[0]["sent"], "its send")
    first.kill()
    first.wait()
    services.until(lambda: daemon.peek("shop")[0]["abort_count"] == 1, "the abort")
    assert daemon.count("seen") == 0


def test_a_service_that_is_asked_to_stop_finishes_its_call(daemon: Daemon, services: Services):
    async def post(qm: QueueManager) -> None:
        await proxy(Shop, qm).order(1, slow_s=1.0)
        await proxy(Shop, qm).order(2)

    with_client(daemon, post)
    process = services.start()
    services.until(lambda: any(
        each["sent"] for each in daemon.json("transaction", "list")
    ), "the call")  # fmt: skip
    process.send_signal(signal.SIGTERM)
    assert process.wait(END_S) == 0
    assert seen(daemon, 1) == ["1 for the 1. time"]
    assert daemon.count("shop") == 1


def test_a_call_reaches_another_host_in_spite_of_cuts_and_kills(
    hosts: Hosts, daemon: Daemon, services: Services
):
    near = hosts.daemon(delivery=QUICK)
    destination = direct(daemon, "shop")
    services.start()
    services.until(lambda: services.lines("service_started"), "the service")

    async def post(qm: QueueManager) -> None:
        shop = proxy(Shop, qm, destination)
        for number in range(20):
            await shop.order(number)

    daemon.kill()
    with_client(near, post)
    near.kill()
    near.start()
    daemon.start()
    assert seen(daemon, 20) == [f"{number} for the 1. time" for number in range(20)]


def test_a_queue_without_transactions_loses_and_keeps_calls_as_documented(
    daemon: Daemon, services: Services
):
    async def post(qm: QueueManager) -> None:
        loose, volatile = proxy(Loose, qm), proxy(Volatile, qm)
        await posted_in_vain(qm, loose.order(1))
        await loose.order(2, fails=True)
        await volatile.order(3)

    with_client(daemon, post)
    daemon.kill()
    daemon.start()
    assert daemon.count("loose") == 2, "the volatile one is gone"
    services.start("Loose")
    assert seen(daemon, 1) == ["1"], "posted, whatever became of its client's transaction"
    services.until(lambda: services.lines("call_failed"), "the failure")
    assert daemon.count("loose") == 0, "and the one that failed is lost"


def test_dead_letters_are_played_with_their_reason(daemon: Daemon, services: Services):
    with_client(
        daemon,
        lambda qm: proxy(Shop, qm, "DIRECT=TCP:127.0.0.1:1\\private$\\x", time_to_reach_queue_s=1)
        .order(1),
    )  # fmt: skip
    services.start("Undertaker")
    (buried,) = seen(daemon, 1)
    assert buried.startswith("order: The message did not reach")


def test_a_service_that_does_not_fit_its_queue_is_not_started(daemon: Daemon, services: Services):
    for name, queue, complaint in (
        ("Loose", "shop", b"is transactional"),
        ("Shop", "loose", b"is not transactional"),
        ("Nothing", "shop", b"is not a class that derives"),
        ("Shop", "nowhere", b"nowhere"),
    ):
        process = services.start(name, "--queue", queue)
        assert process.wait(END_S) != 0
        assert complaint in services.log.read_bytes().splitlines()[-1]


def test_counters_are_written_to_a_file(daemon: Daemon, services: Services):
    file = daemon.folder / "shop.prom"
    with_client(daemon, lambda qm: proxy(Shop, qm).order(1, fails=1))
    process = services.start("Shop", "--metrics", str(file))
    seen(daemon, 1)
    process.terminate()
    assert process.wait(END_S) == 0
    lines = file.read_text().splitlines()
    assert 'qmd_service_calls_played_total{service="Shop"} 1' in lines
    assert 'qmd_service_calls_failed_total{service="Shop"} 1' in lines


def test_a_proxy_has_the_operations_of_its_service_and_no_others(daemon: Daemon):
    async def post(qm: QueueManager) -> None:
        with pytest.raises(AttributeError, match="no operation"):
            proxy(Shop, qm).nothing()  # type: ignore[attr-defined]
        with pytest.raises(TypeError):
            await proxy(Shop, qm).order("1", 2, 3, 4)  # type: ignore[call-arg, arg-type]
        with pytest.raises(TypeError, match="Expected `int`"):
            await proxy(Shop, qm).order("one")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="is not a function"):
            proxy(Shop, qm)()  # type: ignore[operator]

    with_client(daemon, post)
    assert issubclass(ServiceError, Exception)
    assert issubclass(TransactionAborted, Exception)


def test_a_function_can_be_called_through_a_queue(daemon: Daemon, services: Services):
    with_client(daemon, lambda qm: proxy(greet, qm)("world"))
    services.start("greet")
    assert seen(daemon, 1) == ["hello world"]


def test_log_lines_of_an_operation_have_the_id_of_its_message(daemon: Daemon, services: Services):
    with_client(daemon, lambda qm: proxy(greet, qm)("world"))
    (message,) = daemon.peek("shop")
    services.start("greet")
    seen(daemon, 1)
    for event in ("greeted", "was_polite"):  # with `logging`, and with structlog
        (line,) = services.until(lambda event=event: services.lines(event), event)
        assert (line["message_id"], line["operation"]) == (message["id"], "greet")


def test_a_cut_delivery_leaves_the_call_in_the_outgoing_queue(
    hosts: Hosts, daemon: Daemon, services: Services
):
    near = hosts.daemon(delivery=QUICK)
    proxy_host = hosts.proxy(daemon.port)
    destination = proxy_host.destination("shop")
    proxy_host.cut()
    daemon.kill()
    with_client(near, lambda qm: proxy(Shop, qm, destination).order(1))
    (waiting,) = near.json("outgoing", "list")
    assert waiting["messages"] == 1, "it was posted, and is where the delivery takes it from"
    daemon.start()
    services.start()
    assert seen(daemon, 1) == ["1 for the 1. time"]
    services.until(lambda: near.json("outgoing", "list")[0]["messages"] == 0, "its release")


def test_a_service_signs_the_messages_that_it_sends(
    daemon: Daemon, services: Services, tmp_path: Path
) -> None:
    files = ("--key", str(tmp_path / "key"), "--certificate", str(tmp_path / "certificate"))
    fingerprint = daemon.cli("key", "new-signer", "shop", *files).stdout.decode().strip()
    daemon.cli("queue", "set", "seen", "--authenticate")
    services.start("Shop", *files)

    async def call(qm: QueueManager) -> None:
        await proxy(Shop, qm).order(1)
        await proxy(Shop, qm).note(2)

    with_client(daemon, call)
    wait_count(daemon, "seen", 2)

    found = daemon.peek("seen")
    assert [each["principals"] for each in found] == [[f"signer:{fingerprint}"]] * 2
    assert [each["signer"]["subject"] for each in found] == ["CN=shop"] * 2
    assert found[0]["signer"]["key_bits"] == 2048
    (account,) = daemon.json("why", found[0]["id"])
    assert account["places"][0]["signer"]["fingerprint"] == fingerprint
    text = daemon.cli("why", found[0]["id"]).stdout.decode()
    assert f"signature was verified: CN=shop (signer:{fingerprint}" in text
    half = daemon.cli("service", "run", "tests.process.shop:Shop", *files[:2], check=False)
    assert b"--key and --certificate require each other" in half.stderr
