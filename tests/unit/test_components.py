"""Components: each names its collaborators, and gives none of them away."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPONENT_PACKAGES = (
    *("access", "bulk", "directory", "events", "history", "maintenance", "naming", "operations"),
    *("outcomes", "peers", "queues", "transfer"),
)
# Objects of the event loop besides components.
STATE_OF_LOOP = {"Services", "LocalQueue", "OutgoingQueue", "PeerConnection"}
# Which link carries another one, over which session: that is the state of links.
STATE_OF_LINKS = {("Link", "carrier"), ("Link", "connection"), ("Turn", "connection")}


def _component_classes() -> Iterator[ast.ClassDef]:
    for package in COMPONENT_PACKAGES:
        for path in sorted((ROOT / "qmd" / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    yield node


def _exposed(node: ast.ClassDef, components: set[str]) -> Iterator[str]:
    """Return the public attributes of a class that hold components from its arguments."""
    for method in node.body:
        if not isinstance(method, ast.FunctionDef):
            continue
        arguments = [*method.args.args, *method.args.kwonlyargs]
        types = {each.arg: ast.unparse(each.annotation) for each in arguments if each.annotation}
        for statement in ast.walk(method):
            if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Name):
                continue
            for target in statement.targets:
                if (
                    isinstance(target, ast.Attribute)
                    and ast.unparse(target.value) == "self"
                    and not target.attr.startswith("_")
                    and types.get(statement.value.id) in components
                ):
                    yield target.attr


def _components(classes: list[ast.ClassDef]) -> set[str]:
    """Return the names of the classes that take `Services`."""
    return {
        node.name
        for node in classes
        for method in node.body
        if isinstance(method, ast.FunctionDef)
        and method.name == "__init__"
        and any(
            each.annotation is not None and ast.unparse(each.annotation) == "Services"
            for each in method.args.args
        )
    }


def _takes_the_database(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        each.annotation is not None and ast.unparse(each.annotation) == "sqlite3.Connection"
        for each in node.args.args
    )


def _live_objects(tree: ast.Module, components: set[str]) -> Iterator[str]:
    """Return the uses of components in units of work: functions that take the database."""
    for outer in ast.walk(tree):
        if isinstance(outer, ast.ClassDef) and any(map(_takes_the_database, outer.body)):
            # The unit is an object: its fields are values.
            yield from (
                f"{outer.name}.{ast.unparse(field.target)}"
                for field in outer.body
                if isinstance(field, ast.AnnAssign) and ast.unparse(field.annotation) in components
            )
        if not isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if _takes_the_database(outer):
            yield from (
                f"{outer.name}({each.arg})"
                for each in (*outer.args.args, *outer.args.kwonlyargs)
                if each.annotation is not None and ast.unparse(each.annotation) in components
            )
        for inner in ast.walk(outer):
            if inner is outer or not _takes_the_database(inner):
                continue
            if any(isinstance(each, ast.Name) and each.id == "self" for each in ast.walk(inner)):
                yield f"{inner.name}: self"  # type: ignore[attr-defined]


def test_units_of_work_use_values_only():
    """They run on the thread of the storage; components belong to the event loop."""
    components = _components(list(_component_classes())) | STATE_OF_LOOP
    units = 0
    found = []
    for path in sorted((ROOT / "qmd").rglob("*.py")):
        tree = ast.parse(path.read_text())
        units += sum(map(_takes_the_database, ast.walk(tree)))
        found += [f"{path.relative_to(ROOT)}: {each}" for each in _live_objects(tree, components)]
    assert units > 15, "the units were found"
    assert not found, "\n".join(found)


def test_a_component_in_a_unit_is_detected():
    source = """
class Move:
    recorder: Recorder

    def run(self, db: sqlite3.Connection): ...

def put_aside(db: sqlite3.Connection, recorder: Recorder): ...

def release(self):
    def unit(db: sqlite3.Connection):
        self.release()
"""
    found = list(_live_objects(ast.parse(source), {"Recorder"}))
    assert sorted(found) == ["Move.recorder", "put_aside(recorder)", "unit: self"]


def test_no_component_gives_its_collaborators_away():
    """Code that uses a component names it as its own collaborator, in its constructor."""
    classes = list(_component_classes())
    components = _components(classes)
    assert len(components) > 50, "the components were found"
    found = {(node.name, attr) for node in classes for attr in _exposed(node, components)}
    assert found == STATE_OF_LINKS


def test_an_exposed_collaborator_is_detected():
    source = "class A:\n def __init__(self, b: B, c: C):\n  self.b = b\n  self._c = c\n  self.n = 1"
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    assert list(_exposed(node, {"B", "C"})) == ["b"]
