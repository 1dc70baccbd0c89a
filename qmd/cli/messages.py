"""Common parts of `receive` and `peek`: the options that choose messages, and their output."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from qmd.cli.choice import filter_options
from qmd.cli.output import printable
from qmd.cli.parameters import duration, json_option, queue_argument
from qmd.cli.program import ExitCode, Misuse, drop_output

if TYPE_CHECKING:
    from qmd.bodies.content import Content
    from qmd.cli.interrupt import Interrupt
    from qmd.client import Choice, Message

BODY_CHARACTERS_MAX = 60  # of the beginning of a body, in a table

_UTF_16 = frozenset({"VT_LPWSTR", "VT_BSTR"})  # as Windows writes them, and reports of qmd


@dataclass(frozen=True, slots=True)
class Wanted:
    """The chosen messages, the time to wait for each, and the form of the output."""

    count: int | None  # None: all that are there, or all that will come
    follow: bool
    timeout_s: float | None
    as_json: bool
    body_only: bool
    choice: Choice | None = None  # None: any message
    content: bool = False  # whether bodies are decoded

    def left(self, count: int, batch: int) -> int:
        """Return how many messages to request next after `count` were printed; 0 is the end."""
        return batch if self.count is None else min(batch, self.count - count)


def reading_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add options that are passed as one `wanted`."""

    @queue_argument()
    @click.option("--all", "all_", is_flag=True, help="All messages that are there now.")
    @click.option(
        "--count",
        "--limit",
        "count",
        type=click.IntRange(min=1),
        metavar="N",
        help="At most N messages; the exit code is 6 when there are fewer.",
    )
    @click.option(
        "--follow", is_flag=True, help="All messages, and those that arrive later, until Ctrl-C."
    )
    @click.option(
        "--timeout",
        type=duration,
        help="The time to wait for each message, such as 5s.  [default: no wait; --follow: no "
        "limit]",
    )
    @click.option("--body-only", is_flag=True, help="Print only the bodies, unchanged.")
    @click.option(
        "--content",
        is_flag=True,
        help="Decode bodies: XML, objects and values of .NET and COM, JSON, UTF-16. With --json as"
        " `content`, with --body-only as text.",
    )
    @filter_options
    @json_option
    @functools.wraps(command)
    def with_wanted(
        *arguments: Any,
        all_: bool,
        count: int | None,
        follow: bool,
        timeout: float | None,
        body_only: bool,
        content: bool,
        filters: dict[str, Any],
        as_json: bool,
        **named: Any,
    ) -> None:
        if sum((all_, count is not None, follow)) > 1:
            raise Misuse("options_exclude", "--all, --count and --follow are mutually exclusive")
        if body_only and as_json:
            raise Misuse("options_exclude", "--body-only and --json are mutually exclusive")
        if timeout is None and not follow:
            timeout = 0.0
        choice = None
        if any(filters.values()):
            from qmd.client import chosen

            choice = chosen(**filters)
        left = None if all_ or follow else count or 1
        wanted = Wanted(left, follow, timeout, as_json, body_only, choice, content)
        command(*arguments, wanted=wanted, **named)

    return with_wanted


def end(context: click.Context, wanted: Wanted, count: int, *, interrupted: bool) -> None:
    """Exit with a code that says whether all requested messages were printed."""
    if interrupted:
        context.exit(ExitCode.INTERRUPTED)
    if wanted.count is not None and count < wanted.count:
        if sys.stderr.isatty():  # a script has the exit code
            found = f"{count} of {wanted.count} messages were" if count else "no message was"
            click.echo(f"{found} there in time; --timeout waits for more", err=True)
        context.exit(ExitCode.NOTHING_THERE)


