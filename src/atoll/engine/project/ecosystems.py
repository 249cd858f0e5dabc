"""What the files of each language show: how to set up, check and serve a project.

Only tracked files count, because nothing else is in a new capsule. Their content is untrusted: it
is bounded, may be malformed, and only numbers, known words and safe names of it are used.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from atoll.host.files import read_regular
from atoll.model.errors import AtollError
from atoll.model.tomlkeys import scan_keys

READ_LIMIT_BYTES = 1 << 20

_KEY_DEPTH_LIMIT = 32
# Strings come first in both, so that what looks like a comment inside one is kept. All examined
# text is consumed, so both are linear on hostile text.
_STRING = r'("(?:[^"\\\n]+|\\.)*"?)'
_COMMENT = re.compile(_STRING + r"|//[^\n]*|/\*(?:[^*]+|\*(?!/))*(?:\*/)?", re.DOTALL)
_LAST_COMMA = re.compile(_STRING + r"|,(?=\s*[\]}])", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The tracked files of one directory of a project."""

    root: Path
    files: frozenset[str]
    """Paths from `root`."""

    def has(self, *names: str) -> bool:
        return any(name in self.files for name in names)

    def text(self, name: str) -> str:
        """The content of a tracked regular file; empty when it cannot be opened."""
        if name not in self.files or self._is_detour(name):
            return ""
        try:
            data = read_regular(self.root / name, limit_bytes=READ_LIMIT_BYTES)
        except (AtollError, OSError):
            return ""
        return (data or b"").decode("utf-8-sig", "replace")

    def _is_detour(self, name: str) -> bool:
        """Whether a link in the path points outside of the project."""
        inner = PurePosixPath(name).parents[:-1]
        return any((self.root / parent).is_symlink() for parent in inner)

    def json(self, name: str) -> Mapping[str, object]:
        """An object of JSON, with the comments and trailing commas that some tools allow."""
        text = self.text(name)
        for noise in (_COMMENT, _LAST_COMMA):
            text = noise.sub(lambda match: match[1] or "", text)
        try:
            loaded: object = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        return table(loaded)

    def toml(self, name: str) -> Mapping[str, object]:
        text = self.text(name)
        # tomllib takes the square of a dotted key's length.
        if any(len(path) > _KEY_DEPTH_LIMIT for path, _ in scan_keys(text)):
            return {}
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError):
            return {}


def table(value: object, *keys: str) -> Mapping[str, object]:
    """The table at the end of `keys`; an empty one when there is something else."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    command: str
    port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ecosystem:
    """What one language's files say."""

    language: str
    setup: tuple[str, ...] = ()
    checks: Mapping[str, str] = field(default_factory=dict)
    server: Server | None = None
    installed_in: tuple[str, ...] = ()
    """Directories of the project that hold its dependencies once they are installed; one is
    enough."""
    stores: tuple[str, ...] = ()
    """Directories of the owner from which the build tool takes dependencies."""


def find_ecosystems(tree: Tree) -> Iterator[Ecosystem]:
    for find in (_node, _python, _rust, _go, _java, _ruby, _php, _elixir, _dotnet, _native):
        found = find(tree)
        if found is not None:
            yield found


_LOCKED_NODE = (
    ("pnpm-lock.yaml", "pnpm", "pnpm install --frozen-lockfile"),
    ("bun.lock", "bun", "bun install --frozen-lockfile"),
    ("bun.lockb", "bun", "bun install --frozen-lockfile"),
    ("package-lock.json", "npm", "npm ci"),
    ("npm-shrinkwrap.json", "npm", "npm ci"),
)
_NODE_CHECKS = ("test", "lint", "typecheck", "build")
_PORT_OPTION = re.compile(r"(?:--port[= ]|(?:^|\s)-p[= ]?|\bPORT=)([0-9]{2,5})\b")
_DEFAULT_PORTS = (
    ("vite preview", 4173),
    ("react-router dev", 5173),
    ("vue-cli-service", 8080),
    ("react-scripts", 3000),
    ("webpack", 8080),
    ("storybook", 6006),
    ("docusaurus", 3000),
    ("eleventy", 8080),
    ("gatsby", 8000),
    ("parcel", 1234),
    ("astro", 4321),
    ("ng serve", 4200),
    ("nuxt", 3000),
    ("next", 3000),
    ("vite", 5173),
)


