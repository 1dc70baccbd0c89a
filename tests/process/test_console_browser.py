"""The console in a real browser: each page, by keyboard, dark and light, narrow, and for axe-core.

With QMD_SCREENSHOTS=FOLDER each page is also saved there as a picture, as for the manual:

    QMD_SCREENSHOTS=docs/images pytest tests/process/test_console_browser.py
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from qmd.client import blocking, new_message
from tests.optional import needs
from tests.patience import END_S
from tests.process.command_line import ROOT
from tests.process.console_program import PASSWORD, Console
from tests.process.harness import DEADLETTER, Daemon, free_port

pytest.importorskip("jinja2", reason="the extra qmd-msmq[console] is not installed")

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    needs("playwright", reason="playwright is not installed"),
]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = ROOT / ".venv" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
PICTURES = os.environ.get("QMD_SCREENSHOTS", "")
WIDE, NARROW = {"width": 1200, "height": 760}, {"width": 360, "height": 740}
CHECK = """rules => axe.run(document, {resultTypes: ["violations"], ...rules}).then(
  found => found.violations.map(each => each.id + ": " +
    each.nodes.map(node => node.html.slice(0, 150)).join(" | ")))"""
# Those whose result depends on the colours and the width: the others are checked once.
LOOKS = {"runOnly": ["color-contrast", "scrollable-region-focusable", "target-size",
                     "link-in-text-block", "nested-interactive"]}  # fmt: skip
# Elements outside of a scrolled region that reach beyond the screen.
TOO_WIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] :
  [...document.querySelectorAll("body *")].filter(each => !each.closest(".scroll, pre, svg") &&
  each.getBoundingClientRect().right > innerWidth + 1).map(each => each.outerHTML.slice(0, 100))"""
HOSTILE = '"><script>alert(1)</script>\u202egnp.exe'


class Fleet:
    """Two queue managers, one of which sends to the other, and a third that is down."""

    def __init__(self, folder: Path) -> None:
        self.east, self.west = Daemon(folder / "east"), Daemon(folder / "west")
        self.east.configure({"queue_manager": {"name": "east"}, "directory": {"kind": "file"}})
        self.west.configure({"queue_manager": {"name": "west"}})
        reports = folder / "reports" / "audit"
        reports.mkdir(parents=True)
        (reports / "report.html").write_text(
            '<!DOCTYPE html><html lang="en"><title>Audit</title><h1>Audit</h1>'
            "<script>document.title = 'run'</script>"
        )
        self.console = Console(
            self.east,
            hosts=["east", f"west {self.west.folder / 'qmd.sock'}", f"gone {folder}/gone.sock"],
            reports=str(folder / "reports"),
        )
        self.nowhere = f"DIRECT=TCP:127.0.0.1:{free_port()}\\private$\\bills"
        self.lookup_id = 0

    def start(self) -> None:
        self.east.start()
        self.west.start()
        self.east.create("orders", "returns", "empty")
        self.west.create("inbox")
        self._fill()
        self.console.start()

    def _fill(self) -> None:
        inbox = f"DIRECT=TCP:127.0.0.1:{self.west.port}\\private$\\inbox"
        with blocking.connect(self.east.folder / "qmd.sock") as qm:
            qm.send_many(
                [new_message("orders", b'{"order": 1, "items": ["screws"]}', label=HOSTILE)]
                + [
                    new_message("orders", f"<order n='{at}'/>".encode(), label=f"order {at}")
                    for at in range(20)
                ]
            )
            for target in (inbox, self.nowhere):
                qm.send_many([new_message(target, b"x", label="sent on") for _ in range(3)])
            qm.move("orders", "orders;retry", limit=1)
            qm.move("orders;retry", "orders")
            qm.send("orders", b"later", label="delayed", delay_s=3600)
            self.lookup_id = qm.peek("orders", 0, 1)[0].lookup_id
        self.east.cli("dl", "create", "all", "orders@east", "inbox@west")
        self.east.cli("topic", "create", "news")
        self.west.json("receive", "inbox", "--timeout", f"{END_S:.0f}s")
        bad = f"DIRECT=TCP:127.0.0.1:{free_port()}\\private$\\x"
        self.east.cli("send", bad, "x", "--label", "lost")
        self.east.cli("outgoing", "purge", bad, "--yes")

    def stop(self) -> None:
        self.console.kill()
        self.east.kill()
        self.west.kill()

    @property
    def pages(self) -> dict[str, str]:
        """Name -> address of each page."""
        orders = urlencode({"name": "private$\\orders"})
        return {
            "fleet": "/",
            "oldest": "/oldest",
            "dead-letters": "/dead-letters",
            "find": "/find?message=sent+on",
            "not-found": "/find?message=nothing",
            "jobs": "/jobs",
            "reports": "/reports",
            "host": "/hosts/east",
            "queues": "/hosts/east/queues",
            "queue": f"/hosts/east/queue?{orders}",
            "search": f"/hosts/east/queue?{orders}&text=order&part=label",
            "message": f"/hosts/east/message?queue=private%24%5Corders&id={self.lookup_id}",
            "outgoing": "/hosts/east/outgoing",
            "destination": f"/hosts/east/destination?{urlencode({'name': self.nowhere})}",
            "host-dead-letters": "/hosts/east/dead-letters",
            "sessions": "/hosts/east/sessions",
            "lists": "/hosts/east/directory?explain=orders&list=all",
            "services": "/hosts/east/services",
            "settings": "/hosts/east/settings",
            "problem": "/hosts/gone",
        }


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    if BROWSER is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()


