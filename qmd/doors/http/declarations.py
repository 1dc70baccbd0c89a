"""Declarations of operations: one for each method of a path, for the router and for OpenAPI.

A handler gets a `Call` with values that match the declared types.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

from qmd.doors.http.exchange import JSON, Request, Response
from qmd.doors.http.problems import Problem

if TYPE_CHECKING:
    from qmd.doors.http.sessions import Session

RAW = None  # the type of a body that is bytes


@dataclass(frozen=True)
class Answer:
    """A possible response; `media` has the type of the body for each media type.

    A tuple of types means one of them.
    """

    text: str
    media: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    method: str
    path: str  # with parameters in braces
    name: str  # the operationId
    tag: str
    summary: str
    handler: Callable[[Call], Awaitable[Response]]
    answers: Mapping[int, Answer]
    query: type[msgspec.Struct] | None = None
    headers: type[msgspec.Struct] | None = None
    bodies: Mapping[str, Any] = field(default_factory=dict)  # media type -> type, or RAW
    raw_header: str = ""  # with it, a body of `application/json` is RAW too
    body_is_optional: bool = False
    is_open: bool = False  # without credentials
    text: str = ""  # further description, in Markdown


IDENTITY = "identity"
CODING_CHARACTERS_MAX = 100


class Call:
    """One request of an operation, with its checked values."""

    __slots__ = ("body", "headers", "operation", "path", "query", "request", "session_")

    def __init__(
        self, operation: Operation, request: Request, path: dict[str, str], session: Session | None
    ) -> None:
        self.operation = operation
        self.request = request
        self.path = path
        self.session_ = session
        self.query: Any = None
        self.headers: Any = None
        self.body: Any = None

    @property
    def session(self) -> Session:
        """The session of the client with the daemon."""
        assert self.session_ is not None
        return self.session_

    def check(self) -> None:
        """Convert query, headers and body to the declared types.  Raises Problem."""
        operation, request = self.operation, self.request
        if operation.query is not None:
            self.query = _query(operation.query, request.query)
        elif request.query:
            raise Problem(400, "http_bad_parameter", "this operation has no query parameters")
        if operation.headers is not None:
            self.headers = _headers(operation.headers, request.headers)
        if operation.bodies:
            self.body = self._body()
        elif request.body:
            raise Problem(400, "http_bad_body", "this operation takes no body")

    def _body(self) -> Any:
        request, bodies = self.request, self.operation.bodies
        if not request.body and self.operation.body_is_optional:
            default = bodies.get(JSON)
            return default() if default is not None else b""
        media = request.media_type
        if (coding := request.headers.get("content-encoding", IDENTITY).lower()) != IDENTITY:
            text = f"the body is encoded ({coding[:CODING_CHARACTERS_MAX]})"
            raise Problem(415, "http_media_type", text, (("accept-encoding", IDENTITY),))
        chosen = media if media in bodies else "*/*"
        if chosen == JSON and self.operation.raw_header in request.headers:
            chosen = "*/*"
        if chosen not in bodies:
            raise Problem(
                415,
                "http_media_type",
                f"the body is {media or 'of no declared type'}",
                (("accept", ", ".join(bodies)),),
            )
        kind = bodies[chosen]
        if kind is RAW:
            return request.body
        try:
            return _decoder(kind).decode(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Problem(400, "http_bad_body", str(error)) from error


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    found = _decoders.get(kind)
    if found is None:
        found = _decoders[kind] = msgspec.json.Decoder(kind)
    return found


def _query(kind: type[msgspec.Struct], text: str) -> Any:
    values: dict[str, Any] = {}
    if not text:
        return _converted(kind, values)
    many = _list_fields(kind)
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError as error:  # UnicodeDecodeError is one
        raise Problem(400, "http_bad_parameter", f"the query is not valid: {error}") from error
    for name, value in pairs:
        if name in many:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise Problem(400, "http_bad_parameter", f"the parameter {name} came twice")
        else:
            values[name] = value
    return _converted(kind, values)


def _headers(kind: type[msgspec.Struct], given: Mapping[str, str]) -> Any:
    return _converted(kind, {name: given[name] for name in _header_names(kind) if name in given})


@cache
def _header_names(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(each.encode_name for each in msgspec.structs.fields(kind))


def _converted(kind: type[msgspec.Struct], values: dict[str, Any]) -> Any:
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Problem(400, "http_bad_parameter", str(error)) from error


_lists: dict[type, frozenset[str]] = {}


def _list_fields(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Return the names of the parameters that may come several times."""
    found = _lists.get(kind)
    if found is None:
        hints = typing.get_type_hints(kind)
        found = _lists[kind] = frozenset(
            each.encode_name
            for each in msgspec.structs.fields(kind)
            if _is_list(hints.get(each.name, each.type))
        )
    return found


def _is_list(kind: Any) -> bool:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return any(map(_is_list, typing.get_args(kind)))
    return kind is list or origin is list
