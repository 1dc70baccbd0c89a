"""Requests about signatures of messages."""

from __future__ import annotations

from qmd.control_protocol.messages import NewMessage, Request, add_verbs


class SigningParts(Request, tag="signing_parts", frozen=True):
    """Return the bytes that the signature of a message covers. -> {before, after, delivery}

    They are those before and after its body, which may be left out. The message must be sent with
    the returned delivery.
    """

    message: NewMessage
    in_transaction: bool = False


add_verbs(SigningParts)
