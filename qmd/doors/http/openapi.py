"""The OpenAPI 3.1 description, made from the declarations of the operations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

import qmd
from qmd.doors.http.declarations import RAW, Operation
from qmd.doors.http.problems import PROBLEM, Details

Schema = dict[str, Any]
TEMPLATE = "#/components/schemas/{name}"

_PATH_TEXTS = {
    "topic": "The name of a topic, without `topic:`.",
    "subscription": "The name of a subscription of the topic.",
    "queue": "A queue in any spelling, percent-encoded: `orders`, `orders;retry`, `orders@hostb`.",
    "lookup_id": "The place of a message in its queue.",
    "lock": "The id of a lock.",
    "message": "The id of a message (GUID, backslash, number; percent-encoded), or a lookup id.",
    "name": "A name.",
}
_INTRODUCTION = """Send and receive messages of a queue manager.

Errors are problem details (RFC 9457) with an id, a cause and a remedy of the catalogue of errors.
A request that changes something is answered after the change is on disk."""


def describe(operations: Iterable[Operation]) -> Schema:
    """Return the description of the operations."""
    operations = list(operations)
    kinds = list(_kinds(operations))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=TEMPLATE)
    found = dict(zip(map(_key, kinds), schemas, strict=True))
    paths: dict[str, Schema] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, found)
    _open_objects(paths)
    _open_objects(components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "qmd",
            "version": qmd.__version__,
            "description": _INTRODUCTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {"certificate": []}, {}],
        "tags": [{"name": tag} for tag in dict.fromkeys(each.tag for each in operations)],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of `qmd remote token create`.",
                },
                "certificate": {
                    "type": "mutualTLS",
                    "description": "A client certificate of a configured authority.",
                },
            },
        },
    }


def _open_objects(schema: Any) -> None:
    """State of objects with any members that they have them: generators assume none otherwise."""
    if isinstance(schema, dict):
        members = {"properties", "additionalProperties"} & set(schema)
        if schema.get("type") == "object" and not members:
            schema["additionalProperties"] = True
        for each in schema.values():
            _open_objects(each)
    elif isinstance(schema, list):
        for each in schema:
            _open_objects(each)


def _key(kind: Any) -> str:
    return repr(kind)


def _kinds(operations: list[Operation]) -> Iterable[Any]:
    """Return every type of a body, a query or a header once."""
    seen: dict[str, Any] = {_key(Details): Details}
    for each in operations:
        kinds = [*each.bodies.values(), each.query, each.headers]
        kinds += [kind for answer in each.answers.values() for kind in answer.media.values()]
        kinds = [one for kind in kinds for one in (kind if isinstance(kind, tuple) else (kind,))]
        seen |= {_key(kind): kind for kind in kinds if kind is not RAW}
    for kind in list(seen.values()):
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            seen |= {
                _key(field.type): field.type
                for field in msgspec.structs.fields(kind)
                if kind.__name__.endswith(("Query", "Headers"))
            }
    return seen.values()


def _operation(operation: Operation, found: dict[str, Schema]) -> Schema:
    described: Schema = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
        "parameters": [
            *map(_path_parameter, _path_names(operation.path)),
            *_parameters(operation.query, "query", found),
            *_parameters(operation.headers, "header", found),
        ],
        "responses": _responses(operation, found),
    }
    if operation.text:
        described["description"] = operation.text.strip()
    if operation.bodies:
        described["requestBody"] = {
            "required": not operation.body_is_optional,
            "content": {
                media: {"schema": _schema(kind, found)} for media, kind in operation.bodies.items()
            },
        }
    if operation.is_open:
        described["security"] = []
    return described


def _schema(kind: Any, found: dict[str, Schema]) -> Schema:
    if isinstance(kind, tuple):  # one of several
        return {"anyOf": [found[_key(one)] for one in kind]}
    return {"type": "string", "format": "binary"} if kind is RAW else found[_key(kind)]


def _path_names(path: str) -> Iterable[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _path_parameter(name: str) -> Schema:
    kind: Schema = {"type": "string", "minLength": 1}
    if name == "lookup_id":
        kind = {"type": "integer", "minimum": 0, "maximum": (1 << 48) - 1}
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": _PATH_TEXTS[name],
        "schema": kind,
    }


def _parameters(
    kind: type[msgspec.Struct] | None, place: str, found: dict[str, Schema]
) -> Iterable[Schema]:
    if kind is None:
        return
    for each in msgspec.structs.fields(kind):
        schema = dict(found[_key(each.type)])
        if place == "header" and "anyOf" in schema:  # an absent header is not null
            schema = next(part for part in schema["anyOf"] if part.get("type") != "null")
        yield {
            "name": each.encode_name,
            "in": place,
            "required": False,
            **({"description": schema["description"]} if "description" in schema else {}),
            "schema": _without_null(schema) if place == "query" else schema,
        }


def _without_null(schema: Schema) -> Schema:
    """Return the schema of a parameter: an absent one has the default, and none is null."""
    parts = [part for part in schema.get("anyOf", []) if part.get("type") != "null"]
    return parts[0] if len(parts) == 1 else schema


def _responses(operation: Operation, found: dict[str, Schema]) -> Schema:
    problem = {
        "description": "A problem: see its `id`, `cause` and `remedy`.",
        "content": {PROBLEM: {"schema": found[_key(Details)]}},
    }
    responses: Schema = {}
    for status, answer in operation.answers.items():
        media = answer.media or ({PROBLEM: Details} if status >= 400 else {})
        responses[str(status)] = {
            "description": answer.text,
            **(
                {
                    "content": {
                        each: {"schema": _schema(kind, found)} for each, kind in media.items()
                    }
                }
                if media
                else {}
            ),
        }
    return responses | {"default": problem}
