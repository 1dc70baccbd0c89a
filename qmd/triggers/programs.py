"""One run of a program: without a shell, with a clean environment and limits.

The program gets a session of its own, so that its end takes its children with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qmd.client.message import Message
from qmd.triggers.arguments import values_of
from qmd.triggers.definition import Program, Rule, Trigger
from qmd.triggers.outcome import ActionFailed

PATH = "/usr/local/bin:/usr/bin:/bin"
TERMINATE_S = 2.0  # between SIGTERM and SIGKILL
ERRORS_BYTES = 4096  # of its error output, the last ones are kept
CHUNK_BYTES = 64 * 1024
TURNS, TURN_S = 4, 0.25  # the pipes of a program that has ended are read for so long
ARGUMENT_BYTES_MAX = 32 * 4096 - 1  # of Linux (MAX_ARG_STRLEN), without the final zero
EX_DATAERR = 65  # sysexits.h: the message is wrong, and will be wrong again
_LAUNCH = str(Path(__file__).with_name("launch.py"))


class Output(NamedTuple):
    """The output of a program that succeeded; its standard error is the last part of it."""

    output: bytes
    errors: bytes


async def run_program(program: Program, rule: Rule, trigger: Trigger, message: Message) -> Output:
    """Run the program for a message.  Raises ActionFailed.

    Cancelled, it kills the program and its children first.
    """
    arguments = values_of(program.arguments, trigger, message)
    if any("\0" in each for each in arguments):
        raise ActionFailed("an argument contains a character of value 0", is_final=True)
    command = [sys.executable, "-I", "-S", _LAUNCH, str(os.getpid()), str(program.memory_bytes)]
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            program.path,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=program.folder,
            env=environment(program, rule, trigger, message),
            start_new_session=True,
        )
    except OSError as error:  # too many or too long arguments, no such folder, no process left
        if error.errno == errno.E2BIG:
            raise ActionFailed(_too_long(arguments), is_final=True) from error
        raise ActionFailed(f"{program.path} cannot be run: {error.strerror}") from error
    body = message.body if program.body_as_input else b""
    try:
        output = await _served(process, program, body)
    finally:
        await _ended(process)
    _check_exit(process.returncode or 0, output)
    return output


def _too_long(arguments: Sequence[str]) -> str:
    """Return the reason why Linux takes these arguments for no program."""
    sizes = [len(os.fsencode(each)) for each in arguments]
    at, size = max(enumerate(sizes, 1), key=lambda each: each[1], default=(0, 0))
    if size > ARGUMENT_BYTES_MAX:
        text = f"argument {at} has {size} bytes, and Linux allows {ARGUMENT_BYTES_MAX}"
    else:
        text = f"its arguments have {sum(sizes)} bytes, more than Linux allows for all"
    return f"{text}; the program can read the body as its standard input"


def environment(program: Program, rule: Rule, trigger: Trigger, message: Message) -> dict[str, str]:
    """Return all variables of the program; it inherits none."""
    return {
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "QMD_TRIGGER": trigger.name,
        "QMD_RULE": rule.name,
        "QMD_QUEUE": trigger.queue,
        "QMD_MESSAGE_ID": message.id,
        "QMD_LOOKUP_ID": str(message.lookup_id),
        "QMD_ATTEMPT": str(message.abort_count + 1),
        **program.environment,
    }


async def _served(process: asyncio.subprocess.Process, program: Program, body: bytes) -> Output:
    """Return the output after the end of the program.  Raises ActionFailed."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    output, errors = bytearray(), bytearray()
    pipes = asyncio.gather(
        _write(process.stdin, body),
        _read_all(process.stdout, output, program.output_bytes),
        _read_last(process.stderr, errors),
    )
    end = asyncio.create_task(_wait(process))
    try:
        async with asyncio.timeout(program.timeout_s):
            both: list[asyncio.Future[Any]] = [pipes, end]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not end.done():
                await pipes  # the output has ended, or has too many bytes
                await end
        for _ in range(TURNS):
            # A child that has left the session may hold a pipe open.  What the program itself has
            # written is in the pipe, and is read in one of these turns.
            await asyncio.wait([pipes], timeout=TURN_S)
        if pipes.done():
            await pipes
    except TimeoutError:
        raise ActionFailed(f"it did not end within {program.timeout_s:g} s") from None
    finally:
        for each in (pipes, end):
            each.cancel()
        await asyncio.gather(pipes, end, return_exceptions=True)
    return Output(bytes(output), bytes(errors))


async def _wait(process: asyncio.subprocess.Process) -> None:
    """Wait for the end of the program, then end children that hold its output open."""
    await _exit(process)
    _signal(process.pid, signal.SIGKILL)


async def _exit(process: asyncio.subprocess.Process) -> None:
    """Wait for the end of the program; `process.wait` would wait for its pipes, too."""
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        descriptor = os.pidfd_open(process.pid)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
    while process.returncode is None:  # noqa: ASYNC110  (nothing else is notified of it)
        await asyncio.sleep(0.01)


async def _write(stream: asyncio.StreamWriter, body: bytes) -> None:
    with contextlib.suppress(ConnectionError, BrokenPipeError):  # it does not read all
        stream.write(body)
        await stream.drain()
    stream.close()


async def _read_all(stream: asyncio.StreamReader, found: bytearray, bytes_max: int) -> None:
    while chunk := await stream.read(CHUNK_BYTES):
        found += chunk
        if len(found) > bytes_max:
            raise ActionFailed(f"its output has more than {bytes_max} bytes")


async def _read_last(stream: asyncio.StreamReader, found: bytearray) -> None:
    while chunk := await stream.read(CHUNK_BYTES):
        found += chunk
        del found[:-ERRORS_BYTES]


async def _ended(process: asyncio.subprocess.Process) -> None:
    """End the program with its children, if they run."""
    if process.returncode is None:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TERMINATE_S):
                await _exit(process)
    _signal(process.pid, signal.SIGKILL)  # also children that it has left behind
    # Pipes that a child in another session holds open: there is no public call for them.
    process._transport.close()  # type: ignore[attr-defined]
    await process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _check_exit(code: int, output: Output) -> None:
    """Raise ActionFailed unless the program succeeded."""
    if code == 0:
        return
    if code < 0:
        text = f"it was ended by {signal.Signals(-code).name}"
    else:
        text = f"it ended with the exit code {code}"
    lines = output.errors.decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    raise ActionFailed(f"{text}: {last}" if last else text, is_final=code == EX_DATAERR)
