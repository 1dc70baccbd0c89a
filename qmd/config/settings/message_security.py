# ruff: noqa: RUF009 (setting() is dataclasses.field with more arguments)
"""Signatures and encryption of messages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qmd.config.settings.declaration import setting
from qmd.config.value_types import Choices, Flag, OptionalLocation


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSecuritySettings:
    """Signatures and encryption of messages."""

    hash_algorithms: tuple[str, ...] = setting(
        Choices(("sha512", "sha256", "sha1", "md5")),
        ["sha512", "sha256"],
        "Hash algorithms of signatures that are accepted; sha1 and md5 are broken.",
    )
    encryption_algorithms: tuple[str, ...] = setting(
        Choices(("aes256", "aes192", "aes128", "rc4", "rc2")),
        ["aes256", "aes192", "aes128"],
        "Algorithms of encrypted messages that are accepted; rc4 and rc2 are broken.",
    )
    msmq_1_signatures: bool = setting(
        Flag(),
        False,
        "Whether signatures of MSMQ 1.0 count, which do not cover the destination.",
    )
    authorities: Path | None = setting(
        OptionalLocation(),
        "",
        "Authorities (PEM) of the certificates of senders. With them only their certificates and"
        " registered ones count. Empty: every valid certificate does.",
    )
    revoked: Path | None = setting(
        OptionalLocation(), "", "Revocation lists (PEM) of these authorities."
    )