@pytest.fixture(scope="module")
def browser(fleet: Fleet) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as engine:
        browser = engine.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"], timeout=END_S * 1000
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def login(fleet: Fleet, browser: Any) -> list[dict[str, Any]]:
    """Return the cookies of an administrator."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(fleet.console.address)
    page.fill("input[name=name]", "anna")
    page.fill("input[name=password]", PASSWORD)
    page.click("button.main")
    page.wait_for_url(f"{fleet.console.address}/")
    cookies: list[dict[str, Any]] = context.cookies()
    context.close()
    return cookies


class Watched:
    """A page, with everything that it should not do."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.address = address
        self.faults: list[str] = []
        page.set_default_timeout(END_S * 1000)
        page.on("dialog", lambda dialog: (self.faults.append("a dialog"), dialog.dismiss()))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._said)
        page.on("request", self._asked)

    def _said(self, message: Any) -> None:
        # A status that is no 200 is reported as an error, too.
        if message.type == "error" and "status of" not in message.text:
            self.faults.append(message.text)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.faults.append(f"a request to {request.url}")

    def open(self, path: str) -> int:
        """Open a page; return the status."""
        answer = self.page.goto(self.address + path)
        return 0 if answer is None else int(answer.status)


@pytest.fixture
def watched(fleet: Fleet, browser: Any, login: list[dict[str, Any]]) -> Iterator[Watched]:
    context = browser.new_context(viewport=WIDE)
    context.add_cookies(login)
    watched = Watched(context.new_page(), fleet.console.address)
    yield watched
    context.close()
    assert watched.faults == []


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: .ci/run does so")
def test_each_page_is_accessible_and_fits(fleet, watched):
    """In light colours on a wide screen, and in dark ones on a narrow screen."""
    axe, page = AXE.read_text(), watched.page
    found: dict[str, Any] = {}
    odd = {"problem": 502, "missing": 404}
    alike = ("search", "host-dead-letters", "missing")  # looks like other pages
    for name, path in {**fleet.pages, "login": "/login", "missing": "/nothing"}.items():
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(WIDE)
        assert watched.open(path) == odd.get(name, 200), name
        page.evaluate(axe)
        faults = page.evaluate(CHECK, {}) + page.evaluate(TOO_WIDE)
        if PICTURES and name not in (*odd, "search", "host-dead-letters", "not-found"):
            save(page, name)
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size(NARROW)
        faults += page.evaluate(TOO_WIDE)
        if name not in alike:
            faults += page.evaluate(CHECK, LOOKS)
        if PICTURES and name in ("fleet", "message"):
            save(page, f"{name}-narrow-dark")
        if faults:
            found[name] = faults

    assert found == {}


