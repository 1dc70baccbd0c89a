"""The man page of each command, from its declaration for click."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from qmd.cli import COMMANDS, main
from qmd.cli.configuration import Configuration
from qmd.cli.program import EXIT_CODES
from release.manual.roff import bold, escape, page, paragraphs, prose


def commands() -> Iterator[click.Context]:
    """Return the context of `qmd` and of every command below it, parents first."""
    yield from _below(_context(main, None, "qmd"))


def names() -> list[str]:
    """Return the names of all pages of commands, such as qmd-queue-create."""
    return [page_name(context) for context in commands()]


def page_name(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def page_of(context: click.Context, *, at: str, source: str) -> str:
    """Return the page of the command of a context."""
    command = context.command
    body = [".SH SYNOPSIS", *_synopsis(context)]
    body += [".SH DESCRIPTION", *paragraphs(_description(command))]
    if isinstance(command, click.Group):
        body += [".SH COMMANDS", *_subcommands(context)]
    body += [".SH OPTIONS", *_options(context)]
    if context.parent is not None:
        body += [".PP", prose("The options of qmd(1) stand before the command.")]
    else:
        body += [".SH ENVIRONMENT", *_environment(context)]
    if command.epilog and command.epilog != EXIT_CODES:
        body += [".SH NOTES", *paragraphs(inspect.cleandoc(command.epilog))]
    body += [".SH EXIT STATUS", *_exit_status()]
    body += [".SH FILES", ".TP", bold(str(Configuration.DEFAULT))]
    body += [prose("The configuration, unless --config or QMD_CONFIG names another: qmd.toml(5).")]
    body += [".SH SEE ALSO", ", ".join(map(prose, _related(context)))]
    return page(page_name(context), 1, title=_summary(command), body=body, at=at, source=source)


def _context(command: click.Command, parent: click.Context | None, name: str) -> click.Context:
    return click.Context(command, parent=parent, info_name=name, max_content_width=100)


def _below(context: click.Context) -> Iterator[click.Context]:
    yield context
    for each in _children(context):
        yield from _below(each)


def _children(context: click.Context) -> list[click.Context]:
    if not isinstance(context.command, click.Group):
        return []
    found = []
    for name in context.command.list_commands(context):
        command = context.command.get_command(context, name)
        if command is not None and not command.hidden:
            found.append(_context(command, context, name))
    return found


def _description(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "")


def _summary(command: click.Command) -> str:
    """Return the first sentence of its help as one line, without the full stop."""
    first = _description(command).partition("\n\n")[0]
    return " ".join(first.split()).partition(". ")[0].rstrip(".")


def _synopsis(context: click.Context) -> list[str]:
    pieces = " ".join(context.command.collect_usage_pieces(context))
    return [f"{bold(context.command_path)} {escape(pieces)}"]


def _subcommands(context: click.Context) -> list[str]:
    lines = []
    for each in _children(context):
        assert each.info_name is not None
        lines += [
            ".TP",
            bold(each.info_name),
            prose(f"{_summary(each.command)}; {page_name(each)}(1)."),
        ]
    return lines


def _options(context: click.Context) -> list[str]:
    lines = []
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1]:  # an argument stands in the description
            lines += [".TP", bold(record[0]), prose(record[1])]
    return lines


def _environment(context: click.Context) -> list[str]:
    lines = []
    for parameter in context.command.params:
        if parameter.envvar is not None:
            lines += [".TP", bold(str(parameter.envvar)), prose(f"As {parameter.opts[-1]}.")]
    lines += [".TP", bold("QMD_TOKEN"), prose("The token itself, instead of a file with it.")]
    lines += [".TP", bold("NO_COLOR"), prose("If it is set, nothing is printed in color.")]
    lines += [".TP", bold("QMD_SECTION_KEY")]
    return [*lines, prose("A setting, such as QMD_LISTEN_PORT: qmd.toml(5).")]


def _exit_status() -> list[str]:
    """Return the table of `EXIT_CODES`, one row for each code."""
    listed = " ".join(EXIT_CODES.replace("\b", "").split()).partition(": ")[2].rstrip(".")
    lines = []
    for each in listed.split(", "):
        code, _, meaning = each.partition(" ")
        lines += [".TP", bold(code), prose(f"{meaning[0].upper()}{meaning[1:]}.")]
    return lines


def _related(context: click.Context) -> list[str]:
    if context.parent is None:
        return [*(f"qmd-{name}(1)" for name in COMMANDS), "qmd.toml(5)"]
    parents = [context.parent]
    if context.parent.parent is not None:
        parents.insert(0, context.parent.parent)
    siblings = [each for each in _children(context.parent) if each.info_name != context.info_name]
    near = siblings if context.parent.parent is not None else []
    return [*(f"{page_name(each)}(1)" for each in (*parents, *near)), "qmd.toml(5)"]
