"""Every verb calls methods of `Project`, `Capsule` or `Home`, and reaches nothing below them."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import atoll

CLI = Path(atoll.__file__).parent / "cli"
API = {"atoll.engine.projects", "atoll.engine.capsules", "atoll.engine.home", "atoll.engine.shapes"}
OPENERS = {"open_project", "open_home", "project_at"}
"""The only functions of the engine that verbs call, besides the shapes."""
BELOW = {"session", "store"}
"""Attributes of a handle that only the engine uses."""
EXCEPTIONS = {
    ("bench.py", "atoll.engine.bench.workspace"): "sizes and groups are choices on the command line"
}


def imports_of(text: str) -> set[str]:
    """Modules that are imported when the program runs, at the top or in a function."""
    tree = ast.parse(text)
    typed = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if node in typed:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "atoll.engine":
            found |= {f"atoll.engine.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    return found


def functions_of(text: str) -> set[str]:
    """Functions of the engine that are imported, or called as attributes of imported modules."""
    tree = ast.parse(text)
    imported = {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("atoll.engine")
        for alias in node.names
    }
    used = {
        (f"atoll.engine.{imported[node.value.id][1]}", node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and imported.get(node.value.id, ("", ""))[0] == "atoll.engine"
    }
    named = {entry for entry in imported.values() if entry[0] != "atoll.engine"}
    return {
        f"{module}.{name}"
        for module, name in named | used
        if module != "atoll.engine.shapes"
        and inspect.isfunction(getattr(importlib.import_module(module), name, None))
    }


def below(text: str) -> set[str]:
    nodes = ast.walk(ast.parse(text))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)} & BELOW


def wrong_imports(sources: dict[str, str]) -> set[tuple[str, str]]:
    return {
        (name, module)
        for name, text in sources.items()
        for module in imports_of(text)
        if module.startswith("atoll.engine") and module not in API
    }


def test_verbs_import_nothing_of_the_engine_but_its_api():
    sources = {path.name: path.read_text() for path in CLI.glob("*.py")}
    assert len(sources) > 40
    assert wrong_imports(sources) == set(EXCEPTIONS)


def test_verbs_call_methods_and_no_functions_of_the_engine():
    found = {name for path in CLI.glob("*.py") for name in functions_of(path.read_text())}
    assert {name.rpartition(".")[2] for name in found} <= OPENERS, found


def test_function_of_the_engine_is_reported():
    text = """
from atoll.engine import capsules, shapes
from atoll.engine.capsules import Capsule, remove_all as everything
from atoll.engine.projects import open_project
capsules.remove_all([])
shapes.work(Capsule)
"""
    assert functions_of(text) == {
        "atoll.engine.capsules.remove_all",
        "atoll.engine.projects.open_project",
    }


def test_verbs_use_no_session_and_no_store():
    assert {path.name: below(path.read_text()) for path in CLI.glob("*.py")} == {
        path.name: set() for path in CLI.glob("*.py")
    }


def test_an_import_past_the_api_is_reported():
    text = """
from atoll.engine import shapes, doctor
from atoll.engine.projects import Project
if TYPE_CHECKING:
    from atoll.engine.run.channels import Channel
def act():
    from atoll.engine.network import ports
    return project.session.store
"""
    assert wrong_imports({"x.py": text}) == {
        ("x.py", "atoll.engine.doctor"),
        ("x.py", "atoll.engine.network"),
    }
    assert below(text) == {"session", "store"}


OUTPUT = {"answer", "item", "table", "envelope"}
"""The functions of `cli/output.py` whose second argument becomes JSON."""


def _own_data(node: ast.AST) -> list[str]:
    """Literals and internal tuples in an expression; what other functions return is theirs."""
    if isinstance(node, ast.Dict | ast.DictComp):
        return [ast.unparse(node)]
    if isinstance(node, ast.Call):
        is_tuple = isinstance(node.func, ast.Attribute) and node.func.attr == "_asdict"
        return [ast.unparse(node)] if is_tuple else []
    return [found for child in ast.iter_child_nodes(node) for found in _own_data(child)]


def _values_of(name: str, within: ast.AST) -> list[ast.expr]:
    """What is assigned to a variable, or appended to it."""
    found = []
    for node in ast.walk(within):
        if isinstance(node, ast.Assign):
            if any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                found.append(node.value)
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            if isinstance(node.target, ast.Name) and node.target.id == name and node.value:
                found.append(node.value)
        elif isinstance(node, ast.Call):
            methods = (f"{name}.append", f"{name}.extend", f"{name}.update")
            found += node.args if ast.unparse(node.func) in methods else []
    return found


def shapes_in(text: str) -> list[str]:
    """The JSON that a module makes up itself and gives to the output."""
    tree = ast.parse(text)
    found = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or len(node.args) < 2:
                continue
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else ast.unparse(called)
            if name in OUTPUT:
                data = node.args[1]
                values = _values_of(data.id, function) if isinstance(data, ast.Name) else [data]
                found |= {item for value in values for item in _own_data(value)}
    return sorted(found)


def test_verbs_print_the_shapes_of_the_engine():
    sources = {path.name: path.read_text() for path in CLI.glob("*.py")}
    assert {name: shapes_in(text) for name, text in sources.items() if shapes_in(text)} == {}


def test_shape_of_a_verb_is_reported():
    text = """
def act(frame, found):
    rows, data = [], {"a": shapes.run(found)}
    data = {"b": 1}
    rows.append({"c": 2})
    frame.output.answer("x", data, "")
    frame.output.table("x", rows, (), ())
    frame.output.item("x", [one._asdict() for one in found], "")
    frame.output.answer("x", shapes.run(found), {"not": "data"})
    report(envelope("x", {"d": 3}))
"""
    assert shapes_in(text) == ["one._asdict()", "{'b': 1}", "{'c': 2}", "{'d': 3}"]
