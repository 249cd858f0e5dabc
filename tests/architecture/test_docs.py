"""The documentation in step with the program: what can be used is written down, what is written
down exists. Every check has a planted violation beside it.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import atoll
from atoll.cli.app import VERBS
from atoll.engine.project.levels import LEVELS, NAMES
from atoll.model.errors import AtollError, Interrupted
from atoll.model.projectfile import project_schema
from atoll.testing.conformance.isolation import ALLOWED

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ANSWERS = {"answer", "item", "table", "envelope"}
FEWEST_PAGES = 30
# Places of one machine or one account; `~` and `/tmp/atoll-demo-…` mean the same to everyone.
MACHINE_PATH = re.compile(r"(?<![\w.~/-])/(?:root|work|mnt|Users|builds?)/[\w.-]+")


@cache
def pages() -> dict[str, str]:
    """Every page for people, by its path from the root."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in found}
    assert len(texts) >= FEWEST_PAGES, f"only {len(texts)} pages in {DOCS}"
    return texts


@cache
def generator() -> ModuleType:
    """`tools/reference.py`, which is a script and not in any package."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The checks: each returns what is wrong.


def section(text: str, title: str) -> str:
    """The part of a page below a heading, up to the next heading of any depth."""
    match = re.search(rf"^#+ {re.escape(title)}$(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    return match[1] if match else ""


def rows(text: str) -> list[list[str]]:
    """The cells of every table row; heads and rules included."""
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in text.splitlines()
        if line.startswith("|")
    ]


def without_code(text: str) -> str:
    """A page without its fenced blocks, whose content is not prose."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def quoted(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", without_code(text)))


def verbs_without_section(text: str, verbs: list[str]) -> list[str]:
    return [verb for verb in verbs if not section(text, f"`atoll {verb}`").strip()]


def kinds_used(sources: dict[str, str]) -> set[str]:
    """The first word of every `answer(`, `item(`, `table(` and `envelope(` in the faces."""
    found = set()
    for path, text in sources.items():
        if not path.startswith("cli/"):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            first = node.args[0]
            if name in ANSWERS and isinstance(first, ast.Constant):
                found.add(str(first.value))
    return found


def wrong_kinds(text: str, kinds: set[str]) -> list[str]:
    table = rows(section(text, "Which verb answers with what"))
    told = {word for row in table for word in quoted(row[1])}
    return [f"`{kind}` is not documented" for kind in sorted(kinds - told)] + [
        f"`{kind}` is documented, and no verb answers with it" for kind in sorted(told - kinds)
    ]


def shapes_of(text: str) -> dict[str, set[str]]:
    """Field names by shape: the keys of every dict that a function of `shapes.py` makes."""
    return {
        function.name.replace("_", " "): keys_in(function)
        for function in ast.parse(text).body
        if isinstance(function, ast.FunctionDef)
    }


def keys_in(tree: ast.AST) -> set[str]:
    return {
        key.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def untold_fields(text: str, shapes: dict[str, set[str]]) -> list[str]:
    """A shape that only one verb answers with may be described in the table of verbs."""
    table = section(text, "Which verb answers with what")
    return [
        f"{shape}: `{field}`"
        for shape, names in shapes.items()
        for field in sorted(names - quoted(section(text, shape) or table))
    ]


def untold_codes(text: str, codes: set[str]) -> list[str]:
    told = {row[0] for row in rows(text)}
    return sorted(codes - told)


def exit_codes() -> set[str]:
    found = {"0", "1", "128+n"}
    kinds = [AtollError]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind is not Interrupted:
            found.add(str(kind.exit_code))
    return found


def untold_words(text: str, words: set[str]) -> list[str]:
    return [word for word in sorted(words) if word not in quoted(text)]


def variables_used(sources: dict[str, str]) -> set[str]:
    """Every text that names a variable of ours, or the beginning of a family of them."""
    found = set()
    for text in sources.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"\b_?ATOLL_[A-Z][A-Z_]*", node.value))
    return found


