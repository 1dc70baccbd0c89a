"""Checks of the files that the configuration names: authorities, tokens, the directory."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cryptography import x509

from qmd.access import tokens
from qmd.cli.host.doctor.finding import Finding, fault, ok
from qmd.directory.file.format import DirectoryFileError, parse, read_text

if TYPE_CHECKING:
    from qmd.config.file import Settings


def check_authorities(settings: Settings) -> Iterator[Finding]:
    """Check the authorities of other queue managers and of clients, and our own certificate."""
    files = []
    if settings.tls.enabled and settings.tls.authorities is not None:
        files.append(("tls", "authorities", settings.tls.authorities))
    if settings.remote.enabled and settings.remote.client_ca is not None:
        files.append(("remote", "client_ca", settings.remote.client_ca))
    now = datetime.datetime.now(datetime.UTC)
    for section, key, path in files:
        where = f"Correct {key} in the section [{section}]."
        try:
            found = x509.load_pem_x509_certificates(path.read_bytes())
        except OSError as error:
            yield fault("certificate", f"{path} cannot be read: {error.strerror}.", where)
            continue
        except ValueError as error:
            yield fault("certificate", f"{path} has no certificates in PEM: {error}.", where)
            continue
        for each in found:
            if each.not_valid_after_utc < now:
                yield fault(
                    "certificate",
                    f"The authority {each.subject.rfc4514_string()} in {path} has expired on"
                    f" {each.not_valid_after_utc:%Y-%m-%d}: no certificate of it is accepted.",
                    "Enter the present certificate of that authority.",
                )


def check_tokens(settings: Settings) -> Iterator[Finding]:
    """Check the file with the tokens of clients."""
    path = settings.remote.tokens
    if not path.exists():
        return
    try:
        tokens.read(path)
    except (tokens.TokenFileError, OSError) as error:
        yield fault(
            "tokens",
            f"No client can log in with a token: {error}.",
            "Correct the line, or make the tokens anew: `qmd remote token create`.",
        )


def check_directory_file(settings: Settings) -> Iterator[Finding]:
    """Check the file of a directory that is one."""
    chosen = settings.directory
    if chosen.kind != "file":
        return
    try:
        parse(read_text(chosen.file), chosen.file)
    except (DirectoryFileError, OSError) as error:
        yield fault(
            "directory",
            f"The file of the directory cannot be used: {error}.",
            "Correct it; the daemon reads it again when it changes.",
        )
    else:
        yield ok("directory", f"{chosen.file} is valid.")
