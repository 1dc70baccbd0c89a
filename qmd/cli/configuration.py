"""The queue manager that a command uses, and the connection to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

import click

from qmd.cli.program import Misuse

if TYPE_CHECKING:
    from qmd.client import QueueManager
    from qmd.client.blocking import Blocking
    from qmd.config.file import Settings

T = TypeVar("T")


class Configuration:
    """The configuration named by `--config` or QMD_CONFIG, which is read when it is needed."""

    DEFAULT: ClassVar[Path] = Path("/etc/qmd/qmd.toml")

    def __init__(
        self,
        path: Path | None,
        *,
        host: str | None = None,
        token_file: Path | None = None,
        ca_file: Path | None = None,
    ) -> None:
        self.host, self.token_file, self.ca_file = host, token_file, ca_file
        self.path = path or self.DEFAULT
        self._is_named = path is not None

    def settings(self) -> Settings:
        """Read the configuration.  Raises ConfigError, and Misuse for another host."""
        from qmd.config.file import ConfigError, load_settings

        self.stay_here()
        if not self._is_named and not self.path.exists():
            raise ConfigError(
                f"{self.path} does not exist; name a configuration with --config or QMD_CONFIG, "
                "or create one: qmd init FOLDER",
                code="config_missing",
            )
        return load_settings(self.path)

    def stay_here(self) -> None:
        """Raise Misuse if another host is named: this command reads files of this one."""
        if self.host:
            raise Misuse(
                "options_exclude",
                "this command works with files of this computer, and --host (or QMD_HOST) names"
                f" {self.host}: run it on that computer, or leave --host out",
            )

    def connect(self) -> QueueManager:
        """Return a client of the daemon, to be used as a context manager.  Raises ConfigError."""
        from qmd.client import connect

        if self.host:
            where = self.host if "://" in self.host else f"tls://{self.host}"
            return connect(where, token_file=self.token_file, ca_file=self.ca_file)
        return connect(self.settings().control.socket)

    def connect_blocking(self) -> Blocking:
        """Return a client for code without an event loop.  Raises ConfigError."""
        from qmd.client import blocking

        return blocking.facing(self.connect())

    def ask(self, verb: Callable[[QueueManager], Awaitable[T]]) -> T:
        """Connect, call one verb, and return its result."""
        import asyncio

        async def run() -> T:
            async with self.connect() as queue_manager:
                return await verb(queue_manager)

        return asyncio.run(run())


pass_configuration = click.make_pass_decorator(Configuration)
