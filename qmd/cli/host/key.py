"""`qmd key`: the keys and certificates of message security, as files of the data folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qmd.cli import given_files
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.host import key_directory
from qmd.cli.host.key_directory import account_options, chosen_account
from qmd.cli.parameters import json_option
from qmd.cli.program import BadValue, Group

if TYPE_CHECKING:
    from qmd.message_security.keyring import Keyring

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group(cls=Group)
def key() -> None:
    """Manage the keys that sign and encrypt messages.

    The daemon need not run: the keys are files in its data folder, and each change counts at once.
    Run these commands as the user of the daemon.
    """


@key.command()
@pass_configuration
def init(configuration: Configuration) -> None:
    """Make the RSA key of this host, with which others encrypt messages to it.

    A host that has one keeps it.
    """
    ring = _ring(configuration)
    made = ring.make_private_key()
    click.echo(f"{'made' if made else 'there is'} a key in {ring.folder}")


@key.command("list")
@click.option(
    "--directory", "sender", metavar="SENDER", help="List the certificates that it has of SENDER."
)
@json_option
@pass_configuration
def list_(configuration: Configuration, sender: str | None, as_json: bool) -> None:
    """List the key of this host, keys of other hosts, and certificates of senders.

    With --directory: the certificates of one sender, a SID or a GUID, in the directory.
    """
    from qmd.cli.output import print_rows

    if sender is not None:
        found = configuration.ask(lambda qm: qm.directory.certificates(sender))
        facts = [("SUBJECT", "subject"), ("BITS", "key_bits"), ("EXPIRES", "expires")]
        columns = [*facts, ("SHA-256", "fingerprint")]
        none = f"the directory has no certificate of {sender}"
        print_rows(found, columns, as_json=as_json, none=none)
        return
    rows = [each._asdict() for each in _ring(configuration).entries()]
    columns = [("KIND", "kind"), ("NAME", "name"), ("BITS", "bits"), ("SHA-256", "fingerprint")]
    print_rows(rows, columns, as_json=as_json, none="no keys; make one: qmd key init")


@key.command()
@click.argument("file", type=_FILE)
@pass_configuration
def export(configuration: Configuration, file: Path) -> None:
    """Write the public key of this host to FILE, for `qmd key import` on other hosts.

    It has the layout of the attribute mSMQEncryptKey in Active Directory (MQDSPUBLICKEYS).
    """
    from qmd.message_security.keyring import BadKey

    try:
        data = _ring(configuration).published()
        file.write_bytes(data)
    except BadKey as error:
        raise BadValue("bad_key_file", f"{error}; make one: qmd key init") from error
    except OSError as error:
        raise BadValue("bad_key_file", f"{file}: {error.strerror}") from error


@key.command()
@json_option
@pass_configuration
def publish(configuration: Configuration, as_json: bool) -> None:
    """Publish the public key of this host in the directory, for all that send to its queues.

    The daemon does it, with its account for the directory (attribute mSMQEncryptKey, or the key
    encryption_keys of the machine in a directory file).
    """
    from qmd.cli.output import print_facts

    print_facts(configuration.ask(lambda qm: qm.directory.publish_keys()), as_json=as_json)


@key.command("import")
@click.argument("name")
@click.argument("file", type=_FILE)
@pass_configuration
def import_(configuration: Configuration, name: str, file: Path) -> None:
    """Keep the public key of another host, to encrypt messages to its queues.

    NAME is the GUID of its queue manager for names such as PRIVATE=guid\\1, or the address in
    direct names.  FILE is that of `qmd key export`, or a public key or certificate in PEM.
    """
    from qmd.message_security.keyring import BadKey

    try:
        kept = _ring(configuration).add_receiver(name, given_files.read_bytes(file))
    except BadKey as error:
        raise BadValue("bad_key_file", f"{file}: {error}") from error
    except OSError as error:
        raise BadValue("bad_key_file", f"{file}: {error.strerror}") from error
    click.echo(kept)


@key.command()
@click.argument("sender")
@click.argument("file", type=_FILE)
@account_options
@pass_configuration
def register(
    configuration: Configuration,
    sender: str,
    file: Path,
    in_directory: bool,
    own_account: bool,
    account: str,
    password_file: Path | None,
) -> None:
    """Register the certificate in FILE for SENDER: a SID, or the GUID of a queue manager.

    A signed message that names a sender is accepted only with a registered certificate: one of the
    data folder, which counts on this host, or with --directory one of the directory.
    """
    from qmd.message_security.algorithms import Unacceptable
    from qmd.message_security.keyring import BadKey

    chosen = chosen_account(in_directory, own_account, account, password_file)
    try:
        if chosen is not None:
            facts = key_directory.register(
                configuration, chosen, sender, given_files.read_bytes(file)
            )
            fingerprint = facts["fingerprint"]
        else:
            fingerprint = _ring(configuration).add_sender(sender, given_files.read_bytes(file))
    except BadKey as error:
        raise BadValue("bad_key_file", f"{file}: {error}") from error
    except Unacceptable as error:
        raise BadValue("bad_key_file", f"{file}: {error.detail}") from error
    except OSError as error:
        raise BadValue("bad_key_file", f"{file}: {error.strerror}") from error
    click.echo(fingerprint)


@key.command()
@click.argument("name")
@click.argument("fingerprint", default="")
@account_options
@pass_configuration
def remove(
    configuration: Configuration,
    name: str,
    fingerprint: str,
    in_directory: bool,
    own_account: bool,
    account: str,
    password_file: Path | None,
) -> None:
    """Remove the key of the host NAME; or, with a FINGERPRINT, a certificate of a sender."""
    from qmd.message_security.keyring import BadKey

    chosen = chosen_account(in_directory, own_account, account, password_file)
    if chosen is not None and not fingerprint:
        raise click.UsageError("--directory needs the FINGERPRINT of a certificate")
    try:
        if chosen is not None:
            there = key_directory.remove(configuration, chosen, name, fingerprint.lower())[
                "removed"
            ]
        else:
            there = _ring(configuration).remove(name, fingerprint.lower())
    except BadKey as error:
        raise BadValue("bad_key_file", str(error)) from error
    if not there:
        raise BadValue("bad_key_file", f"there is no such key of {name}")


@key.command("new-signer")
@click.argument("name")
@click.option("--key", "key_file", type=_FILE, required=True, help="The file for the key.")
@click.option(
    "--certificate", "certificate_file", type=_FILE, required=True, help="That for its certificate."
)
@click.option("--days", type=click.IntRange(1, 3650), default=825, show_default=True)
def new_signer(name: str, key_file: Path, certificate_file: Path, days: int) -> None:
    """Make a key for signing, and a certificate of its own for NAME.

    The key file is readable by its owner only, and neither file may exist.
    """
    from qmd.message_security.keyring import make_signer

    try:
        fingerprint = make_signer(name, key_file, certificate_file, days=days)
    except OSError as error:
        raise BadValue("bad_key_file", f"{error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise BadValue("bad_key_file", str(error)) from error
    click.echo(fingerprint)


def _ring(configuration: Configuration) -> Keyring:
    from qmd.message_security.keyring import Keyring

    return Keyring(configuration.settings().queue_manager.data)
