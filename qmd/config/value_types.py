"""Value types of settings: each checks a value from a TOML file and describes allowed values."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from protocol.errors import InvalidName
from protocol.names.path_name import COMPUTER
from qmd.config.console_hosts import CONSOLE_HOST_RULE, ConsoleHost, parse_console_host
from qmd.config.route_rules import RULE, Hop, Pattern, Rule, parse_hop, parse_pattern, parse_rule
from qmd.config.tls_rules import TLS_RULE, TlsRule, parse_tls_rule
from qmd.config.units import DURATION_RULE, SIZE_RULE, parse_duration_ms, parse_size

T = TypeVar("T")
Network = IPv4Network | IPv6Network


class Kind(ABC, Generic[T]):
    """One type of value."""

    attribute_suffix: ClassVar[str] = ""
    """The unit that is appended to the key to form the attribute's name."""

    @property
    @abstractmethod
    def allowed(self) -> str:
        """The allowed values, as a phrase for error messages and the manual."""

    @abstractmethod
    def parse(self, value: object) -> T:
        """Convert a value from TOML.

        Raises ValueError, with the reason unless `allowed` makes it clear.
        """

    def from_environment(self, text: str) -> object:
        """Convert the text of an environment variable to the value that TOML would give."""
        return text


class Text(Kind[str]):
    allowed = "text"

    def parse(self, value: object) -> str:
        if not isinstance(value, str) or not value.isprintable():
            raise ValueError
        return value


class Texts(Kind[tuple[str, ...]]):
    allowed = "a list of texts"

    def parse(self, value: object) -> tuple[str, ...]:
        return tuple(map(_text, _list(value)))

    def from_environment(self, text: str) -> object:
        return _split(text)


class ComputerName(Kind[str]):
    """A computer name; an empty text means the name of this host."""

    allowed = "a computer name of at most 256 characters"

    def parse(self, value: object) -> str:
        return _computer(value if value != "" else os.uname().nodename or "localhost")


class ComputerNames(Kind[tuple[str, ...]]):
    allowed = "a list of computer names of at most 256 characters"

    def parse(self, value: object) -> tuple[str, ...]:
        return tuple(_computer(name) for name in _list(value))

    def from_environment(self, text: str) -> object:
        return _split(text)


