"""A data folder of every earlier version opens, and its messages are delivered."""

from __future__ import annotations

import itertools
import os
import sqlite3
import struct
from contextlib import closing

import pytest

from protocol.identifiers import guid_bytes
from storage.engine import schema
from tests.crash import old_folder
from tests.crash.control import Control
from tests.crash.machine import Machine
from tests.crash.old_folder import COUNT, PEER, SEQUENCE
from tests.crash.shim import Fault
from tests.process.remote import RemoteQueueManager

LATEST = schema.latest_version(schema.read_migrations())
#: Of these, `make test` kills the upgrade; `make soak` does it for all.
KILLED = [1, 13, 33]
#: `make soak` opens folders of every version.
IS_FULL = os.environ.get("CRASH") == "full"
VERSIONS = old_folder.every_version() if IS_FULL else old_folder.versions()
EVERYTHING = "cwtsdu"
STEP = 1 if IS_FULL else 29  # acts between two kills
DEAD_LETTERS = r"DIRECT=OS:.\SYSTEM$;DEADLETTER"


def peek(control: Control, queue: str) -> list[bytes]:
    return [each[2] for each in control.ask("peek", queue, 0, 100, 0.0)]


def holds_everything(control: Control) -> bool:
    plain = peek(control, r"private$\plain")
    own, letters = plain[: 2 * COUNT], plain[2 * COUNT :]
    orders = peek(control, r"private$\orders")
    return (
        all(b"%d" % number in packet for number, packet in enumerate(own))
        and all(b"letter %d" % number in packet for number, packet in enumerate(letters, 1))
        and (len(own), len(letters), len(orders)) == (2 * COUNT, COUNT, 2 * COUNT)
        and len(peek(control, DEAD_LETTERS)) == 1
    )


def version_of(machine: Machine) -> int:
    with closing(sqlite3.connect(machine.data / "queues.db")) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


@pytest.mark.parametrize("version", VERSIONS)
def test_an_old_folder_opens_and_continues(machine: Machine, version: int):
    with RemoteQueueManager(PEER) as remote:
        listener = remote.listen()
        old_folder.restore(version, machine.data, listener.port)
        assert machine.start(), machine.said()
        control = machine.connect()
        assert holds_everything(control)

        delivered = listener.accept()
        messages = delivered.receive_many(2 * COUNT)
        in_order = [each for each in messages if each.transaction is not None]
        delivered.order_ack(in_order[0].transaction.sequence_id, COUNT)  # type: ignore[union-attr]
        assert [each.body for each in in_order] == [b"%d" % number for number in range(COUNT)]
        assert len({each.body for each in messages if each.transaction is None}) == COUNT

        (listening,) = control.ask("status")["listen"]
        sender = remote.connect(int(listening.rpartition(":")[2]))
        again = [old_folder.incoming(remote, number) for number in range(1, COUNT + 2)]
        sender.send_many(again)
        sender.send_many([old_folder.letter(remote, number) for number in range(1, COUNT + 1)])
        sender.wait_stored()
        sender.wait_order_ack(SEQUENCE, COUNT + 1)
        assert len(peek(control, r"private$\orders")) == 2 * COUNT + 1

        control.ask("send", [[r"private$\plain", b"new"]])
        taken = control.ask("take", r"private$\plain", 100, 0.0)
        assert len(taken) == 3 * COUNT + 1
        control.ask("remove", r"private$\plain", [each[0] for each in taken])
        while any(each["messages"] for each in control.ask("list_outgoing")):
            delivered.read_for(0.01)
        assert machine.terminate() == 0


def test_each_schema_has_a_folder():
    """From schema 33 on: those before it were not saved when the next migration was added."""
    assert set(range(33, LATEST)) <= set(old_folder.versions())


def killed() -> list[int]:
    versions = old_folder.versions() if os.environ.get("CRASH") == "full" else KILLED
    return [version for version in versions if version < LATEST]


