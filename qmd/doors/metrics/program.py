"""The program `qmd door metrics`: it serves the figures to Prometheus."""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path

import structlog
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from qmd.client.errors import ClientError
from qmd.config.settings import MetricsSettings, Settings
from qmd.doors.http.exchange import Request, Response
from qmd.doors.http.limits import Limits
from qmd.doors.http.listening import (
    LOOPBACK,
    CannotServe,
    is_loopback_name,
    listening_at,
    server_context,
    shown,
)
from qmd.doors.http.problems import problem_response
from qmd.doors.http.program import run
from qmd.doors.http.server import HttpServer
from qmd.doors.metrics.collection import Collector
from qmd.doors.metrics.families import families, up
from qmd.runtime.systemd import ServiceManager

log = structlog.get_logger()

SECTION = "metrics"
DRAIN_S = 2.0
#: Scrapers are few, and their requests have no bodies.
LIMITS = Limits(
    connections=64,
    connections_of_address=32,
    request_bytes=4096,
    bodies_bytes=64 * 1024,
    unread_bytes=64 * 1024 * 1024,
)


class Collected:
    """Metrics in the shape of a collector of prometheus_client."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterator[Metric]:
        yield from self._found


class MetricsDoor:
    """The handler of requests."""

    def __init__(
        self, collector: Collector, token: bytes | None, *, is_on_loopback: bool = False
    ) -> None:
        """`token`: the one that each scrape needs; None: none is needed."""
        self._collector = collector
        self._token = token
        self._is_on_loopback = is_on_loopback

    async def __call__(self, request: Request) -> Response:
        """Answer a request."""
        if request.segments == ["healthz"]:
            return Response(200, b'{"status":"ok"}')
        if request.segments == ["readyz"]:
            return await self._readiness()
        if request.segments != ["metrics"]:
            return problem_response(404, "http_no_such_path", "the metrics are at /metrics")
        if request.method not in ("GET", "HEAD"):
            return problem_response(405, "http_method", headers=(("allow", "GET, HEAD"),))
        # A page in a browser on this computer must not read the names of queues.
        if "origin" in request.headers or self._has_foreign_name(request):
            return problem_response(403, "http_from_a_page")
        if self._token is not None and not self._is_authorized(request):
            challenge = (("www-authenticate", "Bearer"),)
            return problem_response(401, "http_no_credentials", headers=challenge)
        try:
            found = await self._collector.collect()
            metrics = [up(True), *families(found)]
        except ClientError as error:
            # The scrape itself succeeds: alerts can tell a daemon that is down from a door.
            log.warning("metrics_not_collected", reason=error.text, code=error.code)
            metrics = [up(False)]
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(200, encode(Collected(metrics)), media_type)

    async def _readiness(self) -> Response:
        """Answer whether the daemon answers; like /healthz it needs no token and names nothing."""
        try:
            await self._collector.check()
        except ClientError as error:
            headers = (("retry-after", "1"),)
            return problem_response(503, error.code, error.text, headers, remedy=error.remedy)
        return Response(200, b'{"status":"ok"}')

    def _has_foreign_name(self, request: Request) -> bool:
        """Return whether a page may have directed its own name to this address."""
        is_open = self._token is None and self._is_on_loopback
        return is_open and not is_loopback_name(request.headers.get("host", "localhost"))

    def _is_authorized(self, request: Request) -> bool:
        assert self._token is not None
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return scheme.casefold() == "bearer" and hmac.compare_digest(
            given.strip().encode("utf-8", "replace"), self._token
        )


class Door:
    """The server, and its connection to the daemon."""

    def __init__(self, settings: Settings) -> None:
        """Raises CannotServe."""
        self._chosen = chosen = settings.metrics
        token = None if chosen.token_file is None else _token(chosen.token_file)
        socket = settings.control.socket
        self._collector = Collector(socket, chosen.queues_max, chosen.destinations_max)
        handler = MetricsDoor(self._collector, token, is_on_loopback=chosen.address in LOOPBACK)
        self._server = HttpServer(handler, LIMITS)

    async def start(self, service: ServiceManager) -> list[str]:
        """Listen; return where.  Raises CannotServe."""
        chosen = self._chosen
        context = tls_context(chosen)
        sockets = service.sockets() or [listening_at(chosen.address, chosen.port, SECTION)]
        await self._server.start(sockets, context)
        return [f"{shown(each, is_tls=context is not None)}/metrics" for each in sockets]

    async def stop(self) -> None:
        """End requests, and the connection to the daemon."""
        await self._server.stop(DRAIN_S)
        await self._collector.close()


def main(settings: Settings) -> int:
    """Serve until a signal stops the door; return the exit code."""
    return run(settings, SECTION, Door)


def tls_context(settings: MetricsSettings) -> ssl.SSLContext | None:
    """Return the context of the configured certificate; None: without TLS.  Raises CannotServe."""
    is_local = settings.address in LOOPBACK
    if settings.certificate is None or settings.key is None:
        if settings.certificate or settings.key or settings.client_ca or not is_local:
            raise CannotServe(
                "certificate and key are needed together, and for any address but loopback and for"
                " client_ca: see the section [metrics]",
                code="metrics_not_secret",
                lasting=True,
            )
        return None
    if not (is_local or settings.client_ca or settings.token_file):
        raise CannotServe(
            "outside of loopback, scrapes need a token or a client certificate: see token_file and"
            " client_ca in the section [metrics]",
            code="metrics_not_secret",
            lasting=True,
        )
    return server_context(settings.certificate, settings.key, settings.client_ca, SECTION)


def _token(path: Path) -> bytes:
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise CannotServe(
            f"the token cannot be read: {error}; see token_file in the section [metrics]",
            code="metrics_token",
            lasting=True,
        ) from error
    if not token:
        raise CannotServe(f"{path} has no token", code="metrics_token", lasting=True)
    return token
