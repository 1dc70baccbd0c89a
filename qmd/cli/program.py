"""The common behaviour of commands: imports on demand, failures in one line, exit codes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn

import click

from qmd.runtime import standard_streams

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class ExitCode(IntEnum):
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNREACHABLE = 5
    NOTHING_THERE = 6
    NOT_DONE = 70  # EX_SOFTWARE of sysexits.h: a failure where 1 means that something was found
    CONFIGURATION = 78  # EX_CONFIG of sysexits.h
    INTERRUPTED = 130  # 128 and SIGINT, as in shells
    OUTPUT_CLOSED = 141  # 128 and SIGPIPE, as in shells


EXIT_CODES = """\b
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 refused,
5 daemon unreachable, 6 nothing there in time, 70 an audit failed,
78 wrong configuration, 130 interrupted, 141 the reader of the output has ended.
"""


_SENTENCE_MAX = 1000  # characters: click would cut a sentence where a line ends

#: Errors of the daemon or the client about invalid arguments.
_WRONG_USAGE = frozenset({"argument_unsendable", "bad_lookup_id", "not_a_message_id"})


class Failure(click.ClickException):
    """An error in one line on standard error: its id, what failed, why, and the remedy.

    `error` is its code in `qmd.catalogue`; `id` its id, if the daemon has sent one.
    """

    #: Further errors, each on its own line: of a configuration with several errors.
    others: Sequence[Failure] = ()

    def __init__(
        self,
        code: ExitCode,
        message: str,
        error: str = "",
        *,
        id: str = "",
        has_remedy: bool = False,
    ) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # by class in click, by case here
        if error and not id:
            from qmd.catalogue import id_of

            id = id_of(error)
        self.id = id
        self._has_remedy = has_remedy

    def show(self, file: Any = None) -> None:
        color = False if os.environ.get("NO_COLOR") else None
        from qmd.cli.output import printable

        text = self.message if self._has_remedy else self._with_remedy()
        one_line = printable(" ".join(text.split()))  # names can come from peers
        line = f"error {self.id}: {one_line}" if self.id else one_line
        # One write, because the thread that writes the log could write a line between two.
        click.echo(click.style("qmd: ", fg="red") + line, err=True, file=file, color=color)
        for other in self.others:
            other.show(file)

    def _with_remedy(self) -> str:
        """Return the message, with the remedy of the catalogue unless it contains one."""
        from qmd.catalogue import find

        entries = find(self.id).entries if self.id else []
        if not entries or "; " in self.message:
            return self.message
        return f"{self.message.rstrip('.')}; {_continued(entries[0].remedy)}"


class Misuse(click.UsageError):
    """Wrong usage that has its own code in `qmd.catalogue`."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(message)
        self.error = error


class BadValue(click.BadParameter):
    """A wrong value of an option or argument that has its own code in `qmd.catalogue`."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(message)
        self.error = error


class Group(click.Group):
    """A command with commands; its help has the first sentence of each as a whole."""

    group_class = type  # the groups below it too

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.list_commands(ctx)))
        for title, names in self.sections(ctx).items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [
                (name.ljust(width), command.get_short_help_str(_SENTENCE_MAX))
                for name, command in commands
                if command is not None and not command.hidden
            ]
            with formatter.section(title):
                formatter.write_dl(rows)

    def sections(self, ctx: click.Context) -> Mapping[str, Sequence[str]]:
        """Return the names of the commands by the headings above them."""
        return {"Commands": self.list_commands(ctx)}


class Program(Group):
    """The root command: `commands_at` names the module of each command.

    `sections` divides their names in its help; without them they are one list.
    """

    def __init__(
        self,
        *args: Any,
        commands_at: Mapping[str, str],
        sections: Mapping[str, Sequence[str]] | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*args, **named)
        self._commands_at = commands_at
        self._sections = sections or {"Commands": list(commands_at)}

    def sections(self, ctx: click.Context) -> Mapping[str, Sequence[str]]:
        return self._sections

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._commands_at:
            return None
        module, _, name = self._commands_at[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Return the commands and options that begin so; bash shows no help, and imports none."""
        if os.environ.get("_QMD_COMPLETE") != "bash_complete":
            return super().shell_complete(ctx, incomplete)
        from click.shell_completion import CompletionItem

        fitting = [name for name in self._commands_at if name.startswith(incomplete)]
        # A group would add its commands; a command has its options only.
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name) for name in fitting), *options]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], self._commands_at)
            if near and "such command" in error.message:
                hint = f"{error.message.rstrip('.')}; did you mean {' or '.join(near)}?"
                raise click.UsageError(hint, ctx=error.ctx) from error
            raise

    def make_context(self, *args: Any, **named: Any) -> click.Context:
        standard_streams.open_closed()
        with reported():
            return super().make_context(*args, **named)

    def invoke(self, ctx: click.Context) -> Any:
        with reported():
            return super().invoke(ctx)