@pytest.mark.parametrize("version", killed())
def test_an_upgrade_can_be_interrupted_at_any_act(machine: Machine, version: int):
    def begin(fault: Fault) -> bool:
        machine.wipe()
        machine.changes = ["migrate"]
        old_folder.restore(version, machine.data, old_folder.PORT)
        return machine.start(fault)

    assert begin(Fault("kill", 0, EVERYTHING))
    acts = machine.count.value
    machine.terminate()
    latest = version_of(machine)

    assert latest > version
    for at in range(1, acts + 1, STEP):
        begin(Fault("kill", at, EVERYTHING))
        machine.kill()
        assert machine.start(), machine.said()
        assert holds_everything(machine.connect())
        assert machine.terminate() == 0
        assert version_of(machine) == latest


def reserve_in_schema_43(machine: Machine, queue: bytes) -> None:
    """Reserve all messages of a queue in single rows, but for one, as that version did."""
    with closing(sqlite3.connect(machine.data / "queues.db")) as db:
        (queue_id,) = db.execute("SELECT id FROM queue WHERE key LIKE '%plain'").fetchone()
        keys = [
            key for (key,) in db.execute("SELECT key FROM message WHERE key >> 48 = ?", (queue_id,))
        ]
        del keys[2]
        db.execute("INSERT INTO reader VALUES (1, 'archive', 7, 0)")
        db.execute(
            "INSERT INTO reader_queue VALUES (1, 1, ?, ?, 0, 0, ?, 0, 0, 0, 0)",
            (queue_id, queue, len(keys) + 1),
        )
        db.executemany(
            "INSERT INTO reservation VALUES (?, ?)",
            [(1 << 44 | position, key) for position, key in enumerate(keys, 1)],
        )
        db.commit()


def reserved(control: Control) -> tuple[str, list[bytes]]:
    """Open the reader; return its queue, and the packets that it has reserved."""
    [queue] = control.ask("open_reader", "archive", [r"private$\plain"])["queues"]
    answer = control.ask(
        "read_range", queue["queue"], queue["position"], queue["reserved"], 100, 1 << 20, "archive"
    )
    ends = struct.unpack(f"<{answer[0] + 1}i", answer[9])
    return queue["queue"], [answer[10][begin:end] for begin, end in itertools.pairwise(ends)]


def test_reservations_of_schema_43_are_kept_by_an_upgrade_at_any_act(machine: Machine):
    old_folder.restore(43, machine.data, old_folder.PORT)
    assert machine.start(), machine.said()
    everything = peek(machine.connect(), r"private$\plain")
    name, packets = reserved(machine.connect())
    assert packets == []
    assert machine.terminate() == 0

    def begin(fault: Fault) -> bool:
        machine.wipe()
        machine.changes = ["migrate"]
        old_folder.restore(43, machine.data, old_folder.PORT)
        reserve_in_schema_43(machine, guid_bytes(name))
        return machine.start(fault)

    assert begin(Fault("kill", 0, EVERYTHING))
    acts = machine.count.value
    machine.terminate()
    for at in range(1, acts + 1, STEP):
        begin(Fault("kill", at, EVERYTHING))
        machine.kill()
        assert machine.start(), machine.said()
        control = machine.connect()
        assert reserved(control) == (name, everything[:2] + everything[3:])
        assert peek(control, r"private$\plain") == everything[2:3]
        fence = control.ask("open_reader", "archive", [name])["fence"]
        control.ask("consume", "archive", fence, {name: 4})
        assert reserved(control) == (name, everything[5:])
        assert machine.terminate() == 0
        with closing(sqlite3.connect(machine.data / "queues.db")) as db:
            rows = db.execute("SELECT id & 0xFFFF, messages FROM reservation").fetchall()
        assert sum(messages for _, messages in rows) == len(everything) - 5
        assert len(rows) < len(everything) - 5


def test_a_folder_of_a_newer_version_is_not_changed(machine: Machine):
    machine.changes = ["migrate"]
    machine.start()
    machine.terminate()
    with closing(sqlite3.connect(machine.data / "queues.db")) as db:
        db.execute("PRAGMA user_version = 9999")
    before = (machine.data / "queues.db").read_bytes()

    machine.changes = []
    assert not machine.start()

    assert machine.ended() == 78
    event = machine.events()[-1]
    assert event["event"] == "start_failed"
    assert "install the newer version again" in str(event["reason"])
    assert (machine.data / "queues.db").read_bytes() == before
