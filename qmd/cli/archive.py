"""`qmd export` and `qmd import`: messages as lines of JSON, out of a queue and into one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from qmd.cli.choice import dry_run_option, filter_options
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.output import counted
from qmd.cli.packed_lines import SUFFIX, BrokenPacking, rows, unpacked, written
from qmd.cli.parameters import json_option, queue_argument
from qmd.cli.partial_export import (
    LINE_BYTES_MAX,
    NOTHING,
    Resumed,
    copy_complete_lines,
    open_private,
    part_of,
    remove_if_empty,
)
from qmd.cli.program import ExitCode, Failure

if TYPE_CHECKING:
    from qmd.client import QueueManager
    from qmd.control_protocol.messages import ImportedMessage

BATCH_MESSAGES = 256  # imported in one commit
BATCH_BYTES = 8 * 1024 * 1024


@click.command("export")
@queue_argument("queue")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@filter_options
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--resume", is_flag=True, help="Go on where the same command was interrupted: after FILE.part."
)
@dry_run_option
@json_option
@pass_configuration
def export(
    configuration: Configuration,
    queue: str,
    file: Path | None,
    filters: dict[str, Any],
    overwrite: bool,
    resume: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Write messages of QUEUE to FILE, one per line.

    The default for FILE is standard output.  The messages stay in the queue.  `qmd import` puts
    them into a queue again, with all of their properties.  A FILE with a name that ends in .gz is
    compressed with gzip, to a fraction of its size.

    A command that is interrupted leaves FILE.part, and with --resume it goes on there: messages
    that are at earlier places by then are not looked at again.
    """
    import asyncio

    if file is not None and file.exists() and not overwrite:
        raise Failure(ExitCode.FAILED, f"{file} exists already; add --overwrite", "file_exists")
    if resume and (file is None or dry_run):
        raise click.UsageError("--resume needs FILE, and no --dry-run")
    try:
        count = asyncio.run(
            _export(configuration, queue, None if dry_run else file, filters, dry_run, resume)
        )
    except KeyboardInterrupt:
        if file is not None and not dry_run:
            click.echo(
                f"interrupted: {file} was not written, and the queue is unchanged; the same command"
                f" with --resume goes on after {part_of(file)}",
                err=True,
            )
        raise
    _report("exported", count, queue, dry_run=dry_run, as_json=as_json, err=file is None)


async def _export(
    configuration: Configuration,
    queue: str,
    file: Path | None,
    filters: dict[str, Any],
    dry_run: bool,
    resume: bool,
) -> int:
    async with configuration.connect() as qm:
        if file is None:
            return await _write(qm, queue, sys.stdout.buffer, filters, dry_run)
        part = part_of(file)
        if resume and not part.exists():
            raise click.UsageError(f"there is no {part} to go on with; export without --resume")
        path = part.with_name(f"{part.name}.new") if resume else part
        try:
            with open_private(path) as output:
                with written(output, packed=file.suffix == SUFFIX) as lines:
                    done = NOTHING
                    if resume:
                        name = (await qm.show_queue(queue))["name"]
                        done = copy_complete_lines(part, lines, name)
                        path = path.replace(part)
                    count = await _write(qm, queue, lines, filters, dry_run, done)
                output.flush()
                os.fsync(output.fileno())
        except OSError:  # such as a full disk: the part must not fill it
            path.unlink(missing_ok=True)
            raise
        except BaseException:
            remove_if_empty(part)
            raise
        finally:
            part.with_name(f"{part.name}.new").unlink(missing_ok=True)
        part.replace(file)  # complete, or not at all
        return count


async def _write(
    qm: QueueManager,
    queue: str,
    output: IO[bytes],
    filters: dict[str, Any],
    dry_run: bool,
    done: Resumed = NOTHING,
) -> int:
    """Write messages one by one: at most one answer of the daemon is in memory.

    Return their number, with those that were written before.
    """
    from qmd.cli.progress import Progress
    from qmd.client import chosen
    from qmd.client.archive import line_of

    choice = chosen(**filters)
    count = done.lines
    clock_s = int((await qm.status())["clock_s"])
    shown = await qm.show_queue(queue)
    name = shown["name"]
    # Progress is not shown on a terminal that shows the lines.
    progress = Progress("exporting", int(shown["messages"]), enabled=not _is_terminal(output))
    progress.advance(done.lines)
    try:
        async for message in qm.peek_each(queue, done.start, where=choice.where):
            progress.advance()
            if message.is_among(choice):
                count += 1
                if not dry_run:
                    output.write(line_of(message, name, clock_s).encode() + b"\n")
    finally:
        progress.finish()
    output.flush()
    return count


