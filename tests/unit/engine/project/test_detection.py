from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.engine.project.detection import Findings, detect, render_project_file
from atoll.engine.project.ecosystems import Server
from atoll.model.projectfile import parse_project_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.model.spec import ProjectFile


def write(root: Path, files: Mapping[str, str | bytes]) -> list[str]:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(files)


def found_in(root: Path, files: Mapping[str, str | bytes]) -> Findings:
    findings = detect(root, write(root, files))
    drafted(findings)
    return findings


def drafted(findings: Findings) -> ProjectFile:
    return parse_project_file(render_project_file(findings).encode(), source="atoll.toml")


def package(**scripts: str) -> str:
    return json.dumps({"dependencies": {"a": "1"}, "scripts": scripts})


@pytest.fixture(autouse=True)
def owner_without_stores(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch):
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.mark.parametrize(
    ("files", "language", "setup"),
    [
        ({"package.json": package(), "package-lock.json": ""}, "JavaScript", "npm ci"),
        ({"package.json": package(), "tsconfig.json": ""}, "TypeScript", "npm install"),
        (
            {"package.json": package(), "pnpm-lock.yaml": ""},
            "JavaScript",
            "pnpm install --frozen-lockfile",
        ),
        (
            {"package.json": package(), "yarn.lock": "__metadata:\n"},
            "JavaScript",
            "yarn install --immutable",
        ),
        (
            {"package.json": package(), "yarn.lock": "# yarn lockfile v1\n"},
            "JavaScript",
            "yarn install --frozen-lockfile",
        ),
        (
            {"package.json": package(), "bun.lock": ""},
            "JavaScript",
            "bun install --frozen-lockfile",
        ),
        ({"pyproject.toml": "", "uv.lock": ""}, "Python", "uv sync --frozen"),
        ({"pyproject.toml": "", "poetry.lock": ""}, "Python", "poetry install"),
        (
            {"requirements.txt": ""},
            "Python",
            "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt",
        ),
        (
            {"pyproject.toml": "[project]\nname='a'\n[project.optional-dependencies]\ndev=['x']"},
            "Python",
            "python3 -m venv .venv && .venv/bin/pip install -e '.[dev]'",
        ),
        ({"Gemfile": ""}, "Ruby", "bundle install"),
        ({"Cargo.toml": "", "Cargo.lock": ""}, "Rust", "cargo fetch --locked"),
        ({"go.mod": "", "go.sum": ""}, "Go", "go mod download"),
        ({"go.mod": ""}, "Go", None),
        ({"pom.xml": "", "mvnw": ""}, "Java", "./mvnw -q dependency:go-offline"),
        ({"composer.json": ""}, "PHP", "composer install"),
        ({"mix.exs": ""}, "Elixir", "mix deps.get"),
        ({"App.csproj": ""}, "C#", "dotnet restore"),
        ({"CMakeLists.txt": ""}, "C/C++", None),
        ({"build.gradle": ""}, "Java", None),
    ],
)
def test_lock_files_tell_the_set_up(
    tmp_path: Path, files: dict[str, str], language: str, setup: str | None
) -> None:
    findings = found_in(tmp_path, files)
    assert findings.languages == (language,)
    assert findings.setup == ((setup,) if setup else ())
    assert drafted(findings).capsule.setup == findings.setup