def untold_variables(text: str, names: set[str]) -> list[str]:
    # `ATOLL_PORT_WEB` is told by `ATOLL_PORT_<NAME>`.
    families = {word.partition("<")[0] for word in quoted(text) if "<" in word}
    told = {word.partition("=")[0] for word in quoted(text)}
    return sorted(
        name for name in names - told if not any(name.startswith(family) for family in families)
    )


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    titles = re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.replace(" ", "-") for title in plain}


def broken_links(texts: dict[str, str], root: Path) -> list[str]:
    problems = []
    for page, text in texts.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
            if re.match(r"[a-z]+:", target):
                continue
            place, _, anchor = target.partition("#")
            path = (root / page).parent / place if place else root / page
            if not path.exists():
                problems.append(f"{page}: {target}: no such file")
            elif anchor and anchor not in anchors(path.read_text("utf-8")):
                problems.append(f"{page}: {target}: no such heading")
    return problems


def unreachable(texts: dict[str, str]) -> list[str]:
    """Pages below docs/ that the index does not link to."""
    linked = set(re.findall(r"\]\(([^)#\s]+)", texts["docs/index.md"]))
    below = [page.removeprefix("docs/") for page in texts if page.startswith("docs/")]
    return [page for page in below if page not in linked and page != "index.md"]


def machine_paths(texts: dict[str, str], root: Path) -> list[str]:
    found = []
    for page, text in texts.items():
        found += [f"{page}: {match[0]}" for match in MACHINE_PATH.finditer(text)]
        found += [f"{page}: {root}"] if str(root) in text else []
    return found


def incomplete_decisions(texts: dict[str, str]) -> list[str]:
    return [
        f"{page}: no {title}"
        for page, text in texts.items()
        if "/adr/" in page
        for title in ("Context", "Decision", "Cost")
        if not section(text, title).strip()
    ]


# The checks on what is there.


def test_every_verb_has_a_section():
    assert verbs_without_section(pages()["docs/reference/cli.md"], list(VERBS)) == []


def test_reference_pages_are_up_to_date():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "reference.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_json_kind_is_documented(sources):
    kinds = kinds_used(sources)
    assert {"error", "capsules", "log"} <= kinds
    assert wrong_kinds(pages()["docs/reference/json.md"], kinds) == []


def test_every_json_field_is_documented(sources):
    places = [path for path in sources if path.startswith("engine/shapes/")]
    assert len(places) > 5
    shapes: dict[str, set[str]] = {}
    for path in places:
        shapes |= shapes_of(sources[path])
    assert "base_commit" in shapes["capsule"]
    assert untold_fields(pages()["docs/reference/json.md"], shapes) == []


def test_every_other_json_field_is_documented(sources):
    """What verbs put together by themselves, and the error of `output.py`."""
    told = quoted(pages()["docs/reference/json.md"])
    for verb in [*VERBS, "output"]:
        tree = ast.parse(sources[f"cli/{verb}.py"])
        # Upper-case tables at the top of a module are not answers.
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        fields = set().union(*(keys_in(function) for function in functions))
        assert fields - told == set(), f"`{verb}` answers with fields that json.md does not name"


def test_every_exit_code_is_documented():
    assert untold_codes(pages()["docs/reference/exit-codes.md"], exit_codes()) == []


@pytest.mark.parametrize("page", ["docs/security.md", "docs/explanation/levels.md", "README.md"])
def test_every_level_is_explained(page):
    assert untold_words(pages()[page], set(NAMES)) == []


def test_readme_says_of_levels_what_the_program_says():
    table = {cell for row in rows(section(pages()["README.md"], "Levels")) for cell in row}
    told = {text for level in LEVELS for text in (level.isolates, level.shares)}
    assert told - table == set()


def test_every_variable_is_documented(sources):
    used = variables_used(sources)
    assert {"ATOLL_HOME", "ATOLL_LIMIT_"} <= used
    assert untold_variables(pages()["docs/reference/environment.md"], used) == []


