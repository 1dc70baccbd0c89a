"""Requests about the configuration of the running queue manager."""

from __future__ import annotations

from qmd.control_protocol.messages import Request, add_verbs


class ShowSettings(Request, tag="show_settings", frozen=True):
    """Return the settings in use, as text. -> {`section.key`: text, ...}"""


class ReloadSettings(Request, tag="reload_settings", frozen=True):
    """Read the configuration again, as on SIGHUP. -> {changed, needs_restart, error}"""


SettingsRequest = ShowSettings | ReloadSettings

add_verbs(SettingsRequest)
