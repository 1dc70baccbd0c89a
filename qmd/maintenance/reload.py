"""Reload: a running queue manager reads its configuration again.

Most components read a setting where they use it.  Those that keep something derived from it take
the new value here.  A key that is not in `LIVE` keeps its value until the next start, and is
reported.  A configuration with an error changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import structlog

from qmd.config.effective import merge, texts
from qmd.config.file import ConfigError
from qmd.config.settings import Settings

if TYPE_CHECKING:
    from qmd.peers.next_hop import NextHops
    from qmd.peers.relays import Relays
    from qmd.peers.sessions import Peers
    from qmd.queues.usage import Usage
    from qmd.runtime.log_levels import LogLevels
    from qmd.runtime.services import Services

log = structlog.get_logger()

Read = Callable[[], Settings]


class Reloaded(NamedTuple):
    """The result of a reload: keys that were taken over, keys that need a restart, or an error."""

    changed: list[str]
    waiting: list[str]
    error: str = ""


class Reload:
    """Takes over what has changed in the configuration."""

    def __init__(
        self,
        services: Services,
        usage: Usage,
        peers: Peers,
        next_hops: NextHops,
        relays: Relays,
        log_levels: LogLevels,
    ) -> None:
        self._services = services
        self._usage = usage
        self._peers = peers
        self._next_hops = next_hops
        self._relays = relays
        self._log_levels = log_levels
        #: Reads the configuration; None: this queue manager has no file.
        self.read: Read | None = None

    def settings(self) -> dict[str, str]:
        """Return the settings in use, as text, by `section.key`."""
        return texts(self._services.settings)

    def run(self) -> Reloaded:
        """Read the configuration and take over the keys that can change, all of them or none."""
        services = self._services
        if self.read is None:
            return Reloaded([], [])
        try:
            read = self.read()
        except ConfigError as error:
            log.error("configuration_not_reloaded", reason=str(error), code=error.code)
            return Reloaded([], [], str(error))
        merged = merge(services.settings, read)
        services.use_settings(merged.settings)
        if merged.changed:
            self._apply(set(merged.changed))
        if merged.changed or merged.waiting:
            log.info("configuration_reloaded", changed=merged.changed, needs_restart=merged.waiting)
        return Reloaded(merged.changed, merged.waiting)

    def _apply(self, changed: set[str]) -> None:
        settings = self._services.settings
        if "quotas.computer" in changed:
            self._usage.set_quota(settings.quotas.computer_bytes)
        if changed & {"routing.routes", "peers.relays"}:
            self._next_hops.use_routes()
            self._relays.settings_changed()
            for link in self._peers.links:
                link.kick()
        if "peers.allow" in changed:
            self._end_not_allowed()
        if "log.level" in changed:
            self._log_levels.set("", settings.log.level)

    def _end_not_allowed(self) -> None:
        """End the sessions that hosts have opened which the configuration no longer permits."""
        for connection in list(self._peers.connections):
            if connection.link is None and not self._peers.hosts.is_allowed(connection.host):
                connection.close("its address is not in [peers] allow any more")
