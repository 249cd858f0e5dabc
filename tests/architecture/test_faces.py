"""Every verb calls methods of `Project`, `Capsule` or `Home`, and reaches nothing below them."""

from __future__ import annotations

import ast
from pathlib import Path

import atoll

CLI = Path(atoll.__file__).parent / "cli"
API = {"atoll.engine.projects", "atoll.engine.capsules", "atoll.engine.home", "atoll.engine.shapes"}
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
