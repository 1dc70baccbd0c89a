"""A queue manager as a data source asks it: with waiting, from threads that have no event loop.

Secrets are read here, where they are used, from the file or the environment of the very process:
on a cluster each machine has its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pipeline.source.errors import SourceError, at
from pipeline.source.options import Endpoint
from qmd.client import ClientError, QueueManager, connect
from qmd.client.blocking import LoopThread

T = TypeVar("T")


class Connected:
    """A `QueueManager` whose coroutines are waited for; every error names the endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._loop = LoopThread()
        self._loop.start()
        try:
            self.qm = self._open()
        except BaseException:
            self._loop.stop()
            raise

    def _open(self) -> QueueManager:
        with self.named():
            qm = connect(self.endpoint.address, **_credentials(self.endpoint))
            return self._loop.run(qm.__aenter__())

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            raise at(self.endpoint, error) from error

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        with self.named():
            return self._loop.run(work)

    def each(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items of an asynchronous iteration; what it reads ahead goes on meanwhile."""

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

    def __enter__(self) -> Connected:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _credentials(endpoint: Endpoint) -> dict[str, Any]:
    """What `connect` is told beside the address."""
    named: dict[str, Any] = {"reconnect_s": endpoint.reconnect_s}
    if endpoint.address.startswith("tls://"):
        named["token"] = token_of(endpoint)
        if endpoint.ca_file:
            named["ca_file"] = endpoint.ca_file
    return named


def token_of(endpoint: Endpoint) -> str:
    """The secret itself.  Raises SourceError, which does not tell it."""
    if endpoint.token_file:
        try:
            return Path(endpoint.token_file).read_text().strip()
        except OSError as error:
            raise SourceError(
                f"qmd at {endpoint}: the token file {endpoint.token_file} cannot be read"
                f" ({error.strerror}); every machine that runs executors needs it"
            ) from error
    if endpoint.token_env:
        token = os.environ.get(endpoint.token_env, "")
        if not token:
            raise SourceError(
                f"qmd at {endpoint}: the environment variable {endpoint.token_env} is not set here;"
                f" on executors it is set by spark.executorEnv.{endpoint.token_env}"
            )
        return token
    raise SourceError(
        f'qmd at {endpoint}: no token is given; name its file with option "tokenFile", or the'
        ' environment variable that has it with "tokenEnv"'
    )
