"""All removals, in the order of SECURITY.md."""

from tests.attack.removals import (
    doors,
    kept,
    local,
    logins,
    origins,
    path,
    peer,
    port,
    relay,
    srmp,
    tokens,
)

ALL = (
    *port.REMOVALS,
    *peer.REMOVALS,
    *relay.REMOVALS,
    *origins.REMOVALS,
    *path.REMOVALS,
    *local.REMOVALS,
    *tokens.REMOVALS,
    *doors.REMOVALS,
    *srmp.REMOVALS,
    *logins.REMOVALS,
    *kept.REMOVALS,
)

#: The rows of which nothing can be taken out in a few lines, by the beginning of their attack, and
#: the reason.
WITHOUT_REMOVAL: dict[str, str] = {
    "a queue that was deleted, and made again under its name": "rights, owner and history are rows"
    " of the queue: keeping them would take another schema",
    "a crash between a change of rights": "a change is one commit: to divide it is another design",
    "names of queues as paths of files": "no code makes a path of a name",
    "an object of .NET that names a dangerous class": "no code looks a class up",
    "a changed release of qmd": "openssl verifies the signature, with commands of the manual",
}
