"""`qmd queue`: the queues of this computer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qmd.cli.choice import dry_run_option, filter_options
from qmd.cli.completion import queues
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.output import counted, printable
from qmd.cli.parameters import confirm, json_option, queue_argument, quota, yes_option
from qmd.cli.program import Group
from qmd.cli.progress import backlog, expected
from qmd.cli.retry_options import retry_options, take_retry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from qmd.client import Choice, QueueManager

CREATED_AT_ONCE = 100  # requests on the way


@click.group(cls=Group)
def queue() -> None:
    """Manage the queues of this computer."""


@queue.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--transactional/--no-transactional",
    default=False,
    help="Accept transactional messages only; this cannot be changed later.",
)
@click.option("--label", default="", help="A description.")
@click.option("--journal", is_flag=True, help="Keep a copy of received messages.")
@click.option(
    "--quota", type=quota, help="The limit for the size of its messages, such as 500MB, or none."
)
@click.option("--journal-quota", type=quota, help="The limit for its journal.")
@click.option(
    "--public", is_flag=True, help="Create a public queue, which is registered in the directory."
)
@click.option("--authenticate", is_flag=True, help="Take only signed messages of other hosts.")
@click.option(
    "--privacy",
    type=click.Choice(("none", "optional", "body")),
    default="optional",
    show_default=True,
    help="body: take only encrypted messages of other hosts; none: only plain ones.",
)
@retry_options
@click.option("--groups", is_flag=True, help="Give messages of a group to one receiver at a time.")
@json_option
@pass_configuration
def create(
    configuration: Configuration,
    /,
    names: tuple[str, ...],
    transactional: bool,
    label: str,
    journal: bool,
    quota: int | None,
    journal_quota: int | None,
    public: bool,
    authenticate: bool,
    privacy: str,
    groups: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Create the private queue NAME; or, with --public, a public one.

    Several names create as many queues with the same options.  If one is refused, the others are
    created nevertheless, and the command fails with the first reason.
    """
    from qmd.cli.output import print_json

    retry = take_retry(given)

    def create_one(qm: QueueManager, name: str) -> Awaitable[dict[str, Any]]:
        return qm.create_queue(
            name,
            transactional=transactional,
            label=label,
            journal=journal,
            quota_bytes=quota,
            journal_quota_bytes=journal_quota,
            public=public,
            authenticate=authenticate,
            privacy=privacy,
            retry=retry,
            groups=groups,
        )

    results = configuration.ask(lambda qm: _create_all(qm, names, create_one))
    failures = [each for each in results if isinstance(each, BaseException)]
    made = [each for each in results if not isinstance(each, BaseException)]
    for each in made:
        if as_json:
            print_json(each)
        else:
            click.echo(printable(each["public_name"] if public else each["format_name"]))
    if failures:
        raise failures[0]


async def _create_all(
    qm: QueueManager,
    names: Sequence[str],
    create_one: Callable[[QueueManager, str], Awaitable[dict[str, Any]]],
) -> list[dict[str, Any] | BaseException]:
    """Create queues, many in each commit; return the properties of each, or its error."""
    import asyncio

    made: list[dict[str, Any] | BaseException] = []
    for first in range(0, len(names), CREATED_AT_ONCE):
        some = names[first : first + CREATED_AT_ONCE]
        work = (create_one(qm, name) for name in some)
        made += await asyncio.gather(*work, return_exceptions=True)
    return made


