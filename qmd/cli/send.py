"""`qmd send`: send one message, one many times, or one for each line."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import IO, TYPE_CHECKING, Any, cast

import click

from qmd.cli.completion import destinations
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.defined_properties import property_options, take_properties
from qmd.cli.parameters import duration, json_option, moment, number, whole_seconds
from qmd.cli.program import BadValue, Misuse
from qmd.cli.signing import signing_options, take_signer

if TYPE_CHECKING:
    import asyncio

    from qmd.client import Properties, Signer
    from qmd.client.new_message import Formatter

    # Called when the limit for a body is known.
    Messages = Callable[[int], AsyncIterator[tuple[Any, Properties]]]

ACKNOWLEDGE = (
    *("positive-arrival", "positive-receive", "negative-arrival", "negative-receive"),
    *("full-reach-queue", "full-receive", "nack-reach-queue", "nack-receive"),
)


def acknowledgments(text: str) -> int:
    """Parse the value of an option: words of ACKNOWLEDGE, separated by commas."""
    from qmd.client import Acknowledge

    wanted = Acknowledge(0)
    for word in text.split(","):
        if word not in ACKNOWLEDGE:
            raise BadValue("bad_acknowledge", f"{word!r} is not one of {', '.join(ACKNOWLEDGE)}")
        wanted |= Acknowledge[word.upper().replace("-", "_")]
    return int(wanted)


def body_type(text: str) -> int:
    """Parse the value of an option: a VT_ code by its name or number."""
    from protocol.body_type import parse_body_type
    from protocol.errors import InvalidName

    try:
        return parse_body_type(text)
    except InvalidName as error:
        raise BadValue("bad_body_type", error.rule) from error


def message_id(text: str) -> str:
    """Parse the value of an option: the id of a message, as `qmd send` prints it."""
    return _read("protocol.identifiers:parse_correlation", "bad_correlation_id", text)


def security_id(text: str) -> str:
    """Parse the value of an option: a security identifier of Windows."""
    return _read("protocol.security_id:parse_security_id", "bad_sender_id", text)


def guid(text: str) -> str:
    """Parse the value of an option: a GUID."""
    return _read("protocol.identifiers:guid_bytes", "bad_connector_type", text)


def _read(reader: str, code: str, text: str) -> str:
    """Return `text` if it is empty or `reader` can parse it.  --help must not load its module."""
    import importlib

    from protocol.errors import InvalidName

    module, _, name = reader.partition(":")
    try:
        if text:
            getattr(importlib.import_module(module), name)(text)
    except InvalidName as error:
        raise BadValue(code, f"{text!r} is not valid: it {error.rule}") from error
    return text


def queue_names(_context: click.Context, _option: click.Parameter, text: str | None) -> str:
    """Return the queues of an option, at least one; empty if it is not given."""
    if text is not None and not text.strip():
        raise BadValue("name_not_understood", "it names no queue")
    return text or ""


@click.command()
@click.argument("destination", shell_complete=destinations)
@click.argument("body", required=False)
@click.option("--body-base64", metavar="BASE64", help="The body, in base64.")
@click.option("--body-json", metavar="JSON", help="The body as a JSON value, see --formatter.")
@click.option(
    "--formatter",
    type=click.Choice(["xml", "binary", "activex", "json", "utf-16"]),
    help="Write the value of BODY (a text) or --body-json as applications on Windows do: xml is"
    " XmlMessageFormatter, binary BinaryMessageFormatter, activex ActiveXMessageFormatter,"
    " utf-16 a text without a mark."
    "  [default with --body-json: json]",
)
@click.option("--root", default="", metavar="NAME", help="The class of an object, for xml.")
@click.option(
    "--file",
    metavar="FILE",
    type=click.File("rb"),
    help="A file with the body; - is standard input.",
)
@click.option(
    "--each-line",
    is_flag=True,
    help="One message for each line of the file (or of standard input), without its newline.",
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    metavar="N",
    help="Send N messages; {n} in the label and in BODY is replaced by the number of each, from 1.",
)
@click.option("--label", default="", help="At most 249 characters.")
@click.option("--express", "delivery", flag_value="express", help="Keep it in memory only.")
@click.option("--recoverable", "delivery", flag_value="recoverable", help="Keep it on disk.")
@click.option(
    "--transactional",
    "delivery",
    flag_value="transactional",
    help="Exactly once and in order, each in its own transaction.  [default: by the kind of a "
    "local queue, else --recoverable]",
)
@click.option("--priority", type=click.IntRange(0, 7), metavar="0..7", default=3, show_default=True)
@click.option(
    "--time-to-reach-queue",
    type=whole_seconds,
    metavar="DURATION",
    help="The limit for its way to the queue, such as 30s, 5m, 4d, never.  [default: 4d]",
)
@click.option(
    "--time-to-be-received",
    type=whole_seconds,
    metavar="DURATION",
    help="The limit for the time until it is received.  [default: never]",
)
@click.option(
    "--dead-letter/--no-dead-letter",
    default=None,
    help="Keep it in a dead-letter queue when it cannot be delivered.  --dead-letter also "
    "requests that the destination of a transactional message confirm its receipt.  "
    "[default: keep it; request this if it has a time-to-be-received]",
)
@click.option(
    "--dead-letter-queue",
    default="",
    metavar="QUEUE",
    help="The dead-letter queue: a queue of this computer instead of the system's.",
)
@click.option("--journal", is_flag=True, help="Keep a copy in the journal when it was delivered.")
@click.option(
    "--body-type",
    type=body_type,
    default="0",
    metavar="TYPE",
    help="The VT_ code of the body, such as VT_LPWSTR, bstr, 8 or 0x8.",
)
@click.option(
    "--correlation-id",
    type=message_id,
    default="",
    metavar="ID",
    help="The id of the message to which it correlates.",
)
@click.option(
    "--application-tag", type=number, default="0", metavar="N", help="A number for the receiver."
)
@click.option("--extension-base64", metavar="BASE64", help="Bytes beside the body, in base64.")
@click.option(
    "--response-queue",
    callback=queue_names,
    metavar="QUEUE",
    help="The queue for answers; several: A,B.",
)
@click.option(
    "--admin-queue",
    callback=queue_names,
    metavar="QUEUE",
    help="The queue for acknowledgment messages; several: A,B.  Needs --acknowledge.",
)
@click.option(
    "--acknowledge",
    type=acknowledgments,
    metavar="WHICH",
    help=f"The requested acknowledgments, separated by commas: {', '.join(ACKNOWLEDGE)}.  Needs "
    "--admin-queue.",
)
@click.option(
    "--sender-id",
    type=security_id,
    default="",
    metavar="SID",
    help="The sender id, such as S-1-5-21-1-2-1001.",
)
@click.option(
    "--connector-type",
    type=guid,
    default="",
    metavar="GUID",
    help="The GUID of a connector application.",
)
@click.option(
    "--class",
    "message_class",
    type=number,
    default="0",
    metavar="N",
    help="A message class of a connector, such as 0x101.  Needs --connector-type.",
)
@click.option(
    "--report-queue",
    default="",
    metavar="QUEUE",
    help="Trace it: queue managers on its way report to this queue of this computer.",
)
@property_options
@click.option(
    "--deliver-at",
    type=moment,
    metavar="TIME",
    help="Do not deliver it before this time, such as 2026-12-24T18:00:00Z.",
)
@click.option(
    "--delay",
    type=duration,
    metavar="DURATION",
    help="Do not deliver it before this time has passed, such as 90s, 10m, 4d.",
)
@signing_options
@json_option
@pass_configuration
def send(
    configuration: Configuration,
    /,
    destination: str,
    body: str | None,
    body_base64: str | None,
    body_json: str | None,
    formatter: str | None,
    file: IO[bytes] | None,
    each_line: bool,
    count: int | None,
    delivery: str | None,
    acknowledge: int | None,
    extension_base64: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Send messages.

    Prints the id of each message once it is on disk (--express: in memory).  The body is BODY (as
    UTF-8), or comes from one of the options; by default it is empty.  With --json: {"id": ...,
    "destination": ...}, the destination in its canonical spelling.
    """
    if each_line and file is None:
        file = sys.stdin.buffer
    if sum(one is not None for one in (body, body_base64, body_json, file)) > 1:
        raise Misuse(
            "options_exclude", "give only one of BODY, --body-base64, --body-json and --file"
        )
    if formatter and (body_base64 is not None or file is not None):
        raise Misuse("options_exclude", "--formatter takes its value from BODY or --body-json")
    if each_line and count:
        raise Misuse("options_exclude", "--each-line and --count are mutually exclusive")
    if given["deliver_at"] is not None and given["delay"] is not None:
        raise Misuse("options_exclude", "--deliver-at and --delay are mutually exclusive")
    if bool(acknowledge) != bool(given["admin_queue"]):
        raise Misuse("option_needs_option", "--acknowledge and --admin-queue require each other")

    import asyncio

    from protocol.names.format_name import parse_destination

    signer = take_signer(given)
    parse_destination(destination, local_host=".")  # an invalid name is refused without a daemon
    given["acknowledge"] = acknowledge or 0
    take_properties(given)
    given["extension"] = _from_base64("--extension-base64", extension_base64 or "")
    properties = _properties(delivery, given)
    if each_line:
        assert file is not None
        messages = partial(_one_for_each_line, file, properties)
    elif file is not None:
        messages = partial(_from_file, file, count, properties)
    else:
        content: Any = _content(body, body_base64)
        if body_json is not None:
            content, formatter = _json_value(body_json), formatter or "json"
        if formatter:
            _check_writable(content, formatter, given["root"])
            properties["formatter"] = cast("Formatter", formatter)
        messages = partial(_repeated, content, count, properties)
    only_one = not each_line and count is None
    report = _Report(destination, None if each_line else count or 1, as_json=as_json)
    asyncio.run(_send(configuration, destination, messages, report, signer, only_one=only_one))


