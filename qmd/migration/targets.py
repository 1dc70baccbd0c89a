"""The names that queues of Windows get here."""

from __future__ import annotations

from collections.abc import Collection as Names

from protocol.errors import InvalidName
from protocol.names.path_name import parse_path_name
from qmd.migration.collection import WindowsQueue
from qmd.migration.rights import Gap

#: Private queues of MSMQ itself, which its own list of queues may have.
SYSTEM_QUEUES = frozenset({"admin_queue$", "mqis_queue$", "notify_queue$", "order_queue$"})
_PRIVATE = "private$\\"


def target_of(
    queue: WindowsQueue, directory: str, *, as_private: bool, private: Names[str]
) -> str | Gap:
    """Return the name of a queue here, or why it has none.

    `private`: the names of the private queues of the collection, in lower case.
    """
    name = queue.name.lower() if queue.name.lower().startswith(_PRIVATE) else queue.name
    if not queue.public:
        return _reserved(queue) or _invalid(queue, name) or name
    if as_private:
        target = f"{_PRIVATE}{name}"
        if target.lower() in private:
            return Gap(
                queue.name,
                "a public queue",
                f"there is a private queue of the same name, which becomes {target}",
                "Rename one of them on Windows, or configure a directory (docs/directory.md).",
            )
        return _invalid(queue, target) or target
    if directory == "none":
        return Gap(
            queue.name,
            "a public queue",
            "this queue manager has no directory",
            "Configure one (docs/directory.md), or add --public-as-private.",
        )
    return _invalid(queue, name) or f".\\{name}"


def _reserved(queue: WindowsQueue) -> Gap | None:
    if queue.name.lower().removeprefix(_PRIVATE) not in SYSTEM_QUEUES:
        return None
    return Gap(
        queue.name,
        "a queue of MSMQ itself",
        "each queue manager has its own",
        "Nothing is to be done.",
    )


def _invalid(queue: WindowsQueue, name: str) -> Gap | None:
    """Return why a name cannot be that of a queue here."""
    try:
        path = parse_path_name(f".\\{name}")
        reason = "it names a part of a queue"
        is_valid = path.subqueue is None and path.suffix is None and not path.system
        is_valid = is_valid and path.queue.lower() != "journal$"
    except InvalidName as error:
        reason, is_valid = str(error), False
    if is_valid:
        return None
    return Gap(
        queue.name,
        "its name",
        f"no queue here can have it: {reason}",
        "Create one with another name, and let programs name that (docs/names.md).",
    )
