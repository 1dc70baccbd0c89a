"""Triggers: a process of its own that runs real programs and calls a real web server."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forks import Process
from tests.patience import END_S, LOOK_S
from tests.process.command_line import ROOT, environment_of_commands, warm_process
from tests.process.harness import Daemon, Hosts
from tests.process.web_receiver import Receiver
from tests.users import needs_root

FAST = ("--first-pause", "10ms", "--last-pause", "10ms")


class Triggers:
    """The process of the triggers of one daemon, its programs, and the file that they write."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.daemon = daemon
        self.folder = folder
        self.seen = folder / "seen"
        self.log = folder / "triggers.log"
        self.process: Process | None = None

    def start(self) -> None:
        arguments = ["--config", str(self.daemon.config), "trigger", "run"]
        environment = environment_of_commands()
        with self.log.open("ab") as log, open(os.devnull, "rb") as nothing:
            self.process = warm_process().spawn(arguments, environment, nothing, log, log)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def program(self, text: str, name: str = "program") -> str:
        """Write a program for a shell that the program itself names; return its path."""
        path = self.folder / name
        path.write_text(f"#!/bin/sh\nSEEN={self.seen}\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    def create(self, name: str, *options: str, queue: str = "orders") -> None:
        self.daemon.cli("trigger", "create", name, "--queue", queue, *FAST, *options)

    def lines(self) -> list[str]:
        return self.seen.read_text().splitlines() if self.seen.exists() else []

    def wait(self, count: int) -> list[str]:
        """Return the lines that programs have written when there are so many."""
        self.until(lambda: len(self.lines()) >= count, every_s=0.02)
        return self.lines()

    def until(self, condition: Callable[[], Any], *, every_s: float = LOOK_S) -> Any:
        deadline = time.monotonic() + END_S
        while not (found := condition()):
            assert time.monotonic() < deadline, f"{self.lines()}\n{self.log.read_text()[-3000:]}"
            time.sleep(every_s)
            every_s = min(1.0, 1.1 * every_s)  # some wait for the end of a pause of triggers
        return found

    def emptied(self, queue: str = "orders") -> None:
        self.until(lambda: self.daemon.count(queue) == 0)

    def why(self, message: str) -> str:
        return self.daemon.cli("why", message).stdout.decode()


@pytest.fixture
def triggers(hosts: Hosts, tmp_path: Path) -> Iterator[Triggers]:
    daemon = hosts.daemon(triggers={"targets": ["127.0.0.0/8"]})
    daemon.create("orders", "answers", transactional=True)
    daemon.create("loose")
    triggers = Triggers(daemon, tmp_path)
    yield triggers
    triggers.close()


def dead_letters(daemon: Daemon) -> list[dict[str, Any]]:
    return daemon.peek(r"DIRECT=OS:.\SYSTEM$;DEADXACT")


def test_a_program_gets_the_arguments_the_body_and_no_shell(triggers: Triggers) -> None:
    program = triggers.program('echo "$1|$2|$QMD_TRIGGER|$QMD_ATTEMPT|$(cat)" >> $SEEN')
    arguments = ("--argument", "$MSG_LABEL", "--argument", "$$MSG_ID; exit 1")
    triggers.create("bill", "--kind", "transactional", "--run", program, *arguments)
    triggers.start()

    message = triggers.daemon.send("orders", b"ten screws", "--transactional", "--label", "$(a) b")

    assert triggers.wait(1) == ["$(a) b|$MSG_ID; exit 1|bill|1|ten screws"]
    triggers.emptied()
    why = triggers.why(message)
    assert "trigger bill, rule rule: succeeded" in why
    assert "received from" in why


def test_only_messages_that_meet_the_conditions_leave_their_queue(triggers: Triggers) -> None:
    program = triggers.program('echo "$1" >> $SEEN')
    triggers.create(
        "bill", "--run", program, "--argument", "$MSG_BODY_AS_STRING",
        "--when", "$MSG_LABEL_CONTAINS=order", "--when", "$MSG_PRIORITY_GREATER_THAN=2",
        "--where", "region = 'east'", queue="loose",
    )  # fmt: skip
    east = ("--property", "region=east")
    triggers.daemon.send("loose", b"1", "--label", "an order", *east)
    triggers.daemon.send("loose", b"2", "--label", "an Order", *east)
    triggers.daemon.send("loose", b"3", "--label", "an order", "--priority", "1", *east)
    triggers.daemon.send("loose", b"4", "--label", "an order", "--property", "region=west")
    triggers.start()
    triggers.wait(1)
    triggers.daemon.send("loose", b"5", "--label", "order", "--priority", "7", *east)

    assert triggers.wait(2) == ["1", "5"]
    triggers.until(lambda: triggers.daemon.count("loose") == 3)


def test_a_peeking_trigger_leaves_messages_and_sees_each_once(triggers: Triggers) -> None:
    program = triggers.program('echo "$1" >> $SEEN')
    options = ("--kind", "peek", "--run", program, "--argument", "$MSG_BODY_AS_STRING")
    triggers.create("watch", "--serialized", *options, queue="loose")
    for body in (b"1", b"2"):
        triggers.daemon.send("loose", body)
    triggers.start()
    triggers.wait(2)
    triggers.daemon.send("loose", b"high", "--priority", "7")
    triggers.wait(3)
    triggers.daemon.send("loose", b"3")

    assert triggers.wait(4) == ["1", "2", "high", "3"]
    assert triggers.daemon.count("loose") == 4


def test_a_serialized_trigger_keeps_the_order_over_failures_and_kills(triggers: Triggers) -> None:
    program = triggers.program(
        'read body; test "$QMD_ATTEMPT" -gt 1 || test $((body % 3)) -ne 0 || exit 1\n'
        'echo "$body" >> $SEEN; test "$body" -ne 4 || sleep 600'
    )
    kind = ("--kind", "transactional", "--serialized")
    triggers.create("bill", *kind, "--run", program, "--answer-to", "answers")
    triggers.daemon.send_all("orders", [b"%d" % each for each in range(8)], "--transactional")
    triggers.start()
    triggers.wait(5)
    triggers.kill()
    triggers.program('read body; echo "$body" >> $SEEN; echo "did $body"')
    triggers.start()

    assert triggers.wait(9) == [*"01234", *"4567"]
    triggers.emptied()
    assert len(triggers.daemon.wait_for("answers", 8)) == 8


def test_an_answer_and_the_end_of_its_message_are_one_commit(triggers: Triggers) -> None:
    """Each kill may repeat a program; its answer is in the queue exactly once, in order."""
    program = triggers.program('read body; echo "$body" >> $SEEN; echo "$body"')
    kind = ("--kind", "transactional", "--serialized")
    triggers.create("bill", *kind, "--run", program, "--answer-to", "answers")
    bodies = [b"%d" % each for each in range(24)]
    ids = triggers.daemon.send_all("orders", bodies, "--transactional")
    for end in (4, 10):
        triggers.start()
        triggers.wait(end)
        triggers.kill()
    triggers.start()
    triggers.wait(16)
    triggers.daemon.kill()
    triggers.daemon.start()
    triggers.wait(24)
    triggers.emptied()

    answers = triggers.daemon.receive("answers")
    assert [answer["correlation_id"] for answer in answers] == ids
    assert len(triggers.lines()) >= len(ids)


def test_a_killed_process_takes_its_program_along(triggers: Triggers) -> None:
    program = triggers.program("echo $$ >> $SEEN; exec sleep 600")
    triggers.create("bill", "--run", program)
    triggers.daemon.send("orders", b"x", "--transactional")
    triggers.start()
    (pid,) = triggers.wait(1)
    triggers.kill()

    triggers.until(lambda: not Path(f"/proc/{pid}").exists())
    assert triggers.daemon.count("orders") == 1


def test_after_its_attempts_a_message_is_a_dead_letter_with_the_reason(triggers: Triggers) -> None:
    program = triggers.program('echo $QMD_ATTEMPT >> $SEEN; echo "no such customer" >&2; exit 3')
    triggers.create("bill", "--kind", "transactional", "--run", program, "--attempts", "3")
    triggers.daemon.send("orders", b"bad", "--transactional")
    triggers.start()

    assert triggers.wait(3) == ["1", "2", "3"]
    (letter,) = triggers.until(lambda: dead_letters(triggers.daemon))
    assert (
        "trigger bill: rule rule: it ended with the exit code 3: no such customer"
        in letter["reason"]
    )


def test_the_retry_policy_of_the_queue_comes_first(triggers: Triggers) -> None:
    policy = ("--retry-attempts", "2", "--retry-delay", "10ms", "--retry-end", "poison")
    triggers.daemon.cli("queue", "set", "orders", *policy)
    program = triggers.program("echo $QMD_ATTEMPT >> $SEEN; exit 1")
    triggers.create("bill", "--kind", "transactional", "--run", program)
    triggers.daemon.send("orders", b"bad", "--transactional")
    triggers.start()

    poison = r"private$\orders;poison"
    triggers.until(
        lambda: (
            {poison: 1}.items()
            <= {
                each["name"]: each["messages"] for each in triggers.daemon.json("queue", "list")
            }.items()
        )
    )
    assert triggers.lines() == ["1", "2"]


@pytest.mark.parametrize("kind", ["receive", "transactional"])
def test_a_program_can_reject_a_message_at_once(triggers: Triggers, kind: str) -> None:
    program = triggers.program('echo x >> $SEEN; echo "no XML" >&2; exit 65')
    triggers.create("bill", "--kind", kind, "--run", program)
    triggers.daemon.send("orders", b"bad", "--transactional")
    triggers.start()

    (letter,) = triggers.until(lambda: dead_letters(triggers.daemon))
    assert "no XML" in letter["reason"]
    assert triggers.lines() == ["x"]


LIMITS = [
    ("exec sleep 600", ("--timeout", "300ms"), "did not end within 0.3 s"),
    ("exec yes", ("--output", "1"), "more than 1024 bytes"),
    ("sleep 600 & exit 1", (), "exit code 1"),
    ("trap '' TERM; sleep 600; sleep 600", ("--timeout", "300ms"), "did not end within"),
    ("kill -9 $$", (), "SIGKILL"),
    ("exec python3 -c 'a = bytearray(300 << 20)'", ("--memory", "128"), "MemoryError"),
]


def test_a_program_that_exceeds_a_limit_is_ended(triggers: Triggers) -> None:
    for number, (text, options, _) in enumerate(LIMITS):
        program = triggers.program(text, f"program{number}")
        when = ("--when", f"$MSG_LABEL_CONTAINS={number}")
        rule = ("--run", program, *options, *when)
        if number == 0:
            triggers.create("bill", "--attempts", "1", "--concurrency", "6", *rule)
        else:
            triggers.daemon.cli("trigger", "add-rule", "bill", f"rule{number}", *rule)
        triggers.daemon.send("orders", b"x", "--transactional", "--label", str(number))
    triggers.start()
    triggers.emptied()

    letters = {each["label"]: each["reason"] for each in dead_letters(triggers.daemon)}
    for number, (_, _, reason) in enumerate(LIMITS):
        assert reason in letters[str(number)]


def test_a_url_gets_the_message_and_its_parameters(triggers: Triggers) -> None:
    receiver = Receiver()
    receiver.statuses = [500]
    triggers.create(
        "hook", "--kind", "transactional", "--call", f"{receiver.url}/in?a=1",
        "--parameter", "label=$MSG_LABEL",
    )  # fmt: skip
    message = triggers.daemon.send("orders", b"body", "--transactional", "--label", "a&b")
    triggers.start()
    first, second = receiver.wait_for(2)
    triggers.emptied()
    receiver.close()

    assert (first.path, second.body) == ("/in?a=1&label=a%26b", b"body")
    assert (second.headers["qmd-trigger"], second.headers["qmd-attempt"]) == ("hook", "2")
    assert second.headers["webhook-id"] == message
    assert "the answer was 500" in triggers.why(message)


def test_actions_under_way_end_before_a_stop(triggers: Triggers) -> None:
    program = triggers.program("echo began >> $SEEN; sleep 0.5; echo ended >> $SEEN")
    triggers.create("bill", "--kind", "transactional", "--run", program)
    triggers.daemon.send("orders", b"x", "--transactional")
    triggers.start()
    triggers.wait(1)
    assert triggers.process is not None
    triggers.process.terminate()

    assert triggers.process.wait(END_S) == 0
    assert triggers.lines() == ["began", "ended"]
    assert triggers.daemon.count("orders") == 0


def test_a_trigger_is_shown_tested_disabled_and_deleted(triggers: Triggers) -> None:
    daemon = triggers.daemon
    options = ("--disabled", "--run", "/bin/echo", "--argument", "$MSG_LABEL")
    triggers.create("bill", *options, "--when", "$MSG_LABEL_CONTAINS=order")
    daemon.cli(
        "trigger", "add-rule", "bill", "other", "--run", "/bin/true", "--where", "priority = 9"
    )
    daemon.send("orders", b"x", "--transactional", "--label", "my order")

    (shown,) = daemon.json("trigger", "list")
    assert (shown["enabled"], shown["rule_names"]) == (False, ["rule", "other"])
    (tested,) = daemon.json("trigger", "test", "bill")
    first, second = tested["rules"]
    assert (first["matches"], first["command"]) == (True, ["/bin/echo", "my order"])
    assert (second["matches"], second["not_met"]) == (False, ["priority = 9"])
    assert daemon.count("orders") == 1

    daemon.cli("trigger", "enable", "bill")
    refused = daemon.cli(
        "trigger", "create", "b", "--queue", "orders", "--run", "/bin/true", check=False
    )
    assert b"must all peek" in refused.stderr
    daemon.cli("trigger", "delete-rule", "bill", "other")
    daemon.cli("trigger", "disable", "bill")
    daemon.cli("trigger", "delete", "bill")
    assert daemon.json("trigger", "list") == []
    assert daemon.cli("trigger", "show", "bill", check=False).returncode != 0


def test_definitions_that_others_can_write_run_nothing(triggers: Triggers) -> None:
    triggers.create("bill", "--run", triggers.program("echo x >> $SEEN"))
    file = triggers.daemon.folder / "triggers"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o666)
    triggers.daemon.send("orders", b"x", "--transactional")
    triggers.start()
    triggers.until(lambda: "trigger_file" in triggers.log.read_text())
    file.chmod(0o600)
    os.utime(file)

    assert triggers.wait(1) == ["x"]