def _is_terminal(output: IO[bytes]) -> bool:
    return output is sys.stdout.buffer and sys.stdout.isatty()


class _Batch(NamedTuple):
    """Messages of some lines; `line` is the number of the last one."""

    messages: list[ImportedMessage]
    line: int


@click.command("import")
@queue_argument("queue")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--start-line", type=click.IntRange(min=1), default=1, help="The line to begin with.")
@click.option(
    "--position",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Keep the position of the import in FILE; the same command continues there "
    "without duplicates.",
)
@dry_run_option
@json_option
@pass_configuration
def import_(
    configuration: Configuration,
    queue: str,
    file: Path | None,
    start_line: int,
    position: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Put exported messages from FILE into QUEUE, unchanged.

    The default for FILE is standard input.  A file is checked completely first; one broken line
    prevents its import.  Then batches of lines are imported, each of them as a whole or not at all.
    A file that grows meanwhile is imported as it was at the beginning.  A file compressed with gzip
    is decompressed.
    """
    import asyncio

    try:
        with sys.stdin.buffer if file is None else file.open("rb") as lines:
            checked = None
            # A pipe can be read once: it is imported like standard input.
            if file is not None and file.is_file():
                checked = _checked(file, start_line, os.fstat(lines.fileno()).st_size)
            count = asyncio.run(
                _import(configuration, queue, lines, start_line, position, dry_run, checked)
            )
            if checked is not None and os.fstat(lines.fileno()).st_size > checked.size_bytes:
                click.echo(
                    f"{file} has grown meanwhile: its lines up to {checked.line} were read; the"
                    f" next one is --start-line {checked.line + 1}",
                    err=True,
                )
    except BrokenPacking as broken:
        name = "standard input" if file is None else file
        raise Failure(
            ExitCode.USAGE, f"{name} cannot be imported: {broken}", "line_broken"
        ) from broken
    _report("imported", count, queue, dry_run=dry_run, as_json=as_json, err=False)


class _Checked(NamedTuple):
    """A file that was checked up to its size at that time."""

    size_bytes: int
    line: int  # the last one
    messages: int


def _checked(file: Path, start_line: int, size_bytes: int) -> _Checked:
    """Check the first bytes of a file.  Raises Failure for a broken line, and BrokenPacking."""
    from qmd.cli.progress import Progress

    progress = Progress("checking", None, enabled=True)
    last, count, number = b"", 0, 0

    def lines() -> Iterator[bytes]:
        nonlocal last, number
        for number, last in enumerate(rows(file, LINE_BYTES_MAX, size_bytes), 1):  # noqa: B007
            yield last

    try:
        for batch in _batches(lines(), start_line):
            count += len(batch.messages)
            progress.advance(len(batch.messages))
    except Failure as broken:
        if last.endswith(b"\n") or len(last) > LINE_BYTES_MAX:
            raise
        raise Failure(
            ExitCode.USAGE,
            f"{file} ends in the middle of line {number}, and nothing is imported. If it is still"
            " written, import it when it is complete",
            "line_broken",
        ) from broken
    finally:
        progress.finish()
    return _Checked(size_bytes, number, count)


async def _import(
    configuration: Configuration,
    queue: str,
    lines: IO[bytes],
    start_line: int,
    position: Path | None,
    dry_run: bool,
    checked: _Checked | None,
) -> int:
    """Import lines; `checked` says how far, or is None for a pipe, which is read to its end."""
    from qmd.cli.progress import Progress

    count = 0
    size_bytes = expected = None
    if checked is not None:
        size_bytes, expected = checked.size_bytes, checked.messages
    progress = Progress("importing", expected, enabled=not lines.isatty())
    async with configuration.connect() as qm:
        done_line = start_line - 1
        if position is not None:
            done_line = max(done_line, await _line_of(qm, position, queue))
        try:
            async for batch in _read(lines, done_line + 1, size_bytes):
                token = os.urandom(16)
                if position is not None and not dry_run:
                    _save(position, queue, done_line, batch.line, token)
                imported = await qm.import_messages(
                    queue, batch.messages, dry_run=dry_run, token=token
                )
                count += imported
                progress.advance(imported)
                done_line = batch.line
                if position is not None and not dry_run:
                    _save(position, queue, done_line, done_line, b"")
        except BaseException:
            progress.finish()
            if done_line >= start_line and not dry_run:
                click.echo(
                    f"lines {start_line} to {done_line} are imported; continue with --start-line "
                    f"{done_line + 1}",
                    err=True,
                )
            raise
    progress.finish()
    return count


async def _read(
    stream: IO[bytes], start_line: int, size_bytes: int | None
) -> AsyncIterator[_Batch]:
    """Iterate over the batches of the first bytes of a file, or of a pipe.

    A thread checks the lines, because the event loop must not block; the lines are read without a
    thread, because a thread that waits for a terminal would delay Ctrl-C.  Raises Failure, with the
    number of the line, for a broken one.
    """
    import asyncio

    from qmd.cli.lines import chunks, split

    loop = asyncio.get_running_loop()
    end = object()

    async def checked(some: list[bytes], first: int) -> AsyncIterator[_Batch]:
        batches = _batches(some, start_line, first)
        while (batch := await loop.run_in_executor(None, next, batches, end)) is not end:
            assert isinstance(batch, _Batch)
            yield batch

    held: list[bytes] = []
    size = first = 0
    async for row in split(unpacked(chunks(stream, size_bytes)), LINE_BYTES_MAX):
        held.append(row)
        size += len(row)
        if len(held) == BATCH_MESSAGES or size >= BATCH_BYTES:
            async for batch in checked(held, first + 1):
                yield batch
            first += len(held)
            held, size = [], 0
    async for batch in checked(held, first + 1):
        yield batch


def _batches(lines: Iterable[bytes], start_line: int, first: int = 1) -> Iterator[_Batch]:
    """Iterate over the batches of lines, of which the first has the number `first`.

    Lines before `start_line` are skipped.  Raises Failure, with the number of the line, for a
    broken one.
    """
    from qmd.client.archive import BrokenLine, read_line

    messages: list[ImportedMessage] = []
    size = 0
    number = start_line - 1
    for number, line in enumerate(lines, first):
        if number < start_line or not line.strip():
            continue
        try:
            message = read_line(line)
        except BrokenLine as broken:
            if messages:
                yield _Batch(messages, number - 1)
            raise Failure(
                ExitCode.USAGE, f"line {number} cannot be imported: {broken}", "line_broken"
            ) from broken
        messages.append(message)
        size += len(message.packet)
        if len(messages) == BATCH_MESSAGES or size >= BATCH_BYTES:
            yield _Batch(messages, number)
            messages, size = [], 0
    if messages:
        yield _Batch(messages, number)


async def _line_of(qm: QueueManager, position: Path, queue: str) -> int:
    """Return the last imported line: from the file and, for a batch in doubt, from the daemon."""
    line, until, token = _saved(position, queue)
    if token and await qm.outcome(token) is not None:
        return until
    return line


def _saved(position: Path, queue: str) -> tuple[int, int, bytes]:
    """Return the last imported line, the last line of the batch in doubt, and its token."""
    try:
        saved = json.loads(position.read_text())
        found = int(saved["line"]), int(saved["until"]), bytes.fromhex(saved["token"])
        of_queue = saved["queue"]
    except FileNotFoundError:
        return 0, 0, b""
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(
            ExitCode.USAGE, f"{position} is not a position of an import", "position_broken"
        ) from error
    if of_queue != queue:
        raise Failure(
            ExitCode.USAGE,
            f"{position} is the position of an import into {of_queue}",
            "position_broken",
        )
    return found


def _save(position: Path, queue: str, line: int, until: int, token: bytes) -> None:
    """Save the position, durably before it is relied upon."""
    part = position.with_name(f"{position.name}.part")
    part.unlink(missing_ok=True)  # of a run that was killed; or a link to another file
    with part.open("x") as file:
        json.dump({"queue": queue, "line": line, "until": until, "token": token.hex()}, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(position)


def _report(what: str, count: int, queue: str, *, dry_run: bool, as_json: bool, err: bool) -> None:
    from qmd.cli.output import printable

    if as_json:
        facts = {"queue": queue, what: not dry_run, "messages": count, "dry_run": dry_run}
        click.echo(json.dumps(facts), err=err)
    else:
        would = f"would be {what}" if dry_run else what
        click.echo(f"{would}: {counted(count, 'message')} of {printable(queue)}", err=err)