async def _send(
    configuration: Configuration,
    destination: str,
    messages: Messages,
    report: _Report,
    signer: Signer | None,
    *,
    only_one: bool,
) -> None:
    from protocol.names.format_name import parse_destination
    from qmd.client import new_message

    async with configuration.connect() as qm:
        report.canonical = str(parse_destination(destination, local_host=qm.name))
        given = messages(qm.message_bytes_max)
        if signer is not None:
            async for body, properties in given:
                message = await qm.sign(new_message(destination, body, **properties), signer)
                report.sent((await qm.send_many([message]))[0])
            report.end()
            return
        if only_one:
            async for body, properties in given:
                report.sent(await qm.send(destination, body, **properties))
            report.end()
            return
        unconfirmed: deque[asyncio.Future[str]] = deque()
        try:
            async with qm.sender(destination) as sender:
                async for body, properties in given:
                    unconfirmed.append(await sender.send(body, **properties))
                    _report_confirmed(unconfirmed, report)
        finally:  # also for messages before a refusal or Ctrl-C
            _report_confirmed(unconfirmed, report)
            report.end()


def _report_confirmed(unconfirmed: deque[asyncio.Future[str]], report: _Report) -> None:
    while unconfirmed and unconfirmed[0].done():
        future = unconfirmed.popleft()
        if not future.cancelled() and future.exception() is None:
            report.sent(future.result())


