"""A process that serves does not load the optional packages of structlog."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qmd.runtime.plain_structlog import OPTIONAL

ROOT = Path(__file__).resolve().parents[3]

#: Run Python with arguments; return the optional packages that it has loaded.
Loaded = Callable[..., set[str]]


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    """Return a function that runs Python where the optional packages are installed."""
    packages = tmp_path / "packages"
    for name in OPTIONAL:
        (packages / name).mkdir(parents=True)
        mark = tmp_path / f"{name}.loaded"
        (packages / name / "__init__.py").write_text(
            f"open({str(mark)!r}, 'w').close()\ngetcurrent = None\n"
        )
    (packages / "rich" / "console.py").write_text("Console = None\n")
    (packages / "rich" / "traceback.py").write_text("Traceback = None\n")
    environment = os.environ | {"PYTHONPATH": f"{packages}{os.pathsep}{ROOT}"}

    def run(*arguments: str, code: int = 0) -> set[str]:
        ran = subprocess.run(
            (sys.executable, *arguments), env=environment, timeout=120, check=False
        )
        assert ran.returncode == code
        return {name for name in OPTIONAL if (tmp_path / f"{name}.loaded").exists()}

    return run


LOAD = "from qmd.runtime import plain_structlog; plain_structlog.load(); import sys"
IS_LOADED = "assert 'structlog' in sys.modules"


def test_structlog_alone_loads_them(loaded: Loaded) -> None:
    assert loaded("-c", "import structlog") == set(OPTIONAL)


def test_load_leaves_them_out(loaded: Loaded) -> None:
    assert loaded("-c", f"{LOAD}; {IS_LOADED}") == set()


def test_they_can_be_imported_afterwards(loaded: Loaded) -> None:
    assert loaded("-c", f"{LOAD}; {IS_LOADED}; import rich, greenlet") == set(OPTIONAL)


def test_unused_parts_can_be_imported_afterwards(loaded: Loaded) -> None:
    program = f"""
{LOAD}
unused = {{f"structlog.{{each}}" for each in plain_structlog.UNUSED}} | {{"json", "pickle"}}
assert not unused & set(sys.modules)
import json, structlog
structlog.get_logger().info("written", key=1)
import structlog.dev, structlog.stdlib, structlog.testing
assert json.dumps([1]) == "[1]"
with structlog.testing.capture_logs() as lines:
    structlog.get_logger().info("captured", key=2)
assert lines == [{{"event": "captured", "key": 2, "log_level": "info"}}]
print(structlog.dev.ConsoleRenderer(colors=False)(None, "info", {{"event": "drawn"}}))
"""
    assert loaded("-c", program) == {"rich"}


@pytest.mark.parametrize("command", [("serve",), ("door", "metrics")])
def test_processes_that_serve_do_not_load_them(
    loaded: Loaded, tmp_path: Path, command: tuple[str, ...]
) -> None:
    config = tmp_path / "qmd.toml"
    config.write_text("nonsense = true\n")  # it stops after the imports
    assert loaded("-m", "qmd", "--config", str(config), *command, code=78) == set()