@pytest.mark.parametrize(
    ("files", "installed", "setup"),
    [
        (
            {"package.json": package(), "package-lock.json": ""},
            "node_modules/a/package.json",
            "npm ci",
        ),
        ({"pyproject.toml": "", "uv.lock": ""}, ".venv/pyvenv.cfg", "uv sync --frozen"),
        ({"requirements.txt": ""}, "venv/pyvenv.cfg", "-r requirements.txt"),
        ({"Gemfile": ""}, "vendor/bundle/ruby/3.3.0/gems/rack/x", "bundle install"),
        ({"Cargo.toml": "", "Cargo.lock": ""}, "target/.rustc_info.json", "cargo fetch --locked"),
        ({"go.mod": "", "go.sum": ""}, "vendor/modules.txt", "go mod download"),
        ({"go.mod": "", "go.sum": ""}, "~/go/pkg/mod/cache/x", "go mod download"),
        ({"pom.xml": ""}, "~/.m2/repository/x", "mvn -q dependency:go-offline"),
        ({"composer.json": ""}, "vendor/composer/installed.json", "composer install"),
        ({"mix.exs": ""}, "deps/plug/mix.exs", "mix deps.get"),
        ({"App.csproj": ""}, "obj/project.assets.json", "dotnet restore"),
    ],
)
def test_no_set_up_is_proposed_for_dependencies_that_are_in_place(
    tmp_path: Path, owner_without_stores: Path, files: dict[str, str], installed: str, setup: str
) -> None:
    home = installed.startswith("~/")
    write(owner_without_stores if home else tmp_path, {installed.removeprefix("~/"): ""})
    findings = found_in(tmp_path, files)
    assert drafted(findings).capsule.setup == ()
    assert findings.spare_setup[0].endswith(setup)
    lines = render_project_file(findings).splitlines()
    assert any(line.startswith("# setup = ") and setup in line for line in lines)
    assert "later: carry" not in "\n".join(lines)


def test_a_directory_of_that_name_is_no_evidence(tmp_path: Path) -> None:
    write(tmp_path, {"vendor/ours.php": "", "target/notes": "", "node_modules/README": ""})
    files = {"package.json": package(), "composer.json": "", "Cargo.toml": ""}
    assert found_in(tmp_path, files).setup == ("npm install", "cargo fetch", "composer install")


@pytest.mark.parametrize(
    ("files", "checks"),
    [
        (
            {"package.json": package(test="vitest run", lint="eslint .", deploy="x")},
            {"test": "npm test", "lint": "npm run lint"},
        ),
        ({"package.json": package(test='echo "Error: no test specified" && exit 1')}, {}),
        ({"package.json": package(test="jest --watch")}, {}),
        (
            {"uv.lock": "", "pyproject.toml": "[tool.pytest.ini_options]\na=1\n[tool.ruff]\na=1"},
            {"test": "uv run pytest", "lint": "uv run ruff check"},
        ),
        ({"requirements.txt": "", "pytest.ini": ""}, {"test": ".venv/bin/pytest"}),
        ({"requirements.txt": "", "tox.ini": ""}, {"test": "tox"}),
        ({"noxfile.py": ""}, {"test": "nox"}),
        ({"Makefile": "test: a\n\tx\nlint:\n\ty\n"}, {"test": "make test", "lint": "make lint"}),
        ({"Makefile": "test := a\nlint::=b\n"}, {}),
        (
            {"go.mod": "", "Makefile": "test:\nlint:\n"},
            {"test": "go test ./...", "lint": "make lint"},
        ),
        (
            {"go.mod": "", "package.json": package(test="x")},
            {"test": "npm test", "test-go": "go test ./..."},
        ),
    ],
)
def test_checks(tmp_path: Path, files: dict[str, str], checks: dict[str, str]) -> None:
    findings = found_in(tmp_path, files)
    assert dict(findings.checks) == checks
    assert {name: check.run for name, check in drafted(findings).checks.items()} == checks


@pytest.mark.parametrize(
    ("files", "server"),
    [
        ({"package.json": package(dev="vite")}, Server(command="npm run dev", port=5173)),
        ({"package.json": package(dev="next dev")}, Server(command="npm run dev", port=3000)),
        (
            {"package.json": package(start="x --port=8123")},
            Server(command="npm run start", port=8123),
        ),
        (
            {"package.json": package(dev="PORT=4000 node --watch s.js")},
            Server(command="npm run dev", port=4000),
        ),
        ({"package.json": package(dev="vite --port 99999")}, Server(command="npm run dev")),
        ({"package.json": package(start="node s.js")}, Server(command="npm run start")),
        ({"package.json": package(build="vite build")}, None),
        ({"manage.py": ""}, Server(command="python manage.py runserver", port=8000)),
    ],
)
def test_the_dev_server_and_its_port(
    tmp_path: Path, files: dict[str, str], server: Server | None
) -> None:
    findings = found_in(tmp_path, files)
    assert findings.server == server
    web = drafted(findings).services.get("web")
    ported = server if server is not None and server.port is not None else None
    assert (web and (web.command, web.port)) == (ported and (ported.command, ported.port))


