"""The router: it finds the operation of a request, checks it, and turns errors into problems."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from qmd.client.errors import ClientError, LoginRefused
from qmd.doors.http.declarations import Call, Operation
from qmd.doors.http.exchange import Request, Response
from qmd.doors.http.problems import Problem, of_error

if TYPE_CHECKING:
    from qmd.doors.http.sessions import Session

#: Words for the system queues, as the command line has them.
SYSTEM_QUEUES = {
    "dead-letter": r"DIRECT=OS:.\SYSTEM$;DEADLETTER",
    "transactional-dead-letter": r"DIRECT=OS:.\SYSTEM$;DEADXACT",
    "journal": r"DIRECT=OS:.\SYSTEM$;JOURNAL",
}
Authenticate = Callable[[Request], Awaitable["Session"]]


class _Node:
    """A segment of paths."""

    def __init__(self) -> None:
        self.literal: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.operations: dict[str, tuple[Operation, tuple[str, ...]]] = {}


class Router:
    """The operations of a server, by their paths and methods."""

    def __init__(self, operations: Iterable[Operation], authenticate: Authenticate) -> None:
        """`authenticate(request)` returns the session of its client, or raises Problem."""
        self._root = _Node()
        self._authenticate = authenticate
        for each in operations:
            self._add(each)

    def _add(self, operation: Operation) -> None:
        node, names = self._root, []
        for segment in operation.path.strip("/").split("/"):
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.literal.setdefault(segment, _Node())
        node.operations[operation.method] = operation, tuple(names)

    async def __call__(self, request: Request) -> Response:
        """Answer a request."""
        try:
            operation, path = self._find(request)
            # Credentials first: other clients do not learn which requests are valid.
            session = None if operation.is_open else await self._authenticate(request)
            return await self._execute(Call(operation, request, path, session))
        except Problem as problem:
            return problem.response()
        except ClientError as error:
            return of_error(error)

    async def _execute(self, call: Call) -> Response:
        call.check()
        session = call.session_
        if session is None:
            return await call.operation.handler(call)
        session.requests += 1
        try:
            return await call.operation.handler(call)
        except LoginRefused:
            session.is_refused = True
            raise
        finally:
            session.requests -= 1

    def _find(self, request: Request) -> tuple[Operation, dict[str, str]]:
        node, values = self._root, []
        for segment in request.segments:
            following = node.literal.get(segment)
            if following is None and node.parameter is not None and segment:
                following = node.parameter
                values.append(segment)
            if following is None:
                raise Problem(404, "http_no_such_path", closes=False)
            node = following
        if not node.operations:
            raise Problem(404, "http_no_such_path")
        method = "GET" if request.method == "HEAD" else request.method
        if method not in node.operations:
            allowed = sorted({*node.operations, *(["HEAD"] if "GET" in node.operations else [])})
            raise Problem(405, "http_method", headers=(("allow", ", ".join(allowed)),))
        operation, names = node.operations[method]
        if any("\0" in value for value in values):
            raise Problem(400, "http_bad_parameter", "a name in the path has a null character")
        found = dict(zip(names, values, strict=True))
        if "queue" in found:
            found["queue"] = SYSTEM_QUEUES.get(found["queue"], found["queue"])
        return operation, found
