"""Which arguments start the daemon without the library of the command line."""

import subprocess
import sys
from pathlib import Path

import pytest

from qmd.command import Serve, read


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("QMD_CONFIG", "QMD_HOST", "_QMD_COMPLETE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "qmd.toml"
    file.touch()
    return str(file)


@pytest.mark.parametrize("doors", [False, True])
@pytest.mark.parametrize("standby", [False, True])
def test_a_daemon(config: str, doors: bool, standby: bool) -> None:
    options = ["--doors"] * doors + ["--standby"] * standby
    assert read(["--config", config, "serve", *options]) == Serve(Path(config), doors, standby)


def test_the_configuration_of_the_environment(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(["serve"]) is None
    monkeypatch.setenv("QMD_CONFIG", config)
    assert read(["serve"]) == Serve(Path(config), False, False)
    assert read(["--config", "elsewhere", "serve"]) is None


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--config"],
        ["--config", "FILE"],
        ["--config", "FILE", "status"],
        ["--config", "FILE", "serve", "--help"],
        ["--config", "FILE", "serve", "--stand"],
        ["--config", "FILE", "--host", "b", "serve"],
        ["--config", "FOLDER", "serve"],
        ["--config", "absent", "serve"],
        ["serve", "--config", "FILE"],
    ],
)
def test_other_arguments_are_for_the_command_line(config: str, arguments: list[str]) -> None:
    places = {"FILE": config, "FOLDER": str(Path(config).parent)}
    assert read([places.get(each, each) for each in arguments]) is None


@pytest.mark.parametrize("name", ["QMD_HOST", "_QMD_COMPLETE"])
def test_variables_for_the_command_line(
    config: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "b")
    assert read(["--config", config, "serve"]) is None


def test_a_daemon_does_not_load_the_library_of_the_command_line() -> None:
    program = "import sys, qmd.command, qmd.serve, qmd.daemon; print('click' in sys.modules)"
    ran = subprocess.run(
        (sys.executable, "-c", program), capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "False"


def test_an_error_of_the_configuration_is_reported_as_by_a_command(config: str) -> None:
    Path(config).write_text("nonsense = true\n")
    commands = [("serve",), ("serve", "--doors"), ("config", "check")]
    ends = [
        subprocess.run(
            (sys.executable, "-m", "qmd", "--config", config, *command),
            capture_output=True,
            text=True,
            check=False,
        )
        for command in commands
    ]
    assert [end.returncode for end in ends] == [78, 78, 78]
    assert ends[0].stderr == ends[1].stderr
    assert ends[0].stderr.startswith("qmd: error QM-")


#: A thread of Arrow is busy with a function of Python when the command ends.
_BUSY = """
import sys, threading, time
import pyarrow as pa, pyarrow.compute as pc
from qmd import command

begun = threading.Event()

def function(context, numbers):
    begun.set()
    while True:
        time.sleep(0.0001)

about = {"summary": "", "description": ""}
pc.register_scalar_function(function, "endless", about, {"numbers": pa.int64()}, pa.int64())
call = lambda: pc.call_function("endless", [pa.array([1, 2])])
threading.Thread(target=call, daemon=True).start()
begun.wait()
sys.argv = ["qmd", "--version"]
sys.exit(command.main())
"""


def test_a_busy_thread_of_arrow_does_not_abort_a_command_that_has_ended() -> None:
    pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
    busy = [
        subprocess.Popen([sys.executable, "-c", _BUSY], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]

    ends = [(process.communicate()[0].split()[:1], process.returncode) for process in busy]

    assert ends == [(["qmd"], 0)] * 4
