"""All commands: errors, help texts and imports."""

import io
import json
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from qmd.cli import COMMANDS, SECTIONS, main
from qmd.cli.overview import overview
from qmd.cli.program import Failure
from qmd.cli.status import problems
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator_frames


def commands(group=main, path=()):
    """Yield each command as the words that call it."""
    yield path
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            yield from commands(group.get_command(context, name), (*path, name))


def test_every_command_has_a_help_text():
    for words in commands():
        result = CliRunner().invoke(main, [*words, "--help"])

        assert result.exit_code == 0, words
        assert result.output.startswith(f"Usage: {' '.join(('qmd', *words))}")


def test_help_imports_no_heavy_library():
    script = f"""
import sys
from qmd.cli import main
for words in {list(commands())!r}:
    main([*words, "--help"], standalone_mode=False)
print(sorted(sys.modules), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    heavy = ("asyncio", "construct", "msgspec", "protocol", "qmd.client", "structlog", "uvloop")
    assert not [name for name in heavy if repr(name) in done.stderr]


@pytest.mark.parametrize(
    "words",
    [
        ["no-such-command"],
        ["--no-such-option"],
        ["send"],
        ["send", "orders", "x", "--priority", "8"],
        ["send", "orders", "x", "--time-to-reach-queue", "30"],
        ["send", "orders", "x", "--time-to-reach-queue", "1500ms"],
        ["send", "orders", "x", "--body-base64", "eA=="],
        ["send", "orders", "--body-base64", "&"],
        ["send", "orders", "--body-base64", "ä"],
        ["send", "orders", "\udcff"],
        ["send", "orders", "x", "--correlation-id", "nonsense"],
        ["send", "orders", "x", "--sender-id", "nonsense"],
        ["send", "orders", "x", "--connector-type", "nonsense"],
        ["send", "orders", "x", "--response-queue", ""],
        ["send", "orders", "x", "--admin-queue", "", "--acknowledge", "full-receive"],
        ["peek", "orders", "--start", str(2**64)],
        ["move", "orders", "orders;x", "--lookup-id", "first"],
        ["resend", "orders", "first"],
        ["sned", "orders", "x"],
        ["send", "orders", "x", "--body-type", "zwei"],
        ["send", "orders", "x", "--acknowledge", "full-receive"],
        ["send", "orders", "--each-line", "--count", "2"],
        ["send", "DIRECT=nonsense", "x"],
        ["receive", "orders", "--all", "--count", "2"],
        ["receive", "orders", "--json", "--body-only"],
        ["queue", "create", "orders", "--quota", "much"],
        ["name", "explain", "DIRECT=nonsense"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_reported_in_one_line(qmd, words):
    result = qmd(*words)

    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert re.match("qmd: error QM-[0-9]{4}: ", line)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sned", "orders"], "did you mean send?"),
        (["queue", "crate", "orders"], "create"),
        (["send", "orders", "x", "--correlation-id", "7"], "--correlation-id"),
        (["send", "orders", "x", "--sender-id", "7"], "such as S-1-5-21-1-2-1001"),
        (["send", "orders", "\udcff"], "--file or --body-base64"),
        (["resend", "orders", "first"], "'first' is not a lookup id"),
        (["queue", "set", "orders"], "one of --retry or --no-retry"),
    ],
    ids=str,
)
def test_wrong_usage_is_reported_with_the_right_usage(qmd, words, said):
    assert said in qmd(*words).stderr


@pytest.mark.parametrize(
    "words",
    [
        ["send", "orders", "x", "--label", "\udcff"],
        ["peek", "\udcff"],
        ["queue", "create", "q", "--quota", "99999999999999TB"],
    ],
    ids=str,
)
def test_a_value_that_a_frame_cannot_encode_is_wrong_usage(peer, qmd, words):
    result = qmd(*words)

    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("qmd: error QM-")


def test_an_error_cannot_send_control_sequences_to_the_terminal(qmd):
    result = qmd("name", "explain", "DIRECT=\x1b[2Jnonsense")

    assert "\x1b" not in result.stderr
    assert r"\x1b" in result.stderr


def test_a_missing_file_is_reported_by_name_and_without_an_error_number(peer, qmd, tmp_path):
    result = qmd("import", "orders", str(tmp_path / "none"))

    assert result.exit_code == 1
    assert f"{tmp_path / 'none'}: No such file or directory" in result.stderr
    assert "Errno" not in result.stderr


def test_an_export_that_fails_leaves_no_file(peer, qmd, tmp_path):
    peer.refusals[operator_frames.Status] = frames.Refused(0, "queue_full", "It is full.")
    folder = tmp_path / "exports"
    folder.mkdir()

    assert qmd("export", "orders", str(folder / "orders.ndjson")).exit_code == 4

    assert list(folder.iterdir()) == []


def test_an_export_of_events_to_a_missing_folder_names_the_folder(peer, qmd, tmp_path):
    folder = tmp_path / "none"

    result = qmd("events", "export", str(folder / "events.ndjson"))

    assert f"{folder}: No such file or directory" in result.stderr


def test_a_missing_daemon_is_reported_in_one_line(qmd):
    result = qmd("status")

    assert result.exit_code == 5
    (line,) = result.stderr.splitlines()
    assert line.startswith("qmd: error QM-4001: there is no control socket at ")
    assert "qmd serve" in line


def test_an_invalid_configuration_is_reported_in_one_line(qmd, config):
    config.write_text("[control]\nsockt = 1\n")

    result = qmd("status")

    assert result.exit_code == 78
    (line,) = result.stderr.splitlines()
    assert "did you mean socket?" in line


def test_a_missing_configuration_is_reported_with_a_remedy(monkeypatch):
    monkeypatch.delenv("QMD_CONFIG", raising=False)

    result = CliRunner().invoke(main, ["status"])

    assert result.exit_code == 78
    assert "--config or QMD_CONFIG" in result.stderr


def test_the_environment_names_the_configuration(peer, config, monkeypatch):
    monkeypatch.setenv("QMD_CONFIG", str(config))

    assert CliRunner().invoke(main, ["queue", "list"]).exit_code == 0


@pytest.mark.parametrize(
    ("code", "exit_code", "shown"),
    [
        ("no_such_queue", 3, "error QM-1201: "),
        ("queue_elsewhere", 3, "error QM-1202: "),
        ("name_elsewhere", 2, "error QM-1105: "),
        ("not_a_message_id", 2, "error QM-1008: "),
        ("queue_full", 4, "error QM-1401: "),
        ("something_new", 4, ""),
    ],
)
def test_a_refusal_has_an_id_an_exit_code_and_a_remedy(qmd, peer, code, exit_code, shown):
    peer.refusals[operator_frames.ShowQueue] = frames.Refused(0, code, "It is\nnot so.", "Do this.")

    result = qmd("queue", "show", "orders")

    assert result.exit_code == exit_code
    assert result.stderr == f"qmd: {shown}It is not so; do this.\n"


def test_init_writes_a_configuration_that_can_be_used(tmp_path):
    folder = tmp_path / "new"

    made = CliRunner().invoke(main, ["init", str(folder), "--listen", "127.0.0.1:1999", "--json"])
    again = CliRunner().invoke(main, ["init", str(folder)])

    assert json.loads(made.stdout) == {"config": str(folder / "qmd.toml")}
    assert "port = 1999" in (folder / "qmd.toml").read_text()
    assert again.exit_code == 78, "what is there is never overwritten"


def test_an_error_is_one_write():
    """A thread writes the log of a service to standard error as well: a line of it could stand
    between two writes."""
    written = []

    class Recorded(io.StringIO):
        def write(self, text):
            written.append(text)
            return super().write(text)

    Failure(1, "it failed", id="QM-1201", has_remedy=True).show(Recorded())

    assert written == ["qmd: error QM-1201: it failed\n"]


def test_colors_are_used_only_on_terminals_that_allow_them(monkeypatch, capsys):
    failure = Failure(1, "it failed")
    failure.show()
    assert capsys.readouterr().err == "qmd: it failed\n"

    monkeypatch.setenv("NO_COLOR", "1")
    result = CliRunner().invoke(main, ["--no-such-option"], color=True)
    assert "\x1b" not in result.stderr


STATUS = {
    "clock_s": 1_795_387_485,
    "uptime_s": 93_784.2,
    "name": "hosta",
    "queue_manager": "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0",
    "release": "1.0",
    "listen": ["127.0.0.1:1801"],
    "queues": 1,
    "messages": 4,
    "outgoing_messages": 5,
    "awaiting_messages": 0,
    "delayed_messages": 2,
    "delayed_bytes": 5_000,
    "delayed_until": "2027-01-01T00:00:00Z",
    "quota_used_percent": 7,
    "sessions": 1,
    "sent": 1,
    "received": 2,
    "transmitted": 3,
    "resent": 0,
    "relayed": 0,
    "refused": 0,
    "duplicates_refused": 0,
    "access_refused": 6,
    "memory": {"packets": {"bytes": 100, "limit_bytes": 10**9, "denied": 9, "waiting": 0}},
    "consequences": {
        "acknowledgments": {
            "queues": 1,
            "queues_max": 8192,
            "bytes": 50,
            "bytes_max": 268_435_456,
            "not_made": {},
            "hosts": [{"host": "10.0.0.5", "bytes": 50}],
        },
        "dead_letters": {
            "dead_letters": 3,
            "bytes": 70,
            "bytes_max": 500_000_000,
            "not_kept": 0,
            "ended": 2,
            "hosts": [{"host": "10.0.0.6", "bytes": 70}],
        },
        "events_not_listed": 0,
    },
    "bytes": 12_345_678,
    "quota_bytes": 999,
    "disk_free_bytes": 5_000_000,
    "commits_wait": None,
    "housekeeping_failing": [],
    "disk_full": False,
    "quota_warnings": [],
    "two_of_one_identity": [],
    "sequences_in_doubt": [],
    "directory": {"kind": "none", "state": "up"},
    "dead_letters": 3,
}


def test_the_overview_of_a_status_has_units():
    shown = overview(STATUS, ["the disk is full"])

    assert (shown["clock"], shown["uptime"]) == ("2026-11-22 22:44:45Z", "1 d 2 h")
    contents = shown["contents"]
    assert contents["size"] == "12.3 MB of 999 bytes, 7 %"
    assert contents["free on the disk"] == "5.0 MB"
    assert contents["messages"] == "4 in 1 queue"
    assert contents["delayed"] == "2, 5.0 kB, the next one at 2027-01-01T00:00:00Z"
    assert shown["since the start"] == {
        "messages": "1 sent, 2 received, 3 transmitted, 0 resent, 0 relayed",
        "refusals": "6 without the right",
        "sessions now": 1,
    }
    assert shown["memory"]["packets"] == "100 bytes of 1.0 GB, 9 denied"
    assert shown["caused by other hosts"] == {
        "acknowledgments": "1 of 8192 queues, 50 bytes of 268.4 MB",
        "waiting for": "10.0.0.5 50 bytes",
        "dead letters": "3, 70 bytes of 500.0 MB",
        "ended": 2,
        "refused from": "10.0.0.6 70 bytes",
    }
    assert shown["problems"] == {"1.": "the disk is full"}


def test_the_overview_without_the_right_to_see_the_rest():
    names = ("name", "queue_manager", "release", "clock_s", "uptime_s", "listen")
    shown = overview({name: STATUS[name] for name in names} | {"brief": True}, [])

    assert list(shown) == ["name", "queue manager", "release", "uptime", "clock", "listen"]


def test_each_command_stands_in_one_section_of_the_help():
    named = [name for names in SECTIONS.values() for name in names]
    assert sorted(named) == sorted(COMMANDS)

    shown = CliRunner().invoke(main, ["--help"]).output
    for title, names in SECTIONS.items():
        (text,) = re.findall(rf"^{title}:\n((?:  .*\n)+)", shown, re.MULTILINE)
        assert re.findall(r"^  (\S+)", text, re.MULTILINE) == list(names)


def test_no_sentence_of_a_help_is_cut():
    for words in commands():
        shown = CliRunner().invoke(main, [*words, "--help"]).output
        for line in shown.partition("Commands:")[2].splitlines():
            assert not line.endswith("..."), words


def test_a_check_finds_the_problems_of_a_status():
    warning = {"what": "computer", "used_percent": 91, "quota_bytes": 1000}
    full = {
        **STATUS,
        "disk_full": True,
        "commits_wait": "database or disk is full",
        "housekeeping_failing": [{"act": "trim the events", "reason": "no room"}],
        "quota_warnings": [warning],
    }

    assert problems(STATUS) == problems(STATUS, 3) == []
    assert "3 dead letters" in problems(STATUS, 2)[0]
    assert problems(full) == [
        "the disk is full (5.0 MB free): new messages are refused until there is space",
        "nothing can be written, and pending commits wait: database or disk is full",
        "maintenance fails (trim the events): no room",
        "computer has reached 91 % of its quota of 1.0 kB",
    ]


def test_each_error_of_a_configuration_is_a_line(tmp_path):
    file = tmp_path / "qmd.toml"
    file.write_text("[listen]\nport = 99999\n[peers]\nnothing = 1\n")

    result = CliRunner().invoke(main, ["--config", str(file), "status"])

    assert result.exit_code == 78
    assert [line.split(":")[3] for line in result.stderr.splitlines()] == ["2", "4"]


def test_a_missing_token_is_reported_with_an_id_and_a_remedy(qmd):
    result = qmd("remote", "token", "revoke", "nope")

    assert result.exit_code == 3
    assert "QM-5025" in result.stderr
    assert "qmd remote token list" in result.stderr


@pytest.mark.parametrize("name", ["protocol", "storage", "pipeline"])
def test_a_file_of_the_user_does_not_shadow_a_package_of_qmd(tmp_path, name):
    (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    (tmp_path / "orders.py").write_text("x = 1")

    def run(target):
        return subprocess.run(
            [sys.executable, "-m", "qmd", "service", "run", target],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip

    assert "orders:Orders is not a class that derives" in run("orders:Orders").stderr
    assert "give that file another name" in run(f"{name}:Orders").stderr