def save(page: Any, name: str) -> None:
    """Save a picture with few colours, which is small."""
    import io

    from PIL import Image

    folder = Path(PICTURES)
    folder.mkdir(parents=True, exist_ok=True)
    with Image.open(io.BytesIO(page.screenshot())) as picture:
        small = picture.convert("RGB").quantize(48, dither=Image.Dither.NONE)
        small.save(folder / f"console-{name}.png", optimize=True)


def test_the_keyboard_is_enough(fleet, watched):
    page = watched.page
    page.context.clear_cookies()
    watched.open("/login")
    page.keyboard.type("anna")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{watched.address}/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main"

    watched.open("/hosts/east/queues")
    reach(page, "a", "orders")
    page.keyboard.press("Enter")
    page.wait_for_url("**/queue?name=*")
    reach(page, "input[name=id]")
    page.keyboard.press("Space")
    reach(page, "input[name=target]")
    page.keyboard.type("returns")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#confirm")
    reach(page, "#confirm")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/*")
    page.wait_for_selector("text=Undo")
    assert page.inner_text("[role=status]").startswith("done 1 message")
    reach(page, "button", "Undo")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Undo of job")
    page.wait_for_selector(".state.good")


def reach(page: Any, selector: str, text: str = "") -> None:
    """Press the tabulator until an element has the focus."""
    for _ in range(300):
        page.keyboard.press("Tab")
        if page.evaluate(
            "([selector, text]) => document.activeElement.matches(selector)"
            " && document.activeElement.textContent.includes(text)",
            [selector, text],
        ):
            shown = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert shown != "none", "the focus is not visible"
            return
    raise AssertionError(f"{selector} cannot be reached")


def test_figures_are_live_and_can_be_paused(fleet, watched):
    page = watched.page
    kinds: list[str] = []
    page.on("request", lambda request: kinds.append(request.resource_type))
    watched.open("/hosts/east/queue?name=private%24%5Cempty")
    assert "0 messages" in page.inner_text("#live-queue")

    fleet.east.cli("send", "empty", "x")

    page.wait_for_selector("#live-queue >> text=1 messages")
    page.click("#pause")
    assert page.inner_text("#pause") == "Live"
    fleet.east.cli("receive", "empty")
    page.click("#pause")
    page.wait_for_selector("#live-queue >> text=0 messages")
    # The figures come as events, one stream after the other.
    assert kinds.count("eventsource") == 2
    assert "fetch" not in kinds


def test_hostile_messages_run_nothing(fleet, watched):
    page = watched.page
    big = b"<script>alert(2)</script>" * 160_000 + b"\xff\xfe"
    with blocking.connect(fleet.east.folder / "qmd.sock") as qm:
        qm.send("returns", big, label=HOSTILE)
        lookup_id = qm.peek("returns", 0, 1)[0].lookup_id
    base = f"/hosts/east/message?queue=private%24%5Creturns&id={lookup_id}"

    for path in (base, f"{base}&as=hex", f"{base}&all=1"):
        watched.open(path)
        assert page.evaluate("document.querySelectorAll('main script').length") == 0
    watched.open("/hosts/east/queue?name=private%24%5Creturns")

    assert "<script>alert(1)</script>\u27e8U+202E\u27e9gnp.exe" in page.inner_text("table")
    fleet.east.cli("queue", "purge", "returns", "--yes")


def test_a_report_runs_no_script(fleet, watched):
    """The browser reports the blocked script; nothing else may go wrong."""
    watched.open("/reports")
    watched.page.click("text=audit")
    watched.page.wait_for_selector("h1 >> text=Audit")

    assert watched.page.title() == "Audit"
    watched.faults = [each for each in watched.faults if "Blocked script" not in each]


def test_dead_letters_are_sent_again_by_a_few_clicks(fleet, watched):
    page = watched.page
    watched.open("/dead-letters")
    page.click("text=Send again…")
    page.wait_for_selector("text=Nothing has been done yet")
    assert "qmd dead-letter requeue" in page.inner_text(".cli")
    assert DEADLETTER in page.inner_text(".cli")
    page.click("#confirm")
    page.wait_for_selector(".state.good >> text=done")
    assert "1 message" in page.inner_text("[role=status]")
