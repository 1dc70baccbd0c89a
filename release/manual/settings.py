"""The page qmd.toml(5), from the declarations of the settings."""

from __future__ import annotations

from qmd.cli.configuration import Configuration
from qmd.config.file import toml_value
from qmd.config.settings import SECTIONS, settings_of
from release.manual.roff import bold, page, prose

NAME = "qmd.toml"


def page_of_settings(*, at: str, source: str) -> str:
    """Return the page of the configuration file."""
    body = [".SH SYNOPSIS", bold(str(Configuration.DEFAULT)), ".SH DESCRIPTION"]
    for paragraph in (
        "The configuration of a queue manager, in TOML. `qmd init` writes one with every key, its"
        " default and its meaning; `qmd config check` checks one, and `qmd config show` prints the"
        " values that are used, with the source of each.",
        "Durations have a unit (500ms, 30s, 5m, 12h, 4d), sizes too (64KiB, 500MB, 8GB).",
    ):
        body += [".PP", prose(paragraph)]
    for section, declaration in SECTIONS.items():
        body += [f".SH [{section}]", prose(declaration.__doc__ or "")]
        for key, setting in settings_of(section).items():
            body += [".TP", bold(f"{key} = {toml_value(setting.default)}"), prose(setting.meaning)]
            body += [".br", prose(f"Allowed: {setting.kind.allowed}.")]
    body += [".SH ENVIRONMENT", ".TP", bold("QMD_SECTION_KEY")]
    body += [prose("Overrides a key: QMD_LISTEN_PORT is `port` in the section [listen].")]
    body += [".SH SEE ALSO", prose("qmd(1), qmd-init(1), qmd-config(1)")]
    title = "the configuration of a qmd queue manager"
    return page(NAME, 5, title=title, body=body, at=at, source=source)
