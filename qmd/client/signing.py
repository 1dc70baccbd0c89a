"""Signing of messages, with a key that does not leave the application."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from qmd.control_protocol import messages as frames
from qmd.control_protocol.signing import SigningParts

if TYPE_CHECKING:
    from qmd.client.caller import Caller


async def signed_by(
    signer: Signer | None,
    caller: Caller,
    messages: Sequence[frames.NewMessage],
    *,
    in_transaction: bool = False,
) -> list[frames.NewMessage]:
    """Return messages with signatures; those that have one, and all without a signer, stay."""
    if signer is None:
        return list(messages)
    return [
        new if new.signature else await signer.sign(caller, new, in_transaction=in_transaction)
        for new in messages
    ]


class Signer:
    """The key and the certificate of a sender."""

    def __init__(
        self,
        key_file: str | os.PathLike[str],
        certificate_file: str | os.PathLike[str],
        *,
        hash_algorithm: str = "sha512",
    ) -> None:
        """Read the RSA key and the X.509 certificate, each in PEM or DER.

        `hash_algorithm`: sha512, sha256, sha1 or md5.  Raises OSError, and ValueError if they
        cannot be used.
        """
        from qmd.message_security.algorithms import HASHES, HASHES_AVAILABLE, Unacceptable
        from qmd.message_security.keyring import BadKey, load_certificate, load_private_key
        from qmd.message_security.signatures import signer_of

        if hash_algorithm not in HASHES_AVAILABLE:
            raise ValueError(f"the hash algorithm must be one of {', '.join(HASHES_AVAILABLE)}")
        try:
            self._key = load_private_key(Path(key_file).read_bytes())
            self.certificate = load_certificate(Path(certificate_file).read_bytes())
            signer = signer_of(self.certificate)
        except BadKey as error:
            raise ValueError(f"{key_file} or {certificate_file} cannot be used: {error}") from error
        except Unacceptable as error:
            raise ValueError(f"{certificate_file} cannot be used: {error.detail}") from error
        if signer.key.public_numbers() != self._key.public_key().public_numbers():
            raise ValueError(f"{certificate_file} is not the certificate of {key_file}")
        self._algorithm = HASHES[hash_algorithm]

    def __repr__(self) -> str:
        return "Signer(...)"  # never the key

    async def sign(
        self, caller: Caller, new: frames.NewMessage, *, in_transaction: bool = False
    ) -> frames.NewMessage:
        """Return the message with its signature; its properties must not be changed afterwards."""
        from qmd.message_security.signatures import sign

        new = msgspec.structs.replace(
            new, certificate=self.certificate, hash_algorithm=self._algorithm
        )
        without_body = msgspec.structs.replace(new, body=b"", certificate=b"", privacy_level=0)
        parts = await caller.ask(SigningParts, without_body, in_transaction)
        signature = sign(self._key, (parts["before"], new.body, parts["after"]), self._algorithm)
        return msgspec.structs.replace(
            new, signature=signature, delivery=new.delivery if in_transaction else parts["delivery"]
        )
