"""`qmd migrate windows` with real daemons: plans, imports, and their repetition."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest

from qmd.client import connect
from qmd.migration.errors import BadSource
from qmd.migration.import_copies import ImportLog, import_copies, messages_of
from tests import windows_files
from tests.patience import END_S
from tests.process.command_line import environment_of_commands, warm_process
from tests.process.harness import Daemon, Hosts, body
from tests.windows_files import ANN, EVERYONE, FULL, PEEK, USUAL, WRITE, descriptor

DATA = Path(__file__).parents[1] / "data" / "windows"
ORDERS = "private$\\orders"


@pytest.fixture(scope="module")
def daemon(shared_hosts: Hosts) -> Daemon:
    return shared_hosts.daemon()


@pytest.fixture(scope="module")
def with_directory(shared_hosts: Hosts) -> Daemon:
    file = shared_hosts.folder / "directory.toml"
    file.write_text("# Kept by people.\n")
    daemon = shared_hosts.daemon(
        queue_manager={"name": "hostn"}, directory={"kind": "file", "file": str(file)}
    )
    (status,) = daemon.json("status")
    with file.open("a") as stream:
        stream.write(f'[[machine]]\nname = "hostn"\nguid = "{status["queue_manager"]}"\n')
        stream.write(f'addresses = ["127.0.0.1:{daemon.port}"]\n')
    daemon.cli("directory", "reload")
    return daemon


def migrate(daemon: Daemon, *arguments: str) -> list[dict[str, Any]]:
    return daemon.json("migrate", "windows", *arguments)


def gaps(rows: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(row["gap"]["about"], row["gap"]["what"]) for row in rows if "gap" in row}


def steps(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["action"], row["object"]) for row in rows if "action" in row]


def test_scripts_are_listed_printed_and_extracted(daemon: Daemon, tmp_path: Path):
    listed = {row["name"]: row["sha256"] for row in migrate(daemon, "scripts")}
    printed = daemon.cli("migrate", "windows", "print", "export-msmqmessage").stdout

    daemon.cli("migrate", "windows", "extract", str(tmp_path / "kit"))

    assert printed == (tmp_path / "kit" / "Export-MsmqMessage.ps1").read_bytes()
    sums = (tmp_path / "kit" / "SHA256SUMS").read_text()
    assert {line.split()[1]: line.split()[0] for line in sums.splitlines()} == listed
    assert daemon.cli("migrate", "windows", "print", "nothing", check=False).returncode == 3
    again = daemon.cli("migrate", "windows", "extract", str(tmp_path / "kit"), check=False)
    assert b"exists already" in again.stderr


def test_the_example_is_planned_imported_and_planned_again(daemon: Daemon):
    """Queues, rights and gaps of one file; the second plan has no steps."""
    arguments = (str(DATA / "hosta.json"), "--account", "CONTOSO\\ann=user:root")
    plan = migrate(daemon, "plan", *arguments)

    assert steps(plan)[0] == ("create", ORDERS)
    assert {
        ("prices", "a public queue"),
        ("private$\\replies", "base priority 5"),
        ("private$\\replies", "multicast address 234.1.1.1:8001"),
        ("DIRECT=OS:hostc\\private$\\audit", "2 messages wait on HOSTA for this destination"),
        ("print orders", "a trigger on hosta\\private$\\orders"),
        ("distribution lists", "all-orders"),
        ("counters", "not collected"),
    } <= gaps(plan)
    assert not any(row["name"] == ORDERS for row in daemon.json("queue", "list"))

    dry = migrate(daemon, "apply", *arguments, "--dry-run")
    assert steps(dry) == steps(plan)
    done = migrate(daemon, "apply", *arguments, "--yes")

    assert [row["done"] for row in done] == [True] * len(steps(plan))
    (shown,) = daemon.json("queue", "show", ORDERS)
    assert (shown["label"], shown["transactional"], shown["journal"]) == (
        "Orders of the shop",
        True,
        True,
    )
    assert shown["quota_bytes"] == 1 << 30
    (rights,) = daemon.json("acl", "show", ORDERS)
    entries = {(each["principal"], each["effect"]): each["rights"] for each in rights["entries"]}
    assert entries["user:root", "allow"] == "send,peek"
    assert "receive" in entries["user:root", "deny"]
    assert entries["anonymous", "deny"] == "send,get-properties,get-permissions"
    assert rights["owner"] == "user:root"
    assert steps(migrate(daemon, "plan", *arguments)) == []
    assert migrate(daemon, "apply", *arguments, "--yes") == []


def test_only_changes_are_made(daemon: Daemon, tmp_path: Path):
    file = tmp_path / "hostb.json"

    def collected(mask: int, **changes: Any) -> str:
        entries = [
            (EVERYONE, True, USUAL),
            (windows_files.ANONYMOUS, True, USUAL),
            (ANN, True, mask),
        ]
        security = base64.b64encode(descriptor(entries)).decode()
        queue = windows_files.queue("parts", security_base64=security, **changes)
        file.write_text(json.dumps(windows_files.collection(queue)))
        return str(file)

    account = ("--account", f"{ANN}=user:root")
    migrate(daemon, "apply", collected(FULL), *account, "--yes")
    daemon.cli("acl", "grant", "group:staff", "peek", "parts")

    plan = migrate(daemon, "plan", collected(WRITE | PEEK, label="Parts", quota_kb=10), *account)

    assert [each[0] for each in steps(plan)] == ["set", "revoke", "grant"]
    assert plan[0]["detail"] == "label 'private$\\\\parts' -> 'Parts', quota none -> 10240 bytes"
    migrate(daemon, "apply", str(file), *account, "--yes")
    (rights,) = daemon.json("acl", "show", "parts")
    entries = {each["principal"]: each["rights"] for each in rights["entries"]}
    assert entries["user:root"] == "send,peek"
    assert entries["group:staff"] == "peek"
    migrate(daemon, "apply", str(file), *account, "--prune", "--yes")
    (rights,) = daemon.json("acl", "show", "parts")
    assert "group:staff" not in {each["principal"] for each in rights["entries"]}


def test_an_import_with_odd_queues_that_is_killed_goes_on(daemon: Daemon, tmp_path: Path):
    """Between two runs the source changes: a new queue, another quota, and one that is gone."""
    file, log = tmp_path / "hostd.json", tmp_path / "log"
    names = ("straße", "a+b", "a;b", "order_queue$", "d,journal$")
    odd = [windows_files.queue(name) for name in names]
    public = {**windows_files.queue("x"), "name": "D0", "public": True}

    def collected(first: int, last: int, **changes: Any) -> str:
        usual = [windows_files.queue(f"D{number}", **changes) for number in range(first, last)]
        whole = windows_files.collection(*odd[:3], *usual, public, *odd[3:])
        file.write_text(json.dumps({**whole, "computer": "HostD"}))
        return str(file)

    def present() -> dict[str, Any]:
        prefix = "private$\\d"
        rows = daemon.json("queue", "list")
        return {row["name"]: row for row in rows if row["name"].startswith(prefix)}

    options = ("--public-as-private", "--yes")
    command = ["--config", str(daemon.config), "migrate", "windows", "apply"]
    with log.open("ab") as output, open("/dev/null", "rb") as nothing:
        process = warm_process().spawn(
            [*command, collected(0, 40), *options],
            environment_of_commands(),
            nothing,
            output,
            output,
        )
    deadline = time.monotonic() + END_S
    while not present():
        assert time.monotonic() < deadline, log.read_text()
    process.kill()
    process.wait()

    migrate(daemon, "apply", collected(1, 45, quota_kb=100), *options)
    found = present()
    assert {f"private$\\d{number}" for number in range(1, 45)} <= found.keys()
    assert {row["quota_bytes"] for name, row in found.items() if name != "private$\\d0"} == {102400}
    plan = migrate(daemon, "plan", str(file), "--public-as-private")
    assert steps(plan) == []
    assert {about for about, _ in gaps(plan)} >= {each["name"] for each in odd}


def test_a_queue_of_another_kind_is_named(daemon: Daemon, tmp_path: Path):
    daemon.create("plain")
    file = tmp_path / "hostb.json"
    file.write_text(json.dumps(windows_files.collection(windows_files.queue("plain"))))

    plan = migrate(daemon, "plan", str(file))

    assert (
        "private$\\plain",
        "it is transactional on Windows, and not transactional here",
    ) in gaps(plan)


def test_public_queues_and_lists_need_a_directory(with_directory: Daemon):
    file = str(DATA / "hosta.json")
    plan = migrate(with_directory, "plan", file)

    assert {("create", ".\\prices"), ("create-list", "all-orders")} <= set(steps(plan))
    migrate(with_directory, "apply", file, "--queue", "prices", "--yes")
    (shown,) = with_directory.json("dl", "show", "all-orders")
    assert [member["path"] for member in shown["members"]] == ["hostn\\prices"]
    assert steps(migrate(with_directory, "plan", file, "--queue", "prices")) == []
    with_directory.cli("dl", "remove", "all-orders", ".\\prices")
    again = migrate(with_directory, "plan", file, "--queue", "prices")
    assert steps(again) == [("add-members", "all-orders")]


def test_a_folder_of_lqs_files_is_a_second_source(daemon: Daemon, tmp_path: Path):
    output = tmp_path / "lqs.json"
    daemon.cli("migrate", "windows", "lqs", str(DATA / "lqs"), str(output), "--computer", "HOSTA")

    plan = migrate(daemon, "plan", str(output))

    assert ("private$\\replies", "not collected") in gaps(plan)
    assert daemon.cli("migrate", "windows", "plan", str(output)).stdout.count(b"specification") == 1


def test_broken_files_are_refused(daemon: Daemon, tmp_path: Path):
    file = tmp_path / "file"
    file.write_bytes(b"{}")

    for arguments in (("plan", str(file)), ("messages", str(file), "--log", "l", "--yes")):
        done = daemon.cli("migrate", "windows", *arguments, check=False)
        assert done.returncode == 2
        assert b"QM-9401" in done.stderr


def test_the_steps_of_a_cut_over_are_printed(daemon: Daemon):
    printed = migrate(daemon, "drain", "hosta", "hostn", "orders", "parts")

    assert [row["step"] for row in printed] == list(range(1, 8))
    assert all(row["back"] for row in printed)
    assert any("hostn\\private$\\parts" in each for row in printed for each in row["senders"])


# -- messages ----------------------------------------------------------------------------------


def copies(path: Path, *numbers: int) -> Path:
    path.write_bytes(b"".join(windows_files.message(n, b"%d" % n, "copies") for n in numbers))
    return path


def test_messages_are_imported_once(daemon: Daemon, tmp_path: Path):
    daemon.create("copies", transactional=True)
    log = ("--log", str(tmp_path / "log"), "--yes")
    file = copies(tmp_path / "messages", 1, 2)

    (dry,) = migrate(daemon, "messages", str(file), *log, "--dry-run")
    assert (dry["imported"], daemon.count("copies")) == (2, 0)
    migrate(daemon, "messages", str(file), *log)
    (again,) = migrate(daemon, "messages", str(copies(file, 1, 2, 3, 3)), *log)

    assert (again["imported"], again["known"]) == (1, 3)
    assert (
        daemon.cli("migrate", "windows", "compare", str(copies(file, 1, 2, 3)), "copies").returncode
        == 0
    )
    received = daemon.receive("copies")
    assert [body(each) for each in received] == [b"1", b"2", b"3"]
    assert received[0]["id"] == "6b7d7cf2-64a5-4f1b-9e5d-3f0f5d3f2a11\\1"
    assert received[0]["response_queue"] == "DIRECT=OS:web\\private$\\replies"
    (third,) = migrate(daemon, "messages", str(file), *log)
    assert (third["imported"], daemon.count("copies")) == (0, 0)


class LostAnswers:
    """A connection that breaks after the next import, or before it."""

    def __init__(self, qm: Any, *, after: bool) -> None:
        self._qm, self._after = qm, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._qm, name)

    async def import_messages(self, *arguments: Any, **options: Any) -> int:
        if self._after:
            await self._qm.import_messages(*arguments, **options)
        raise ConnectionError


@pytest.mark.parametrize("after", [False, True])
def test_a_lost_answer_neither_loses_nor_doubles(daemon: Daemon, tmp_path: Path, after: bool):
    queue = f"lost{after}".lower()
    daemon.create(queue, transactional=True)
    file, log = tmp_path / "messages", tmp_path / "log"
    numbers = range(100 + 10 * after, 102 + 10 * after)
    file.write_bytes(b"".join(windows_files.message(n, b"%d" % n, queue) for n in numbers))

    async def run() -> None:
        async with connect(daemon.folder / "qmd.sock") as qm:
            broken: Any = LostAnswers(qm, after=after)
            with file.open("rb") as lines, pytest.raises(ConnectionError):
                await import_copies(broken, messages_of(lines), ImportLog(log))
            with log.open("ab") as torn:
                torn.write(b'{"token": "ab')
            for _ in range(2):
                with file.open("rb") as lines:
                    await import_copies(qm, messages_of(lines), ImportLog(log))

    asyncio.run(run())

    assert daemon.bodies(queue) == [b"%d" % n for n in numbers]


def test_a_batch_in_doubt_that_the_daemon_forgot_is_named(daemon: Daemon, tmp_path: Path):
    log = tmp_path / "log"
    row = {"token": "ab" * 16, "queue": "q", "at_s": int(time.time()) - 4000, "ids": ["x\\1"]}
    log.write_text(json.dumps(row) + "\n")
    arguments = ["messages", str(copies(tmp_path / "m", 1)), "--log", str(log), "--yes"]

    done = daemon.cli("migrate", "windows", *arguments, check=False)

    assert done.returncode == 2
    assert b"qmd why" in done.stderr
    log.write_text("hello\n")
    with pytest.raises(BadSource, match="line 1"):
        ImportLog(log)


def test_received_messages_are_moved_aside_once(daemon: Daemon, tmp_path: Path):
    daemon.create("shadow", transactional=True)
    file = tmp_path / "messages"
    journal = [windows_files.message(n, b"%d" % n, "shadow\\journal$") for n in (201, 202, 209)]
    numbers = (201, 202, 203)
    file.write_bytes(b"".join(windows_files.message(n, b"%d" % n, "shadow") for n in numbers))
    log = ("--log", str(tmp_path / "log"), "--yes")
    migrate(daemon, "messages", str(file), *log)
    file.write_bytes(b"".join(journal))

    (dry,) = migrate(daemon, "align", str(file), "shadow", "--dry-run")
    (first,) = migrate(daemon, "align", str(file), "shadow", "--yes")
    (second,) = migrate(daemon, "align", str(file), "shadow", "--yes")

    assert (dry["moved"], first["moved"], first["not_here"]) == (2, 2, 1)
    assert (second["moved"], second["not_here"]) == (0, 1)
    assert daemon.bodies("shadow") == [b"203"]
    file.write_bytes(windows_files.message(203, b"203", "shadow"))
    done = daemon.cli("migrate", "windows", "compare", str(file), "shadow", check=False)
    assert done.returncode == 1
    assert b"missing here 1" in done.stdout


def test_a_later_message_with_the_text_of_a_received_one_stays(daemon: Daemon, tmp_path: Path):
    """The journal also has messages that were sent to the old host alone, before."""
    daemon.create("echo", transactional=True)
    start_s = 1_760_000_000

    def row(number: int, queue: str, sent_s: int) -> bytes:
        changes = {"label": "", "sent_at_ms": 1000 * (start_s + sent_s)}
        return windows_files.message(number, b"again", queue, **changes)

    file = tmp_path / "messages"
    file.write_bytes(b"".join(row(number, "echo", 10 * number) for number in (30, 31, 32, 33, 34)))
    migrate(daemon, "messages", str(file), "--log", str(tmp_path / "log"), "--yes")
    numbers = [each["id"].partition("\\")[2] for each in daemon.peek("echo")]

    def align(*options: str) -> tuple[dict[str, Any], int]:
        done = daemon.cli(
            "migrate", "windows", "align", str(file), "echo", "--json", *options, check=False
        )
        return json.loads(done.stdout), done.returncode

    # Two received before, one with the copy 30, and one that the old host still has: 31.
    journal = [row(1, "echo\\journal$", 10), row(2, "echo\\journal$", 20)]
    journal.append(row(3, "echo\\journal$", 301))
    file.write_bytes(b"".join([*journal, row(4, "echo", 310)]))
    found, code = align("--yes")
    assert (found["moved"], found["not_here"], found["other_time"], code) == (1, 2, 2, 1)
    assert [each["id"].partition("\\")[2] for each in daemon.peek("echo")] == numbers[1:]
    assert daemon.count("echo;aligned") == 1

    # Within a few seconds two are taken for one: as many stay as the old host still has.
    waiting = [row(10 + n, "echo", 312 + n) for n in range(3)]
    file.write_bytes(b"".join([*journal, row(9, "echo\\journal$", 311), *waiting]))
    assert align("--dry-run")[0]["moved"] == 1
    file.write_bytes(
        b"".join([*journal, row(9, "echo\\journal$", 311), *waiting, row(8, "echo", 0)])
    )
    assert align("--dry-run")[0]["moved"] == 0
    found, code = align("--any-time", "--yes")
    assert (found["moved"], code) == (0, 0)
    file.write_bytes(b"".join(journal))
    found, code = align("--any-time", "--yes")
    assert (found["moved"], found["not_here"], code) == (2, 0, 0)
