"""A body that takes long to be shown, in a console that runs in this process."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="the extra qmd-msmq[console] is not installed")
pytest.importorskip("httptools", reason="the extra qmd-msmq[console] is not installed")

from qmd.config.file import load_settings
from qmd.console import bodies
from qmd.console.program import Console as Program
from qmd.runtime.systemd import ServiceManager
from tests.patience import END_S
from tests.process.console_program import Console, page_of
from tests.process.harness import Hosts

pytestmark = pytest.mark.process


def test_while_a_body_is_laid_out_others_are_served(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The format of this test takes as long as it takes to serve another user."""
    began, served = threading.Event(), threading.Event()

    def read(body: bytes, body_type: int) -> str:
        began.set()
        return f"served: {served.wait(END_S / 2)}"

    monkeypatch.setattr(bodies, "FORMATS", dict(bodies.FORMATS))
    bodies.register("slow", "Slow", read)
    daemon = hosts.daemon()
    daemon.create("orders")
    daemon.send("orders", b"<a/>")
    console = Console(daemon)

    async def scenario() -> str:
        program = Program(load_settings(daemon.config), daemon.config)
        await program.start(ServiceManager({}))
        try:
            vera, otto = [
                await asyncio.to_thread(console.client, name) for name in ("vera", "otto")
            ]
            listed = await asyncio.to_thread(vera.get, page_of("private$\\orders"))
            (found,) = re.findall(r'name="id" value="(\d+)"|id=(\d+)', listed.text)[:1]
            path = f"/hosts/local/message?queue=private%24%5Corders&id={max(found)}&as=slow"
            shown = asyncio.create_task(asyncio.to_thread(vera.get, path))
            assert await asyncio.to_thread(began.wait, END_S)
            assert (await asyncio.to_thread(otto.get, "/jobs")).status == 200
            served.set()
            return (await shown).text
        finally:
            await program.stop()

    assert "served: True" in asyncio.run(scenario())