class Printer:
    """A printer of messages in batches, which flushes the output after each batch."""

    def __init__(self, wanted: Wanted) -> None:
        from qmd.cli.progress import Progress

        self.count = 0
        self._wanted = wanted
        self._progress = Progress(
            "reading", wanted.count, enabled=wanted.count != 1 and not sys.stdout.isatty()
        )

    def print(self, messages: Sequence[Message]) -> None:
        """Print messages.  Raises BrokenPipeError when the reader of the output has ended."""
        for message in messages:
            self._print(message)
        sys.stdout.flush()
        self._progress.advance(len(messages))

    async def print_read(self, messages: Sequence[Message], interrupt: Interrupt) -> int:
        """Print messages until the reader of the output ends; return how many it has read.

        Into a pipe one message is written at a time, and the next one only when the pipe is empty
        again: so `receive ... | head -3` removes the three messages that `head` has read, and not
        all that fit into the buffer of the pipe.  Other outputs accept all messages.
        """
        from qmd.cli.pipe import Pipe

        pipe = Pipe.of_output()
        if pipe is None:
            self.print(messages)
            return len(messages)
        for number, message in enumerate(messages):
            if pipe.has_ended():
                return number
            try:
                self.print([message])
            except BrokenPipeError:
                drop_output()
                return number
            if not await pipe.emptied(interrupt):
                return number
        return len(messages)

    def end(self) -> None:
        self._progress.finish()

    def _print(self, message: Message) -> None:
        self.count += 1
        if self._wanted.body_only:
            body = message.body
            if self._wanted.content:
                body = _content(message)[1].encode("utf-8", "surrogatepass")
            sys.stdout.buffer.write(body)
            if self._wanted.count != 1 or sys.stdout.isatty():
                sys.stdout.buffer.write(b"\n")
        elif self._wanted.as_json:
            properties = message.to_json()
            if self._wanted.content:
                content, _ = _content(message)
                properties |= {"content_format": content.format, "content": content.to_json()}
                bus = message.bus_headers
                if bus is not None:
                    properties["bus_headers"] = bus.to_json()
            sys.stdout.write(json.dumps(properties) + "\n")
        else:
            self._print_row(message)

    def _print_row(self, message: Message) -> None:
        if self.count == 1:
            heading = _row("LOOKUP ID", "SENT", "DELIVERY", "PRIORITY", "BYTES", "LABEL", "BODY")
            click.secho(heading, bold=True)
        body = message.body
        if self._wanted.content:
            text = printable(_content(message)[1][:BODY_CHARACTERS_MAX])
        else:
            encoding = "utf-16-le" if message.body_type_name in _UTF_16 else "utf-8"
            text = printable(body[: 4 * BODY_CHARACTERS_MAX].decode(encoding, "replace"))
        click.echo(
            _row(
                str(message.lookup_id),
                f"{message.sent_at:%Y-%m-%d %H:%M:%SZ}",
                message.delivery,
                str(message.priority),
                str(len(body)),
                printable(message.label) or "-",
                text[:BODY_CHARACTERS_MAX] or "-",
            )
        )
        if message.message_class != "normal":
            id = message.message_class_id
            click.echo(
                f"    {message.message_class}: {message.message_class_sentence}"
                + (f" ({id})" if id else "")
            )
        if message.reason:
            click.echo(f"    here because: {printable(message.reason)}")
        bus = message.bus_headers if self._wanted.content else None
        if bus is not None:
            click.echo(f"    {printable(bus.summary)}")


def _content(message: Message) -> tuple[Content, str]:
    """Return the content of a body and its text; of one that cannot be read or shown, the bytes."""
    from qmd.client import UnreadableBody

    try:
        content = message.content
        return content, content.text
    except UnreadableBody:
        content = message.content_as("bytes")
        return content, content.text


def _row(lookup_id: str, sent: str, delivery: str, priority: str, size: str, *texts: str) -> str:
    label, body = texts
    return (
        f"{lookup_id:>16}  {sent:20}  {delivery:13}  {priority:>8}  {size:>8}  {label:24}  {body}"
    )