@contextmanager
def reported() -> Iterator[None]:
    """Convert every error in the block into a Failure."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "qmd"
        message = f"{error.format_message().rstrip('.')}; see '{command} --help'"
        code = error.error if isinstance(error, Misuse | BadValue) else "wrong_usage"
        raise Failure(ExitCode.USAGE, message, code) from error
    except KeyboardInterrupt:
        raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:  # as with `head`: the reader has enough
        drop_output()
        raise click.exceptions.Exit(ExitCode.OUTPUT_CLOSED) from None
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:
        failure = _explain(error)
        if failure is None:
            raise
        if standard_streams.is_closed(error):
            drop_output()
        raise failure from error


def end_with(error: BaseException) -> NoReturn:
    """End the process for `error` as a command ends."""
    try:
        with reported():
            raise error
    except click.ClickException as failure:
        failure.show()
        sys.exit(failure.exit_code)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)


def _continued(sentence: str) -> str:
    """Return a sentence as it continues after a semicolon; a leading name keeps its capitals."""
    return sentence[0].lower() + sentence[1:] if sentence[1:2].islower() else sentence


def drop_output() -> None:
    """Discard data that is still buffered for a closed standard output, without an error."""
    with suppress(OSError):  # a stream in memory
        descriptor = sys.stdout.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def _said_by_the_system(error: OSError) -> str:
    """Return the name of the file, and its error."""
    if cause := standard_streams.explain(error):
        return cause
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{os.fsdecode(error.filename)}: {error.strerror}"


def _explain(error: Exception) -> Failure | None:
    """Return `error` as a Failure for the user; None for an internal error."""
    from protocol.errors import InvalidName
    from qmd.client import errors
    from qmd.config.file import ConfigError

    match error:
        case ConfigError():
            failure = Failure(ExitCode.CONFIGURATION, str(error), error.code)
            failure.others = [
                Failure(ExitCode.CONFIGURATION, str(other), other.code) for other in error.others
            ]
            return failure
        case InvalidName():
            return Failure(
                ExitCode.USAGE, f"the name cannot be read: {error}", "name_not_understood"
            )
        case errors.NoSuchQueue() | errors.NoSuchMessage():
            return Failure(
                ExitCode.NOT_FOUND, str(error), id=error.id, has_remedy=bool(error.remedy)
            )
        case errors.BadName():
            return Failure(ExitCode.USAGE, str(error), id=error.id, has_remedy=bool(error.remedy))
        case errors.BadRequest() if error.code in _WRONG_USAGE:
            return Failure(ExitCode.USAGE, str(error), id=error.id, has_remedy=bool(error.remedy))
        case errors.QueueManagerError():
            return Failure(ExitCode.REFUSED, str(error), id=error.id, has_remedy=bool(error.remedy))
        case errors.NotConnected() | errors.OutcomeUnknown():
            return Failure(
                ExitCode.UNREACHABLE, str(error), id=error.id, has_remedy=bool(error.remedy)
            )
        case errors.ClientError():
            return Failure(ExitCode.FAILED, str(error), id=error.id, has_remedy=bool(error.remedy))
        case UnicodeEncodeError() if error.reason == "surrogates not allowed":
            return Failure(
                ExitCode.USAGE, f"{error.object!r} is not UTF-8 text", "argument_unsendable"
            )
        case OSError():
            return Failure(ExitCode.FAILED, _said_by_the_system(error), "file_failed")
    return None
