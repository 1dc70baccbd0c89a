"""The options of `qmd send` for the properties that an application defines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from qmd.cli.program import BadValue

_OPTIONS = (
    click.option(
        "--property",
        "properties",
        multiple=True,
        metavar="NAME=TEXT",
        help="A property of the application, or NAME:=JSON for a number, true, false or null.  Can"
        " be repeated.",
    ),
    click.option("--group", default="", metavar="ID", help="The group of the message."),
    click.option("--content-type", default="", metavar="TYPE", help="The MIME type of the body."),
)


def property_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which passes their values to `take_properties`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_properties(given: dict[str, Any]) -> None:
    """Replace the texts of `properties` by their names and values.  Raises BadValue."""
    given["properties"] = properties = dict(map(_property, given["properties"]))
    if properties:
        from qmd.properties.block import BadProperty, with_properties
        from qmd.properties.values import MessageProperties

        try:
            with_properties(MessageProperties(properties))
        except BadProperty as error:
            raise BadValue("bad_property", str(error)) from error


def _property(text: str) -> tuple[str, Any]:
    import json

    name, equals, value = text.partition("=")
    is_json = name.endswith(":")
    name = name.removesuffix(":")
    if not equals or not name:
        raise BadValue("bad_property", f"{text!r} is not NAME=TEXT or NAME:=JSON")
    if not is_json:
        return name, value
    try:
        return name, json.loads(value)
    except ValueError as error:
        raise BadValue(
            "bad_property", f"the value of property {name} is no JSON: {error}"
        ) from error
