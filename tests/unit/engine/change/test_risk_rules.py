import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.engine.change.risk_rules import (
    PATTERNS,
    WHY,
    RiskKind,
    documented,
    find_kinds,
    find_link_kinds,
    plain,
)

PATHS = {
    RiskKind.GIT_HOOK: [".husky/pre-push", "web/.githooks/x", "hooks/pre-commit", "lefthook.yml"],
    RiskKind.GIT_SETTINGS: [".gitconfig", "sub/.lfsconfig"],
    RiskKind.SUBMODULE: [".gitmodules"],
    RiskKind.CI: [
        ".github/workflows/ci.yml", ".GitHub/Workflows/ci.yml", "Jenkinsfile", "x/.gitlab-ci.yml",
        ".circleci/config.yml", "azure-pipelines.yml", ".buildkite/pipeline.yml", "action.yml",
        ".github/CODEOWNERS",
    ],
    RiskKind.ENVIRONMENT: [".envrc", "a/b/.envrc", "flake.nix", "mise.toml", ".tool-versions"],
    RiskKind.SHELL: [".bashrc", "dotfiles/.zshenv"],
    RiskKind.EDITOR: [
        ".vscode/tasks.json", ".idea/runConfigurations/x.xml", ".nvim.lua", "x.code-workspace",
        ".devcontainer/devcontainer.json", ".exrc",
    ],
    RiskKind.AGENT: [
        "AGENTS.md", "docs/CLAUDE.md", ".mcp.json", ".claude/settings.json", ".aider.conf.yml",
        ".cursor/rules/x.mdc", ".codex/config.toml", ".gemini/settings.json",
    ],
    RiskKind.TEST_SETUP: [
        "conftest.py", "tests/a/conftest.py", "tox.ini", "jest.config.ts", "unittest.py",
        "pytest.py",
        "src/json/__init__.py", ".proverc",
    ],
    RiskKind.BUILD: [
        "Makefile", "sub/GNUmakefile", "justfile", "Taskfile.yml", "CMakeLists.txt", "Rakefile",
        "build.rs", "build.gradle.kts", "pom.xml", "setup.py", "x.pth", "sitecustomize.py",
        ".prettierrc", ".stylelintrc.json", ".rubocop.yml", ".formatter.exs", "conanfile.py",
    ],
    RiskKind.PACKAGE: [
        "package.yaml", ".pnp.cjs", "web/node_modules/react/index.js", ".npmrc", ".yarnrc.yml",
        ".yarn/releases/yarn.cjs", "pip.conf",
    ],
    RiskKind.CONTAINER: ["Dockerfile", "Dockerfile.dev", "compose.yaml", "docker-compose.ci.yml"],
    RiskKind.ATOLL: ["atoll.toml"],
}  # fmt: skip
ORDINARY = [
    "README.md", "src/app.py", "src/hooks/useState.ts", "tests/test_app.py", "docs/agents/x.md",
    "src/ci/parse.py", "lib/make.rb", "src/build/plan.py", "promise.toml", "src/environment.ts",
    "web/index.html", "CHANGELOG.md", "LICENSE", "data/table.csv", "cmd/main.go", "src/lib.rs",
    "tests/fixtures/order.json", "docs/dockerfile-guide.md", "src/makefile_parser.py", ".gitignore",
    "src/tasks.py", "manage.py", "app/json.py", "src/app/types.py", "test/__init__.py", "json/x.py",
    "package.json", "pyproject.toml", "Cargo.lock",
]  # fmt: skip


@pytest.mark.parametrize(("kind", "path"), [(k, p) for k, paths in PATHS.items() for p in paths])
def test_path_that_runs_code_is_found(kind, path):
    assert kind in find_kinds(path)
    assert kind in find_kinds(path.upper())


@pytest.mark.parametrize("path", ORDINARY)
def test_ordinary_path_is_not_found(path):
    assert find_kinds(path) == []


@pytest.mark.parametrize(
    "path", ["Makefile.", "makefile ", "Make\u200bfile", ".\uff45nvrc", ".vscode./tasks.json"]
)
def test_path_that_some_filesystem_takes_for_another_is_found(path):
    assert find_kinds(path)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (".vscode", RiskKind.EDITOR), ("web/.husky", RiskKind.GIT_HOOK), (".github", RiskKind.CI),
        (".GitHub/workflows", RiskKind.CI), (".claude", RiskKind.AGENT), (".cargo", RiskKind.BUILD),
        ("mise", RiskKind.ENVIRONMENT), ("Makefile", RiskKind.BUILD),
        (".vscode/tasks.json", RiskKind.EDITOR),
    ],
)  # fmt: skip
def test_link_that_stands_for_a_directory_is_found(path, kind):
    assert kind in find_link_kinds(path)


def test_ordinary_link_is_not_found():
    assert [find_link_kinds(path) for path in ORDINARY] == [[]] * len(ORDINARY)


def test_every_kind_has_a_reason_and_a_rule():
    assert set(WHY) == set(RiskKind)
    for kind, why, patterns, by_content in documented():
        assert why, kind
        assert patterns or by_content, kind


def test_patterns_are_in_plain_form():
    for pattern in (pattern for patterns in PATTERNS.values() for pattern in patterns):
        assert plain(pattern.rstrip("/")) == pattern.rstrip("/")
        assert "/" not in pattern.rstrip("/") or "*" not in pattern, f"`{pattern}` never matches"


@given(st.text())
def test_no_path_raises(path):
    find_kinds(path)
    assert plain(plain(path)) == plain(path)
