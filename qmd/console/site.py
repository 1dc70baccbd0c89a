"""The site: routes, and the checks that each request passes before a page sees it.

Every response forbids scripts, styles and requests of other origins.  A request that changes
something needs the origin of the console and the secret of its session's forms.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import structlog

from qmd.client import ClientError, NotConnected
from qmd.config.settings import ConsoleSettings
from qmd.console.choices import Form
from qmd.console.entrance import Entrance
from qmd.console.fleet import Fleet
from qmd.console.jobs import Jobs
from qmd.console.live import EVENTS, Streams
from qmd.console.logins import Session
from qmd.console.pages import fleet, host, queues, work
from qmd.console.render import Templates, address, static_files
from qmd.console.turns import NoTurn, Turns
from qmd.console.visit import Answer, File, Forbidden, NotFound, Page, Redirect, Visit
from qmd.doors.http.exchange import Request, Response
from qmd.doors.users import BadUsers

log = structlog.get_logger()

HTML = "text/html; charset=utf-8"
FORM = "application/x-www-form-urlencoded"
MIN_REFRESH_S = 0.2
FIELDS_MAX = 10_500  # of a form: the messages of some pages
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    ("x-frame-options", "DENY"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=()"),
)

Show = Callable[..., Awaitable[Answer]]
FLEET_PAGES: dict[str, Show] = {
    "": fleet.fleet,
    "oldest": fleet.oldest,
    "find": fleet.find,
    "dead-letters": fleet.dead_letters,
    "jobs": work.jobs,
    "reports": work.reports,
}
HOST_PAGES: dict[str, Show] = {
    "": host.overview,
    "queues": queues.queues,
    "queue": queues.queue,
    "message": queues.message,
    "body": queues.body,
    "export": queues.export,
    "outgoing": host.outgoing,
    "destination": host.destination,
    "dead-letters": host.dead_letters,
    "sessions": host.sessions,
    "directory": host.directory,
    "services": host.services,
    "settings": host.settings,
}


class Site:
    """The pages of the console for one server."""

    def __init__(
        self, settings: ConsoleSettings, config: Path, fleet: Fleet, jobs: Jobs, entrance: Entrance
    ) -> None:
        self._settings = settings
        self._config = config
        self._fleet = fleet
        self._jobs = jobs
        self._entrance = entrance
        self._templates = Templates()
        self._static = static_files()
        self._is_secure = settings.certificate is not None
        self._turns = Turns()
        self._streams = Streams(max(MIN_REFRESH_S, settings.refresh_s))

    async def __call__(self, request: Request) -> Response:
        """Answer a request."""
        try:
            return await self._answer(request)
        except NotFound as error:
            return self._alone("Not found", str(error), 404)
        except Forbidden as error:
            return self._alone("Not permitted", str(error), 403)
        except NotConnected as error:
            return self._alone("No connection", str(error), 502)
        except NoTurn as error:
            return self._alone("Too many pages", str(error), 503)
        except Exception:
            log.exception("console_failed", path=request.segments)
            return self._alone("A fault", "The console has a fault; its log says which.", 500)

    async def _answer(self, request: Request) -> Response:
        if not self._is_known_name(request):
            raise Forbidden(
                "The console is not known under this name: add it to names in the section [console]"
            )
        if request.method not in ("GET", "HEAD", "POST"):
            return self._alone("Not possible", f"{request.method} is not used here.", 405)
        segments = request.segments
        if segments[0] == "static":
            return self._file(segments)
        query = _fields(request.query)
        form: dict[str, list[str]] = {}
        if request.method == "POST":
            self._check_origin(request)
            form = self._form(request)
        session = await self._session_of(request)
        if segments[0] == "login":
            return await self._log_in(request, segments, query, form)
        if session is None:
            if request.method == "POST":
                raise Forbidden("Your login has ended. Log in, and do it again.")
            target = "/" + "/".join(segments) + (f"?{request.query}" if request.query else "")
            return _redirect(address("login", next=target if target != "/" else None))
        if request.method == "POST" and not session.fits(_one(form, "csrf")):
            raise Forbidden("The form is not one of this login. Open its page again.")
        if segments == ["logout"] and request.method == "POST":
            self._entrance.sessions.end(session)
            return _redirect("/login", self._set_cookie("", 0))
        if request.method == "GET" and EVENTS in request.headers.get("accept", ""):
            return self._events(request, query)
        visit = self._visit(request, session, query, form)
        return await self._page(request, visit)

    async def _session_of(self, request: Request) -> Session | None:
        cookie = _cookie(request, self._cookie_name)
        return await self._entrance.session_of(cookie, request.peer)

    def _events(self, request: Request, query: dict[str, list[str]]) -> Response:
        """Answer with the changes of a page, for as long as it is open and the login lasts."""
        if not self._streams.has_room:
            return self._alone("Too many pages", "The console has too many live pages.", 429)

        async def make() -> bytes | None:
            try:
                session = await self._session_of(request)
            except NotConnected:
                session = None
            if session is None:
                return None
            visit = self._visit(request, session, query, {})
            try:
                response = await self._page(request, replace(visit, is_live=True))
            except NoTurn:
                return b""  # it stays as it is until the next time
            return response.body if response.media_type == HTML else b""

        request.is_waiting = True
        stream = self._streams.events(make)
        return Response(200, b"", EVENTS, _HEADERS, stream=stream)

    async def _page(self, request: Request, visit: Visit) -> Response:
        """Make a page in its turn.  Raises NoTurn."""
        async with self._turns.of(visit.identity.name):
            return await self._make_page(request, visit)

    async def _make_page(self, request: Request, visit: Visit) -> Response:
        try:
            answer = await self._route(request, visit)
        except BadUsers as error:
            answer = Page("problem", _problem("The users cannot be read", str(error)), 500)
        except ClientError as error:
            status = 502 if isinstance(error, NotConnected) else 403
            answer = Page("problem", _problem("The queue manager refused", str(error)), status)
            if isinstance(error, NotConnected):
                answer = Page("problem", _problem("No connection", str(error)), status)
        if isinstance(answer, Redirect):
            return _redirect(answer.address)
        if isinstance(answer, File):
            return self._download(answer)
        return self._render(answer, visit)

    async def _route(self, request: Request, visit: Visit) -> Answer:
        segments = request.segments
        match request.method, segments:
            case "POST", ["hosts", name, "act", action]:
                return await work.act(visit, name, action)
            case "POST", ["jobs", number, "stop"]:
                return await work.stop_job(visit, number)
            case "POST", ["jobs", number, "undo"]:
                return await work.undo_job(visit, number)
            case "POST", _:
                raise NotFound("There is no such action.")
            case _, ["jobs", number]:
                return await work.job(visit, number)
            case _, ["reports", name]:
                return await work.report(visit, name)
            case _, [only] if only in FLEET_PAGES:
                return await FLEET_PAGES[only](visit)
            case _, ["hosts", name]:
                return await HOST_PAGES[""](visit, name)
            case _, ["hosts", name, only] if only in HOST_PAGES:
                return await HOST_PAGES[only](visit, name)
        raise NotFound("There is no such page.")

    # -- logging in --------------------------------------------------------------------------

    async def _log_in(
        self, request: Request, segments: Sequence[str], query: Mapping[str, list[str]],
        form: Mapping[str, list[str]],
    ) -> Response:  # fmt: skip
        target = _own(_one(form, "next") or _one(query, "next"))
        problem, status = "", 200
        if segments == ["login", "once"] and request.method == "GET":
            session = self._entrance.by_link(_one(query, "key"), request.peer)
            if session is not None:
                return _redirect("/", self._set_cookie(session.key))
            problem, status = (
                "This link was used before, or is too old. Start qmd console again.",
                403,
            )
        elif segments != ["login"]:
            raise NotFound("There is no such page.")
        elif request.method == "POST":
            try:
                session = await self._entrance.log_in(
                    request.peer,
                    _one(form, "name"),
                    _one(form, "password"),
                    _one(form, "token"),
                )
                return _redirect(target, self._set_cookie(session.key))
            except Forbidden as error:
                problem, status = str(error), 403
            except BadUsers as error:
                problem, status = str(error), 500
        values = {"problem": problem, "next": target, "tokens": self._settings.tokens}
        content = self._templates.render("login", values)
        return self._response(status, content, HTML)

    # -- checks ------------------------------------------------------------------------------

    def _is_known_name(self, request: Request) -> bool:
        """Return whether the browser used a name of the console: others may be of an attacker."""
        name = host_name(request.headers.get("host", ""))
        known = {self._settings.address, "localhost", *map(str.lower, self._settings.names)}
        return name in known or (is_loopback(name) and self._is_on_loopback)

    @property
    def _is_on_loopback(self) -> bool:
        return self._settings.socket is not None or is_loopback(self._settings.address)

    def _check_origin(self, request: Request) -> None:
        """Raise Forbidden for a form of another page than one of the console."""
        origin = request.headers.get("origin", "")
        if urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower():
            raise Forbidden("The request does not come from a page of the console.")

    def _form(self, request: Request) -> dict[str, list[str]]:
        if request.media_type != FORM:
            raise Forbidden("The request is not a form.")
        return _fields(request.body.decode("utf-8", "replace"))

    def _read_only(self, request: Request) -> str:
        """Return why nothing can be changed, or an empty text."""
        if self._settings.actions == "always":
            return ""
        if self._settings.actions == "never":
            return 'This console only shows: actions = "never" in the section [console].'
        if self._is_on_loopback and is_loopback(host_name(request.headers.get("host", ""))):
            return ""
        return (
            "Reached over a network, the console only shows. An administrator can allow more:"
            ' actions = "always" in the section [console].'
        )

    def _visit(
        self, request: Request, session: Session, query: dict[str, list[str]],
        form: dict[str, list[str]],
    ) -> Visit:  # fmt: skip
        return Visit(
            self._fleet,
            self._jobs,
            session,
            request.segments,
            query,
            form,
            self._read_only(request),
            self._config,
            self._settings.reports,
            is_live="x-live" in request.headers,
        )

    # -- responses ---------------------------------------------------------------------------

    @property
    def _cookie_name(self) -> str:
        # Browsers take a cookie with this prefix over HTTPS only, and from no other host.
        return "__Host-qmd-console" if self._is_secure else "qmd-console"

    def _set_cookie(self, key: str, age_s: int | None = None) -> tuple[str, str]:
        text = f"{self._cookie_name}={key}; Path=/; HttpOnly; SameSite=Strict"
        if self._is_secure:
            text += "; Secure"
        return "set-cookie", text if age_s is None else f"{text}; Max-Age={age_s}"

    def _render(self, answer: Page, visit: Visit) -> Response:
        notice, visit.session.notice = visit.session.notice, ""
        here = address(*visit.segments) if visit.segments != [""] else "/"
        if visit.query:
            here += "?" + _query_of(visit.query)
        values: dict[str, Any] = {
            "host": "",
            "visit": visit,
            "me": visit.identity,
            "csrf": visit.session.csrf,
            "notice": notice,
            "hosts": list(visit.fleet.hosts),
            "here": here,
            "only": visit.segments[-1],
            "refresh_ms": int(max(1.0, self._settings.refresh_s) * 1000),
        }
        content = self._templates.render(answer.template, values | answer.values)
        return self._response(answer.status, content, HTML)

    def _alone(self, title: str, text: str, status: int) -> Response:
        content = self._templates.render("alone", {"title": title, "text": text})
        return self._response(status, content, HTML)

    def _file(self, segments: Sequence[str]) -> Response:
        content, media_type = self._static.get("/".join(segments[1:]), (b"", ""))
        if not media_type:
            raise NotFound("There is no such file.")
        return self._response(200, content, media_type)

    def _download(self, file: File) -> Response:
        headers = list(_HEADERS)
        headers.append(("content-security-policy", file.policy or "sandbox; default-src 'none'"))
        if file.name:
            headers.append(("content-disposition", f'attachment; filename="{file.name}"'))
        return Response(200, file.content, file.media_type, tuple(headers))

    def _response(self, status: int, content: bytes, media_type: str) -> Response:
        headers = [*_HEADERS, ("content-security-policy", POLICY)]
        if self._is_secure:
            headers.append(("strict-transport-security", "max-age=31536000"))
        return Response(status, content, media_type, tuple(headers))


def _problem(title: str, text: str) -> dict[str, str]:
    return {"title": title, "text": text, "back": ""}


def _redirect(where: str, *headers: tuple[str, str]) -> Response:
    return Response(303, b"", HTML, (*_HEADERS, ("location", where), *headers))


def _fields(text: str) -> dict[str, list[str]]:
    try:
        return parse_qs(text, keep_blank_values=True, errors="replace", max_num_fields=FIELDS_MAX)
    except ValueError:
        raise Forbidden("The form has too many fields.") from None


def _query_of(query: Form) -> str:
    return urlencode(query, doseq=True, errors="replace")


def _one(fields: Mapping[str, list[str]], name: str) -> str:
    values = fields.get(name)
    return values[0] if values else ""


def _own(target: str) -> str:
    """Return a page of the console: a login must not lead to another site."""
    is_own = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if is_own and target.isascii() and target.isprintable() else "/"


def _cookie(request: Request, name: str) -> str:
    try:
        found = SimpleCookie(request.headers.get("cookie", "").replace(",", ";"))
    except CookieError:
        return ""
    return found[name].value if name in found else ""


def host_name(header: str) -> str:
    """Return the name of a Host header without its port, in lower case."""
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() else header
    return name.lower().strip("[]")


def is_loopback(name: str) -> bool:
    """Return whether a name or an address means this computer itself."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
