"""Modules and functions that can be read in one go.

A file is as long as its idea: what is longer than these limits is listed after the test run, for a
second look, and fails nothing.
"""

from __future__ import annotations

import ast

MODULE_LINES = 600
FUNCTION_LINES = 60


def sizes(sources: dict[str, str]) -> dict[str, tuple[int, int]]:
    """Everything that has a size: name → (lines, limit)."""
    found = {}
    for path, text in sources.items():
        found[path] = (len(text.splitlines()), MODULE_LINES)
        for node in ast.walk(ast.parse(text, path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{path}::{node.name}"
                # Same-named methods of two classes share an entry: the longest counts.
                longest = max(code_lines(node), found.get(name, (0, 0))[0])
                found[name] = (longest, FUNCTION_LINES)
    return found


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end without the docstring: a contract may be explained at length."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def too_long(sources: dict[str, str]) -> list[str]:
    return [
        f"{name}: {lines} lines, more than {limit}"
        for name, (lines, limit) in sizes(sources).items()
        if lines > limit
    ]


def function_of(lines: int, name: str = "long") -> str:
    return f"def {name}():\n" + "    pass\n" * (lines - 1)


def test_sizes(sources, warn):
    measured = sizes(sources)
    assert len(measured) > len(sources)
    for problem in too_long(sources):
        warn(problem)


def test_long_module_is_reported():
    assert too_long({"cli/a.py": "x = 1\n" * 600}) == []
    assert too_long({"cli/a.py": "x = 1\n" * 601}) == ["cli/a.py: 601 lines, more than 600"]


def test_long_function_is_reported():
    assert too_long({"host/a.py": function_of(60)}) == []
    assert "host/a.py::long: 61 lines" in too_long({"host/a.py": function_of(61)})[0]


def test_docstring_does_not_count():
    text = 'def f():\n    """One.\n' + "\n    Two.\n" * 60 + '    """\n    return 1\n'
    assert too_long({"engine/a.py": text}) == []
