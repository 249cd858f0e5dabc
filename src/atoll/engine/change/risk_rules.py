"""The kinds of files that can run code on the owner's machine or widen its trust, by their paths.

A pattern is a name (`Makefile`), a name with `*` (`*.pth`), a directory (`.vscode/`, everything
below it) or the end of a path (`.github/codeowners`). Each counts in every directory, and without
regard to case, as on filesystems that ignore it.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from enum import StrEnum
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from typing import NamedTuple


class RiskKind(StrEnum):
    """Why a file needs a yes; the names that `--accept` takes."""

    GIT_HOOK = "git-hook"
    GIT_SETTINGS = "git-settings"
    SUBMODULE = "submodule"
    CI = "ci"
    ENVIRONMENT = "environment"
    SHELL = "shell"
    EDITOR = "editor"
    AGENT = "agent"
    TEST_SETUP = "test-setup"
    BUILD = "build"
    PACKAGE = "package"
    SOURCE = "source"
    CONTAINER = "container"
    ATOLL = "atoll"
    STAGE = "stage"
    BINARY = "binary"
    LINK = "link"
    EXECUTABLE = "executable"
    NAME = "name"
    UNLISTED = "unlisted"


WHY = {
    RiskKind.GIT_HOOK: "git or a hook manager runs it",
    RiskKind.GIT_SETTINGS: "it changes what git runs, or what a diff shows",
    RiskKind.SUBMODULE: "it brings in another repository",
    RiskKind.CI: "a CI or deployment service runs it, with its credentials",
    RiskKind.ENVIRONMENT: "a tool runs it or reads variables from it when the directory is entered",
    RiskKind.SHELL: "a shell or program of the owner reads it as its start-up file",
    RiskKind.EDITOR: "an editor runs tasks or programs that it names",
    RiskKind.AGENT: "coding agents follow it, or start what it names",
    RiskKind.TEST_SETUP: "every run of the tests runs it first",
    RiskKind.BUILD: "a build, test or packaging tool runs it",
    RiskKind.PACKAGE: "a package manager runs it, or takes its settings from it",
    RiskKind.SOURCE: "packages come from a place that was not used before",
    RiskKind.CONTAINER: "a container is built or started by it",
    RiskKind.ATOLL: "it decides what Atoll runs",
    RiskKind.STAGE: "a stage of the project runs it as the owner",
    RiskKind.BINARY: "its content cannot be reviewed",
    RiskKind.LINK: "it leads out of the project",
    RiskKind.EXECUTABLE: "it is newly executable",
    RiskKind.NAME: "its name conceals what it is",
    RiskKind.UNLISTED: "there are too many changes to examine them",
}
"""The general reason of each kind, one line."""

_HOOKS = (
    "applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit",
    "prepare-commit-msg", "commit-msg", "post-commit", "pre-rebase", "post-checkout", "post-merge",
    "pre-push", "pre-receive", "post-receive", "post-update", "reference-transaction",
    "pre-auto-gc", "post-rewrite", "sendemail-validate", "fsmonitor-watchman", "post-index-change",
)  # fmt: skip

PATTERNS: dict[RiskKind, tuple[str, ...]] = {
    RiskKind.GIT_HOOK: (
        *_HOOKS, ".husky/", ".githooks/", ".git-hooks/", "githooks/", "git-hooks/", ".hooks/",
        ".pre-commit-config.yaml", ".pre-commit-config.yml", ".pre-commit-hooks.yaml",
        "lefthook*.yml", "lefthook*.yaml", "lefthook*.toml", "lefthook*.json", ".lefthook*",
        ".lefthook/", ".overcommit.yml", ".huskyrc*", ".lintstagedrc*", "lint-staged.config.*",
        ".simple-git-hooks.*", "simple-git-hooks.*", ".commitlintrc*", "commitlint.config.*",
    ),
    RiskKind.GIT_SETTINGS: (
        ".gitconfig", ".git-config", "gitconfig", ".lfsconfig", ".jj/", ".hgrc", ".hg/",
    ),
    RiskKind.SUBMODULE: (".gitmodules",),
    RiskKind.CI: (
        ".github/workflows/", ".github/actions/", "action.yml", "action.yaml",
        ".github/dependabot.yml", ".github/dependabot.yaml", "codeowners", "renovate.json*",
        ".renovaterc*", "*.gitlab-ci.yml", "*.gitlab-ci.yaml", ".gitlab/", ".circleci/",
        "jenkinsfile", "jenkinsfile.*", "*.jenkinsfile", "azure-pipelines*", ".azure-pipelines/",
        ".azuredevops/", ".buildkite/", ".travis.yml", ".drone.yml", ".drone.star",
        ".woodpecker*.yml", ".woodpecker*.yaml", ".woodpecker/", "*appveyor.yml",
        "bitbucket-pipelines.yml", ".semaphore/", ".teamcity/", ".tekton/", ".forgejo/", ".gitea/",
        ".builds/", ".build.yml", ".ebextensions/", ".platform/", "procfile.*", "heroku.yml",
        "cloudbuild*.yaml", "cloudbuild*.json", "buildspec*.yml",
        "appspec.yml", ".cirrus.yml", ".cirrus.star", "wercker.yml", "codemagic.yaml",
        "netlify.toml", "vercel.json", "fly.toml", "render.yaml", "procfile", "skaffold.yaml",
        ".goreleaser*", ".releaserc*", "release.config.*", ".readthedocs.*", "dagger.json",
        "semaphore.yml", ".scrutinizer.yml",
    ),
    RiskKind.ENVIRONMENT: (
        ".envrc*", ".direnvrc", ".env", ".env.local", ".env.*.local", ".env.staging", ".flaskenv",
        ".env.development", ".env.production",
        ".env.test", "mise.toml", "mise.*.toml", ".mise.toml", ".mise.*.toml", ".mise/",
        "mise/config.toml", "mise/tasks/", "mise-tasks/", ".mise-tasks/", ".tool-versions",
        ".asdfrc", ".rtx.toml", "*.nix", "devenv.yaml", "devbox.json", "brewfile", "pixi.toml",
        ".hermit/", ".flox/", ".autoenv*", "flox.toml", "manifest.scm", "guix.scm", "spack.yaml",
    ),
    RiskKind.SHELL: (
        ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile",
        ".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc",
        ".login", ".logout", "config.fish", ".inputrc", ".tmux.conf", ".screenrc", ".gdbinit",
        ".lldbinit", ".irbrc", ".pryrc", ".pdbrc*", ".rprofile", ".renviron", ".sqliterc",
        ".psqlrc", ".wgetrc", ".curlrc", ".netrc", ".ssh/", ".gnupg/", ".xprofile", ".xinitrc",
        ".xsession", ".perldb", ".octaverc", ".ghci", ".guile", ".julia/", "startup.jl",
        "*.desktop", "profile.ps1", "microsoft.powershell_profile.ps1", "autorun.inf",
    ),
    RiskKind.EDITOR: (
        ".vscode/", ".idea/", "*.iml", "*.ipr", "*.iws", "*.code-workspace", ".vim/", ".vimrc",
        "_vimrc", ".gvimrc", ".exrc", "_exrc", ".nexrc", ".nvimrc", ".nvim.lua", ".nvim/",
        ".lvimrc", ".local.vimrc", ".dir-locals*.el", ".emacs", ".emacs.d/", ".projectile",
        ".fleet/", ".zed/", "*.sublime-project", "*.sublime-build", ".devcontainer/",
        ".devcontainer.json", ".gitpod.yml", ".gitpod.*", ".vs/", ".theia/", ".settings/",
        ".cproject", ".classpath", ".project", ".run/", ".kakrc", ".helix/", ".neoconf.json",
        ".lazy.lua", "*.xcscheme", "*.xcworkspacedata", "project.pbxproj", ".ycm_extra_conf.py",
        ".ccls", ".clangd", "hie.yaml", ".vimspector.json", "*-gdb.py", "*-gdb.gdb",
        ".kateproject*", ".dap-launch.json",
    ),
    RiskKind.AGENT: (
        ".claude/", "claude.md", "claude.local.md", ".mcp.json", "mcp.json", ".codex/", ".gemini/",
        "gemini.md", ".cursor/", ".cursorrules", ".cursorignore", "agents.md",
        "agents.override.md", "agent.md", ".agents/", ".agent/", ".aider*", ".windsurf/",
        ".windsurfrules", ".clinerules", ".clinerules/", ".cline/", ".roo/", ".roorules*",
        ".roomodes", ".continue/", ".continuerc*", "copilot-instructions.md", ".copilot/",
        ".github/instructions/", ".github/prompts/", ".github/agents/", ".github/chatmodes/",
        ".amp/", ".opencode/", "opencode.json*", ".goose/", ".goosehints",
        ".junie/", ".kiro/", ".augment/", ".augment-guidelines", ".qwen/", "qwen.md", ".crush/",
        "*crush.json", "crush.md", ".factory/", ".trae/", ".kilocode/", ".openhands/",
        ".openhands_instructions", ".pi/", ".rules", ".worktreeinclude", ".conductor/",
        "conductor.json", ".superset/", ".emdash.json", "skill.md", ".devin/", "warp.md",
    ),
    RiskKind.TEST_SETUP: (
        "conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "noxfile.py", ".coveragerc",
        "jest.config.*", "jest.setup.*", "vitest.config.*", "vitest.workspace.*",
        "vitest.setup.*", ".mocharc*", "karma.conf.*", "playwright.config.*", "cypress.config.*",
        "cypress.json", "wdio.conf.*", ".nycrc*", "phpunit.xml*", "phpunit.dist.xml", ".rspec",
        "spec_helper.rb", "rails_helper.rb", "test_helper.rb", "behat.yml", "codeception*.yml",
        "ava.config.*", ".proverc", ".simplecov", ".busted", "testem.js", "tap.config.*", ".taprc",
        "nextest.toml", ".config/nextest.toml",
    ),
    RiskKind.BUILD: (
        "makefile", "gnumakefile", "makefile.*", "*.mk", "*.mak", "justfile", ".justfile", "*.just",
        "taskfile.y*ml", "taskfile.dist.y*ml", "cmakelists.txt", "*.cmake", "cmakepresets.json",
        "cmakeuserpresets.json", "meson.build", "meson_options.txt", "meson.options", "configure",
        "configure.ac", "configure.in", "makefile.am", "*.m4", "autogen.sh", "sconstruct",
        "sconscript", "wscript", "rakefile", "*.rake", "gemfile", "*.gemspec", "capfile",
        "vagrantfile", "guardfile", "dangerfile*", "fastfile", "podfile", "*.podspec",
        "setup.py", "setup.cfg", "sitecustomize.py", "usercustomize.py", "*.pth",
        "fabfile.py", "dodo.py", "conanfile.py", "hatch_build.py", ".pylintrc", "pylintrc",
        ".mypy.ini", "mypy.ini",
        "pants.toml", "waf", "build.rs", ".cargo/", "rust-toolchain", "rust-toolchain.toml",
        "build.gradle*", "settings.gradle*", "init.gradle*", "*.gradle", "*.gradle.kts",
        "gradle.properties", "gradlew", "gradlew.bat", "gradle/wrapper/", "buildsrc/", "pom.xml",
        ".mvn/", "mvnw", "mvnw.cmd", "build.xml", "build.sbt", "*.sbt", "build.sc", "build.mill",
        "mix.exs", "rebar.config*", "erlang.mk", "package.swift", "build.zig", "build.zig.zon",
        "dune-project", "dune", "stack.yaml", "*.cabal", "shard.yml", "build.boot", "project.clj",
        "deps.edn", "build.clj", "build.pl", "makefile.pl", "build", "build.bazel", "workspace",
        "workspace.bazel", "module.bazel", "*.bzl", ".bazelrc", "*.bazelrc", "buck", ".buckconfig",
        "*.csproj", "*.fsproj", "*.vbproj", "*.vcxproj", "*.proj", "*.props", "*.targets",
        "global.json", "magefile.go", "magefiles/", "tiltfile", "earthfile", "gruntfile.*",
        "gulpfile.*", "jakefile*", "*.config.js", "*.config.cjs", "*.config.mjs", "*.config.ts",
        "*.config.mts", "*.config.cts", ".eslintrc*", ".babelrc*",
        ".stylelintrc", ".stylelintrc.*", ".prettierrc", ".prettierrc.*", ".flake8",
        ".rubocop*.yml", ".yardopts", ".formatter.exs", ".credo.exs", ".iex.exs", ".luacheckrc",
        ".ocamlinit", ".php-cs-fixer*.php", "phpstan*.neon*", "psalm.xml*", "rector.php", "ecs.php",
        ".storybook/", ".ember-cli", "nodemon.json", "bacon.toml", ".air.toml", ".jvmopts",
        ".sbtopts", "snakefile", "*.smk", "dvc.yaml", "tupfile", "xmake.lua", "premake5.lua",
        "jamfile", "jamroot", ".postcssrc*", ".swcrc", "brunch-config.*", "webpack.*.js",
        "angular.json", "nx.json", "turbo.json", "lerna.json", "rush.json", "deno.json*",
        "metro.config.*", "binding.gyp", "wrangler.toml", "wrangler.json*", "serverless.yml",
        "*.tf", "*.tfvars", ".terraformrc", "*.tofu", "terragrunt.hcl", "pulumi.y*ml",
        "ansible.cfg", "west.yml",
    ),
    RiskKind.PACKAGE: (
        ".npmrc", ".yarnrc", ".yarnrc.yml", ".yarn/", ".pnpmfile.*", ".pnp.*", "package.json5",
        "package.yaml", "node_modules/", "site-packages/", "__pypackages__/", ".corepack.env",
        "pnpm-workspace.yaml",
        "bunfig.toml", ".bowerrc", ".pypirc", "pip.conf", "pip.ini", "uv.toml", "poetry.toml",
        "pdm.toml", ".pdm.toml", ".condarc", "hatch.toml", "nuget.config", ".bundle/",
        ".gemrc", "auth.json", "go.work", "artifacts.yml", ".sdkmanrc",
        ".m2/", ".ivy2/", ".nodenv*", ".volta/",
    ),
    RiskKind.CONTAINER: (
        "dockerfile", "dockerfile.*", "*.dockerfile", "containerfile", "containerfile.*",
        "docker-compose*.y*ml", "compose.y*ml", "compose.*.y*ml", "docker-bake.*",
        "chart.yaml", "helmfile.y*ml", "kustomization.y*ml", "podman-compose*.y*ml", "*.container",
    ),
    RiskKind.ATOLL: ("atoll.toml", ".atoll/"),
}  # fmt: skip
"""The patterns of each kind, in lower case."""

CONTENT_RULES = {
    RiskKind.GIT_SETTINGS: "`.gitattributes`, unless only line endings change",
    RiskKind.SUBMODULE: "every submodule that is added, moved or removed",
    RiskKind.BUILD: "`pyproject.toml` and `Cargo.toml`, where they name programs, hooks or plugins",
    RiskKind.TEST_SETUP: "Python files at the top of the project, or of its `src`, `lib` or "
    "`python`, with the name of a module of the standard library or of a test runner, such as "
    "`unittest.py`",
    RiskKind.PACKAGE: "`package.json`, where more changes than its description and dependencies",
    RiskKind.SOURCE: "a manifest or lock file that names a host, URL, repository or path which its "
    "old version did not name",
    RiskKind.GIT_HOOK: "everything in the directory that `core.hooksPath` names",
    RiskKind.STAGE: "a program that a stage, or an `undo` or `health` command names, in any "
    "directory, and what is in a directory that it names",
    RiskKind.BINARY: "executables, archives, content with a NUL, and files of more than 8 MiB",
    RiskKind.LINK: "symbolic links that are absolute, lead out of the project or into `.git`, also "
    "through another link; a link at the place of a directory of another kind counts as that kind",
    RiskKind.EXECUTABLE: "files that become executable",
    RiskKind.NAME: "names with control or invisible characters, with a dot or space at the end, "
    "that git or a filesystem takes for `.git`, or that differ from another only by case",
    RiskKind.UNLISTED: "more than some 100,000 changed files: nothing is known of any",
}
"""What counts by content, mode or surroundings instead of a pattern."""


class _Matcher(NamedTuple):
    names: dict[str, list[RiskKind]]
    globs: list[tuple[str, RiskKind]]
    any_glob: re.Pattern[str]
    """Matches the names that one of the globs matches."""
    directories: list[tuple[str, RiskKind]]
    ends: list[tuple[str, RiskKind]]


_RUNNERS = frozenset({
    "pytest", "_pytest", "pluggy", "nose", "nose2", "tox", "nox", "coverage", "pip", "setuptools",
    "wheel", "build", "mypy", "ruff",
})  # fmt: skip
_SHADOWED = (sys.stdlib_module_names | _RUNNERS) - {"test", "this", "antigravity"}
"""Python modules in whose place a file at the top of a project is run, as `unittest.py` by
`python3 -m unittest`: the directory in which Python is started comes first.
"""
_TOPS = re.compile(r"(?:src/|lib/|python/)?([a-z_][a-z0-9_]*)(?:\.py|/__init__\.py)")


def _is_shadowing(path: str) -> bool:
    found = _TOPS.fullmatch(path)
    return found is not None and found[1] in _SHADOWED


@lru_cache(maxsize=1)
def _matcher() -> _Matcher:
    globs = [p for patterns in PATTERNS.values() for p in patterns if "*" in p and "/" not in p]
    made = _Matcher({}, [], re.compile("|".join(map(translate, globs))), [], [])
    for kind, patterns in PATTERNS.items():
        for pattern in patterns:
            if pattern.endswith("/"):
                made.directories.append((f"/{pattern}", kind))
            elif "/" in pattern:
                made.ends.append((f"/{pattern}", kind))
            elif "*" in pattern:
                made.globs.append((pattern, kind))
            else:
                made.names.setdefault(pattern, []).append(kind)
    return made


def plain(path: str) -> str:
    """The path as the most tolerant filesystem reads it: case, forms and invisible characters
    ignored, no spaces or dots at the end of a name.
    """
    if path.isascii() and path.isprintable():
        return _trimmed(path.lower())
    visible = "".join(c for c in path if unicodedata.category(c) not in {"Cc", "Cf"})
    return _trimmed(unicodedata.normalize("NFKC", visible).casefold())


def _trimmed(path: str) -> str:
    if " " not in path and "./" not in path and not path.endswith("."):
        return path
    return "/".join(part.rstrip(". ") or part for part in path.split("/"))


def find_kinds(path: str) -> list[RiskKind]:
    """The kinds whose patterns match a path."""
    return list(dict.fromkeys(_matches(plain(path))))


def _matches(path: str) -> Iterator[RiskKind]:
    rules = _matcher()
    rooted = f"/{path}"
    name = path.rpartition("/")[2]
    yield from rules.names.get(name, ())
    if _is_shadowing(path):
        yield RiskKind.TEST_SETUP
    if rules.any_glob.match(name):
        yield from (kind for pattern, kind in rules.globs if fnmatchcase(name, pattern))
    yield from (kind for pattern, kind in rules.directories if pattern in rooted)
    yield from (kind for pattern, kind in rules.ends if rooted.endswith(pattern))


def find_link_kinds(path: str) -> list[RiskKind]:
    """The kinds whose patterns could match what is below a symbolic link at a path: a link at
    `.vscode` brings in the tasks of the directory to which it leads.
    """
    rules = _matcher()
    rooted = f"/{plain(path)}/"
    found = [
        kind
        for pattern, kind in [*rules.directories, *rules.ends]
        if any(rooted.endswith(start) for start in _directories_of(pattern))
    ]
    return list(dict.fromkeys([*find_kinds(path), *found]))


def _directories_of(pattern: str) -> list[str]:
    """The directories that a pattern names, such as `/.github/` and `/.github/workflows/`."""
    return [pattern[: end + 1] for end, c in enumerate(pattern) if c == "/" and end]


def documented() -> Iterable[tuple[RiskKind, str, tuple[str, ...], str]]:
    """(kind, reason, patterns, what counts by content) of every kind, for the reference."""
    for kind in RiskKind:
        yield kind, WHY[kind], PATTERNS.get(kind, ()), CONTENT_RULES.get(kind, "")
