"""The values of options as Spark passes them, and those about connections."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.source.errors import option_error
from pipeline.source.option_names import is_option, spelled, why_not

RECONNECT_S = 60.0
SECRETS = ("tokenFile", "tokenEnv", "caFile", "certificateFile", "keyFile")
#: Options whose absence means something else: an empty one is a variable that is not set.
_NEVER_EMPTY = (*SECRETS, "jobId", "destination", "delivery", "startingFrom")
_NUMBER = re.compile(r"-?[0-9]{1,30}")  # `int` also takes "1_000", and digits of other scripts


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of a queue manager, and the files and variables (never the values) of its secrets."""

    address: str  # path of the control socket, or tls://host:port
    token_file: str = ""
    token_env: str = ""
    ca_file: str = ""
    reconnect_s: float = RECONNECT_S
    certificate_file: str = ""
    key_file: str = ""

    def __str__(self) -> str:
        return self.address


@dataclass(frozen=True, slots=True)
class SourceQueues:
    """Queues of one queue manager: names in any spelling, or patterns with `*`."""

    endpoint: Endpoint
    queues: tuple[str, ...]


class GivenOptions:
    """The options of one use, with case-insensitive names, and their values."""

    def __init__(self, given: Mapping[str, str], use: str) -> None:
        self.given = {name.lower(): value for name, value in given.items()}
        self.use = use
        for name in self.given:
            if not is_option(name, use):
                raise option_error(spelled(name), why_not(name, use))
        for name in _NEVER_EMPTY:
            if not self.given.get(name.lower(), "x").strip():
                raise option_error(name, "is empty; give it a value, or leave it out")

    def truth(self, name: str, *, default: bool) -> bool:
        said = self.given.get(name.lower())
        if said is None:
            return default
        if said.lower() not in ("true", "false"):
            raise option_error(name, f"is {said!r}; it is true or false")
        return said.lower() == "true"

    def number(self, name: str, default: int, *, at_least: int, at_most: int = 1 << 62) -> int:
        said = self.given.get(name.lower())
        if said is None:
            return default
        if not _NUMBER.fullmatch(said.strip()):
            raise option_error(name, f"is {said!r}; it is a whole number")
        number = int(said)
        if not at_least <= number <= at_most:
            raise option_error(name, f"is {number}; it is {at_least} to {at_most}")
        return number

    def one_of(self, name: str, values: Sequence[str], default: str) -> str:
        said = self.given.get(name.lower(), default)
        if said != default and said not in values:
            raise option_error(name, f"is {said!r}; it is one of {', '.join(values)}")
        return said


class ConnectionOptions(GivenOptions):
    """The options about queue managers and their secrets."""

    def endpoints(self) -> list[Endpoint]:
        addresses = names_of(self.given.get("endpoint", ""), "endpoint")
        if not addresses:
            raise option_error(
                "endpoint",
                "is missing: the path of a control socket (/run/qmd/qmd.sock), or tls://host:port",
            )
        check_once(addresses, "endpoint")
        return [self._endpoint(address) for address in addresses]

    def endpoint(self) -> Endpoint:
        """Return the endpoint to write to."""
        found = self.endpoints()
        if len(found) != 1:
            raise option_error(
                "endpoint", "has several addresses; one queue manager takes the messages"
            )
        return found[0]

    def _endpoint(
        self,
        address: str,
        *,
        token_file: str | None = None,
        token_env: str | None = None,
        ca_file: str | None = None,
        certificate_file: str | None = None,
        key_file: str | None = None,
    ) -> Endpoint:
        if not _is_address(address):
            raise option_error("endpoint", f"is {address!r}; it is a path, or tls://host:port")

        def named(option: str, own: str | None) -> str:
            return self.given.get(option, "") if own is None else own

        found = Endpoint(
            address,
            named("tokenfile", token_file),
            named("tokenenv", token_env),
            named("cafile", ca_file),
            float(self.number("reconnectSeconds", int(RECONNECT_S), at_least=0, at_most=86_400)),
            named("certificatefile", certificate_file),
            named("keyfile", key_file),
        )
        if bool(found.certificate_file) != bool(found.key_file):
            raise option_error(
                "keyFile" if found.certificate_file else "certificateFile",
                "is missing: a client certificate consists of certificateFile and keyFile",
            )
        if found.token_file and found.token_env:
            raise option_error("tokenEnv", 'and "tokenFile" exclude each other; leave one out')
        return found


def _is_address(address: str) -> bool:
    """Return whether this is the path of a socket, or tls://host:port."""
    if "://" not in address:
        return bool(address)
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    return (
        scheme == "tls"
        and bool(host)
        and port.isascii()
        and port.isdecimal()
        and (0 < int(port) < 65_536)
    )


def check_once(addresses: Sequence[str], option: str) -> None:
    """Refuse an address that is named twice: its rows would come twice.  Raises SourceError."""
    for address in addresses:
        if addresses.count(address) > 1:
            raise option_error(option, f"names {address} twice; name all of its queues once")


def names_of(said: Any, option: str = "queue") -> list[str]:
    """Return a JSON list, or the names of a comma-separated list.  Raises SourceError."""
    if isinstance(said, list):
        return [str(one) for one in said]
    text = str(said).strip()
    if text.startswith("["):
        try:
            names = json.loads(text)
        except (ValueError, RecursionError):
            raise option_error(option, f"is {text!r}, which is no list of JSON") from None
        if not all(isinstance(one, str) for one in names):
            raise option_error(option, f"is {text!r}; the names in the list are texts")
        return list(names)
    return [part.strip() for part in text.split(",") if part.strip()]
