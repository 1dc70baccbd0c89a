"""The S3 server of moto in a process of its own, which survives kill -9.

moto keeps everything in memory.  Here each request that changes something is in a file before it is
answered, and a start repeats them all: so nothing that was acknowledged is lost, as with S3.  The
file has the time of each as well, because an object of S3 keeps its time over a restart.
"""

from __future__ import annotations

import multiprocessing
import pickle  # nosec B403: written and read by this process
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

from tests.bridge.brokers import Broker

_TEXTS = ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "CONTENT_TYPE", "CONTENT_LENGTH")


class Clock:
    """The time at which moto writes an object: that of the request, also of a former run."""

    def __init__(self) -> None:
        self.at = datetime.min

    def __call__(self) -> datetime:
        return self.at

    def read(self) -> datetime:
        """Set it to the time of this computer, in UTC and without a zone as moto has it."""
        self.at = datetime.now(UTC).replace(tzinfo=None)
        return self.at


class Durable:
    """An application of WSGI that repeats the changes of its file first."""

    def __init__(
        self, application: Callable[..., Iterable[bytes]], log: Path, clock: Clock
    ) -> None:
        self._application, self._clock = application, clock
        self._turn = threading.Lock()
        with log.open("ab+") as stream:
            stream.seek(0)
            while (whole := stream.tell()) >= 0:
                try:
                    request, body, clock.at = pickle.load(stream)  # nosec B301
                except (EOFError, pickle.UnpicklingError):
                    stream.truncate(whole)
                    break
                list(self._application(_environment(request, body), lambda *_: None))
        self._log = log.open("ab", buffering=0)

    def __call__(self, environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
        request = {
            key: environment[key] for key in environment if key in _TEXTS or key.startswith("HTTP_")
        }
        with self._turn:
            at = self._clock.read()
            if request["REQUEST_METHOD"] not in ("GET", "HEAD"):
                self._log.write(pickle.dumps((request, body, at)))
            return self._application(_environment(request, body) | _addresses(environment), start)


def _environment(request: dict[str, str], body: bytes) -> dict[str, Any]:
    return {
        **{"wsgi.input": BytesIO(body), "wsgi.input_terminated": True, "wsgi.errors": BytesIO()},
        **{"wsgi.url_scheme": "http", "wsgi.version": (1, 0), "wsgi.multithread": True},
        **{"wsgi.multiprocess": False, "wsgi.run_once": False, "SCRIPT_NAME": ""},
        **{"SERVER_NAME": "127.0.0.1", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1"},
        **request,
    }


def _addresses(environment: dict[str, Any]) -> dict[str, Any]:
    return {key: environment[key] for key in ("SERVER_NAME", "SERVER_PORT", "wsgi.errors")}


def _serve(port: int, log: Path) -> None:
    import moto.s3.models
    from moto.moto_api._internal.models import moto_api_backend
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    moto_api_backend.reset()  # a fork has what another test left in its process
    clock = moto.s3.models.utcnow = Clock()
    application = Durable(DomainDispatcherApplication(create_backend_app), log, clock)
    make_server("127.0.0.1", port, application, threaded=True).serve_forever()


class S3Server(Broker):
    """The server; a fork of this process, which has imported it."""

    _process: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        import moto.moto_server.werkzeug_app
        import moto.s3.responses  # noqa: F401  so that a fork has it

        fork = multiprocessing.get_context("fork")
        self._process = fork.Process(
            target=_serve, args=(self.port, self.folder / "requests"), daemon=True
        )
        self._process.start()
        (self.folder / "log").touch()
        self._wait()

    def kill(self) -> None:
        """Send SIGKILL to it."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