def test_the_whole_allow_list_is_documented():
    assert untold_words(pages()["docs/reference/environment.md"], set(ALLOWED)) == []


def test_links_lead_somewhere():
    assert broken_links(pages(), ROOT) == []


def test_index_leads_to_every_page():
    assert unreachable(pages()) == []


def test_no_page_names_a_machine():
    assert machine_paths(pages(), ROOT) == []


def test_decisions_are_complete():
    assert incomplete_decisions(pages()) == []


# What a key of the project file does today, tried.

VALUES = {
    "project.name": '"store"',
    "project.base": '"main"',
    "project.carry": '["node_modules"]',
    "project.never": '["*.pem"]',
    "capsule.level": '"none"',
    "capsule.network": '"open"',
    "capsule.allow": '["example.org:443"]',
    "capsule.limits.cpus": "2",
    "capsule.limits.pids": "64",
    "capsule.limits.files": "64",
    "capsule.limits.time": '"2h"',
    "capsule.limits.idle": '"2h"',
    "capsule.setup": '["true"]',
    "capsule.setup_network": '"open"',
    "capsule.env": '{ LOG_LEVEL = "debug" }',
    "tools.use": '"none"',
}
SIZE = '"4G"'
SECTIONS = {
    "services": '[services.web]\ncommand = "serve"\nport = 3000\n',
    "secrets": '[secrets.TOKEN]\nfrom = { env = "TOKEN" }\n',
    "checks": '[checks.test]\nrun = "true"\n',
    "stages": '[stages.local]\nbranch = "main"\n',
}
REFUSED = {
    "capsule.level": ('"container"', 6),
    "tools.use": ('"mise"', 3),
}


def planned_code(repo: Path, text: str) -> int:
    """The exit code that `new --dry-run` would have with this project file, approved."""
    (repo / "atoll.toml").write_text(text, encoding="utf-8")
    project = atoll.open_project(repo)
    project.trust()
    try:
        project.plan("probe")
    except atoll.AtollError as error:
        return error.exit_code
    finally:
        project.session.store.close()
    return 0


def told_code(today: str) -> int:
    """At level `worktree`, which tests have unless they say so."""
    found = re.match(r"(?:at `sandbox`; )?refused.*exit (\d)", today)
    return int(found[1]) if found else 0


def file_with(key: str, value: str) -> str:
    table, _, name = key.rpartition(".")
    return f"[{table}]\n{name} = {value}\n"


def test_every_key_of_the_project_file_says_what_it_does_today():
    schema = project_schema()
    keys = {
        path
        for name, part in schema["properties"].items()  # type: ignore[attr-defined]
        for path, _, _ in generator().fields(schema, part, name)
    }
    assert set(generator().TODAY) == keys


@pytest.mark.parametrize("key", [k for k in generator().TODAY if k.split(".")[0] not in SECTIONS])
def test_what_a_key_does_today_is_true(key, repo):
    code = planned_code(repo, file_with(key, VALUES.get(key, SIZE)))
    assert code == told_code(generator().TODAY[key])


@pytest.mark.parametrize("name", SECTIONS)
def test_what_a_section_does_today_is_true(name, repo):
    told = {told_code(text) for key, text in generator().TODAY.items() if key.startswith(name)}
    assert told == {planned_code(repo, SECTIONS[name])}


@pytest.mark.parametrize("key", REFUSED)
def test_what_is_said_to_be_refused_is_refused(key, repo, monkeypatch):
    monkeypatch.delenv("ATOLL_LEVEL")
    value, code = REFUSED[key]
    assert f"exit {code}" in generator().TODAY[key]
    assert planned_code(repo, file_with(key, value)) == code


# The planted violations: each check can fail.


def test_missing_verb_is_reported():
    assert verbs_without_section("## `atoll ls`\n\nLists.\n", ["ls", "rm"]) == ["rm"]
    assert verbs_without_section("## `atoll ls`\n\n## `atoll rm`\nx\n", ["ls", "rm"]) == ["ls"]


