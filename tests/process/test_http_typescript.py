"""A client in TypeScript that is generated from the description of the HTTP door."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import END_S
from tests.process.http_door import HttpDoor, open_door

PROGRAM = Path(__file__).parents[1] / "http_client"

pytestmark = pytest.mark.skipif(
    shutil.which("npm") is None or shutil.which("node") is None, reason="node.js is needed"
)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpDoor]:
    yield from open_door(tmp_path_factory.mktemp("typescript"), "orders")


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=END_S, check=False
    )


def test_a_generated_client_compiles_and_sends_and_receives(door: HttpDoor, tmp_path: Path) -> None:
    folder = tmp_path / "client"
    shutil.copytree(PROGRAM, folder)
    installed = _run(folder, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
    if installed.returncode:
        pytest.skip(f"npm cannot install the locked packages: {installed.stderr[-300:]}")
    client = door.client()
    (folder / "openapi.json").write_bytes(client.ask("GET", "/openapi.json").content)
    door.close_clients()
    generate = ("npx", "openapi-typescript", "openapi.json", "--default-non-nullable", "false")

    generated = _run(folder, *generate, "-o", "schema.ts")
    compiled = _run(folder, "npx", "tsc", "-p", ".")
    url = f"http://127.0.0.1:{door.port}"
    ran = _run(folder, "node", "build/client.js", url, door.token(name="admin"))

    assert generated.returncode == 0, generated.stderr
    assert compiled.returncode == 0, compiled.stdout
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
