"""Hosts of the console: where each queue manager is, and the tokens for it.

"local"
"east tls://east.example.com:1806 token=/etc/qmd/east.token ca=/etc/qmd/ca.pem"
"west tls://west.example.com viewer=/etc/qmd/west-read.token administrator=/etc/qmd/west.token"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

CONSOLE_HOST_RULE = (
    '"NAME [tls://HOST:PORT|/PATH/OF/SOCKET] [token=FILE] [viewer=FILE] [operator=FILE]'
    ' [administrator=FILE] [ca=FILE]"'
)
ROLES = ("viewer", "operator", "administrator")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


class ConsoleHost(NamedTuple):
    """One queue manager of the console.

    `where` is a URL, the path of a control socket, or "" for that of the configuration.  `tokens`
    are files by role; the one of "" is for all roles that have none of their own.
    """

    name: str
    where: str
    tokens: Mapping[str, Path]
    ca_file: Path | None

    def token_file(self, role: str) -> Path | None:
        """Return the file with the token for a role, or None."""
        return self.tokens.get(role) or self.tokens.get("")


def parse_console_host(text: str) -> ConsoleHost:
    """Parse a host.  Raises ValueError with the reason."""
    name, *rest = text.split() or [""]
    if not _NAME.match(name):
        raise ValueError(f"{name!r} is not a name of letters, digits, dots and hyphens")
    where = rest.pop(0) if rest and "=" not in rest[0] else ""
    if where and not where.startswith(("tls://", "tcp://", "/")):
        raise ValueError(f"{where!r} is neither tls://HOST:PORT nor the absolute path of a socket")
    files: dict[str, Path] = {}
    for word in rest:
        key, equals, value = word.partition("=")
        if not equals or key not in ("token", "ca", *ROLES) or key in files:
            raise ValueError(f"{word!r} is none of token=FILE, ca=FILE and ROLE=FILE, once each")
        if not value.startswith("/"):
            raise ValueError(f"{value!r} is not an absolute path")
        files[key] = Path(value)
    ca_file = files.pop("ca", None)
    tokens = {"" if key == "token" else key: path for key, path in files.items()}
    if "://" in where and not tokens:
        raise ValueError(f"{name} is another host and has no token")
    return ConsoleHost(name, where, tokens, ca_file)
