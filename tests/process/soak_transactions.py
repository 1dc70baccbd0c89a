"""Ten thousand transactions while the application and the daemons are killed.

    python -m tests.process.soak_transactions [--transactions N] [--seed N] [--with-postgresql]

Each transaction receives one message, sends it to three other computers, and sends a reply to a
local queue; with a database, it also writes a row.  Until all messages are received, a process
chosen at random is killed: the application, its queue manager, one of the others, or PostgreSQL;
or the application's socket is cut.  At the end every queue, and the table, must hold each message
once, in the order of the commits.

"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import time
from collections import Counter
from typing import Any

from tests.patience import END_S
from tests.process import postgresql
from tests.process.command_line import ROOT
from tests.process.harness import Hosts, body
from tests.process.proxy import ControlProxy

QUICK: dict[str, Any] = {"resend": ["500ms", "1s"], "retry_first": "20ms", "retry_max": "100ms"}
STEP = 1000  # messages per send
PATIENCE_S = END_S


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.process.soak_transactions")
    parser.add_argument("--transactions", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--with-postgresql", action="store_true")
    chosen = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        hosts = Hosts()
        stack.callback(hosts.close)
        sales = None
        if chosen.with_postgresql:
            sales = postgresql.Server()
            stack.callback(sales.close)
            sales.start()
        return _run(hosts, sales, chosen.transactions, random.Random(chosen.seed), chosen.seed)


def _run(
    hosts: Hosts, sales: postgresql.Server | None, count: int, dice: random.Random, seed: int
) -> int:
    near = hosts.daemon(delivery=QUICK)
    near.create("in", "out", transactional=True)
    others = [hosts.daemon(delivery=QUICK) for _ in range(3)]
    for other in others:
        other.create("orders", transactional=True)
    wanted = [b"%d" % number for number in range(count)]
    for first in range(0, count, STEP):
        near.send_all("in", wanted[first : first + STEP])
    destinations = [f"DIRECT=TCP:127.0.0.1:{other.port}\\private$\\orders" for other in others]
    cable = ControlProxy(near.folder)
    words = [str(cable.path), *destinations]
    victims = ["application", "application", "its daemon", "another daemon", "its socket"]
    if sales is not None:
        victims.append("PostgreSQL")
        words += ["--dsn", sales.dsn]
        _ask(sales, "CREATE TABLE sale (place serial, number integer)")
    worker = _start(words)
    kills: Counter[str] = Counter()
    while worker.poll() is None or near.count("in"):
        if worker.poll() is not None:  # on a busy machine no message may arrive for two seconds
            worker = _start(words)
        time.sleep(dice.uniform(0.1, 1.0))
        victim = dice.choice(victims)
        kills[victim] += 1
        if victim == "application":
            worker.kill()
            worker.wait()
            worker = _start(words)
        elif victim == "its socket":
            cable.wait_passed(dice.randrange(2000))
            cable.cut()
        elif victim == "PostgreSQL":
            assert sales is not None
            sales.kill()
            sales.start()
        else:
            daemon = near if victim == "its daemon" else dice.choice(others)
            daemon.kill()
            daemon.start()
    cable.close()
    faults = [f"{near.count('in')} messages were never received"] if near.count("in") else []
    for name, daemon, queue in [
        ("the replies", near, "out"),
        *((f"computer {number}", other, "orders") for number, other in enumerate(others, 1)),
    ]:
        deadline = time.monotonic() + PATIENCE_S
        while daemon.count(queue) < count and time.monotonic() < deadline:
            time.sleep(0.2)
        found = [body(message) for message in daemon.peek(queue)]
        if found != wanted:
            faults.append(f"{name}: {_difference(found, wanted)}")
    if sales is not None:
        rows = _ask(sales, "SELECT number FROM sale ORDER BY place")
        if (booked := [b"%d" % number for (number,) in rows]) != wanted:
            faults.append(f"the database: {_difference(booked, wanted)}")
        if waiting := _ask(sales, "SELECT gid FROM pg_prepared_xacts"):
            faults.append(f"{len(waiting)} transactions wait in the database")
        if doubtful := near.json("transaction", "list"):
            faults.append(f"{len(doubtful)} transactions are in doubt")
    print(
        f"{count} transactions, seed {seed}; kills:"
        f" {', '.join(f'{number} of {name}' for name, number in sorted(kills.items()))}"
    )
    for fault in faults:
        print(f"WRONG: {fault}")
    return bool(faults)


def _start(words: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.process.transaction_worker", *words],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )


def _ask(sales: postgresql.Server, statement: str) -> list[tuple[Any, ...]]:
    import psycopg

    with psycopg.connect(sales.dsn, autocommit=True) as connection:
        done = connection.execute(statement)
        return [] if done.description is None else done.fetchall()


def _difference(found: list[bytes], wanted: list[bytes]) -> str:
    times = Counter(found)
    lost = [each for each in wanted if not times[each]]
    twice = [each for each, number in times.items() if number > 1]
    if not lost and not twice:
        return "not in the order of the commits"
    return f"{len(lost)} lost {lost[:3]}, {len(twice)} more than once {twice[:3]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