def test_a_devcontainer_tells_the_port_that_a_script_does_not(tmp_path: Path) -> None:
    container = (
        '{\n// "image": 1,\n"forwardPorts": [8080,], /* x */\n"postCreateCommand": "a //b",}'
    )
    findings = found_in(
        tmp_path,
        {
            ".devcontainer/devcontainer.json": container,
            "package.json": package(start="node s.js"),
        },
    )
    assert findings.server == Server(command="npm run start", port=8080)
    assert findings.notes == ("the devcontainer's postCreateCommand: a //b",)


def test_directories_below_count_when_the_root_has_no_language(tmp_path: Path) -> None:
    findings = found_in(
        tmp_path,
        {
            "front/package.json": package(dev="vite", test="x"),
            "front/package-lock.json": "",
            "back/go.mod": "",
            "back/go.sum": "",
            "we ird;rm/go.mod": "",
        },
    )
    assert findings.setup == ("(cd back && go mod download)", "(cd front && npm ci)")
    assert dict(findings.checks) == {
        "test-back": "(cd back && go test ./...)",
        "test-front": "(cd front && npm test)",
    }
    assert findings.server == Server(command="(cd front && npm run dev)", port=5173)


def test_only_tracked_files_count(tmp_path: Path) -> None:
    write(tmp_path, {"package.json": package(test="x")})
    assert detect(tmp_path, []) == Findings(name=detect(tmp_path, []).name)


def test_the_rest_is_seen(tmp_path: Path) -> None:
    write(tmp_path, {"node_modules/.package-lock.json": ""})
    findings = found_in(
        tmp_path,
        {
            "compose.yaml": "services:\n  a:\n    image: 'postgis/postgis:16'\n  b:\n"
            "    image: redis\n  c:\n    image: nginx\n",
            "package.json": package(),
            ".tool-versions": "",
            ".envrc": "",
            ".worktreeinclude": "",
            ".gitmodules": "",
            ".gitattributes": "*.bin filter=lfs diff=lfs\n",
        },
    )
    assert findings.services == ("postgres", "redis")
    assert findings.tools == "mise"
    assert findings.installed == ("node_modules",)
    assert [note.partition(":")[0] for note in findings.notes] == [
        "a compose file",
        ".worktreeinclude",
        "submodules",
        "git LFS",
    ]


DRAFT = """\
# What Atoll may do with this project; `atoll schema` prints this file's JSON schema.

[project]
# JavaScript
name = "my-shop"
# base = "main"    # where new capsules start
# carry = ["**", ".env"]    # what git ignores is carried; secrets only by name

[capsule]
# Not needed while a new capsule finds its dependencies in node_modules:
# setup = ["npm ci"]
# env = { LOG_LEVEL = "debug" }
# limits = { time = "2h" }
# What its processes may reach, at level `sandbox`:
# network = "allow"    # or "none", or "open"
# allow = ["model-apis", "node"]

# later: [tools] use = "mise"

# Its port is set in ATOLL_PORT_WEB; Atoll does not start the service yet.
[services.web]
command = "npm run dev"
port = 5173

# later: [services.db] use = "postgres"

[checks.test]
run = "npm test"

# Detected, but not configured:
# - a compose file: its services are not started by Atoll yet
"""


def test_the_draft_in_full(tmp_path: Path) -> None:
    root = tmp_path / "My Shop"
    write(root, {"node_modules/.package-lock.json": ""})
    findings = found_in(
        root,
        {
            "package.json": package(dev="vite", test="vitest run"),
            "package-lock.json": "",
            "mise.toml": "",
            "compose.yaml": "services:\n  db:\n    image: postgres:16\n",
        },
    )
    assert render_project_file(findings) == DRAFT


