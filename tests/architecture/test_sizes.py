"""Modules and functions that can be read in one go; the engine, which rots first, the shortest."""

from __future__ import annotations

import ast

MODULE_LINES = 400
FUNCTION_LINES = 50
ENGINE_FUNCTION_LINES = 40

# "module.py" or "module.py::function" → why it is better long. An entry that is no longer needed
# fails the test.
EXCEPTIONS: dict[str, str] = {}


def sizes(sources: dict[str, str]) -> dict[str, tuple[int, int]]:
    """Everything that has a size: name → (lines, limit)."""
    found = {}
    for path, text in sources.items():
        found[path] = (len(text.splitlines()), MODULE_LINES)
        limit = ENGINE_FUNCTION_LINES if path.startswith("engine/") else FUNCTION_LINES
        for node in ast.walk(ast.parse(text, path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{path}::{node.name}"
                # Same-named methods of two classes share an entry: the longest counts.
                longest = max(code_lines(node), found.get(name, (0, 0))[0])
                found[name] = (longest, limit)
    return found


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end without the docstring: a contract may be explained at length."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def too_long(sources: dict[str, str], exceptions: dict[str, str]) -> list[str]:
    over = {name: size for name, size in sizes(sources).items() if size[0] > size[1]}
    problems = [
        f"{name}: {lines} lines, {limit} are enough; divide it, or give a reason in EXCEPTIONS"
        for name, (lines, limit) in over.items()
        if name not in exceptions
    ]
    problems += [f"EXCEPTIONS[{name!r}] is not needed" for name in exceptions if name not in over]
    return problems


def function_of(lines: int, name: str = "long") -> str:
    return f"def {name}():\n" + "    pass\n" * (lines - 1)


def test_sizes(sources):
    assert too_long(sources, EXCEPTIONS) == []


def test_long_module_is_reported():
    assert too_long({"cli/a.py": "x = 1\n" * 400}, {}) == []
    assert "cli/a.py: 401 lines" in too_long({"cli/a.py": "x = 1\n" * 401}, {})[0]


def test_long_function_is_reported():
    assert too_long({"host/a.py": function_of(50)}, {}) == []
    assert "host/a.py::long: 51 lines" in too_long({"host/a.py": function_of(51)}, {})[0]


def test_engine_functions_are_shorter():
    assert too_long({"engine/a.py": function_of(40)}, {}) == []
    assert "engine/a.py::long: 41 lines" in too_long({"engine/a.py": function_of(41)}, {})[0]


def test_docstring_does_not_count():
    text = 'def f():\n    """One.\n' + "\n    Two.\n" * 30 + '    """\n    return 1\n'
    assert too_long({"engine/a.py": text}, {}) == []


def test_exception_counts_until_it_is_stale():
    long = {"host/a.py": function_of(60)}
    assert too_long(long, {"host/a.py::long": "a table"}) == []
    short = {"host/a.py": function_of(6)}
    assert too_long(short, {"host/a.py::long": "a table"}) == [
        "EXCEPTIONS['host/a.py::long'] is not needed"
    ]
