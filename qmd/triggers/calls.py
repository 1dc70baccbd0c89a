"""One call of a URL: as a push of the HTTP door makes it, with parameters from the message."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from urllib.parse import urlencode

from qmd.client.message import Message
from qmd.doors.http.cloud_events import header_value
from qmd.doors.http.pusher import Circuit, post
from qmd.doors.http.pushes import SECRET_PREFIX
from qmd.doors.http.webhook import DeliveryFailed, Network, Target, target_of
from qmd.triggers.arguments import value_of
from qmd.triggers.definition import Rule, Trigger, Url
from qmd.triggers.outcome import ActionFailed

SETTING = "targets of the section [triggers]"


class Calls:
    """The calls of all triggers; a target that fails again and again is left alone for a time."""

    def __init__(self, allowed: Sequence[Network | str]) -> None:
        self._allowed = allowed
        self._circuits: dict[Target, Circuit] = {}

    async def call(self, url: Url, rule: Rule, trigger: Trigger, message: Message) -> None:
        """Deliver a message; return when the target has accepted it.  Raises ActionFailed."""
        circuit = self._circuits.setdefault(target_of(url.url)._replace(path=""), Circuit())
        try:
            async with circuit.attempt():
                await post(
                    full_url(url, trigger, message),
                    message,
                    trigger.queue,
                    self._allowed,
                    url.timeout_s,
                    base64.b64decode(url.secret.removeprefix(SECRET_PREFIX)),
                    SETTING,
                    ("qmd-trigger", header_value(trigger.name)),
                    ("qmd-rule", header_value(rule.name)),
                )
        except DeliveryFailed as failure:
            raise ActionFailed(str(failure), retry_after_s=failure.retry_after_s) from failure


def full_url(url: Url, trigger: Trigger, message: Message) -> str:
    """Return the URL with its parameters, percent-encoded."""
    if not url.parameters:
        return url.url
    values = {name: value_of(each, trigger, message) for name, each in url.parameters.items()}
    return f"{url.url}{'&' if '?' in url.url else '?'}{urlencode(values)}"