def test_the_draft_of_nothing_is_short_and_valid(tmp_path: Path) -> None:
    root = tmp_path / "日本"
    findings = found_in(root, {"README": ""})
    assert findings == Findings(name="")
    assert len(render_project_file(findings).splitlines()) < 18


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[" * 500_000,
        b'{"a":' * 100_000,
        b"9" * 10_000,
        b"/*" * 500_000,
        b'"\\"' * 300_000,
        b"," * 1_000_000,
        b".".join([b"a"] * 500_000) + b"=1",
        b"[]",
        b'{"scripts": [], "dependencies": 1, "forwardPorts": [true]}',
        b'{"scripts": {"dev": 1, "test": null, "lint": {}}}',
        b'{"postCreateCommand": "a\\n[checks.x]\\nrun = 1\\u001b\\u202e"}',
        b"tool = 1\nproject = []\n",
        b"x" * 2_000_000,
    ],
)
def test_broken_and_hostile_files_do_no_harm(tmp_path: Path, content: bytes) -> None:
    names = ["package.json", "pyproject.toml", ".devcontainer.json", "yarn.lock", "compose.yaml"]
    started = time.monotonic()
    findings = found_in(tmp_path, dict.fromkeys([*names, "Makefile", ".gitattributes"], content))
    assert time.monotonic() - started < 30
    text = render_project_file(findings)
    assert all(line.isprintable() for line in text.splitlines())
    assert list(drafted(findings).checks) == []


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write(outside, {"package.json": package(test="x"), "devcontainer.json": '{"forwardPorts":[1]}'})
    root = tmp_path / "project"
    root.mkdir()
    (root / "package.json").symlink_to(outside / "package.json")
    (root / ".devcontainer").symlink_to(outside)
    os.mkfifo(root / "Makefile")
    (root / "pyproject.toml").mkdir()
    names = ["package.json", ".devcontainer/devcontainer.json", "Makefile", "pyproject.toml"]
    findings = detect(root, names)
    assert (findings.checks, findings.setup, findings.server) == ((), (), None)


def test_a_project_reached_through_a_link_is_read(tmp_path: Path) -> None:
    tracked = write(tmp_path / "real", {".devcontainer/devcontainer.json": "{}", "go.mod": ""})
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert detect(tmp_path / "link", tracked).languages == ("Go",)


def test_a_large_project_is_looked_at_quickly(tmp_path: Path) -> None:
    tracked = [f"d{number % 997}/f{number}" for number in range(300_000)]
    started = time.monotonic()
    detect(tmp_path, tracked)
    assert time.monotonic() - started < 15


TEXTS = st.text(max_size=30)


@settings(deadline=None)
@given(
    st.builds(
        Findings,
        name=st.sampled_from(["", "shop"]),
        languages=st.just(("Go",)),
        setup=st.lists(TEXTS.filter(str.strip), max_size=3).map(tuple),
        checks=st.dictionaries(
            st.from_regex(r"[a-z]{1,9}", fullmatch=True), TEXTS.filter(str.strip)
        )
        .map(dict.items)
        .map(tuple),
        server=st.none()
        | st.builds(
            Server, command=TEXTS.filter(str.strip), port=st.none() | st.integers(1, 65_535)
        ),
        services=st.lists(st.sampled_from(["postgres", "redis"])).map(tuple),
        tools=st.none() | st.sampled_from(["mise", "nix"]),
        spare_setup=st.lists(TEXTS).map(tuple),
        installed=st.lists(TEXTS).map(tuple),
    )
)
def test_whatever_was_found_the_draft_is_valid(findings: Findings) -> None:
    assert drafted(findings).checks.keys() == dict(findings.checks).keys()


FILES = st.dictionaries(
    st.sampled_from(
        [
            "package.json",
            "pyproject.toml",
            "Makefile",
            "compose.yml",
            ".devcontainer.json",
            "a/go.mod",
        ]
    ),
    st.text()
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["scripts", "dev", "test", "forwardPorts", "postCreateCommand"]),
                inner,
            )
        ),
        max_leaves=8,
    ).map(json.dumps),
)


@settings(deadline=None)
@given(FILES)
def test_whatever_the_files_hold_the_draft_is_valid(files: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        content = {name: text.encode("utf-8", "surrogatepass") for name, text in files.items()}
        findings = found_in(Path(directory), content)
        assert drafted(findings).checks.keys() == dict(findings.checks).keys()
