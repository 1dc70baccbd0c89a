"""A body that takes long to be shown, in a console that runs in this process."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="the extra qmd-msmq[console] is not installed")
pytest.importorskip("httptools", reason="the extra qmd-msmq[console] is not installed")

from qmd.config.file import load_settings
from qmd.console import bodies
from qmd.console.program import Console as Program
from qmd.console.turns import PAGES_OF_USER
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


def test_few_pages_of_a_user_are_made_at_once(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other requests wait, and other users are served meanwhile."""
    served, all_began, lock = threading.Event(), threading.Event(), threading.Lock()
    running = most = 0

    def read(body: bytes, body_type: int) -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == PAGES_OF_USER:
                all_began.set()
        served.wait(END_S / 2)
        with lock:
            running -= 1
        return "shown"

    monkeypatch.setattr(bodies, "FORMATS", dict(bodies.FORMATS))
    bodies.register("slow", "Slow", read)
    daemon = hosts.daemon()
    daemon.create("orders")
    daemon.send("orders", b"<a/>")
    console = Console(daemon)

    async def scenario() -> list[int]:
        program = Program(load_settings(daemon.config), daemon.config)
        await program.start(ServiceManager({}))
        # Without the limit all pages would be laid out at once.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(50))
        try:
            veras = [
                await asyncio.to_thread(console.client, "vera") for _ in range(PAGES_OF_USER + 2)
            ]
            otto = await asyncio.to_thread(console.client, "otto")
            listed = await asyncio.to_thread(veras[0].get, page_of("private$\\orders"))
            (found,) = re.findall(r'name="id" value="(\d+)"|id=(\d+)', listed.text)[:1]
            path = f"/hosts/local/message?queue=private%24%5Corders&id={max(found)}&as=slow"
            shown = [asyncio.create_task(asyncio.to_thread(each.get, path)) for each in veras]
            assert await asyncio.to_thread(all_began.wait, END_S)
            for _ in range(20):
                assert (await asyncio.to_thread(otto.get, "/jobs")).status == 200
            served.set()
            return [(await each).status for each in shown]
        finally:
            await program.stop()

    assert asyncio.run(scenario()) == [200] * (PAGES_OF_USER + 2)
    assert most == PAGES_OF_USER
