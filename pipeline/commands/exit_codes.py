"""Exit codes of commands that have findings: 1 means findings, and 70 that the command failed."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import click

from qmd.cli.program import ExitCode, Failure, reported

FOUND = 1  # an audit has findings, or an objective is missed

F = TypeVar("F", bound=Callable[..., Any])


def apart_from_findings(command: F) -> F:
    """Give failures another exit code, for a command with exit code 1 for findings."""

    @functools.wraps(command)
    def with_own_exit_code(*args: Any, **named: Any) -> Any:
        try:
            with reported():
                return command(*args, **named)
        except Failure as failure:
            if failure.exit_code == ExitCode.FAILED:
                failure.exit_code = ExitCode.NOT_DONE  # type: ignore[misc]  # as in Failure
            raise
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception:  # an error in qmd or Spark; the traceback shows where
            traceback.print_exc()
            raise click.exceptions.Exit(ExitCode.NOT_DONE) from None

    made: Any = with_own_exit_code
    return made  # type: ignore[no-any-return]  # the same signature and options


def kinds_of(text: str, known: Collection[str]) -> frozenset[str]:
    """Return the kinds of findings that count: `any`, `none`, or names of `known`.

    Raises BadParameter for unknown names and for no name: an unset variable is no `none`.
    """
    if text in ("any", "none"):
        return frozenset(known if text == "any" else ())
    words = frozenset(filter(None, text.replace(" ", ",").split(",")))
    unknown = sorted(words - set(known))
    if unknown or not words:
        which = f"there is no finding {unknown[0]!r}" if unknown else "it names no finding"
        raise click.BadParameter(
            f"{which}; there are: any, none, {', '.join(known)}", param_hint="--fail-on"
        )
    return words
