"""Names that say something: files by the user's nouns, functions by the verbs of the house.

Empty names are listed after the test run and fail nothing; two classes of one name fail.
"""

from __future__ import annotations

import ast
import collections
from pathlib import PurePosixPath

EMPTY_NOUNS = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager", "core"}
EMPTY_VERBS = ("get_", "handle_", "process_", "do_")

# Methods that another library calls by name: they count only inside a class that has a base.
HOOKS = {
    "get_map": "selectors.BaseSelector",
    "get_command": "click.Group",
    "do_GET": "http.server.BaseHTTPRequestHandler",
    "do_POST": "http.server.BaseHTTPRequestHandler",
}


def empty_file_names(paths: list[str]) -> list[str]:
    return [
        f"{path}: `{part}` says nothing about what is inside"
        for path in paths
        for part in PurePosixPath(path).with_suffix("").parts
        if part.strip("_") in EMPTY_NOUNS
    ]


def empty_verbs(sources: dict[str, str]) -> list[str]:
    problems = []
    for path, text in sources.items():
        tree = ast.parse(text, path)
        hooks = {
            method
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and node.bases
            for method in node.body
            if isinstance(method, ast.FunctionDef) and method.name in HOOKS
        }
        problems += [
            f"{path}:{node.lineno}: `{node.name}`: find_, require_, load_, parse_ or a bare noun"
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.lstrip("_").startswith(EMPTY_VERBS)
            and node not in hooks
        ]
    return problems


def shared_class_names(sources: dict[str, str]) -> dict[str, list[str]]:
    """Public classes that share a name, with where they are."""
    found = collections.defaultdict(list)
    for path, text in sources.items():
        for node in ast.parse(text, path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def test_file_names(sources, root, warn):
    ours = [
        path.relative_to(root).as_posix()
        for folder in ("tests", "tools")
        for path in (root / folder).rglob("*")
        if "__pycache__" not in path.parts
    ]
    assert len(ours) >= 5
    for problem in empty_file_names([*sources, *ours]):
        warn(problem)


def test_function_names(sources, warn):
    assert len(sources) >= 5
    for problem in empty_verbs(sources):
        warn(problem)


def test_no_two_classes_share_a_name(sources):
    assert shared_class_names(sources) == {}


def test_planted_class_names_are_reported():
    one = {"cli/a.py": "class Run: ...\nclass _Own: ...", "host/a.py": "class _Own: ..."}
    assert shared_class_names(one) == {}
    two = {**one, "host/b.py": "class Run: ..."}
    assert shared_class_names(two) == {"Run": ["cli/a.py", "host/b.py"]}


def test_planted_file_names_are_reported():
    bad = ["host/utils.py", "engine/core/runs.py", "cli/_helpers.py", "drivers/base.py"]
    assert len(empty_file_names(bad)) == len(bad)
    assert empty_file_names(["host/basement.py", "engine/scores.py", "cli/commonality.py"]) == []


def test_planted_verbs_are_reported():
    for name in ("get_run", "handle_error", "process_line", "do_it", "_get_run"):
        assert len(empty_verbs({"cli/a.py": f"def {name}(): ..."})) == 1
        assert len(empty_verbs({"cli/a.py": f"class A(B):\n  async def {name}(self): ..."})) == 1
    assert empty_verbs({"cli/a.py": "def find_run(): ...\ndef target_of(): ...\n"}) == []


def test_hook_counts_only_in_a_class_with_a_base():
    assert empty_verbs({"cli/app.py": "class Verbs(Group):\n  def get_command(self): ..."}) == []
    assert len(empty_verbs({"cli/app.py": "class Verbs:\n  def get_command(self): ..."})) == 1
    assert len(empty_verbs({"cli/app.py": "def get_command(): ..."})) == 1
