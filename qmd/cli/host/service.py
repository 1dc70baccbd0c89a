"""`qmd service run`: play the calls of a queued service in a separate process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import duration
from qmd.cli.program import BadValue, ExitCode, Failure, Group, Misuse

if TYPE_CHECKING:
    from qmd.client import Signer
    from qmd.service import Service


OURS = ("protocol", "storage", "pipeline", "qmd")  # packages; a file beside may have such a name


@click.group(cls=Group)
def service() -> None:
    """Run services with calls that come through queues."""


@service.command()
@click.argument("target", metavar="MODULE:SERVICE")
@click.option(
    "--queue", default="", help="The queue of its calls.  [default: the queue of the service]"
)
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="Calls at a time.")
@click.option(
    "--drain",
    type=duration,
    default="30s",
    show_default=True,
    help="On SIGTERM, the time limit for calls under way.",
)
@click.option("--key", "key_file", metavar="FILE", help="The RSA key that signs its messages.")
@click.option("--certificate", "certificate_file", metavar="FILE", help="Its certificate.")
@click.option(
    "--metrics",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file for counters, written every 10 s in the text format of Prometheus.",
)
@click.option(
    "--log-format",
    type=click.Choice(("auto", "console", "json")),
    default="auto",
    help="The format of the log on standard error.",
)
@pass_configuration
def run(
    configuration: Configuration,
    target: str,
    queue: str,
    concurrency: int | None,
    drain: float,
    key_file: str | None,
    certificate_file: str | None,
    metrics: Path | None,
    log_format: str,
) -> None:
    """Play the calls of a service until SIGTERM or Ctrl-C.

    MODULE:SERVICE is a class that derives from qmd.service.Service, in a module in the working
    directory or an installed one.  The exit code is 0 after a signal, and 1 after a poison message
    that stops the service.  With --key and --certificate, all messages that it sends are signed.
    """
    import asyncio

    from qmd.runtime.log import forward_standard_logging, set_up_logging
    from qmd.service.contract import ServiceError

    set_up_logging("info", log_format)
    forward_standard_logging()
    try:
        kind = _find(target)
        if concurrency is not None:
            # In a derived class the same check reports conflicts between the two settings.
            kind = type(kind.__name__, (kind,), {}, concurrency=concurrency)
        signer = _signer(key_file, certificate_file)
        asyncio.run(_run(configuration, kind(), queue, drain or 0.0, metrics, signer))
    except ServiceError as error:
        raise Failure(ExitCode.FAILED, str(error), "service_refused") from error


def _find(target: str) -> type[Service]:
    import importlib
    import sys

    import structlog

    from qmd.service.contract import Service, ServiceError

    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise click.UsageError(f"{target!r} is not MODULE:SERVICE, such as orders:Orders")
    for ours in OURS:
        importlib.import_module(ours)  # before any file of the same name beside the service
    if "" not in sys.path:
        sys.path.append("")
    passed_over = [file for name in OURS for file in _beside(name)]
    for file in passed_over:
        structlog.get_logger().warning("file_passed_over", file=str(file))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ServiceError(
            f"module {error.name} was not found: run this command in its folder, or install it"
        ) from error
    except ImportError as error:
        if passed_over and (error.name or "").partition(".")[0] in OURS:
            raise ServiceError(
                f"{module_name} imports {error.name}, and gets the package of qmd with that name"
                f" ({error}): give {passed_over[0]} another name"
            ) from error
        raise
    if _is_ours(module):
        raise ServiceError(
            f"{module_name} is a package of qmd, and replaces {module_name}.py here: give that "
            "file another name"
        )
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Service)):
        raise ServiceError(f"{target} is not a class that derives from qmd.service.Service")
    return kind


def _is_ours(module: ModuleType) -> bool:
    """Return whether the module of a name that the user gave is a package of qmd."""
    return module.__name__.partition(".")[0] in OURS


def _beside(name: str) -> Iterator[Path]:
    """Iterate over files of the working directory that have the name of a package of qmd."""
    from qmd.runtime.own_packages import is_ours

    for file in (Path(f"{name}.py"), Path(name, "__init__.py")):
        if file.is_file() and not is_ours(name, str(file)):
            yield file.resolve()


def _signer(key_file: str | None, certificate_file: str | None) -> Signer | None:
    """Return the signer of the options, or None.  Raises Misuse, BadValue."""
    from qmd.client import Signer

    if key_file is None and certificate_file is None:
        return None
    if key_file is None or certificate_file is None:
        raise Misuse("option_needs_option", "--key and --certificate require each other")
    try:
        return Signer(key_file, certificate_file)
    except (OSError, ValueError) as error:
        raise BadValue("bad_key_file", str(error)) from error


async def _run(
    configuration: Configuration,
    service: Service,
    queue: str,
    drain_s: float,
    metrics: Path | None,
    signer: Signer | None,
) -> None:
    import asyncio

    from qmd.cli.host.metrics_file import written
    from qmd.cli.interrupt import SIGNALS
    from qmd.service import Player

    async with configuration.connect() as qm:
        qm.sign_all(signer)
        player = Player(service, qm, queue=queue)
        loop = asyncio.get_running_loop()
        for each in SIGNALS:
            loop.add_signal_handler(each, player.stop)
        async with written(metrics, player.metrics, f'service="{player.name}"'):
            await player.run(drain_s=drain_s)