def _node(tree: Tree) -> Ecosystem | None:
    if not tree.has("package.json"):
        return None
    package = tree.json("package.json")
    scripts = {
        name: text for name, text in table(package, "scripts").items() if isinstance(text, str)
    }
    manager, setup = _node_manager(tree, package)
    run = {name: f"{manager} run {name}" for name in scripts}
    if manager == "npm" and "test" in run:
        run["test"] = "npm test"
    server = next(
        (
            Server(command=run[name], port=_script_port(scripts[name]))
            for name in ("dev", "start", "serve")
            if name in run
        ),
        None,
    )
    return Ecosystem(
        language="TypeScript" if tree.has("tsconfig.json") else "JavaScript",
        setup=(setup,) if setup else (),
        checks={name: run[name] for name in _NODE_CHECKS if _is_check(scripts.get(name, ""))},
        server=server,
        installed_in=("node_modules",),
    )


def _is_check(script: str) -> bool:
    """Whether it ends by itself, and is not what `npm init` writes."""
    return bool(script) and "--watch" not in script and "no test specified" not in script


def _node_manager(tree: Tree, package: Mapping[str, object]) -> tuple[str, str | None]:
    for lock, manager, setup in _LOCKED_NODE:
        if tree.has(lock):
            return manager, setup
    if tree.has("yarn.lock"):
        # The first generation of yarn has no `--immutable`; only the later ones have this file.
        modern = tree.has(".yarnrc.yml") or "__metadata:" in tree.text("yarn.lock")[:1000]
        return "yarn", "yarn install " + ("--immutable" if modern else "--frozen-lockfile")
    needs = table(package, "dependencies") or table(package, "devDependencies")
    return "npm", "npm install" if needs else None


def _script_port(script: str) -> int | None:
    if option := _PORT_OPTION.search(script):
        port = int(option[1])
        return port if 1 <= port <= 65_535 else None
    return next((port for word, port in _DEFAULT_PORTS if word in script), None)


_PYTHON_FILES = (
    "pyproject.toml",
    "requirements.txt",
    "setup.py",
    "setup.cfg",
    "Pipfile",
    "tox.ini",
    "noxfile.py",
    "manage.py",
)
_PYTHON_TOOLS = (
    ("uv.lock", "uv sync --frozen", "uv run "),
    ("poetry.lock", "poetry install", "poetry run "),
    ("pdm.lock", "pdm sync", "pdm run "),
    ("Pipfile.lock", "pipenv sync --dev", "pipenv run "),
)
_REQUIREMENTS = ("requirements.txt", "requirements-dev.txt", "dev-requirements.txt")
_VENV = "python3 -m venv .venv && .venv/bin/pip install "


def _python(tree: Tree) -> Ecosystem | None:
    if not tree.has(*_PYTHON_FILES):
        return None
    project = tree.toml("pyproject.toml")
    setup, prefix = _python_setup(tree, project)
    checks = {}
    if test := _python_test(tree, project):
        # tox and nox make their own environments and are seldom in the project's.
        checks["test"] = test if test in {"tox", "nox"} else prefix + test
    if tree.has("ruff.toml", ".ruff.toml") or table(project, "tool", "ruff"):
        checks["lint"] = f"{prefix}ruff check"
    serve = Server(command=f"{prefix}python manage.py runserver", port=8000)
    return Ecosystem(
        language="Python",
        setup=(setup,) if setup else (),
        checks=checks,
        server=serve if tree.has("manage.py") else None,
        installed_in=(".venv", "venv", "env", ".env", "__pypackages__"),
    )


def _python_setup(tree: Tree, project: Mapping[str, object]) -> tuple[str | None, str]:
    for lock, setup, prefix in _PYTHON_TOOLS:
        if tree.has(lock):
            return setup, prefix
    wanted = [f"-r {name}" for name in _REQUIREMENTS if tree.has(name)]
    if not wanted and (table(project, "project") or tree.has("setup.py")):
        extras = table(project, "project", "optional-dependencies")
        extra = next((name for name in ("dev", "test", "tests") if name in extras), None)
        wanted = [f"-e '.[{extra}]'" if extra else "-e ."]
    return (_VENV + " ".join(wanted), ".venv/bin/") if wanted else (None, "")


