"""Actions: each has a role, a plan that says what it would do, and a command that does the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from qmd.client import ClientError, QueueManager
from qmd.console.choices import BadForm, Chosen, Form, chosen_by, needed, one
from qmd.console.jobs import Progress
from qmd.console.plans import PIECE_MESSAGES, Action, Forecast, Plan, asked, dry_run, in_pieces
from qmd.console.roles import Role
from qmd.console.undo import move_back, take_back
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator_frames
from qmd.control_protocol.messages import Choice, Piece

BODY_BYTES_MAX = 4 * 1024 * 1024


def _refined(found: Chosen) -> list[tuple[str, str, str]]:
    """Return the fields with which a choice can be narrowed, unless messages were ticked."""
    if found.choice.lookup_ids:
        return []
    given = dict(found.fields)
    return [
        ("label", "Label contains", given.get("label", "")),
        ("reason", "Reason contains", given.get("reason", "")),
        ("class", "Class", given.get("class", "")),
        ("destination", "Destination contains", given.get("destination", "")),
        ("since", "Arrived at or after (UTC)", given.get("since", "")),
        ("until", "Arrived before (UTC)", given.get("until", "")),
        ("newer", "Arrived within the last (such as 2d)", given.get("newer", "")),
        ("older", "Arrived longer ago than (such as 12h)", given.get("older", "")),
        ("where", "Selector", given.get("where", "")),
    ]


# -- messages ------------------------------------------------------------------------------------


def _resend(form: Form) -> Plan:
    queue, found = needed(form, "queue"), chosen_by(form)
    to, keep = one(form, "to").strip(), one(form, "keep") == "1"
    label = one(form, "label_new") if one(form, "change_label") == "1" else None
    body: bytes | None = None
    if one(form, "change_body") == "1":
        body = one(form, "body").replace("\r\n", "\n").encode("utf-8", "replace")
        if len(body) > BODY_BYTES_MAX:
            raise BadForm(f"The body has {len(body):,} bytes, and may have {BODY_BYTES_MAX:,}.")
    ids = found.choice.lookup_ids
    changes = [*(["--to", to] if to else [])]
    if len(ids) == 1:
        changes += ["--label", label] if label is not None else []
        changes += ["--body", body.decode()] if body is not None else []
        changes += ["--keep"] if keep else []
        command = ["resend", queue, str(ids[0]), *changes]
    else:
        command = ["dead-letter", "requeue", "--queue", queue, *found.options, *changes]
        if keep or label is not None or body is not None:
            raise BadForm("Only a single message can be changed or kept when it is sent again.")
    fields = [("queue", queue), *found.fields]
    fields += [(name, "1") for name in ("keep", "change_label", "change_body") if one(form, name)]
    fields += [(name, one(form, name)) for name in ("to", "label_new", "body") if one(form, name)]

    def resend(qm: QueueManager, *, dry: bool) -> Callable[[Piece, bytes], Awaitable[Any]]:
        return lambda piece, token: qm.caller.change_once(
            frames.Resend, queue, found.choice, piece, to, label, body, keep, dry, token=token
        )

    async def work(qm: QueueManager, progress: Progress) -> None:
        do = resend(qm, dry=False)

        async def one_piece(piece: Piece, token: bytes) -> Any:
            done = await do(piece, token)
            progress.sent(done)
            return done

        await in_pieces(progress, PIECE_MESSAGES, one_piece)

    where = f"to {to}" if to else "to their original destinations"
    return Plan(
        f"Sends messages of {queue} again {where}, as new messages"
        + ("; the old ones stay." if keep else "; each commit removes the old ones."),
        command,
        fields,
        work,
        lambda qm: dry_run(resend(qm, dry=True)),
        take_back if _is_system(queue) and not keep else None,
        is_many=True,
        refine=_refined(found),
    )


def _move(form: Form) -> Plan:
    queue, target, found = needed(form, "queue"), needed(form, "target"), chosen_by(form)

    def move(qm: QueueManager, choice: Choice, *, dry: bool) -> Callable[..., Awaitable[Any]]:
        return lambda piece, token: qm.caller.change_once(
            frames.Move, queue, target, choice, piece, dry, token=token
        )

    async def work(qm: QueueManager, progress: Progress) -> None:
        async for ids, places in _pages(qm, queue, found.choice):
            if progress.must_stop:
                return
            await in_pieces(progress, PIECE_MESSAGES, move(qm, Choice(places), dry=False))
            progress.moved(ids)

    return Plan(
        f"Moves messages of {queue} to {target}, in their order.",
        ["move", queue, target, *found.options],
        [("queue", queue), ("target", target), *found.fields],
        work,
        lambda qm: dry_run(move(qm, found.choice, dry=True)),
        None if _is_system(queue) else lambda pieces: move_back(target, queue, pieces),
        is_many=True,
        refine=_refined(found),
    )


def _is_system(queue: str) -> bool:
    """Return whether messages cannot be moved into a queue."""
    return "system$;" in queue.lower() or "journal" in queue.lower().rpartition(";")[2]


async def _pages(qm: QueueManager, queue: str, choice: Choice) -> Any:
    """Yield ids and lookup ids of the messages of a choice, some hundred at a time."""
    from protocol.identifiers import parse_correlation

    ids = choice.lookup_ids
    if ids:
        for at in range(0, len(ids), PIECE_MESSAGES):
            part = ids[at : at + PIECE_MESSAGES]
            found = await asyncio.gather(*(qm.look(queue, "this", each) for each in part))
            yield [parse_correlation(each.id) for each in found if each is not None], part
        return
    start, last = 0, await qm.look(queue, "last")
    while last is not None:
        page = await qm.peek(queue, start, 256, where=choice.where)
        kept = [each for each in page if each.lookup_id <= last.lookup_id]
        wanted = [each for each in kept if each.is_among(choice)]
        if wanted:
            yield (
                [parse_correlation(each.id) for each in wanted],
                [each.lookup_id for each in wanted],
            )
        if not kept or len(kept) < len(page):
            return
        start = kept[-1].lookup_id + 1


def _purge(form: Form) -> Plan:
    queue, found = needed(form, "queue"), chosen_by(form)

    def purge(qm: QueueManager, *, dry: bool) -> Callable[[Piece, bytes], Awaitable[Any]]:
        # It can be repeated without harm: the token is not needed.
        return lambda piece, _: qm.caller.change(
            operator_frames.PurgeQueue, queue, found.choice, dry, piece, safe_to_retry=True
        )

    async def work(qm: QueueManager, progress: Progress) -> None:
        await in_pieces(progress, PIECE_MESSAGES, purge(qm, dry=False))

    options = [each for each in found.options if each != "--all"]
    command = ["queue", "purge", queue, *options, "--yes"]
    if found.choice.lookup_ids:
        raise BadForm("Messages are purged by conditions, and not one by one.")
    return Plan(
        f"Removes messages of {queue} for good.",
        command,
        [("queue", queue), *found.fields],
        work,
        lambda qm: dry_run(purge(qm, dry=True)),
        is_many=True,
        warning="This cannot be undone. Export the messages first if they may be needed.",
        refine=_refined(found),
    )


# -- queues --------------------------------------------------------------------------------------


def _create_queue(form: Form) -> Plan:
    name, label = needed(form, "queue"), one(form, "label").strip()
    transactional, journal = one(form, "transactional") == "1", one(form, "journal") == "1"
    options = [*(["--transactional"] if transactional else []), *(["--journal"] if journal else [])]
    options += ["--label", label] if label else []
    return Plan(
        f"Creates the {'transactional ' if transactional else ''}queue {name}.",
        ["queue", "create", name, *options],
        [(key, one(form, key)) for key in ("queue", "label", "transactional", "journal")],
        asked(
            lambda qm: qm.create_queue(
                name, transactional=transactional, label=label, journal=journal
            )
        ),
    )


def _delete_queue(form: Form) -> Plan:
    name = needed(form, "queue")

    async def forecast(qm: QueueManager) -> Forecast:
        return Forecast(await qm.delete_queue(name, dry_run=True), 0, 0, True)

    return Plan(
        f"Deletes the queue {name} with its subqueues, its journal and their messages.",
        ["queue", "delete", name, "--yes"],
        [("queue", name)],
        asked(lambda qm: qm.delete_queue(name)),
        forecast,
        warning="This cannot be undone.",
    )


def _cancel_delayed(form: Form) -> Plan:
    ids = [each for each in form.get("message", ()) if each]
    if not ids:
        raise BadForm("No message is chosen.")
    return Plan(
        f"Cancels {len(ids)} delayed messages: they are never sent.",
        ["delayed", "cancel", *ids],
        [("message", each) for each in ids],
        asked(lambda qm: qm.cancel_delayed(*ids)),
        warning="This cannot be undone.",
    )


# -- outgoing queues -----------------------------------------------------------------------------


def _of_destination(
    words: list[str], sentence: str, verb: Callable[[QueueManager, str], Awaitable[Any]],
    warning: str = "",
) -> Callable[[Form], Plan]:  # fmt: skip
    def plan(form: Form) -> Plan:
        destination = needed(form, "destination")
        options = ["--yes"] if warning else []
        return Plan(
            sentence.format(destination),
            ["outgoing", *words, destination, *options],
            [("destination", destination)],
            asked(lambda qm: verb(qm, destination)),
            warning=warning,
        )

    return plan


def _redirect(form: Form) -> Plan:
    destination, address = needed(form, "destination"), one(form, "address").strip()
    other = one(form, "to_another") == "1"
    options = [address] if address else ["--undo"]
    return Plan(
        f"Redirects messages for {destination} to {address}."
        if address
        else f"Sends messages for {destination} to the address of its name again.",
        ["outgoing", "redirect", destination, *options, *(["--to-another"] if other else [])],
        [("destination", destination), ("address", address), ("to_another", "1" if other else "")],
        asked(lambda qm: qm.redirect_outgoing(destination, address, to_another=other)),
        warning="Some messages may be at the other queue manager already: they could arrive twice."
        if other
        else "",
    )


# -- lists ---------------------------------------------------------------------------------------


def _members(form: Form) -> list[str]:
    return [each.strip() for each in one(form, "members").split(",") if each.strip()]


def _create_list(form: Form) -> Plan:
    name, members = needed(form, "list"), _members(form)
    return Plan(
        f"Creates the distribution list {name} with {len(members)} members.",
        ["dl", "create", name, *members],
        [("list", name), ("members", ", ".join(members))],
        asked(lambda qm: qm.directory.create_list(name, members)),
    )


def _change_list(verb: str, sentence: str) -> Callable[[Form], Plan]:
    def plan(form: Form) -> Plan:
        name, members = needed(form, "list"), _members(form)
        if not members:
            raise BadForm("No member is named.")

        async def change(qm: QueueManager) -> Any:
            if verb == "add":
                return await qm.directory.add_members(name, members)
            return await qm.directory.remove_members(name, members)

        return Plan(
            sentence.format(", ".join(members), name),
            ["dl", verb, name, *members],
            [("list", name), ("members", ", ".join(members))],
            asked(change),
        )

    return plan


def _delete_list(form: Form) -> Plan:
    name = needed(form, "list")
    return Plan(
        f"Deletes the distribution list {name}; its queues stay.",
        ["dl", "delete", name, "--yes"],
        [("list", name)],
        asked(lambda qm: qm.directory.delete_list(name)),
        warning="This cannot be undone.",
    )


def _reload(form: Form) -> Plan:
    async def reload(qm: QueueManager) -> None:
        done = await qm.settings(reload=True)
        if done["error"]:
            raise ClientError(str(done["error"]), "correct the file; nothing was changed")

    return Plan(
        "Lets the queue manager read its configuration again; some keys need a restart.",
        ["config", "reload"],
        [],
        asked(reload),
    )


_UNSENT = "Messages that were transmitted may have arrived all the same."
ACTIONS: dict[str, Action] = {
    action.name: action
    for action in (
        Action("resend", "Send again", Role.OPERATOR, _resend),
        Action("move", "Move", Role.OPERATOR, _move),
        Action("purge", "Purge", Role.ADMINISTRATOR, _purge),
        Action("create-queue", "Create a queue", Role.ADMINISTRATOR, _create_queue),
        Action("delete-queue", "Delete the queue", Role.ADMINISTRATOR, _delete_queue),
        Action("cancel-delayed", "Cancel delayed messages", Role.OPERATOR, _cancel_delayed),
        Action(
            "pause",
            "Pause",
            Role.OPERATOR,
            _of_destination(
                ["pause"],
                "Pauses messages for {}: they are kept and not sent.",
                lambda qm, name: qm.pause_outgoing(name),
            ),
        ),
        Action(
            "resume",
            "Resume",
            Role.OPERATOR,
            _of_destination(
                ["resume"],
                "Sends messages for {} again.",
                lambda qm, name: qm.resume_outgoing(name),
            ),
        ),
        Action(
            "kick",
            "Try now",
            Role.OPERATOR,
            _of_destination(
                ["kick"],
                "Connects for {} now, and sends everything unacknowledged again.",
                lambda qm, name: qm.kick_outgoing(name),
            ),
        ),
        Action("redirect", "Redirect", Role.OPERATOR, _redirect),
        Action(
            "purge-outgoing",
            "Purge",
            Role.ADMINISTRATOR,
            _of_destination(
                ["purge"],
                "Removes all messages for {}: they become dead letters.",
                lambda qm, name: qm.purge_outgoing(name),
                _UNSENT,
            ),
        ),
        Action(
            "restart-outgoing",
            "Restart the sequence",
            Role.ADMINISTRATOR,
            _of_destination(
                ["restart"],
                "Restarts the sequence to {}: messages that may have arrived become dead letters.",
                lambda qm, name: qm.restart_outgoing(name),
                "Do this if the other queue manager was restored, or rejects the sequence.",
            ),
        ),
        Action(
            "give-up",
            "Stop waiting",
            Role.ADMINISTRATOR,
            _of_destination(
                ["give-up"],
                "Makes dead letters of messages that arrived at {} and were not confirmed.",
                lambda qm, name: qm.give_up_awaiting(name),
                "This cannot be undone.",
            ),
        ),
        Action("reload-settings", "Read the configuration", Role.ADMINISTRATOR, _reload),
        Action("create-list", "Create a list", Role.ADMINISTRATOR, _create_list),
        Action("delete-list", "Delete the list", Role.ADMINISTRATOR, _delete_list),
        Action(
            "add-members",
            "Add members",
            Role.ADMINISTRATOR,
            _change_list("add", "Adds {} to the list {}."),
        ),
        Action(
            "remove-members",
            "Remove members",
            Role.ADMINISTRATOR,
            _change_list("remove", "Removes {} from the list {}."),
        ),
    )
}