class _Report:
    """Prints ids as they are confirmed; on a terminal, one line for all of them."""

    def __init__(self, destination: str, expected: int | None, *, as_json: bool) -> None:
        from qmd.cli.progress import Progress

        self.canonical = destination
        self._as_json = as_json
        self._for_a_person = sys.stdout.isatty() and not as_json
        self._first = self._last = ""
        self._count = 0
        self._copies = 0  # of messages to several queues
        self._progress = Progress("sending", expected, enabled=expected != 1)

    def sent(self, message_id: str) -> None:
        from qmd.client.sent_id import SentId, copies_of

        copies = copies_of(message_id)
        self._count += 1
        self._copies += len(copies) if isinstance(message_id, SentId) else 0
        self._first, self._last = self._first or message_id, copies[-1]
        self._progress.advance()
        if self._as_json:
            from qmd.cli.output import print_json

            facts: dict[str, object] = {"id": message_id, "destination": self.canonical}
            if isinstance(message_id, SentId):
                facts["copies"] = list(copies)
            print_json(facts)
        elif not self._for_a_person:
            click.echo("\n".join(copies))

    def end(self) -> None:
        self._progress.finish()
        if self._for_a_person and self._count == 1 and self._copies:
            click.echo(
                f"sent {self._copies} copies to {self.canonical}, {self._first} to {self._last}"
            )
        elif self._for_a_person and self._count == 1:
            click.echo(f"sent {self._first} to {self.canonical}")
        elif self._for_a_person:
            numbers = f", {self._first} to {self._last}" if self._count else ""
            click.echo(f"sent {self._count} messages to {self.canonical}{numbers}")


