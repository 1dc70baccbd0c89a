"""Bridges to a real NATS server: exactly once both ways, with kills of every process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.bridge.bridges import Bridges
from tests.bridge.brokers import NatsServer
from tests.process.harness import Daemon, body

STREAM, OUT, IN = "shop", "shop.out", "shop.in"


def on_stream(server: NatsServer, act: Callable[[Any], Awaitable[Any]]) -> Any:
    """Run `act` with a JetStream context."""
    import nats

    async def run() -> Any:
        connection = await nats.connect(server.url)
        try:
            return await act(connection.jetstream())
        finally:
            await connection.close()

    return asyncio.run(run())


def create_stream(server: NatsServer, **config: Any) -> None:
    on_stream(server, lambda js: js.add_stream(name=STREAM, subjects=["shop.*"], **config))


def publish(server: NatsServer, first: int, last: int, subject: str = IN) -> None:
    async def act(js: Any) -> None:
        for number in range(first, last + 1):
            await js.publish(subject, b"%d" % number, headers={"region": "east"})

    on_stream(server, act)


def stored(server: NatsServer, subject: str = OUT) -> list[Any]:
    """Return all messages of a subject, in the order of the stream."""

    async def act(js: Any) -> list[Any]:
        found: list[Any] = []
        subscription = await js.subscribe(subject, ordered_consumer=True)
        with contextlib.suppress(Exception):
            while True:
                found.append(await subscription.next_msg(timeout=0.5))
        return found

    return list(on_stream(server, act))


def count(server: NatsServer, subject: str = OUT) -> int:
    async def act(js: Any) -> int:
        info = await js.stream_info(STREAM, subjects_filter=subject)
        return int((info.state.subjects or {}).get(subject, 0))

    with contextlib.suppress(Exception):
        return int(on_stream(server, act))
    return -1


def definitions(server: NatsServer, batch: int = 20) -> dict[str, dict[str, Any]]:
    common = {"kind": "nats", "url": server.url, "stream": STREAM, "batch": batch}
    return {
        "out": {**common, "direction": "out", "queue": "outbox", "subject": OUT},
        "in": {**common, "direction": "in", "queue": "inbox", "subject": IN},
    }


@pytest.fixture
def made(daemon: Daemon, nats_server: NatsServer, bridges: Callable[..., Bridges]) -> Bridges:
    daemon.create("outbox", "inbox", transactional=True)
    create_stream(nats_server)
    return bridges(**definitions(nats_server))


def test_properties_reach_both_ends(daemon: Daemon, nats_server: NatsServer, made: Bridges):
    sent = daemon.send(
        "outbox", b"10 screws", "--label", "örder 1", "--property", "region=east",
        "--property", "weight:=3", "--response-queue", "replies@hostb",
        "--content-type", "text/plain",
    )  # fmt: skip
    checked = made.cli("check")
    assert [row["ok"] for row in checked] == [True, True]
    assert all("exactly once" in row["text"] for row in checked)
    made.start()

    (message,) = made.wait(lambda: stored(nats_server), "a message")
    assert message.data == b"10 screws"
    headers = message.headers
    assert headers["Nats-Msg-Id"] == headers["qmd-id"] == sent
    assert headers["qmd-label"] == '"\\u00f6rder 1"'
    assert headers["content-type"] == "text/plain"

    async def copy(js: Any) -> None:
        await js.publish(IN, message.data, headers={**headers, "Nats-Msg-Id": "x", "plain": "yes"})

    on_stream(nats_server, copy)
    (arrived,) = daemon.wait_for("inbox", 1)
    assert body(arrived) == b"10 screws"
    assert arrived["label"] == "örder 1"
    assert arrived["transactional"]
    assert arrived["properties"] == {"region": "east", "weight": 3, "plain": "yes"}
    assert arrived["response_queue"].lower().startswith("direct=os:hostb\\private$\\replies")
    (out, into) = made.cli("status", "--state", str(made.state_file))
    assert (into["position"]["sequence"], into["messages"], into["refused"]) == (2, 1, 0)
    assert out["waiting"] == 0
    made.wait(lambda: made.state()["in"]["state"] == "running")
    assert 'qmd_bridge_up{bridge="in",kind="nats",direction="in"} 1' in (
        made.state_file.with_suffix(".prom").read_text()
    )
    (unknown, _) = made.cli("status", "--state", str(made.state_file.with_name("other")))
    assert unknown["state"] == "unknown"
    assert made.stop() == 0
    made.state_file.write_text('{"at": 0, "bridges": []}')  # that of a process which has ended
    (ended, _) = made.cli("status", "--state", str(made.state_file))
    assert ended["state"] == "not running"


@pytest.mark.slow
def test_kills_of_every_process_neither_lose_nor_double(
    daemon: Daemon, nats_server: NatsServer, made: Bridges
):
    sent = 0

    def more() -> None:
        nonlocal sent
        first, sent = sent + 1, sent + 200
        daemon.send_all("outbox", [b"%d" % n for n in range(first, sent + 1)], "--transactional")
        publish(nats_server, first, sent)

    more()
    made.start()
    for kill in (made.restart, nats_server.restart, daemon.restart, made.restart):
        made.wait(lambda: count(nats_server) > sent - 190, "the first messages")
        kill()
        more()
    made.wait(lambda: daemon.count("inbox") >= sent, "all messages inward")
    made.wait(lambda: count(nats_server) >= sent, "all messages outward")
    made.wait(lambda: daemon.count("outbox") == 0, "an empty outbox")

    expected = [b"%d" % n for n in range(1, sent + 1)]
    assert [message.data for message in stored(nats_server)] == expected
    assert daemon.bodies("inbox") == expected


def test_a_kill_between_publication_and_removal_beyond_the_duplicate_window(
    daemon: Daemon, nats_server: NatsServer, bridges: Callable[..., Bridges]
):
    """The ids in the stream are read at a start: the window of the server is not needed."""
    daemon.create("outbox", transactional=True)
    create_stream(nats_server, duplicate_window=0.1)
    sent = daemon.send_all("outbox", [b"1", b"2", b"3"], "--transactional")

    async def as_if_published(js: Any) -> None:
        for message_id in sent[:2]:
            await js.publish(OUT, b"first", headers={"Nats-Msg-Id": message_id})
        await asyncio.sleep(0.3)

    on_stream(nats_server, as_if_published)
    made = bridges(out=definitions(nats_server)["out"])
    made.start()
    made.wait(lambda: daemon.count("outbox") == 0, "an empty outbox")

    assert [message.data for message in stored(nats_server)] == [b"first", b"first", b"3"]


def test_an_arrival_that_cannot_be_a_message_is_put_aside_with_the_reason(
    daemon: Daemon, nats_server: NatsServer, made: Bridges
):
    async def act(js: Any) -> None:
        await js.publish(IN, b"good")
        await js.publish(IN, b"bad", headers={"qmd-priority": "high"})
        await js.publish(IN, b"long", headers={"qmd-label": "x" * 300})
        await js.publish(IN, b"good again")

    on_stream(nats_server, act)
    made.start()

    assert [body(each) for each in daemon.wait_for("inbox", 2)] == [b"good", b"good again"]
    refused = daemon.wait_for("private$\\bridge.in.refused", 2)
    assert [body(each) for each in refused] == [b"bad", b"long"]
    assert "qmd-priority" in refused[0]["properties"]["reason"]
    assert "label" in refused[1]["label"]


def test_a_message_that_the_server_refuses_becomes_a_dead_letter(
    daemon: Daemon, nats_server: NatsServer, made: Bridges
):
    daemon.cli("queue", "set", "outbox", "--retry-attempts", "2", "--retry-delay", "10ms",
               "--retry-end", "dead-letter")  # fmt: skip
    large = made.folder / "large"
    large.write_bytes(b"x" * (1024 * 1024 + 1))
    daemon.cli("send", "outbox", "--file", str(large), "--transactional")
    daemon.send("outbox", b"small", "--transactional")
    made.start()

    (dead,) = daemon.wait_for("DIRECT=OS:.\\SYSTEM$;DEADXACT", 1)
    assert len(body(dead)) == 1024 * 1024 + 1
    assert "the server takes 1048576" in dead["reason"]
    made.wait(lambda: count(nats_server) == 1, "the other message")


def test_a_work_queue_is_emptied(
    daemon: Daemon, nats_server: NatsServer, bridges: Callable[..., Bridges]
):
    daemon.create("inbox", transactional=True)
    create_stream(nats_server, retention="workqueue")
    publish(nats_server, 1, 50)
    made = bridges(**{"in": definitions(nats_server)["in"]})
    made.start()
    daemon.wait_for("inbox", 10)
    made.restart()

    made.wait(lambda: count(nats_server, IN) == 0, "an empty stream")
    assert daemon.bodies("inbox") == [b"%d" % n for n in range(1, 51)]


def test_two_processes_with_one_bridge_exclude_each_other(
    daemon: Daemon, nats_server: NatsServer, made: Bridges, bridges: Callable[..., Bridges]
):
    other = Bridges(daemon, made.folder / "nats", **definitions(nats_server))
    made.start()
    other.start()
    try:
        publish(nats_server, 1, 300)
        daemon.wait_for("inbox", 300)
        made.wait(lambda: made.state() and other.state())
    finally:
        other.kill()

    assert daemon.bodies("inbox") == [b"%d" % n for n in range(1, 301)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"queue": "plain"}, "not transactional"),
        ({"stream": "nothing"}, "no stream nothing"),
        ({"url": "nats://127.0.0.1:1"}, ""),
        ({"queue": "nowhere"}, "nowhere"),
    ],
)
def test_check_names_the_fault(
    daemon: Daemon, nats_server: NatsServer, made: Bridges, change: dict[str, str], reason: str
):
    daemon.create("plain")
    made.define(**{"in": definitions(nats_server)["in"] | change})

    (row,) = made.cli("check", check=False)
    assert not row["ok"]
    assert reason in row["text"]


def test_a_position_of_another_end_is_refused(
    daemon: Daemon, nats_server: NatsServer, made: Bridges
):
    assert all(row["ok"] for row in made.cli("check"))
    made.define(**{"in": definitions(nats_server)["in"] | {"subject": "shop.other"}})

    (row,) = made.cli("check", check=False)
    assert "belongs to 'nats shop shop.in'" in row["text"]


def test_a_stream_that_was_made_anew_is_named(
    daemon: Daemon, nats_server: NatsServer, made: Bridges
):
    """Its numbers begin again: messages up to the old position would be passed over."""
    publish(nats_server, 1, 5)
    made.start()
    daemon.wait_for("inbox", 5)
    made.stop()
    on_stream(nats_server, lambda js: js.delete_stream(STREAM))
    create_stream(nats_server)
    for last in (3, 30):  # before the old position, and behind it
        publish(nats_server, 1, last)
        (_, row) = made.cli("check", check=False)
        assert not row["ok"]
        assert "made anew" in row["text"]
