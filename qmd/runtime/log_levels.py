"""Levels of the log, which can be changed while the process runs.

A level belongs to a module or a package, such as `qmd.peers`, and to all modules below it that
have none of their own.  structlog caches the logger of each module on its first use, so that a line
below its level costs one call; a change drops these caches.
"""

from __future__ import annotations

import sys

import structlog
from structlog._config import BoundLoggerLazyProxy

LEVELS = ("debug", "info", "warning", "error", "critical")


class LogLevels:
    """The levels of this process."""

    def __init__(self, default: str) -> None:
        """`default` is the configured level, which the loggers have already."""
        self._configured = default
        self.default = default
        self.names: dict[str, str] = {}

    def set(self, name: str, level: str) -> None:
        """Set the level of a package or module, or with an empty name the default.

        An empty level restores the one before.  Raises KeyError for a name without a logger, and
        ValueError for an unknown level.
        """
        if level and level not in LEVELS:
            raise ValueError(level)
        loggers = _loggers()
        if name and not any(_is_within(each, name) for each in loggers):
            raise KeyError(name)
        if not name:
            self.default = level or self._configured
        elif level:
            self.names[name] = level
        else:
            self.names.pop(name, None)
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(self.default))
        for module, logger in loggers.items():
            own = self.level_of(module)
            logger._wrapper_class = structlog.make_filtering_bound_logger(own)
            vars(logger).pop("bind", None)

    def level_of(self, module: str) -> str:
        """Return the level of a module: that of the longest name that contains it."""
        names = [name for name in self.names if _is_within(module, name)]
        return self.names[max(names, key=len)] if names else self.default


def _loggers() -> dict[str, BoundLoggerLazyProxy]:
    """Return the loggers of the modules that are loaded."""
    return {
        name: logger
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "qmd"
        and isinstance(logger := getattr(module, "log", None), BoundLoggerLazyProxy)
    }


def _is_within(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")