def _properties(delivery: str | None, given: dict[str, Any]) -> Properties:
    """Convert checked options to the properties of the client."""
    for each in ("time_to_reach_queue", "time_to_be_received"):
        given[f"{each}_s"] = given.pop(each)
    given["delay_s"] = given.pop("delay") or 0
    given["delivery"] = delivery or "automatic"
    return cast("Properties", given)


def _content(body: str | None, body_base64: str | None) -> str | bytes:
    if body_base64 is None:
        try:
            (body or "").encode()
        except UnicodeEncodeError as error:
            raise Misuse(
                "argument_unsendable",
                "BODY is not UTF-8 text: give it with --file or --body-base64",
            ) from error
        return body or ""
    return _from_base64("--body-base64", body_base64)


def _json_value(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except ValueError as error:
        raise BadValue("bad_json_value", f"--body-json is no JSON: {error}") from error


def _check_writable(value: Any, formatter: str, root: str) -> None:
    """Raise BadValue unless the formatter can write a value."""
    from qmd.bodies.content import write_content
    from qmd.client import UnreadableBody

    try:
        write_content(value, formatter, root=root)
    except UnreadableBody as error:
        raise BadValue("value_not_written", f"--formatter {formatter}: {error.rule}") from error


def _from_base64(option: str, text: str) -> bytes:
    import base64

    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:  # also for characters that are not ASCII
        raise Misuse("not_base64", f"{option} is not base64 ({error})") from error


async def _from_file(
    file: IO[bytes], count: int | None, properties: Properties, body_bytes_max: int
) -> AsyncIterator[tuple[str | bytes, Properties]]:
    """Read a body from a file, unless the size of the file exceeds the limit."""
    import contextlib
    import os
    import stat

    from qmd.cli.lines import read
    from qmd.client import TooLarge

    size, body = 0, b""
    with contextlib.suppress(OSError):  # a stream in memory has no descriptor
        status = os.fstat(file.fileno())
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
    if size <= body_bytes_max:
        body = await read(file, body_bytes_max)
        size = len(body)
    if size > body_bytes_max:
        raise TooLarge(
            f"the file has {size if size > len(body) else f'more than {body_bytes_max}'} bytes;"
            f" {body_bytes_max} are allowed",
            "see message_bytes_max in the section [quotas] of the daemon's configuration",
            code="body_too_large",
        )
    async for each in _repeated(body, count, properties, body_bytes_max):
        yield each


async def _repeated(
    body: Any, count: int | None, properties: Properties, body_bytes_max: int
) -> AsyncIterator[tuple[Any, Properties]]:
    if count is None:
        yield body, properties
        return
    label = properties["label"]
    for index in range(1, count + 1):
        properties["label"] = label.replace("{n}", str(index))
        yield body.replace("{n}", str(index)) if isinstance(body, str) else body, properties


async def _one_for_each_line(
    stream: IO[bytes], properties: Properties, body_bytes_max: int
) -> AsyncIterator[tuple[str | bytes, Properties]]:
    from qmd.cli.lines import lines

    async for line in lines(stream, body_bytes_max):
        yield line, properties
