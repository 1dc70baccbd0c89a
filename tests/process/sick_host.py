"""A host on which everything is wrong that alerts are about, except that it is down."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qmd.access import tokens
from qmd.client import ClientError, QueueManager, blocking, new_message
from qmd.client.address import TokenAddress
from tests.process.harness import Daemon, free_port
from tests.process.small_disk import SmallDisk

NAME = "south"
QUOTA_BYTES = 20_000_000
TRANSACTIONS_BYTES = 1_000_000
FILLED_BYTES_PER_S = 2_000_000  # of its disk
STOPPED_S, RUNS_S = 0.6, 0.4
PAUSE_S = 0.2  # of each load
NOTHING = "DIRECT=TCP:127.0.0.1:9\\private$\\nothing"


class SickHost:
    """A queue manager, and the threads that make it sick; `east` sends to it."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], east: Daemon) -> None:
        self.daemon = Daemon(
            folder / NAME,
            settings={
                **settings,
                "queue_manager": {"name": NAME},
                "quotas": {"computer": f"{QUOTA_BYTES}B"},
                "memory": {"transactions": f"{TRANSACTIONS_BYTES}B"},
                "transactions": {"idle": "1h"},
                "directory": {"kind": "file", "reload": "1s"},
            },
        )
        self._east = east
        self._disk = SmallDisk(self.daemon, "600m")
        self._data = self._disk.data
        (self.daemon.folder / "directory.toml").write_text("")
        self._make_certificate()
        self._stop = threading.Event()
        self._stops = threading.Event()  # the daemon is about to be stopped
        # Its disk is filled after the alerts that need room, whenever that is.
        self._fills, self._is_filled = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._ends = contextlib.ExitStack()

    @property
    def alerts(self) -> list[tuple[str, str]]:
        """The alerts that must fire, each with its host."""
        of_itself = [
            *("QmdRefusesPeers", "QmdDeadLetters", "QmdAccessRefused", "QmdQueueNotRead"),
            *("QmdQueueOld", "QmdQuotaNearlyUsed", "QmdEventLoopLag", "QmdCommitsSlow"),
            *("QmdDirectoryProblem", "QmdLogLarge", "QmdDestinationPaused"),
            *("QmdCertificateExpires", "QmdMemoryBudget", "QmdHousekeepingFailing"),
            *(("QmdDiskFillsUp", "QmdDiskFull") if self._disk.place else ()),
        ]
        return [*((each, NAME) for each in of_itself), ("QmdDestinationOld", "east")]

    def fall_ill(self) -> None:
        """Begin; the alerts follow."""
        daemon = self.daemon
        daemon.create("unread", "bulk", "traffic")
        self._change_by_hand("ALTER TABLE link_delivery RENAME TO kept")
        back = "ALTER TABLE kept RENAME TO link_delivery"
        self._ends.callback(self._change_by_hand, back)
        self._east.create("kept", transactional=True)
        reader = sqlite3.connect(
            self._data / "queues.db", isolation_level=None, check_same_thread=False
        )
        self._ends.callback(reader.close)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM queue").fetchone()
        with blocking.connect(daemon.folder / "qmd.sock") as qm:
            qm.send_many([new_message("unread", b"x") for _ in range(1100)])
            for _ in range(9):
                qm.send("bulk", bytes(2_000_000), delivery="recoverable")
            qm.send(NOTHING, b"x")
            # No application receives it, so its final ack does not come.
            kept = f"DIRECT=TCP:127.0.0.1:{self._east.port}\\private$\\kept"
            qm.send(kept, b"x", delivery="transactional", dead_letter=True)
        daemon.cli("outgoing", "pause", NOTHING)
        self._east.send("DIRECT=TCP:127.0.0.1:9\\private$\\old", b"x")
        (daemon.folder / "directory.toml").write_text("[[queue")
        for work in (
            *(self._send_in_vain, self._send_here, self._lack_rights, self._stop_and_go),
            *(self._begin_a_transaction, self._use_up_the_disk),
        ):
            thread = threading.Thread(target=work)
            thread.start()
            self._threads.append(thread)

    def cause(self, alert: str) -> None:
        """Begin the causes that must not come before others; call it before the wait for each."""
        if alert == "QmdDiskFillsUp":
            self._fills.set()
        if alert == "QmdDiskFull":
            self._is_filled.set()

    def recover(self) -> None:
        """End the causes that are threads, files or readers."""
        self._stop.set()
        self._fills.set()
        self._ends.close()
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        """Unmount its disk, after the end of the daemon."""
        self._disk.close()

    # The set-up.

    def _make_certificate(self) -> None:
        """Give it a certificate that expires soon, which needs the identity of a first run."""
        self.daemon.start()
        self.daemon.cli("tls", "init", "--days", "5")
        self.daemon.terminate()
        self.daemon.configure({"tls": {"enabled": True, "port": free_port()}})

    def _change_by_hand(self, statement: str) -> None:
        """Change the database behind the daemon's back: a table that only a periodic task reads."""
        with contextlib.closing(sqlite3.connect(self._data / "queues.db", timeout=60)) as db:
            db.execute(statement)

    # The causes, each in a thread.

    def _repeat(self, act: Callable[[], object]) -> None:
        while not self._stop.wait(PAUSE_S):
            with contextlib.suppress(ClientError):
                act()

    def _send_in_vain(self) -> None:
        """Let the other host send to a queue that does not exist here."""
        nowhere = f"DIRECT=TCP:127.0.0.1:{self.daemon.port}\\private$\\nowhere"
        with blocking.connect(self._east.folder / "qmd.sock") as qm:
            self._repeat(lambda: qm.send(nowhere, b"x", dead_letter=True, delivery="recoverable"))

    def _send_here(self) -> None:
        """Send to a queue that nothing reads; also commits that the stopped daemon finishes late.

        The reader of the database keeps its log from being emptied meanwhile.
        """
        with blocking.connect(self.daemon.folder / "qmd.sock") as qm:
            while not self._stop.is_set():
                self._stops.wait(PAUSE_S)
                self._stops.clear()
                with contextlib.suppress(ClientError):
                    qm.send("traffic", bytes(200_000), delivery="recoverable")
                    qm.receive("traffic", timeout_s=0.0)
                    qm.send_many([new_message("unread", b"x") for _ in range(3)])

    def _use_up_the_disk(self) -> None:
        """Write a file that grows, and in the end leaves no room for new messages."""
        disk = self._disk.place
        self._fills.wait()
        began = time.monotonic()
        if disk is None:
            return
        file = disk / "filler"
        with file.open("wb", buffering=0) as filler:
            while not self._stop.wait(PAUSE_S):
                passed_s = time.monotonic() - began
                wanted = int(passed_s * FILLED_BYTES_PER_S) - filler.tell()
                if self._is_filled.is_set():
                    found = os.statvfs(disk)
                    wanted = found.f_bavail * found.f_frsize - 20_000_000
                filler.write(bytes(max(0, wanted)))
        file.unlink()

    def _begin_a_transaction(self) -> None:
        """Send in a transaction that does not end as much as the budget allows."""
        with (
            contextlib.suppress(ClientError),
            blocking.connect(self.daemon.folder / "qmd.sock") as qm,
            qm.transaction() as transaction,
        ):
            for _ in range(TRANSACTIONS_BYTES * 97 // 100 // 10_000):
                transaction.send(NOTHING, bytes(10_000))
            self._stop.wait()
            transaction.abort()

    def _lack_rights(self) -> None:
        """Ask with a token that may only read."""
        token = tokens.create(
            self.daemon.folder / "remote-tokens", "weak", frozenset(("read",)), ("*",)
        )

        async def ask() -> None:
            address = TokenAddress(self.daemon.folder / "qmd.sock", token)
            async with QueueManager(address, reconnect_s=10.0) as qm:
                while not self._stop.is_set():
                    with contextlib.suppress(ClientError):
                        await qm.create_queue("mine")
                    await asyncio.sleep(PAUSE_S)

        asyncio.run(ask())

    def _stop_and_go(self) -> None:
        """Take the processor from the daemon most of the time, often in the middle of a commit."""
        while not self._stop.is_set():
            self._stops.set()
            time.sleep(random.uniform(0.002, 0.02))
            os.kill(self.daemon.pid, signal.SIGSTOP)
            self._stop.wait(STOPPED_S)
            os.kill(self.daemon.pid, signal.SIGCONT)
            self._stop.wait(RUNS_S)