def test_a_label_is_no_option_behind_two_hyphens(triggers: Triggers) -> None:
    """`basename --version` succeeds, too: the sender of a label would choose what it does."""
    program = triggers.program('basename "$@" >> $SEEN')
    make = ("trigger", "create", "bill", "--queue", "orders", "--run", program)

    warned = triggers.daemon.cli(*make, "--argument", "$MSG_LABEL").stderr.decode()
    triggers.daemon.cli("trigger", "delete", "bill")
    done = triggers.daemon.cli(*make, "--argument=--", "--argument", "$MSG_LABEL").stderr.decode()
    rule = ("trigger", "add-rule", "bill", "more", "--run", program, "--when")
    more = triggers.daemon.cli(*rule, "$MSG_LABEL_CONTAINS=more", "--argument", "$MSG_BODY")
    triggers.daemon.send("orders", b"x", "--transactional", "--label=--version")
    triggers.start()

    assert "note: rule rule: the program takes a $MSG_LABEL that begins with -" in warned
    assert done == ""
    assert more.stderr.decode().count("note: rule more:") == 1
    assert triggers.wait(1) == ["--version"]


@needs_root
def test_definitions_of_another_user_run_nothing(triggers: Triggers) -> None:
    """Its owner may write a file, whatever its mode is: the commands would run as this user."""
    triggers.create("bill", "--run", triggers.program("echo x >> $SEEN"))
    file = triggers.daemon.folder / "triggers"
    os.chown(file, 64_001, -1)
    triggers.daemon.send("orders", b"x", "--transactional")
    triggers.start()
    triggers.until(lambda: "belongs to user 64001" in triggers.log.read_text())
    assert triggers.daemon.cli("trigger", "list", check=False).returncode, "it is named there, too"
    os.chown(file, 0, -1)
    os.utime(file)

    assert triggers.wait(1) == ["x"]


def test_the_triggers_of_windows_are_imported(triggers: Triggers) -> None:
    export = triggers.folder / "triggers.reg"
    export.write_text((ROOT / "tests/data/triggers.reg").read_text(), encoding="utf-16")
    program = triggers.program('echo "$1|$2|$3" >> $SEEN')

    done = triggers.daemon.json(
        "trigger", "import", str(export), "--program", rf"C:\tools\bill.exe={program}"
    )
    triggers.daemon.send("orders", b"x", "--transactional", "--label", "an order")
    triggers.start()

    assert [each["name"] for each in done[0]["triggers"]] == ["Billing", "Old-one"]
    assert json.dumps(done[0]["remarks"]).count("COM component") == 1
    assert triggers.wait(1) == ["an order|a b|3"]
