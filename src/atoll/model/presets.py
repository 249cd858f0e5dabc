"""Network modes, and named lists of destinations that many projects need.

Package registries are not listed here: `atoll.engine.project.registries` reads them from the
machine's own tools, so that a configured mirror is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

MODES = ("none", "allow", "open")
"""From narrowest to widest."""


def widest(*modes: str) -> str:
    """The widest of several modes; empty strings are ignored."""
    return max(filter(None, modes), key=MODES.index)


MODEL_APIS = "model-apis"
PRESETS: dict[str, tuple[str, ...]] = {
    MODEL_APIS: (
        "api.anthropic.com", "claude.ai", "platform.claude.com", "console.anthropic.com",
        "api.openai.com", "chatgpt.com", "auth.openai.com",
        "generativelanguage.googleapis.com", "cloudcode-pa.googleapis.com", "oauth2.googleapis.com",
        "openrouter.ai", "api.mistral.ai", "api.deepseek.com", "api.groq.com", "api.x.ai",
        "models.dev", "opencode.ai",
    ),
    "github": (
        "github.com", "api.github.com", "codeload.github.com", "objects.githubusercontent.com",
        "raw.githubusercontent.com", "release-assets.githubusercontent.com",
    ),
    "gitlab": ("gitlab.com",),
}  # fmt: skip
"""A rule without a port means 80 and 443."""

FOUND = {
    "python": "where pip and uv get packages",
    "node": "where npm gets packages",
    "rust": "where cargo gets packages",
    "go": "where go gets modules",
    "ruby": "where gem gets packages",
    "debian": "where apt gets packages",
}
"""Presets that are read from this machine's package managers."""

ALWAYS = (MODEL_APIS,)
"""Always allowed by default: an agent needs its model's API."""
_CALLED_FOR = {
    "pyproject.toml": "python", "requirements.txt": "python", "setup.py": "python",
    "Pipfile": "python", "uv.lock": "python", "poetry.lock": "python", "setup.cfg": "python",
    "package.json": "node", "Cargo.toml": "rust", "go.mod": "go", "Gemfile": "ruby",
}  # fmt: skip


_HOSTED = {".github": "github", ".gitlab-ci.yml": "gitlab"}


def default_presets(names: Iterable[str]) -> tuple[str, ...]:
    """The default presets for a project with these files: what it takes to build and test it."""
    return (*ALWAYS, *_found(names, _CALLED_FOR))


def proposed(names: Iterable[str]) -> tuple[str, ...]:
    """The default presets plus the project's host, to be written into a new project file."""
    names = list(names)
    return (*default_presets(names), *_found(names, _HOSTED))


def _found(names: Iterable[str], presets: Mapping[str, str]) -> list[str]:
    tops = {name.partition("/")[0] for name in names}
    return sorted({presets[name] for name in tops if name in presets})


def expand(rules: Iterable[str], found: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """The rules with preset names replaced by their destinations; `found` are this machine's."""
    for rule in rules:
        if rule in FOUND:
            yield from found.get(rule, ())
        else:
            yield from PRESETS.get(rule, (rule,))