class Address(Kind[str]):
    allowed = "an IPv4 or IPv6 address of this computer; 0.0.0.0 or :: for all of them"

    def parse(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError
        return str(ip_address(value))


class Accounts(Kind[tuple[str, ...]]):
    """Users and groups of this computer, by name or by id."""

    allowed = 'a list of users and groups, such as ["user:ann", "group:operators"]'

    def parse(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise ValueError
        for each in value:
            kind, _, name = each.partition(":") if isinstance(each, str) else ("", "", "")
            if kind not in ("user", "group") or not name or not name.isprintable():
                raise ValueError(f"{each!r} is neither user:NAME nor group:NAME")
        return tuple(value)


class Networks(Kind[tuple[Network, ...]]):
    allowed = 'a list of networks such as "10.0.0.0/8" and addresses such as "::1"'

    def parse(self, value: object) -> tuple[Network, ...]:
        networks = _list(value)
        if not all(isinstance(network, str) for network in networks):
            raise ValueError
        return tuple(ip_network(str(network)) for network in networks)

    def from_environment(self, text: str) -> object:
        return _split(text)


class Hosts(Kind[tuple[Network | str, ...]]):
    allowed = 'a list of networks such as "10.0.0.0/8", addresses and computer names'

    def parse(self, value: object) -> tuple[Network | str, ...]:
        return tuple(map(_host, _list(value)))

    def from_environment(self, text: str) -> object:
        return _split(text)


class Places(Kind[tuple[Hop, ...]]):
    allowed = 'a list of addresses such as "192.0.2.7", "192.0.2.7:1802" and "[2001:db8::7]:1801"'

    def parse(self, value: object) -> tuple[Hop, ...]:
        places = tuple(parse_hop(_text(each)) for each in _list(value))
        for place in places:
            ip_address(place.host)
        return places

    def from_environment(self, text: str) -> object:
        return _split(text)


class Routes(Kind[tuple[Rule, ...]]):
    allowed = f"a list of routes, each {RULE}"

    def parse(self, value: object) -> tuple[Rule, ...]:
        return tuple(parse_rule(_text(each)) for each in _list(value))

    def from_environment(self, text: str) -> object:
        return _split(text)


class Patterns(Kind[tuple[Pattern, ...]]):
    allowed = (
        'a list of networks such as "10.0.0.0/8", addresses, computer names, ends of names such as'
        ' "*.example.com", GUIDs of queue managers, and "*" for all'
    )

    def parse(self, value: object) -> tuple[Pattern, ...]:
        return tuple(parse_pattern(_text(each)) for each in _list(value))

    def from_environment(self, text: str) -> object:
        return _split(text)


class TlsRules(Kind[tuple[TlsRule, ...]]):
    allowed = f"a list of rules, each {TLS_RULE}"

    def parse(self, value: object) -> tuple[TlsRule, ...]:
        return tuple(parse_tls_rule(_text(each)) for each in _list(value))

    def from_environment(self, text: str) -> object:
        return _split(text)


class ConsoleHosts(Kind[tuple[ConsoleHost, ...]]):
    allowed = f"a list of hosts, each {CONSOLE_HOST_RULE}"

    def parse(self, value: object) -> tuple[ConsoleHost, ...]:
        hosts = tuple(parse_console_host(_text(each)) for each in _list(value))
        if not hosts or len({host.name for host in hosts}) < len(hosts):
            raise ValueError("there is none, or two have one name")
        return hosts

    def from_environment(self, text: str) -> object:
        return _split(text)


class Flag(Kind[bool]):
    allowed = "true or false"

    def parse(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    def from_environment(self, text: str) -> object:
        return {"true": True, "false": False}.get(text, text)


#: The folder of systemd's credentials, also for commands outside of the service.
CREDENTIALS_FOLDER = "/run/credentials/qmd.service"
CREDENTIAL = "credential:"


class Location(Kind[Path]):
    allowed = "a path; a relative one starts at the folder of the configuration file"

    def parse(self, value: object) -> Path:
        if not isinstance(value, str) or not value or "\0" in value:
            raise ValueError
        return Path(value)


class SecretFile(Location):
    """A path, or `credential:NAME`: a file that systemd passes to the service."""

    allowed = f"{Location.allowed}; or credential:NAME, a credential of systemd"

    def parse(self, value: object) -> Path:
        path = super().parse(value)
        _, is_credential, name = str(value).partition(CREDENTIAL)
        if not is_credential or not str(value).startswith(CREDENTIAL):
            return path
        if not name or "/" in name or name.startswith("."):
            raise ValueError
        return Path(os.environ.get("CREDENTIALS_DIRECTORY") or CREDENTIALS_FOLDER) / name


class OptionalSecretFile(Kind[Path | None]):
    allowed = f"{SecretFile.allowed}; or empty"

    def parse(self, value: object) -> Path | None:
        return None if value == "" else SecretFile().parse(value)


class SecretFiles(Kind[tuple[Path, ...]]):
    allowed = 'a list of paths such as "/etc/qmd/storage.key", or of credential:NAME'

    def parse(self, value: object) -> tuple[Path, ...]:
        return tuple(map(SecretFile().parse, _list(value)))

    def from_environment(self, text: str) -> object:
        return _split(text)


class OptionalLocation(Kind[Path | None]):
    allowed = "a path, a relative one starting at the folder of the configuration file; or empty"

    def parse(self, value: object) -> Path | None:
        return None if value == "" else Location().parse(value)


LDAP_PORTS = {"ldaps": 636, "ldap": 389}


class LdapServers(Kind[tuple[str, ...]]):
    """LDAP servers as `ldaps://host:port`, always with the port, an IPv6 address in brackets."""

    allowed = 'a list such as ["ldaps://dc1.example.com", "ldap://10.0.0.5:389"]'

    def parse(self, value: object) -> tuple[str, ...]:
        return tuple(map(_ldap_server, _list(value)))

    def from_environment(self, text: str) -> object:
        return _split(text)


class Mode(Kind[int]):
    allowed = 'the permissions of a file in octal, from "0600" to "0666"'

    def parse(self, value: object) -> int:
        if not isinstance(value, str) or len(value) != 4 or set(value) - set("01234567"):
            raise ValueError
        mode = int(value, 8)
        if mode & ~0o666 or mode & 0o600 != 0o600:
            raise ValueError
        return mode


@dataclass(frozen=True, slots=True)
class Choice(Kind[str]):
    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return " or ".join(f'"{word}"' for word in self.words)

    def parse(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise ValueError
        return value


@dataclass(frozen=True)
class Choices(Kind[tuple[str, ...]]):
    """A list of some of these words."""

    options: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return "a list of " + ", ".join(f'"{option}"' for option in self.options)

    def parse(self, value: object) -> tuple[str, ...]:
        words = tuple(_text(each) for each in _list(value))
        if not set(words) <= set(self.options):
            raise ValueError
        return words

    def from_environment(self, text: str) -> object:
        return _split(text)


@dataclass(frozen=True, slots=True)
class Whole(Kind[int]):
    """A whole number in a range."""

    least: int
    most: int

    @property
    def allowed(self) -> str:
        return f"a whole number from {self.least} to {self.most}"

    def parse(self, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError
        return _in_range(value, self.least, self.most)

    def from_environment(self, text: str) -> object:
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text


@dataclass(frozen=True, slots=True)
class WholeOf(Kind[int]):
    """One of these whole numbers."""

    numbers: tuple[int, ...]

    @property
    def allowed(self) -> str:
        return " or ".join(map(str, self.numbers))

    def parse(self, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value not in self.numbers:
            raise ValueError
        return value

    def from_environment(self, text: str) -> object:
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text


@dataclass(frozen=True, slots=True)
class Duration(Kind[float]):
    """A duration in seconds; the resolution is one millisecond."""

    least: str
    most: str
    attribute_suffix: ClassVar[str] = "_s"

    @property
    def allowed(self) -> str:
        return f'"{self.least}" to "{self.most}"'

    def parse(self, value: object) -> float:
        if not isinstance(value, str):
            raise ValueError(f"write {DURATION_RULE}")
        duration_ms = parse_duration_ms(value)
        return _in_range(duration_ms, *map(parse_duration_ms, (self.least, self.most))) / 1000


@dataclass(frozen=True, slots=True)
class OptionalDuration(Kind[float | None]):
    """A duration, or an empty text for None."""

    least: str
    most: str
    attribute_suffix: ClassVar[str] = "_s"

    @property
    def allowed(self) -> str:
        return f'"{self.least}" to "{self.most}", or empty'

    def parse(self, value: object) -> float | None:
        return None if value == "" else Duration(self.least, self.most).parse(value)


@dataclass(frozen=True, slots=True)
class Durations(Kind[tuple[float, ...]]):
    each: Duration
    count_max: int
    attribute_suffix: ClassVar[str] = "_s"

    @property
    def allowed(self) -> str:
        return f"a list of 1 to {self.count_max} durations, each {self.each.allowed}"

    def parse(self, value: object) -> tuple[float, ...]:
        durations = _list(value)
        _in_range(len(durations), 1, self.count_max)
        return tuple(self.each.parse(duration) for duration in durations)

    def from_environment(self, text: str) -> object:
        return _split(text)


@dataclass(frozen=True, slots=True)
class Size(Kind[int]):
    """A size in bytes."""

    least: str
    most: str
    attribute_suffix: ClassVar[str] = "_bytes"

    @property
    def allowed(self) -> str:
        return f'"{self.least}" to "{self.most}"'

    def parse(self, value: object) -> int:
        if not isinstance(value, str):
            raise ValueError(f"write {SIZE_RULE}")
        return _in_range(parse_size(value), *map(parse_size, (self.least, self.most)))


@dataclass(frozen=True, slots=True)
class OptionalSize(Kind[int | None]):
    """A size in bytes, or an empty text for None."""

    least: str
    most: str
    attribute_suffix: ClassVar[str] = "_bytes"

    @property
    def allowed(self) -> str:
        return f'"{self.least}" to "{self.most}", or empty'

    def parse(self, value: object) -> int | None:
        return None if value == "" else Size(self.least, self.most).parse(value)


def _in_range(number: int, least: int, most: int) -> int:
    if not least <= number <= most:
        raise ValueError
    return number


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _split(text: str) -> list[object]:
    return [part.strip() for part in text.split(",")] if text else []


def _ldap_server(value: object) -> str:
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise ValueError
    scheme, _, rest = value.partition("://")
    scheme, rest = scheme.lower(), rest.removesuffix("/")
    if scheme not in LDAP_PORTS:
        raise ValueError("a server begins with ldaps:// or ldap://")
    host, colon, port = rest.rpartition(":")
    if not colon or "]" in port:
        host, port = rest, str(LDAP_PORTS[scheme])
    if not (port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise ValueError(f"{port!r} is not a port")
    if host.startswith("[") and host.endswith("]"):
        ip_address(host[1:-1])
    else:
        host = _computer(host)
    return f"{scheme}://{host}:{int(port)}"


def _computer(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    try:
        return COMPUTER.check(value, "name", 0)
    except InvalidName as error:
        raise ValueError(str(error)) from error


def _host(value: object) -> Network | str:
    """Return a network, or the name of a computer; a text that looks like a network must be one."""
    if isinstance(value, str) and ("/" in value or ":" in value or value[:1].isdigit()):
        return ip_network(value)
    return _computer(value)
