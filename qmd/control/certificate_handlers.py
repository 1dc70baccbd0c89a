"""Handlers of the verbs about certificates of senders in the directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qmd.control.handler import Handler, change, look
from qmd.control_protocol import directory as frames
from qmd.directory.registration import in_time
from qmd.errors import Refusal

if TYPE_CHECKING:
    from qmd.control.components import Components

Value = dict[str, Any]


async def register(components: Components, request: frames.RegisterCertificate) -> Value:
    from qmd.message_security.algorithms import Unacceptable
    from qmd.message_security.keyring import BadKey, load_certificate, sender_name
    from qmd.message_security.signatures import signer_of

    try:
        sender = sender_name(request.sender)
        signer = signer_of(load_certificate(request.certificate))
    except BadKey as error:
        raise _bad(str(error)) from error
    except Unacceptable as error:
        raise _bad(error.detail) from error
    work = components.directory.changes.register_certificate(sender, signer.encoded)
    is_new = await in_time(components.services, components.directory, work)
    components.resolver.forget()
    return {"sender": sender, "fingerprint": signer.fingerprint, "registered": is_new}


async def remove(components: Components, request: frames.RemoveCertificate) -> Value:
    sender, fingerprint = _sender(request.sender), request.fingerprint.lower()
    work = components.directory.changes.remove_certificate(sender, fingerprint)
    was_there = await in_time(components.services, components.directory, work)
    components.resolver.forget()
    return {"sender": sender, "fingerprint": fingerprint, "removed": was_there}


async def list_(components: Components, request: frames.ListCertificates) -> list[Value]:
    from qmd.message_security.signatures import described

    sender = _sender(request.sender)
    # From the cache, because every user may ask.
    work = components.resolver.entries.certificates(sender)
    found, _ = await in_time(components.services, components.directory, work)
    return [{"sender": sender, **described(each)} for each in found]


def _sender(name: str) -> str:
    from qmd.message_security.keyring import BadKey, sender_name

    try:
        return sender_name(name)
    except BadKey as error:
        raise _bad(str(error)) from error


def _bad(fault: str) -> Refusal:
    return Refusal(
        "bad_key_file",
        fault,
        "Name a sender by its SID (S-1-5-...) or the GUID of its queue manager, and give a"
        " certificate in DER with an RSA key that may sign.",
    )


HANDLERS: dict[type, Handler] = {
    frames.RegisterCertificate: change(register),
    frames.RemoveCertificate: change(remove),
    frames.ListCertificates: look(list_),
}
