"""The program `qmd door metrics`: it serves the figures to Prometheus until a signal stops it.

Exit codes are those of the daemon: 0 stopped on request, 1 it failed, 78 the configuration must be
changed first.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import os
import signal
import socket
import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path

import structlog
import uvloop
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from qmd.client.errors import ClientError
from qmd.config.settings import MetricsSettings, Settings
from qmd.doors.http.exchange import Request, Response
from qmd.doors.http.limits import Limits
from qmd.doors.http.problems import problem_response
from qmd.doors.http.server import HttpServer
from qmd.doors.metrics.collection import Collector
from qmd.doors.metrics.families import families, up
from qmd.runtime.log import set_up_logging
from qmd.runtime.systemd import ServiceManager

log = structlog.get_logger()

EXIT_OK, EXIT_FAILED, EXIT_CONFIGURATION = 0, 1, 78
LOOPBACK = ("127.0.0.1", "::1")
DRAIN_S = 2.0
#: Scrapers are few, and their requests have no bodies.
LIMITS = Limits(
    connections=64, connections_of_address=32, request_bytes=4096, bodies_bytes=64 * 1024
)


class CannotServe(Exception):
    """A condition of this host or the configuration prevents the door from serving."""

    def __init__(self, text: str, *, code: str, lasting: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.is_lasting = lasting  # a restart does not help


class Collected:
    """Metrics in the shape of a collector of prometheus_client."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterator[Metric]:
        yield from self._found


class MetricsDoor:
    """The handler of requests."""

    def __init__(self, collector: Collector, token: bytes | None) -> None:
        """`token`: the one that each scrape needs; None: none is needed."""
        self._collector = collector
        self._token = token

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
        if "origin" in request.headers:
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

    def _is_authorized(self, request: Request) -> bool:
        assert self._token is not None
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return scheme.casefold() == "bearer" and hmac.compare_digest(
            given.strip().encode("utf-8", "replace"), self._token
        )


def main(settings: Settings) -> int:
    """Serve until a signal stops the door; return the exit code."""
    set_up_logging(settings.log.level, settings.log.format)
    os.umask(0o077)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(settings))
    except CannotServe as error:
        log.critical("door_not_started", door="metrics", reason=str(error), code=error.code)
        return EXIT_CONFIGURATION if error.is_lasting else EXIT_FAILED


async def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT.  Raises CannotServe."""
    chosen = settings.metrics
    service = ServiceManager(os.environ)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    token = None if chosen.token_file is None else _token(chosen.token_file)
    context = tls_context(chosen)
    collector = Collector(settings.control.socket, chosen.queues_max, chosen.destinations_max)
    server = HttpServer(MetricsDoor(collector, token), LIMITS)
    listening = service.sockets() or [_listening(chosen)]
    await server.start(listening, context)
    scheme = "http" if context is None else "https"
    places = [f"{scheme}://{_shown(each)}/metrics" for each in listening]
    log.info("door_started", door="metrics", listen=places, control=str(settings.control.socket))
    service.notify("READY=1", f"STATUS=Serving {', '.join(places)}")
    try:
        await stop.wait()
    finally:
        service.notify("STOPPING=1")
        await server.stop(DRAIN_S)
        await collector.close()
    log.info("door_stopped", door="metrics")
    return EXIT_OK


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
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(settings.certificate, settings.key)
        if settings.client_ca is not None:
            context.load_verify_locations(settings.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise CannotServe(
            f"the certificate cannot be used: {error}; see certificate, key and client_ca in the"
            " section [metrics]",
            code="http_tls_files",
            lasting=True,
        ) from error
    return context


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


def _listening(settings: MetricsSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.address else socket.AF_INET
    try:
        return socket.create_server((settings.address, settings.port), family=family)
    except OSError as error:
        code = "port_in_use" if error.errno == errno.EADDRINUSE else "cannot_listen"
        raise CannotServe(
            f"cannot listen at {settings.address} port {settings.port}: {error.strerror or error};"
            " see address and port in the section [metrics]",
            code=code,
            lasting=isinstance(error, PermissionError),
        ) from error


def _shown(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
