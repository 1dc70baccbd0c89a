"""`qmd tls`: certificates and keys for TLS between queue managers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from qmd.cli import given_files
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.output import printable
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure, Group

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from qmd.tls.certificate import Certificate
    from qmd.tls.making import Host

AUTHORITY, AUTHORITY_KEY = "authority.crt", "authority.key"
REVOKED, NUMBERS = "revoked.crl", "revoked.numbers"
DAYS = 365
AUTHORITY_DAYS = 3650

names_option = click.option(
    "--name",
    "names",
    multiple=True,
    help="A name or an address by which other hosts dial this one.  [default: its name]",
)
days_option = click.option(
    "--days", type=click.IntRange(1, 36500), default=DAYS, show_default=True, help="Validity."
)
authority_option = click.option(
    "--authority",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="The folder of the authority, made by `qmd tls init --authority`.",
)


@click.group(cls=Group)
def tls() -> None:
    """Manage certificates and keys for TLS between queue managers.

    A running daemon reads the files without a restart.
    """


@tls.command()
@names_option
@days_option
@click.option(
    "--authority",
    type=click.Path(path_type=Path, file_okay=False),
    help="Make an authority in this new folder instead; keep its key away from the hosts.",
)
@pass_configuration
def init(
    configuration: Configuration, names: tuple[str, ...], days: int, authority: Path | None
) -> None:
    """Make the key and the certificate of this host, or an authority of your own.

    The certificate is signed by its own key; the key of the data folder endorses it, so that other
    hosts accept the next ones, too.
    """
    with _explained():
        if authority is not None:
            _make_authority(authority, names)
            return
        settings = configuration.settings().tls
        for file in (settings.certificate, settings.key):
            if file.exists():
                _fail(f"{file} exists already; to replace it: qmd tls rotate")
        _make_own(configuration, names, days)


@tls.command()
@names_option
@days_option
@click.option(
    "--certificate",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="The certificate that an authority has signed for `qmd tls request`.",
)
@pass_configuration
def rotate(
    configuration: Configuration, names: tuple[str, ...], days: int, certificate: Path | None
) -> None:
    """Replace the key and the certificate of this host.

    Other hosts accept the previous key beside the new one for a week after they have met the new
    one.  With --certificate, use the key of the last `qmd tls request`.
    """
    with _explained():
        if certificate is not None:
            _install(configuration, certificate)
            return
        _make_own(configuration, names, days)


@tls.command()
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
@names_option
@pass_configuration
def request(configuration: Configuration, output: Path, names: tuple[str, ...]) -> None:
    """Make a new key, and write a request for its certificate to OUTPUT.

    The authority signs it with `qmd tls sign`; `qmd tls rotate --certificate` installs the result.
    """
    from qmd.tls.making import key_pem, make_request, new_key

    with _explained():
        settings = configuration.settings()
        key = new_key()
        made = make_request(_host(configuration, names), key, _identity(configuration))
        _write(_next_key(settings.tls.key), key_pem(key), owner=settings.queue_manager.data)
        _write(output, made)
    click.echo(f"the request is in {output}")


@tls.command()
@click.argument("request_file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
@authority_option
@days_option
@click.option("--guid", help="Refuse a request of another queue manager.")
@click.option("--yes", is_flag=True, help="Sign without a question.")
def sign(
    request_file: Path, output: Path, authority: Path, days: int, guid: str | None, yes: bool
) -> None:
    """Sign the request REQUEST_FILE; write the certificate to OUTPUT.

    Compare the GUID and the names that are shown with those of the host: the authority vouches for
    them.
    """
    from protocol.identifiers import guid_text
    from qmd.tls.making import issue as issue_certificate
    from qmd.tls.making import read_request

    with _explained():
        found, host = read_request(given_files.read_bytes(request_file))
        text = guid_text(host.guid)
        if guid is not None and guid.casefold().strip("{}") != text.casefold():
            _fail(f"the request is of the queue manager {text}")
        click.echo(f"queue manager {text}; names {', '.join(map(printable, host.names))}", err=True)
        if not yes and guid is None:
            click.confirm("Sign?", abort=True, err=True)
        made = issue_certificate(
            host, found, _load_authority(authority), valid=timedelta(days=days)
        )
        _write(output, made)
    click.echo(f"the certificate is in {output}")


@tls.command()
@click.argument("guid")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@authority_option
@names_option
@days_option
def issue(guid: str, folder: Path, authority: Path, names: tuple[str, ...], days: int) -> None:
    """Make a key and a certificate for the queue manager GUID in FOLDER.

    For hosts that cannot make a request; the key has to be carried there in secret.
    """
    from protocol.identifiers import guid_bytes
    from qmd.tls.making import Host, key_pem, new_key
    from qmd.tls.making import issue as issue_certificate

    with _explained():
        key = new_key()
        host = Host(guid_bytes(guid.strip("{}")), names)
        made = issue_certificate(host, key, _load_authority(authority), valid=timedelta(days=days))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in (("tls.key", key_pem(key)), ("tls.crt", made)):
            if (folder / name).exists():
                _fail(f"{folder / name} exists already")
            _write(folder / name, content)
    click.echo(f"tls.key and tls.crt are in {folder}")


@tls.command()
@click.argument(
    "certificates", nargs=-1, type=click.Path(path_type=Path, dir_okay=False, exists=True)
)
@authority_option
@days_option
def revoke(certificates: tuple[Path, ...], authority: Path, days: int) -> None:
    """Revoke CERTIFICATES: write the authority's revocation list again.

    Copy revoked.crl to `revoked` in the section [tls] of every host, and again before it expires.
    """
    from cryptography import x509

    from qmd.tls.making import revoke as make_list

    with _explained():
        numbers = authority / NUMBERS
        known = numbers.read_text(encoding="ascii").split() if numbers.exists() else []
        for each in certificates:
            number = x509.load_pem_x509_certificate(given_files.read_bytes(each)).serial_number
            known = [*dict.fromkeys((*known, str(number)))]
        made = make_list(
            list(map(int, known)), _load_authority(authority), valid=timedelta(days=days)
        )
        _write(numbers, "".join(f"{each}\n" for each in known).encode("ascii"))
        _write(authority / REVOKED, made)
    click.echo(f"{len(known)} revoked certificates: {authority / REVOKED}")


@tls.command()
@json_option
@click.option("--peers", is_flag=True, help="Show the pinned and the met queue managers instead.")
@pass_configuration
def show(configuration: Configuration, as_json: bool, peers: bool) -> None:
    """Show the certificate of this host: its GUID, names, fingerprints and validity."""
    from qmd.cli.output import print_facts, print_rows

    with _explained():
        if not peers:
            print_facts(_own_facts(configuration), as_json=as_json)
            return
        rows = _pinned(configuration) + configuration.ask(lambda qm: qm.list_tls_peers())
    columns = [("PEER", "peer"), ("HOW", "how"), ("KEY", "key"), ("PORT", "port"), ("MET", "met")]
    shown = [{"how": "met", **row, "met": _date(row.get("met_s"))} for row in rows]
    print_rows(shown, columns, as_json=as_json, none="no peers")


@tls.command()
@click.argument("guid")
@click.argument("fingerprint")
@click.option("--replace", is_flag=True, help="Remove the other pins of this queue manager.")
@pass_configuration
def pin(configuration: Configuration, guid: str, fingerprint: str, replace: bool) -> None:
    """Accept the queue manager GUID only over TLS, and with the key FINGERPRINT.

    FINGERPRINT is a line of `qmd tls show` of that host: `identity`, which stays when its key is
    replaced, or `fingerprint`.  Several pins may be given; each of them is accepted.
    """
    from protocol.identifiers import guid_bytes
    from qmd.tls.pins import check_fingerprint
    from qmd.tls.pins import pin as write_pin

    with _explained():
        settings = configuration.settings()
        key = guid_bytes(guid.strip("{}"))
        given = check_fingerprint(fingerprint)
        owner = settings.queue_manager.data
        write_pin(settings.tls.pins, key, given, replace=replace, owner=owner)
    click.echo(f"{guid} is pinned")


@tls.command()
@click.argument("guid")
@pass_configuration
def unpin(configuration: Configuration, guid: str) -> None:
    """Remove the pins of the queue manager GUID."""
    from protocol.identifiers import guid_bytes
    from qmd.tls.pins import unpin as remove_pins

    with _explained():
        settings = configuration.settings()
        key, owner = guid_bytes(guid.strip("{}")), settings.queue_manager.data
        if not remove_pins(settings.tls.pins, key, owner=owner):
            raise Failure(ExitCode.NOT_FOUND, f"{guid} has no pin", "tls_not_changed")
    click.echo(f"{guid} is no longer pinned")


@tls.command()
@click.argument("peer")
@json_option
@pass_configuration
def forget(configuration: Configuration, peer: str, as_json: bool) -> None:
    """Forget that PEER, a GUID or host:port, was met over TLS.

    It may then have another key, or come without TLS, unless a rule or a pin forbids that.
    """
    from qmd.cli.output import print_json

    forgotten = configuration.ask(lambda qm: qm.forget_tls_peer(peer))
    if as_json:
        print_json({"peer": peer, "forgotten": forgotten})
    else:
        click.echo(f"{printable(peer)}: {'forgotten' if forgotten else 'it was not known'}")


def _make_authority(folder: Path, names: tuple[str, ...]) -> None:
    from qmd.tls.making import key_pem, make_authority, new_key, revoke

    if (folder / AUTHORITY_KEY).exists():
        _fail(f"{folder / AUTHORITY_KEY} exists already")
    key = new_key()
    valid = timedelta(days=AUTHORITY_DAYS)
    made = make_authority(names[0] if names else "qmd authority", key, valid=valid)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(folder / AUTHORITY_KEY, key_pem(key))
    _write(folder / AUTHORITY, made)
    _write(folder / REVOKED, revoke([], _load_authority(folder), valid=timedelta(days=DAYS)))
    click.echo(f"{AUTHORITY}, {REVOKED} and {AUTHORITY_KEY} are in {folder}")


def _make_own(configuration: Configuration, names: tuple[str, ...], days: int) -> None:
    """Write a new key of this host and its certificate."""
    from qmd.tls.making import key_pem, new_key, own_certificate

    settings = configuration.settings()
    key, host = new_key(), _host(configuration, names)
    made = own_certificate(host, key, _identity(configuration), valid=timedelta(days=days))
    # The key first: a daemon that reads between the two finds that they do not fit, and waits.
    _write(settings.tls.key, key_pem(key), owner=settings.queue_manager.data)
    _write(settings.tls.certificate, made, owner=settings.queue_manager.data)
    click.echo(f"fingerprint {_read(settings.tls.certificate)}")


def _install(configuration: Configuration, file: Path) -> None:
    """Use the certificate that an authority has signed for the key of the last request."""
    from cryptography import x509

    from qmd.tls.certificate import key_digest
    from qmd.tls.making import key_pem, load_key

    settings = configuration.settings()
    fresh = _next_key(settings.tls.key)
    content = given_files.read_bytes(file)
    certificate = x509.load_pem_x509_certificates(content)[0]
    for candidate in (fresh, settings.tls.key):
        if candidate.exists():
            key = load_key(candidate.read_bytes())
            if key_digest(key.public_key()) == key_digest(certificate.public_key()):
                break
    else:
        _fail(f"the key of {file} is neither in {fresh} nor in {settings.tls.key}")
    _write(settings.tls.key, key_pem(key), owner=settings.queue_manager.data)
    _write(settings.tls.certificate, content, owner=settings.queue_manager.data)
    fresh.unlink(missing_ok=True)
    click.echo(f"fingerprint {_read(settings.tls.certificate)}")


def _own_facts(configuration: Configuration) -> dict[str, object]:
    from protocol.identifiers import guid_text

    settings = configuration.settings()
    if not settings.tls.certificate.exists():
        facts = configuration.ask(lambda qm: qm.status())
        return {"queue_manager": facts["queue_manager"], "file": None, **facts.get("tls", {})}
    found = _certificate(settings.tls.certificate)
    return {
        "queue_manager": guid_text(found.guid),
        "names": list(found.names),
        "fingerprint": found.fingerprint,
        "identity": found.origin_key,
        "expires": f"{found.not_after:%Y-%m-%d}",
        "signed_by": "itself" if found.is_self_signed else "an authority",
        "file": str(settings.tls.certificate),
    }


def _pinned(configuration: Configuration) -> list[dict[str, object]]:
    from protocol.identifiers import guid_text
    from qmd.tls.pins import read

    pins = read(configuration.settings().tls.pins)
    return [
        {"peer": guid_text(guid), "how": "pinned", "key": key}
        for guid, keys in pins.items()
        for key in keys
    ]


def _host(configuration: Configuration, names: tuple[str, ...]) -> Host:
    from protocol.identifiers import guid_bytes
    from qmd.tls.making import Host

    facts = configuration.ask(lambda qm: qm.status())
    aliases = configuration.settings().queue_manager.aliases
    return Host(guid_bytes(facts["queue_manager"]), names or (facts["name"], *aliases))


def _identity(configuration: Configuration) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from storage.engine import key_file

    folder = configuration.settings().queue_manager.data
    seed = key_file.read(folder)
    if seed is None:
        _fail(f"{folder} has no key: start the daemon once")
    return Ed25519PrivateKey.from_private_bytes(seed)


def _load_authority(folder: Path) -> tuple[x509.Certificate, Ed25519PrivateKey]:
    from cryptography import x509

    from qmd.tls.making import load_key

    key = load_key((folder / AUTHORITY_KEY).read_bytes())
    return x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes()), key


def _certificate(file: Path) -> Certificate:
    from cryptography import x509

    from qmd.tls.certificate import read_certificate

    return read_certificate(x509.load_pem_x509_certificates(file.read_bytes())[0])


def _read(file: Path) -> str:
    return _certificate(file).fingerprint


def _next_key(file: Path) -> Path:
    return file.with_name(f"{file.name}.next")


def _write(file: Path, content: bytes, *, owner: Path | None = None) -> None:
    from qmd.tls.pins import write_atomically

    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(file, content, owner=owner)


def _date(at_s: object) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d}" if isinstance(at_s, int) else ""


def _fail(text: str) -> NoReturn:
    raise Failure(ExitCode.FAILED, text, "tls_not_changed")


@contextmanager
def _explained() -> Iterator[None]:
    """Convert errors of files and certificates into a Failure of one line."""
    from protocol.errors import InvalidName
    from qmd.tls.errors import BadCertificate, TlsFilesError

    try:
        yield
    except (TlsFilesError, BadCertificate, InvalidName, ValueError, OSError) as error:
        raise Failure(ExitCode.FAILED, str(error), "tls_not_changed") from error
