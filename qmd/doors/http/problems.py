"""Problem details of errors, with the ids of our catalogue.  RFC 9457."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from qmd.catalogue import find_by_code
from qmd.client.errors import ClientError, LoginRefused, NotConnected, OutcomeUnknown
from qmd.doors.http.exchange import Response

PROBLEM = "application/problem+json"

# The status of each family of refusals, and of single codes where the family is too coarse.
_STATUS = {
    **dict.fromkeys(("bad_request", "bad_name"), 400),
    **dict.fromkeys(("no_such_queue", "no_such_message", "not_found"), 404),
    **dict.fromkeys(("queue_exists", "wrong_delivery", "message_taken"), 409),
    **dict.fromkeys(("not_taken", "transaction_aborted", "transaction_doomed"), 409),
    **dict.fromkeys(("access_denied", "right_missing", "scope_missing"), 403),
    **dict.fromkeys(("queue_not_granted", "transaction_of_another"), 403),
    "too_large": 413,
    "over_quota": 507,
    "disk_full": 507,
    "read_only": 503,
    "stopping": 503,
    "directory": 503,
    "too_many_requests": 429,
    "too_many_keys": 429,
    "too_many_remote_clients": 503,
    "storage_failed": 503,
    "token_refused": 401,  # nosec B105: a status
    "idempotency_key_reused": 422,
}
RETRY_S = 1


class Problem(Exception):
    """An error of a request; `code` is that of its entry in the catalogue."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str = "",
        headers: tuple[tuple[str, str], ...] = (),
        *,
        remedy: str = "",
        closes: bool = False,
    ) -> None:
        super().__init__(detail or code)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = headers
        self.remedy = remedy
        self.closes = closes

    def response(self) -> Response:
        """Return the response with this problem."""
        return problem_response(
            self.status,
            self.code,
            self.detail,
            self.headers,
            remedy=self.remedy,
            closes=self.closes,
        )


class Details(msgspec.Struct, omit_defaults=True):
    """The members of a problem."""

    type: str
    title: str
    status: int
    detail: str = ""
    id: str = ""  # of the catalogue, such as QM-1201
    code: str = ""  # for programs, such as no_such_queue
    cause: str = ""
    remedy: str = ""


def problem_response(
    status: int,
    code: str,
    detail: str = "",
    headers: tuple[tuple[str, str], ...] = (),
    *,
    remedy: str = "",
    closes: bool = False,
) -> Response:
    """Return a response with the entry of a code, and the text of this case."""
    entry = find_by_code(code)
    details = Details(
        f"urn:qmd:error:{entry.id}" if entry else "about:blank",
        entry.what if entry else code,
        status,
        detail,
        entry.id if entry else "",
        code,
        entry.cause if entry else "",
        remedy or (entry.remedy if entry else ""),
    )
    return Response(status, msgspec.json.encode(details), PROBLEM, headers, closes=closes)


def of_error(error: ClientError) -> Response:
    """Return the response for an error of the client library."""
    headers: tuple[tuple[str, str], ...] = ()
    status = _status(error, _STATUS)
    if status in (429, 503):
        headers = (("retry-after", str(RETRY_S)),)
    if status == 401:
        headers = (("www-authenticate", 'Bearer realm="qmd", error="invalid_token"'),)
    return problem_response(status, error.code, error.text, headers, remedy=error.remedy)


def _status(error: ClientError, statuses: Mapping[str, int]) -> int:
    if isinstance(error, OutcomeUnknown):
        return 504
    if isinstance(error, LoginRefused):
        return 401
    if isinstance(error, NotConnected):
        return 503
    entry = find_by_code(error.code)
    family = entry.family if entry else ""
    return statuses.get(error.code) or statuses.get(family) or statuses.get(type(error).code, 400)
