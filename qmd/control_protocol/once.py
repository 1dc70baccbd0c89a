"""Sending at most once for each key that a client chooses, however often it is tried."""

from __future__ import annotations

from typing import Annotated

import msgspec

from qmd.control_protocol.messages import MESSAGES_MAX, NewMessage, Request, Token, add_verbs

FINGERPRINT_BYTES_MAX = 32


class SendOnce(Request, tag="send_once", frozen=True):
    """Send messages unless the same request was executed before. -> as `Send`

    The answer is stored under the token, in the commit that stores the messages. A repetition gets
    it, also after a crash of either side; one with another fingerprint, a digest of the request, is
    refused.
    """

    messages: Annotated[list[NewMessage], msgspec.Meta(max_length=MESSAGES_MAX)]
    token: Token
    fingerprint: Annotated[bytes, msgspec.Meta(max_length=FINGERPRINT_BYTES_MAX)] = b""


add_verbs(SendOnce)
