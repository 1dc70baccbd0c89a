"""Audits of a part of the files: late events are not lost, and no finding is false.

Each finding must be true of the complete fleet, whichever part of its logs was read; faults
between two hosts with complete logs are found.

"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("pandas", reason="the extra qmd-msmq[spark] is not installed")

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from pipeline.events import find_files
from pipeline.jobs.audit.findings import ABOUT_HOSTS, AuditResult, AuditSettings
from pipeline.jobs.audit.job import audit
from pipeline.jobs.audit.state import State
from tests.pipeline.foreign_fleet import (
    HOUR,
    MIDNIGHT,
    MINUTE,
    Fleet,
    Message,
    Stream,
)
from tests.pipeline.foreign_parts import accused_falsely, logs_of, write_a_part
from tests.pipeline.test_jobs import SEEDS, SOAK, about_hosts, any_fleet, found, key, rows

pytestmark = pytest.mark.timeout(1800)


def audited(engine: Any, folder: Path, state: State | None = None) -> AuditResult:
    files = find_files([str(folder)])
    state = state or State()
    return audit(engine, state.unseen(files), state, AuditSettings(tasks=2))


def a_few_lives(f: Fleet, source: str, to: str, begin: float) -> Stream:
    """Record events that allow to compare the clocks of two hosts."""
    stream = Stream(f.host(source))
    for n in range(3):
        f.life(Message(f.host(source), f.host(to), "usual", stream), begin + n * MINUTE)
    return stream


def late(f: Fleet, begin: float) -> list[tuple[str, float, float]]:
    """Record events; return the ranges of logs that come later and prove that there is no fault."""
    alpha, bravo, charlie, delta = map(f.host, ("alpha", "bravo", "charlie", "delta"))
    # The message was stored twice, and the second time is read: it was not overtaken, and the
    # clock is right.
    stream = a_few_lives(f, "alpha", "bravo", begin)
    f.life(m := Message(alpha, bravo, "usual", stream), begin + 10 * MINUTE)
    f.life(Message(alpha, bravo, "usual", stream), begin + 30 * MINUTE)
    f.accepted(m, begin + 3 * HOUR)
    f.wrong("duplicated", m)
    # The message waited long: it was sent before all events that were read about its stream.
    a_few_lives(f, "bravo", "alpha", begin)
    f.sent(m := Message(bravo, alpha, "slow", Stream(bravo)), begin + 2 * HOUR)
    f.accepted(m, begin + 6 * HOUR)
    f.acked(m, begin + 6 * HOUR + 9)
    # It was given up, and then its receiver continued.
    stream = a_few_lives(f, "charlie", "delta", begin)
    f.sent(m := Message(charlie, delta, "usual", stream), begin + 10 * MINUTE)
    f.died(m, begin + 20 * MINUTE, "expired", "nack_reach_queue_timeout")
    f.life(Message(charlie, delta, "usual", stream), begin + 30 * MINUTE)
    # A restarted sender sends a stored message again under a new number.
    stream = a_few_lives(f, "delta", "charlie", begin)
    f.life(m := Message(delta, charlie, "usual", stream), begin + 35 * MINUTE)
    delta.record(begin + 40 * MINUTE, "started")
    stream = Stream(delta)
    f.handed(m, begin + 41 * MINUTE, charlie, "retransmitted")
    f.accepted(m, begin + 41 * MINUTE + 9, position=stream.next())
    f.wrong("duplicated", m)
    f.life(Message(delta, charlie, "usual", stream), begin + 50 * MINUTE)
    # The message is still on its way, while another stream to the same queue, which seems newer,
    # continues.
    echo, foxtrot = f.host("echo"), f.host("foxtrot")
    first, second = Stream(echo), Stream(echo)
    for n in range(3):
        f.life(Message(echo, foxtrot, "busy", second), begin + n * HOUR)
    foxtrot.record(begin + 52 * MINUTE, "started")
    f.sent(Message(echo, foxtrot, "busy", first), begin + 55 * MINUTE)
    # It was never sent, after one that arrived twice.
    golf, hotel = f.host("golf"), f.host("hotel")
    stream = a_few_lives(f, "golf", "hotel", begin)
    f.life(m := Message(golf, hotel, "usual", stream), begin + 5 * MINUTE)
    f.accepted(m, begin + 7 * HOUR)
    f.wrong("duplicated", m)
    f.accepted(m := Message(golf, hotel, "usual", stream), begin + 6 * MINUTE)
    f.wrong("never_sent", m)
    f.life(Message(golf, hotel, "usual", stream), begin + 7 * MINUTE)
    return [
        ("bravo", begin + 9 * MINUTE, begin + 11 * MINUTE),
        ("bravo", begin + 2 * HOUR - MINUTE, begin + 2 * HOUR + MINUTE),
        ("charlie", begin + 20 * MINUTE, begin + 21 * MINUTE),
        ("charlie", begin + 41 * MINUTE, begin + 42 * MINUTE),
        ("foxtrot", MIDNIGHT, begin + 50 * MINUTE),
        ("hotel", begin + 5 * MINUTE, begin + 8 * MINUTE),
    ]


def test_late_events_are_no_faults(engine: Any, tmp_path: Path) -> None:
    f = Fleet(random.Random(1))
    stretches = late(f, MIDNIGHT + HOUR)
    f.write(tmp_path / "logs", without=set(), hole=(f.host("alpha"), 0, 0))
    here = tmp_path / "here"
    here.mkdir()
    for guid, log in logs_of(tmp_path / "logs").items():
        name, at_ms = log["host"][0].as_py(), log["at_ms"].to_numpy()
        is_late = np.zeros(len(log), bool)
        for host, begin, end in stretches:
            is_late |= (name == host) & (at_ms >= begin) & (at_ms < end)
        for word, chosen in (("now", ~is_late), ("late", is_late)):
            parquet.write_table(log.filter(pa.array(chosen)), here / f"_{word}-{guid}.parquet")
    state = State()

    for file in here.glob("_now-*"):
        file.rename(file.with_name(file.name[1:]))
    result = audited(engine, here, state)
    assert found(result) == Counter()
    assert about_hosts(result) == {("log_hole", name) for name in ("bravo", "charlie", "hotel")}
    waiting = dict(
        zip(result.open.reason + " " + result.open.host, result.open.messages, strict=True)
    )
    assert waiting == {
        "log_hole bravo": 2,
        "log_hole charlie": 2,
        "log_hole hotel": 2,
        "log_begins_later foxtrot": 1,
        "on_its_way foxtrot": 1,
    }

    for file in here.glob("_late-*"):
        file.rename(file.with_name(file.name[1:]))
    assert found(audited(engine, here, state)) == f.findings


def check_parts(engine: Any, folder: Path, seeds: Iterable[int], parts: int) -> None:
    """Check that findings in parts of each fleet are true, and decidable faults are found."""
    for seed in seeds:
        wanted = any_fleet(folder / f"{seed}", seed)
        everything = audited(engine, folder / f"{seed}")
        assert found(everything) == wanted
        logs = logs_of(folder / f"{seed}")
        for n in range(parts):
            chance = random.Random(1000 * seed + n)
            whole = write_a_part(chance, logs, folder / "part")
            files = find_files([str(folder / "part")])
            chance.shuffle(files)
            runs, state = chance.choice((1, 1, 2, 3)), State()
            for run in range(runs):
                result = audit(engine, sorted(files[run::runs]), state, AuditSettings(tasks=2))
                assert not accused_falsely(found(result), wanted)
                assert not wrong_clocks(result) - wrong_clocks(everything)
            # The generator's faults need only the logs of two hosts.
            for each in rows(everything) if seed % 3 == 1 else []:
                if (
                    each["kind"] not in ABOUT_HOSTS
                    and {each["from_host"], each["to_host"]} <= whole
                ):
                    assert key(each) in found(result)


def wrong_clocks(result: AuditResult) -> set[str]:
    """Return the wrong clocks, without those that may as well be the other host's."""
    of_clocks = [each for each in rows(result) if each["kind"] == "clock"]
    return {each["host"] for each in of_clocks if "there is no third host" not in each["detail"]}


def test_no_part_of_the_files_gives_a_false_finding(engine: Any, tmp_path: Path) -> None:
    check_parts(engine, tmp_path, seeds=(2,), parts=1)


@pytest.mark.skipif(not SOAK, reason="takes minutes: make soak-pipeline")
@pytest.mark.parametrize("seed", range(100, 100 + (SEEDS if SOAK else 1)))
def test_no_part_of_any_fleet_gives_a_false_finding(engine: Any, tmp_path: Path, seed: int) -> None:
    check_parts(engine, tmp_path, (seed,), parts=6)
