"""Certificates of senders in the directory, for `qmd key`.

The daemon changes them with its account for the directory, or this program does with another one:
in Active Directory a user may register its own certificates, and no computer those of a user.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from qmd.cli.configuration import Configuration
from qmd.cli.program import BadValue

if TYPE_CHECKING:
    from qmd.config.settings import DirectorySettings
    from qmd.directory.interface import Directory

Facts = dict[str, Any]


class Account(NamedTuple):
    """The account with which the directory is asked."""

    own: bool = False  # that of the user who runs this program, by its ticket of Kerberos
    name: str = ""
    password_file: Path | None = None

    @property
    def is_daemons(self) -> bool:
        """Whether the daemon does it, with its own account."""
        return not (self.own or self.name)

    def of(self, settings: DirectorySettings) -> DirectorySettings:
        """Return the settings of the directory with this account.  Raises BadValue."""
        from dataclasses import replace

        from qmd.directory.interface import KIND_ACTIVE_DIRECTORY

        if settings.kind != KIND_ACTIVE_DIRECTORY:
            raise BadValue(
                "bad_key_file",
                "only Active Directory has accounts: leave out --own-account and --account",
            )
        if self.own:
            return replace(settings, bind="negotiate", user="", password_file=None)
        bind = "simple" if settings.bind == "external" else settings.bind
        return replace(settings, bind=bind, user=self.name, password_file=self.password_file)


def account_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the directory and of the account for it."""
    for option in reversed(
        (
            click.option(
                "--directory",
                "in_directory",
                is_flag=True,
                help="In the directory, so that it counts on all of its hosts.",
            ),
            click.option(
                "--own-account",
                is_flag=True,
                help="Ask Active Directory as the user of this command, by its ticket of Kerberos.",
            ),
            click.option(
                "--account",
                default="",
                metavar="NAME",
                help="Ask it as this account; the password is in --password-file or in"
                " QMD_LDAP_PASSWORD.",
            ),
            click.option(
                "--password-file",
                type=click.Path(path_type=Path, dir_okay=False),
                help="The file with the password of --account.",
            ),
        )
    ):
        command = option(command)
    return command


def chosen_account(
    in_directory: bool, own_account: bool, account: str, password_file: Path | None
) -> Account | None:
    """Return the account, None for the data folder.  Raises click.UsageError."""
    if own_account and account:
        raise click.UsageError("give --own-account or --account")
    if password_file is not None and not account:
        raise click.UsageError("--password-file needs --account")
    if not in_directory:
        if own_account or account:
            raise click.UsageError("--own-account and --account need --directory")
        return None
    return Account(own_account, account, password_file)


def register(
    configuration: Configuration, account: Account, sender: str, certificate: bytes
) -> Facts:
    """Register a certificate (PEM or DER) in the directory.  Raises BadValue."""
    from qmd.message_security.algorithms import Unacceptable
    from qmd.message_security.keyring import load_certificate, sender_name
    from qmd.message_security.signatures import signer_of

    try:
        name, signer = sender_name(sender), signer_of(load_certificate(certificate))
    except Unacceptable as error:
        raise BadValue("bad_key_file", error.detail) from error
    if account.is_daemons:
        return configuration.ask(lambda qm: qm.directory.register_certificate(name, signer.encoded))
    is_new = _with(
        configuration,
        account,
        lambda found: found.changes.register_certificate(name, signer.encoded),
    )
    return {"sender": name, "fingerprint": signer.fingerprint, "registered": is_new}


def remove(configuration: Configuration, account: Account, sender: str, fingerprint: str) -> Facts:
    """Remove a certificate from the directory."""
    from qmd.message_security.keyring import sender_name

    name = sender_name(sender)
    if account.is_daemons:
        return configuration.ask(lambda qm: qm.directory.remove_certificate(name, fingerprint))
    was_there = _with(
        configuration, account, lambda found: found.changes.remove_certificate(name, fingerprint)
    )
    return {"sender": name, "fingerprint": fingerprint, "removed": was_there}


def _with(
    configuration: Configuration,
    account: Account,
    work: Callable[[Directory], Awaitable[bool]],
) -> bool:
    """Ask the directory from here.  Raises BadValue."""
    import asyncio

    from qmd.directory.factory import open_directory
    from qmd.directory.interface import DirectoryError

    settings = account.of(configuration.settings().directory)

    async def run() -> bool:
        found = open_directory(settings, changed=lambda: None)
        try:
            return await work(found)
        finally:
            await found.stop()

    try:
        return asyncio.run(run())
    except DirectoryError as error:
        raise BadValue(error.code, f"{error.text} {error.remedy}".rstrip()) from error