@queue.command("set")
@queue_argument("name")
@click.option(
    "--quota", type=quota, help="The limit for the size of its messages, such as 2GB, or none."
)
@click.option("--journal-quota", type=quota, help="The limit for its journal.")
@click.option("--journal/--no-journal", default=None, help="Keep a copy of received messages.")
@click.option("--label", help="A description.")
@click.option(
    "--authenticate/--no-authenticate",
    default=None,
    help="Take only signed messages of other hosts.",
)
@click.option(
    "--privacy",
    type=click.Choice(("none", "optional", "body")),
    help="body: take only encrypted messages of other hosts; none: only plain ones.",
)
@retry_options
@click.option(
    "--no-retry", is_flag=True, help="Remove the retry policy: failed messages return at once."
)
@click.option(
    "--groups/--no-groups", default=None, help="Give messages of a group to one receiver at a time."
)
@json_option
@pass_configuration
def set_(
    configuration: Configuration,
    /,
    name: str,
    quota: int | None,
    journal_quota: int | None,
    journal: bool | None,
    label: str | None,
    authenticate: bool | None,
    privacy: str | None,
    groups: bool | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Change the properties of a queue that are given.

    Messages that exceed a smaller quota stay: only new ones are refused.  The change of a public
    queue is also made in the directory, later if that is unavailable.
    """
    from qmd.cli.output import print_facts

    retry = take_retry(given)
    changes = (quota, journal_quota, journal, label, authenticate, privacy, retry, groups)
    if all(change is None for change in changes):
        raise click.UsageError(
            "give a change: --quota, --journal-quota, --journal, --no-journal, --label,"
            " --authenticate, --no-authenticate, --privacy, --groups, --no-groups, one of --retry"
            " or --no-retry"
        )
    changed = configuration.ask(
        lambda qm: qm.set_queue(
            name,
            quota_bytes=quota,
            journal_quota_bytes=journal_quota,
            journal=journal,
            label=label,
            authenticate=authenticate,
            privacy=privacy,
            retry=retry,
            groups=groups,
        )
    )
    print_facts(changed, as_json=as_json)
    if changed.get("directory_waits"):
        _say_what_waits(configuration)


@queue.command("list")
@click.argument("patterns", nargs=-1, metavar="[NAME]...", shell_complete=queues)
@click.option("--system", is_flag=True, help="Include system queues.")
@click.option("--not-empty", is_flag=True, help="Only queues with messages.")
@click.option("--transactional/--no-transactional", default=None, help="Only queues of this kind.")
@json_option
@pass_configuration
def list_(
    configuration: Configuration,
    patterns: tuple[str, ...],
    system: bool,
    not_empty: bool,
    transactional: bool | None,
    as_json: bool,
) -> None:
    """List all queues, or those that match a NAME.

    In a NAME, * and ? are wildcards.
    """
    from qmd.cli.output import print_rows

    queues = [
        queue
        for queue in configuration.ask(lambda qm: qm.list_queues(system=system))
        if _is_named(queue["name"], patterns)
        and (queue["messages"] or not not_empty)
        and transactional in (None, queue["transactional"])
    ]
    if patterns or not_empty or transactional is not None:
        none = "no matching queues"
    else:
        none = "no queues; create one: qmd queue create NAME"
    columns = [
        ("NAME", "name"),
        ("TRANSACTIONAL", "transactional"),
        ("MESSAGES", "messages"),
        ("BYTES", "bytes"),
        ("JOURNAL", "journal"),
        ("LABEL", "label"),
    ]
    print_rows(queues, columns, as_json=as_json, none=none)


def _is_named(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether `private$\\orders` matches one of the names; `orders` matches it as well."""
    from fnmatch import fnmatchcase

    name = name.casefold()
    bare = name.removeprefix("private$\\")
    return not patterns or any(
        fnmatchcase(name, each.casefold()) or fnmatchcase(bare, each.casefold())
        for each in patterns
    )


@queue.command()
@queue_argument("name")
@json_option
@pass_configuration
def show(configuration: Configuration, name: str, as_json: bool) -> None:
    """Show one queue."""
    from qmd.cli.output import print_facts

    facts = configuration.ask(lambda qm: qm.show_queue(name))
    print_facts(facts, as_json=as_json)


@queue.command()
@queue_argument("name")
@filter_options
@yes_option
@dry_run_option
@json_option
@pass_configuration
def purge(
    configuration: Configuration,
    name: str,
    filters: dict[str, Any],
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove all messages of a queue, or some.  Asks first, or needs --yes.

    Senders that requested negative acknowledgments get them.  Subqueues and the journal stay
    unchanged.
    """
    from qmd.client import chosen

    choice = chosen(**filters)
    count: int | None
    if not yes or dry_run:
        count = configuration.ask(lambda qm: qm.purge_queue(name, choice, dry_run=True))
        if dry_run:
            _would("purged", configuration, name, count, choice, as_json=as_json)
            return
        if not count:
            _gone("purged", name, count, as_json=as_json)
            return
        confirm(f"purge {printable(name)} with {counted(count, 'message')}")
    else:
        count = expected(configuration, [name], choice)
    with backlog("purging", count, "purged", enabled=not as_json) as progress:
        messages = configuration.ask(
            lambda qm: qm.purge_queue(name, choice, on_piece=progress.advance)
        )
    _gone("purged", name, messages, as_json=as_json)


@queue.command()
@queue_argument("name")
@yes_option
@dry_run_option
@json_option
@pass_configuration
def delete(
    configuration: Configuration, name: str, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Delete a queue.  While it has messages, asks first, or needs --yes.

    Its subqueues and its journal are deleted with it; senders that requested negative
    acknowledgments get them.  A public queue is removed from the directory, later if that is
    unavailable.
    """
    if not yes or dry_run:
        count = configuration.ask(lambda qm: qm.delete_queue(name, dry_run=True))
        if dry_run:
            _would("deleted", configuration, name, count, None, as_json=as_json)
            return
        if count:
            confirm(f"delete {printable(name)} with {counted(count, 'message')}")
    messages = configuration.ask(lambda qm: qm.delete_queue(name))
    _gone("deleted", name, messages, as_json=as_json)
    if "\\" in name or "=" in name:  # others are private, and in no directory
        _say_what_waits(configuration)


def _say_what_waits(configuration: Configuration) -> None:
    """Print changes on stderr that wait because the directory is unavailable."""
    for what in configuration.ask(lambda qm: qm.directory.status())["has_yet_to_hear"]:
        click.echo(
            "the directory is unavailable, and is updated when it is available again: "
            f"{printable(what)}",
            err=True,
        )


def _would(
    act: str,
    configuration: Configuration,
    name: str,
    messages: int,
    choice: Choice | None,
    *,
    as_json: bool,
) -> None:
    """Print the messages of a dry run, and their number."""
    from qmd.cli.dry_run import meant, meant_ids
    from qmd.cli.output import print_json

    if as_json:
        facts = {"name": name, act: False, "messages": messages, "dry_run": True}
        print_json({**facts, "lookup_ids": meant_ids(configuration, name, choice)})
        return
    meant(configuration, name, choice)
    click.echo(f"{printable(name)} would be {act}: {counted(messages, 'message')}")


def _gone(act: str, name: str, messages: int, *, as_json: bool) -> None:
    from qmd.cli.output import print_json

    if as_json:
        print_json({"name": name, act: True, "messages": messages, "dry_run": False})
    else:
        click.echo(f"{act} {printable(name)}: {counted(messages, 'message')}")
