"""Blocking access to a queue manager, for threads that have no event loop.

Secrets are read here, by the process that uses them, from its own files or environment: on a
cluster each machine has its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

from pipeline.source.errors import SourceError, at
from pipeline.source.options import Endpoint
from qmd.client import ClientError, NotConnected, QueueManager, connect
from qmd.client.blocking import LoopThread

T = TypeVar("T")

CLIENTS_TOKEN = "QMD_TOKEN"  # nosec B105: the name of a variable
PAUSE_FIRST_S, PAUSE_MAX_S = 0.05, 1.0
SAY_AFTER_S = 5.0
# Errors that a retry may cure; a wrong token, version or certificate is not among them.
PASSING = {"no_control_socket", "daemon_not_answering", "remote_unreachable", "connection_lost"}


class Connection:
    """A `QueueManager` with blocking coroutines; every error names the endpoint.

    With `patient`, connecting is retried for `reconnect_s` while the queue manager does not answer.
    Tasks of a running query use it, because their queue manager answered the driver before.
    """

    def __init__(self, endpoint: Endpoint, *, patient: bool = False) -> None:
        self.endpoint = endpoint
        self._patient = patient
        self._loop = LoopThread()
        self._loop.start()
        try:
            self.qm = self._open()
        except BaseException:
            self._loop.stop()
            raise

    def _open(self) -> QueueManager:
        wait_s = self.endpoint.reconnect_s * self._patient
        deadline = time.monotonic() + wait_s
        pause_s, is_said = PAUSE_FIRST_S, False
        with self.named(), _token_of_environment(self.endpoint):
            while True:
                qm = connect(self.endpoint.address, **_credentials(self.endpoint))
                try:
                    return self._loop.run(qm.__aenter__())
                except NotConnected as failure:
                    if failure.code not in PASSING or not wait_s:
                        raise
                    if time.monotonic() >= deadline:
                        raise self._waited(failure, wait_s) from failure
                    if not is_said:
                        say(
                            f"qmd at {self.endpoint}: {failure.text}; waiting for up to"
                            f" {wait_s:g} s (reconnectSeconds)"
                        )
                        is_said = True
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _waited(self, failure: NotConnected, wait_s: float) -> SourceError:
        found = at(self.endpoint, failure)
        waited = SourceError(
            f'{found}; it was waited for {wait_s:g} s, as the option "reconnectSeconds" says'
        )
        waited.code = found.code
        return waited

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            raise at(self.endpoint, error) from error

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        with self.named():
            try:
                return self._loop.run(self._announced(work))
            except NotConnected as failure:
                if failure.code in PASSING and self.endpoint.reconnect_s:
                    raise self._waited(failure, self.endpoint.reconnect_s) from failure
                raise

    async def _announced(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a call, and say once if its answer does not come for long."""
        text = (
            f"qmd at {self.endpoint}: no answer for {SAY_AFTER_S:g} s; a lost connection is opened"
            f" again for up to {self.endpoint.reconnect_s:g} s (reconnectSeconds)"
        )
        timer = asyncio.get_running_loop().call_later(SAY_AFTER_S, say, text)
        try:
            return await work
        finally:
            timer.cancel()

    def each(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items of an asynchronous iteration; its read-ahead continues meanwhile."""

        async def step() -> tuple[T] | None:
            async for item in items:
                return (item,)
            return None

        try:
            while (found := self.run(step())) is not None:
                yield found[0]
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                self.run(close())

    def close(self) -> None:
        with contextlib.suppress(ClientError):
            self._loop.run(self.qm.__aexit__(None))
        self._loop.stop()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _credentials(endpoint: Endpoint) -> dict[str, Any]:
    """Return the arguments of `connect` besides the address.  Raises SourceError."""
    named: dict[str, Any] = {"reconnect_s": endpoint.reconnect_s}
    if endpoint.address.startswith("tls://"):
        for name, what, file in (
            ("token_file", "token", endpoint.token_file),
            ("ca_file", "ca", endpoint.ca_file),
            ("client_certificate", "certificate", endpoint.certificate_file),
            ("client_key", "key", endpoint.key_file),
        ):
            if file:
                _check_readable(endpoint, what, file)
                named[name] = file
    return named


def _check_readable(endpoint: Endpoint, what: str, file: str) -> None:
    try:
        with open(file, "rb"):
            pass
    except OSError as error:
        raise SourceError(
            f"qmd at {endpoint}: the {what} file {file} cannot be read ({error.strerror}); every"
            " machine that runs executors needs it"
        ) from error


def say(text: str) -> None:
    """Write a line to the log of the process, which is part of that of its driver or executor."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _token_of_environment(endpoint: Endpoint) -> Iterator[None]:
    """Set the environment variable that the client reads to the endpoint's token meanwhile."""
    if not endpoint.token_env or endpoint.token_file:
        yield
        return
    token = os.environ.get(endpoint.token_env, "")
    if not token:
        raise SourceError(
            f"qmd at {endpoint}: the environment variable {endpoint.token_env} is not set here;"
            f" on executors it is set by spark.executorEnv.{endpoint.token_env}"
        )
    kept = os.environ.get(CLIENTS_TOKEN)
    os.environ[CLIENTS_TOKEN] = token
    try:
        yield
    finally:
        if kept is None:
            del os.environ[CLIENTS_TOKEN]
        else:
            os.environ[CLIENTS_TOKEN] = kept
