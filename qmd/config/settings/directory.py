# ruff: noqa: RUF009 (setting() is dataclasses.field with more arguments)
"""The directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qmd.config.settings.declaration import setting
from qmd.config.value_types import (
    Choice,
    Duration,
    Flag,
    LdapServers,
    Location,
    OptionalLocation,
    OptionalSecretFile,
    Text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorySettings:
    """The directory of public queues, distribution lists and other computers."""

    kind: str = setting(
        Choice(("none", "file", "active-directory")),
        "none",
        "None: workgroup mode, for direct and private names. File: a TOML file. Active-directory: a"
        " domain controller.",
    )
    file: Path = setting(
        Location(), "directory.toml", 'The file of kind "file"; several hosts may share it.'
    )
    reload_s: float = setting(
        Duration("10ms", "1h"),
        "1s",
        "How often the file is checked for changes.",
    )
    timeout_s: float = setting(
        Duration("10ms", "10m"),
        "5s",
        "How long a send or another request waits for the directory.",
    )
    age_s: float = setting(
        Duration("1s", "7d"),
        "5m",
        "How long an answer of the directory is used without a new query.",
    )
    negative_age_s: float = setting(
        Duration("1s", "1d"),
        "15s",
        "The same for negative answers.",
    )
    pause_s: float = setting(
        Duration("0s", "10m"),
        "2s",
        "How long an unavailable directory is not queried again.",
    )
    servers: tuple[str, ...] = setting(
        LdapServers(),
        [],
        "The domain controllers of kind active-directory; they are tried in this order.",
    )
    join: bool = setting(
        Flag(),
        False,
        "Whether this queue manager is in the Active Directory itself and has public queues there:"
        " at its very first start it takes its id from there.",
    )
    start_tls: bool = setting(
        Flag(), False, "Whether ldap:// servers are asked to begin TLS, and refused without it."
    )
    ca_file: Path | None = setting(
        OptionalLocation(),
        "",
        "The CA certificates that sign for the servers. Empty: those of the system.",
    )
    server_name: str = setting(
        Text(), "", "The name in the servers' certificates. Empty: the host of the server."
    )
    bind: str = setting(
        Choice(("simple", "negotiate", "external")),
        "simple",
        "Simple: name and password, over TLS. Negotiate: Kerberos or NTLM. External: the client's"
        " certificate.",
    )
    user: str = setting(
        Text(),
        "",
        "The account for the directory: name@domain, DOMAIN\\name or a distinguished name; a "
        "computer account is name$@domain.",
    )
    password_file: Path | None = setting(
        OptionalSecretFile(),
        "",
        "The file with the password. Empty: it is in the environment variable QMD_LDAP_PASSWORD.",
    )
    plain_password: bool = setting(
        Flag(), False, "Whether a password may cross the network without TLS, readable by all."
    )
    certificate: Path | None = setting(
        OptionalLocation(), "", "The client's certificate, for bind external."
    )
    certificate_key: Path | None = setting(
        OptionalSecretFile(), "", "Its key, without a password. Empty: in the certificate's file."
    )
    base: str = setting(
        Text(),
        "",
        "The name below which searches begin. Empty: the whole domain of the server.",
    )
    lists_base: str = setting(
        Text(), "", "Where `qmd dl create` puts distribution lists. Empty: CN=Users of the domain."
    )
    connect_timeout_s: float = setting(
        Duration("10ms", "10m"),
        "3s",
        "How long connecting to one server may take, with TLS and bind.",
    )