def _python_test(tree: Tree, project: Mapping[str, object]) -> str | None:
    if tree.has("noxfile.py"):
        return "nox"
    if tree.has("tox.ini") or table(project, "tool", "tox"):
        return "tox"
    if table(project, "tool", "pytest") or tree.has(
        "pytest.ini", "conftest.py", "tests/conftest.py"
    ):
        return "pytest"
    return "python manage.py test" if tree.has("manage.py") else None


def _rust(tree: Tree) -> Ecosystem | None:
    if not tree.has("Cargo.toml"):
        return None
    fetch = "cargo fetch --locked" if tree.has("Cargo.lock") else "cargo fetch"
    checks = {"test": "cargo test"}
    return Ecosystem(
        language="Rust",
        setup=(fetch,),
        checks=checks,
        installed_in=("target", "vendor"),
        stores=("~/.cargo/registry",),
    )


def _go(tree: Tree) -> Ecosystem | None:
    if not tree.has("go.mod"):
        return None
    checks = {"test": "go test ./..."}
    if tree.has(".golangci.yml", ".golangci.yaml", ".golangci.toml"):
        checks["lint"] = "golangci-lint run"
    return Ecosystem(
        language="Go",
        # Without this file there is nothing to download.
        setup=("go mod download",) if tree.has("go.sum") else (),
        checks=checks,
        installed_in=("vendor",),
        stores=("~/go/pkg/mod",),
    )


def _java(tree: Tree) -> Ecosystem | None:
    if tree.has("pom.xml"):
        maven = "./mvnw" if tree.has("mvnw") else "mvn"
        setup = (f"{maven} -q dependency:go-offline",)
        return Ecosystem(
            language="Java",
            setup=setup,
            checks={"test": f"{maven} -q test"},
            installed_in=("target",),
            stores=("~/.m2/repository",),
        )
    if tree.has("build.gradle", "build.gradle.kts"):
        gradle = "./gradlew" if tree.has("gradlew") else "gradle"
        return Ecosystem(language="Java", checks={"test": f"{gradle} test"})
    return None


def _ruby(tree: Tree) -> Ecosystem | None:
    if not tree.has("Gemfile"):
        return None
    checks = {}
    if tree.has(".rspec", "spec/spec_helper.rb"):
        checks["test"] = "bundle exec rspec"
    elif tree.has("test/test_helper.rb") and tree.has("Rakefile"):
        checks["test"] = "bundle exec rake test"
    if tree.has(".rubocop.yml"):
        checks["lint"] = "bundle exec rubocop"
    server = Server(command="bin/rails server", port=3000) if tree.has("bin/rails") else None
    return Ecosystem(
        language="Ruby",
        setup=("bundle install",),
        checks=checks,
        server=server,
        installed_in=("vendor/bundle",),
    )


def _php(tree: Tree) -> Ecosystem | None:
    if not tree.has("composer.json"):
        return None
    checks = {}
    if tree.has("phpunit.xml", "phpunit.xml.dist"):
        checks["test"] = "vendor/bin/phpunit"
    server = Server(command="php artisan serve", port=8000) if tree.has("artisan") else None
    return Ecosystem(
        language="PHP",
        setup=("composer install",),
        checks=checks,
        server=server,
        installed_in=("vendor",),
    )


def _elixir(tree: Tree) -> Ecosystem | None:
    if not tree.has("mix.exs"):
        return None
    phoenix = ":phoenix" in tree.text("mix.exs")
    return Ecosystem(
        language="Elixir",
        setup=("mix deps.get",),
        checks={"test": "mix test"},
        server=Server(command="mix phx.server", port=4000) if phoenix else None,
        installed_in=("deps", "_build"),
    )


def _dotnet(tree: Tree) -> Ecosystem | None:
    if not any(name.endswith((".sln", ".csproj")) and "/" not in name for name in tree.files):
        return None
    return Ecosystem(
        language="C#",
        setup=("dotnet restore",),
        checks={"test": "dotnet test"},
        installed_in=("obj",),
        stores=("~/.nuget/packages",),
    )


def _native(tree: Tree) -> Ecosystem | None:
    if tree.has("CMakeLists.txt"):
        test = "cmake -S . -B build && cmake --build build && ctest --test-dir build"
        return Ecosystem(language="C/C++", checks={"test": test})
    if tree.has("meson.build"):
        test = "(test -d build || meson setup build) && meson test -C build"
        return Ecosystem(language="C/C++", checks={"test": test})
    if tree.has("configure.ac"):
        return Ecosystem(language="C/C++")
    return None
