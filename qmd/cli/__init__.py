"""The command line: `qmd`.  A command parses its arguments, calls one verb, and prints the result.

Nothing heavy is imported before a command runs (see `program.py`): asking for help must not take
longer than typing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from qmd.cli.configuration import Configuration
from qmd.cli.program import EXIT_CODES, Program
from qmd.runtime import standard_streams

SECTIONS = {
    "This queue manager": {
        "init": "qmd.cli.host.serve:init",
        "serve": "qmd.cli.host.serve:serve",
        "status": "qmd.cli.status:status",
        "config": "qmd.cli.config:config",
        "doctor": "qmd.cli.host.doctor.command:doctor",
        "log": "qmd.cli.log:log",
    },
    "Messages": {
        "send": "qmd.cli.send:send",
        "receive": "qmd.cli.receive:receive",
        "peek": "qmd.cli.peek:peek",
        "reject": "qmd.cli.reject:reject",
        "lock": "qmd.cli.lock:lock",
        "move": "qmd.cli.move:move",
        "resend": "qmd.cli.resend:resend",
        "delayed": "qmd.cli.delayed:delayed",
        "export": "qmd.cli.archive:export",
        "import": "qmd.cli.archive:import_",
    },
    "Queues and names": {
        "queue": "qmd.cli.queue:queue",
        "topic": "qmd.cli.topic:topic",
        "alias": "qmd.cli.alias:alias",
        "dl": "qmd.cli.dl:dl",
        "directory": "qmd.cli.host.directory:directory",
        "name": "qmd.cli.host.name:name",
    },
    "Find out about a message": {
        "why": "qmd.cli.why:why",
        "trace": "qmd.cli.why:trace",
        "events": "qmd.cli.events:events",
        "dead-letter": "qmd.cli.dead_letter:dead_letter",
        "explain": "qmd.cli.explain:explain",
    },
    "Other hosts": {
        "outgoing": "qmd.cli.outgoing:outgoing",
        "sequence": "qmd.cli.sequence:sequence",
        "session": "qmd.cli.session:session",
        "peer": "qmd.cli.peer:peer",
        "interop": "qmd.cli.interop:interop",
    },
    "Applications": {
        "transaction": "qmd.cli.transaction:transaction",
        "service": "qmd.cli.host.service:service",
        "trigger": "qmd.cli.host.trigger:trigger",
        "door": "qmd.cli.host.door:door",
        "push": "qmd.cli.host.push:push",
        "bridge": "qmd.cli.host.bridge:bridge",
        "traces": "qmd.cli.host.traces:traces",
    },
    "Security": {
        "acl": "qmd.cli.acl:acl",
        "remote": "qmd.cli.host.remote:remote",
        "tls": "qmd.cli.host.tls:tls",
        "key": "qmd.cli.host.key:key",
        "storage": "qmd.cli.host.storage:storage",
        "audit-log": "qmd.cli.audit_log:audit_log",
    },
    "Operating": {
        "console": "qmd.cli.host.console:console",
        "backup": "qmd.cli.host.backup:backup",
        "restore": "qmd.cli.host.backup:restore",
        "check": "qmd.cli.host.check:check",
        "upgrade": "qmd.cli.host.upgrade:upgrade",
        "move-host": "qmd.cli.move_host:move_host",
        "migrate": "qmd.cli.migrate_messages:migrate",
    },
    "Data pipelines": {
        "pipeline": "pipeline.cli:pipeline",
        "ship": "pipeline.commands.ship:ship",
        "reader": "qmd.cli.reader:reader",
        "stage": "qmd.cli.stage:stage",
    },
}
COMMANDS = {name: where for commands in SECTIONS.values() for name, where in commands.items()}


@click.group("qmd", cls=Program, commands_at=COMMANDS, sections=SECTIONS, epilog=EXIT_CODES)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="QMD_CONFIG",
    help="The configuration of the queue manager to use, or to serve.  [environment: "
    f"QMD_CONFIG; default: {Configuration.DEFAULT}]",
)
@click.option(
    "--host",
    metavar="HOST[:PORT]",
    envvar="QMD_HOST",
    help="A queue manager on another host, at its remote control port.  [environment: QMD_HOST]",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="QMD_TOKEN_FILE",
    help="The file with the token for it.  [environment: QMD_TOKEN_FILE; or the token "
    "itself: QMD_TOKEN]",
)
@click.option(
    "--ca-file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="QMD_CA_FILE",
    help="The authority (PEM) that signed its certificate.  [environment: QMD_CA_FILE]",
)
@click.version_option(package_name="qmd-msmq", prog_name="qmd", message="%(prog)s %(version)s")
@click.pass_context
def main(
    context: click.Context,
    config: Path | None,
    host: str | None,
    token_file: Path | None,
    ca_file: Path | None,
) -> None:
    """A queue manager that speaks the Microsoft Message Queuing protocol.

    A queue is named in any spelling: orders, orders@hostb, orders@10.0.0.5:1802,
    'hostb\\private$\\orders', 'DIRECT=OS:hostb\\private$\\orders'.  The words dead-letter,
    transactional-dead-letter and journal stand for the system queues.
    """
    if os.environ.get("NO_COLOR"):
        context.color = False
    standard_streams.escape()
    context.obj = Configuration(config, host=host, token_file=token_file, ca_file=ca_file)
