"""No request stops the daemon: every verb, with any values of its argument types."""

from __future__ import annotations

import asyncio
import tempfile
import types
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from qmd.control.control_server import ControlServer
from qmd.control.verbs import HANDLERS
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator_frames
from tests.integration.managers import Hosts
from tests.patience import END_S

TEXTS = st.sampled_from(
    [
        *("", "orders", "plain", "private$\\orders", "orders;retry", "orders;journal", "nowhere"),
        *("abc", "dead-letter", "x" * 300, "a\0b", "é" * 130, "list:x", "orders@127.0.0.1:1", "*"),
        *("00000000-0000-0000-0000-000000000000", "01020304-0506-0708-090a-0b0c0d0e0f10"),
        *("01020304-0506-0708-090a-0b0c0d0e0f10\\7", "PUBLIC=abc", "DL=1", "DIRECT=OS:"),
        *(
            "DIRECT=TCP:127.0.0.1\\private$\\orders",
            "DIRECT=OS:.\\SYSTEM$;DEADLETTER",
            "[::1]:70000",
        ),
        *("127.0.0.1", "127.0.0.1:0", "a,b", ",", "CONNECTOR=x", "LDAP://x", "tls://x", "0"),
    ]
)
NUMBERS = st.sampled_from([0, 1, -1, 2, 3, 7, 255, 2**16, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63)])
FLOATS = st.sampled_from([0.0, 0.01, -1.0, 1e300, float("inf"), float("nan")])
BYTES = st.sampled_from([b"", b"x", b"t" * 16, b"i" * 20, b"\0" * 20, b"x" * 1000])


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of a declared type, unusual ones among them."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return values(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(each) for each in arguments])
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin in (list, typing.Sequence) or kind is list:
        return st.lists(values(arguments[0] if arguments else Any), max_size=3)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is ...:
            return st.lists(values(arguments[0]), max_size=3).map(tuple)
        return st.tuples(*map(values, arguments))
    if origin is dict or kind is dict:
        return st.dictionaries(TEXTS, TEXTS, max_size=2)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return structs(kind)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        str: TEXTS,
        int: NUMBERS,
        float: FLOATS,
        bool: st.booleans(),
        bytes: BYTES,
        type(None): st.none(),
        Any: st.one_of(TEXTS, NUMBERS, st.none()),
        object: st.one_of(TEXTS, NUMBERS, st.none()),
    }
    return simple[kind]


def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    required, optional = {}, {}
    for field in msgspec.structs.fields(kind):
        fields = required if field.required else optional
        fields[field.name] = values(hints[field.name])
    return st.fixed_dictionaries(required, optional=optional).map(lambda given: (kind, given))


def made(drawn: Any) -> Any:
    """Return the drawn struct; missing fields without default get a plain value."""
    if isinstance(drawn, tuple) and len(drawn) == 2 and isinstance(drawn[0], type):
        kind, given = drawn
        return kind(**{name: made(value) for name, value in given.items()})
    if isinstance(drawn, list):
        return [made(each) for each in drawn]
    return drawn


# These verbs may wait without end, as requested.
VERBS = sorted(HANDLERS, key=lambda kind: kind.__name__)


def requests(kind: type[frames.Request]) -> st.SearchStrategy[frames.Request]:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {name: values(hints[name]) for name in kind.__struct_fields__ if name != "number"}
    return st.fixed_dictionaries(fields).map(
        lambda given: kind(1, **{name: made(value) for name, value in given.items()})
    )


async def asked(path: Path, request: frames.Request) -> bytes:
    """Send a request on a connection of its own, and return whether the daemon still answers."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(frames.frame(request))
        with_status = operator_frames.Status(2)
        writer.write(frames.frame(with_status))
        return await asyncio.wait_for(reader.read(1), END_S)
    finally:
        writer.close()


@pytest.mark.parametrize("kind", VERBS, ids=lambda kind: kind.__name__)
@settings(
    max_examples=3,
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_no_request_stops_the_daemon(kind: type[frames.Request], data: st.DataObject) -> None:
    drawn = [data.draw(requests(kind)) for _ in range(12)]

    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="qmd-") as folder:
            async with Hosts(Path(folder)) as hosts:
                host = await hosts.start()
                await host.create("private$\\orders", transactional=True)
                await host.create("private$\\plain")
                server = ControlServer(host.components, HANDLERS)
                path = Path(folder) / "s"
                await server.start(path, 0o600, "")
                try:
                    for request in drawn:
                        assert await asked(path, request)
                        assert not host.services.lifecycle.failed.done(), (
                            request,
                            host.services.lifecycle.failed.exception(),
                        )
                finally:
                    await server.stop(path)

    asyncio.run(run())