def test_stale_page_is_reported(tmp_path):
    (tmp_path / "cli.md").write_text("old\n")
    (tmp_path / "settings.md").write_text("same\n")
    wanted = {"cli.md": "new\n", "project-file.md": "x\n", "settings.md": "same\n"}
    assert generator().out_of_date(tmp_path, wanted) == ["cli.md", "project-file.md"]


def test_wrong_example_is_reported():
    reference = generator()
    command = reference.root.get_command(None, "ls")
    with pytest.raises(SystemExit, match="--nonsense"):
        reference.require_parses(command, "atoll ls --nonsense")


def test_generator_refuses_unknown_words(capsys):
    assert generator().main(["--nonsense"]) == 2
    assert "usage" in capsys.readouterr().err


def test_undocumented_kind_is_reported():
    sources = {"cli/a.py": 'o.answer("new-kind", {}, "")\no.item("log", {}, "")', "engine/b.py": ""}
    assert kinds_used(sources) == {"new-kind", "log"}
    page = "## Which verb answers with what\n\n| verb | kind | data |\n| `a` | `old-kind` | x |\n"
    assert wrong_kinds(page, {"log"}) == [
        "`log` is not documented",
        "`old-kind` is documented, and no verb answers with it",
    ]


def test_undocumented_field_is_reported():
    shapes = shapes_of('def recovery_point(r):\n    return {"id": 1, "size": 2}\n')
    assert shapes == {"recovery point": {"id", "size"}}
    page = "### capsule\n\n`size`\n\n### recovery point\n\n`id`\n"
    assert untold_fields(page, shapes) == ["recovery point: `size`"]


def test_undocumented_exit_code_is_reported():
    assert untold_codes("| code |\n| --- |\n| 0 |\n| 16 |\n", {"0", "6"}) == ["6"]


def test_unexplained_level_is_reported():
    assert untold_words("a vm is `none`", {"none", "vm"}) == ["vm"]


def test_undocumented_variable_is_reported():
    used = variables_used({"a.py": 'x = "ATOLL_NEW"; y = f"ATOLL_PORT_{x}"; z = "ATOLL_"'})
    assert used == {"ATOLL_NEW", "ATOLL_PORT_"}
    assert untold_variables("`ATOLL_PORT_<NAME>`", used) == ["ATOLL_NEW"]
    assert untold_variables("`ATOLL_NEW=1` `ATOLL_PORT_<NAME>`", used) == []


def test_broken_link_is_reported(tmp_path):
    (tmp_path / "b.md").write_text("# A title: it\n")
    texts = {"a.md": "[x](b.md#a-title-it) [x](b.md#other) [x](c.md) [x](https://x.org) [x](#no)\n"}
    (tmp_path / "a.md").write_text(texts["a.md"])
    assert broken_links(texts, tmp_path) == [
        "a.md: b.md#other: no such heading",
        "a.md: c.md: no such file",
        "a.md: #no: no such heading",
    ]


def test_page_without_a_way_to_it_is_reported():
    texts = {"docs/index.md": "[a](a.md#x)", "docs/a.md": "", "docs/b/c.md": "", "README.md": ""}
    assert unreachable(texts) == ["b/c.md"]


def test_machine_path_is_reported():
    planted = "~/shop /tmp/atoll-demo-x /mnt/disk/x /somewhere/checkout/src"
    found = machine_paths({"a.md": planted}, Path("/somewhere/checkout"))
    assert found == ["a.md: /mnt/disk", "a.md: /somewhere/checkout"]


def test_incomplete_decision_is_reported():
    texts = {"docs/adr/1.md": "## Context\n\nx\n\n## Decision\n\n## Cost\n\nx\n", "a.md": ""}
    assert incomplete_decisions(texts) == ["docs/adr/1.md: no Decision"]
