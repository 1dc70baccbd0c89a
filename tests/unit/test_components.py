"""Components: each names its collaborators, and gives none of them away."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPONENT_PACKAGES = (
    *("access", "bulk", "directory", "events", "history", "maintenance", "naming", "operations"),
    *("outcomes", "peers", "queues", "transfer"),
)
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


def test_no_component_gives_its_collaborators_away():
    """Code that uses a component names it as its own collaborator, in its constructor."""
    classes = list(_component_classes())
    components = {
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
    assert len(components) > 50, "the components were found"
    found = {(node.name, attr) for node in classes for attr in _exposed(node, components)}
    assert found == STATE_OF_LINKS


def test_an_exposed_collaborator_is_detected():
    source = "class A:\n def __init__(self, b: B, c: C):\n  self.b = b\n  self._c = c\n  self.n = 1"
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    assert list(_exposed(node, {"B", "C"})) == ["b"]
