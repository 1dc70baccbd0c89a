"""The options of `qmd send` for signatures and encryption."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from qmd.cli.program import BadValue, Misuse

if TYPE_CHECKING:
    from qmd.client import Signer

_OPTIONS = (
    click.option("--sign", is_flag=True, help="Sign it; needs --key and --certificate."),
    click.option(
        "--key", "key_file", metavar="FILE", help="The RSA key of the signer, PEM or DER."
    ),
    click.option(
        "--certificate", "certificate_file", metavar="FILE", help="The certificate of the signer."
    ),
    click.option(
        "--hash",
        "hash_algorithm",
        type=click.Choice(("sha512", "sha256", "sha1", "md5")),
        default="sha512",
        show_default=True,
        help="The hash algorithm of the signature.",
    ),
    click.option(
        "--encrypt",
        is_flag=False,
        flag_value="aes256",
        type=click.Choice(("aes128", "aes192", "aes256")),
        help="Encrypt its body for the destination's host, see `qmd key import`.  [alone: aes256]",
    ),
)


def signing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which passes their values to `take_signer`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_signer(given: dict[str, Any]) -> Signer | None:
    """Return the signer of the options, which are removed; `encrypt` becomes a property.

    Raises Misuse, BadValue.
    """
    sign, algorithm = given.pop("sign"), given.pop("hash_algorithm")
    key_file, certificate_file = given.pop("key_file"), given.pop("certificate_file")
    given["encrypt"] = given["encrypt"] or False
    if sign != bool(key_file) or sign != bool(certificate_file):
        raise Misuse("option_needs_option", "--sign, --key and --certificate require each other")
    if not sign:
        return None
    from qmd.client import Signer

    try:
        return Signer(key_file, certificate_file, hash_algorithm=algorithm)
    except (OSError, ValueError) as error:
        raise BadValue("bad_key_file", str(error)) from error
