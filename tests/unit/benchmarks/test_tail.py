"""The division of a message's time among causes."""

import json
import threading

from benchmarks import scale, scale_plots, tail

MS = 1_000_000
COMMIT = {
    "name": "write",
    "queued": 10 * MS,
    "begun": 12 * MS,
    "ended": 22 * MS,
    "heard": 23 * MS,
    "all": [10 * MS, 2 * MS, 1 * MS],  # wall, on a processor, waiting for one
    "disk": [6 * MS, 1 * MS, 0],
    "history": [1 * MS, 1 * MS, 0],
}


def waits(*waited_ns):
    """Return waits of three threads that were sampled at the begin and the end of 60 ms."""
    found = tail.Waits.__new__(tail.Waits)
    found.times = [0, 60 * MS]
    found.waited = [[0, each] for each in waited_ns]
    return found


def test_the_parts_of_a_commit_are_its_time():
    found = tail.parts(COMMIT, [])

    assert found["disk"] == 5 * MS
    assert found["history"] == found["rows"] == found["processor"] == 1 * MS
    assert sum(found.values()) == COMMIT["heard"] - COMMIT["queued"]


def test_a_checkpoint_before_a_commit_is_a_cause():
    checkpoint = {"name": "checkpoint", "queued": 1, "begun": 5 * MS, "ended": 12 * MS}

    found = tail.parts(COMMIT, [checkpoint])

    assert found["checkpoint"] == 2 * MS, "since the commit was submitted"
    assert sum(found.values()) == COMMIT["heard"] - COMMIT["queued"]


def test_the_causes_of_a_message_are_its_time():
    later = COMMIT | {key: COMMIT[key] + 20 * MS for key in ("queued", "begun", "ended", "heard")}
    daemons = [tail.Daemon(commits=[COMMIT]), tail.Daemon(commits=[later])]

    found = tail.causes_of(4 * MS, 50 * MS, daemons, waits(0, 0, 0), [0, 1])

    assert sum(found.values()) == 46 * MS
    assert found["disk"] == 10 * MS


def test_the_commit_before_is_part_of_the_wait():
    before = COMMIT | {"queued": 1 * MS, "begun": 1 * MS, "ended": 10 * MS, "heard": 10 * MS}
    before |= {"all": [9 * MS, 1 * MS, 0], "disk": [8 * MS, 0, 0], "history": [0, 0, 0]}
    daemons = [tail.Daemon(commits=[before, COMMIT]), tail.Daemon()]

    found = tail.causes_of(4 * MS, 24 * MS, daemons, waits(0, 0, 0), [0, 1])

    assert found["disk"] > 10 * MS
    assert round(sum(found.values())) == 20 * MS


def test_the_legs_of_a_message_are_its_time():
    later = COMMIT | {key: COMMIT[key] + 20 * MS for key in ("queued", "begun", "ended", "heard")}
    at_a = {"request": [1 * MS, 8 * MS], "sent": [9 * MS, 24 * MS]}
    at_b = {"packet": [25 * MS], "answer": [44 * MS]}
    daemons = [tail.Daemon([COMMIT], [], at_a), tail.Daemon([later], [], at_b)]

    legs = tail.legs_of(4 * MS, 50 * MS, daemons)

    assert legs == [each * MS for each in (4, 4, 4, 6, 2, 1, 7, 4, 6, 2, 6)]
    assert tail.legs_of(4 * MS, 43 * MS, daemons) is None, "its answer was written later"
    assert tail.legs_of(60 * MS, 70 * MS, daemons) is None, "no request was read"


def test_the_table_ranks_the_longest():
    messages = [(MS, tail.Causes(work=MS)) for _ in range(199)]
    messages.append((9 * MS, tail.Causes(disk=9 * MS)))

    lines = {line.split()[0]: line.split()[1:] for line in tail.table(messages)[1:]}

    assert lines["disk"][:3] == ["4.50", "90%", "1"], "of two messages"


def test_commits_and_other_spans_are_read_apart(tmp_path):
    file = tmp_path / "spans"
    points = {"name": "sent", "points": [5]}
    lines = [COMMIT, COMMIT | {"name": "checkpoint"}, points]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    found = tail.Daemon.read(file)

    assert len(found.commits) == len(found.others) == 1
    assert found.points == {"sent": [5]}


def test_samples_end(tmp_path):
    sampled = tail.Waits([threading.get_native_id()])
    sampled.end()

    assert sampled.between(0, 0, 1) == 0


def test_a_curve_is_drawn_and_put_between_the_marks(tmp_path, monkeypatch):
    (tmp_path / "images").mkdir()
    file = tmp_path / "benchmarks.md"
    file.write_text(
        f"a\n{scale_plots.BEGIN}\n\n### x\n\nold\n\n### y\n\nkept\n\n{scale_plots.END}\nb\n"
    )
    monkeypatch.setattr(scale_plots, "DOCS", tmp_path)

    name = scale_plots.draw("x", [{"clients": 1, "rate": 2}, {"clients": 10, "rate": 3}])
    scale_plots.write({"x": "new", "z": "more"}, file)

    assert (tmp_path / "images" / name).read_text().startswith("<?xml")
    parts = "### x\n\nnew\n\n### y\n\nkept\n\n### z\n\nmore"
    assert file.read_text() == f"a\n{scale_plots.BEGIN}\n\n{parts}\n\n{scale_plots.END}\nb\n"
    assert scale._table([{"n": 1000, "rate": 2.5}]) == [["n", "rate"], ["1,000", "2.5"]]
