"""Names for lists of destinations that many projects need, and which files of a project call for
which.

Where packages come from is not ours to say: each machine's own tools are asked
(`atoll.engine.registries`), so that a mirror is followed and nobody is sent anywhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

PRESETS: dict[str, tuple[str, ...]] = {
    "model-apis": (
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
"""Each rule without a port stands for 80 and 443."""

FOUND = {
    "python": "where pip and uv get packages",
    "node": "where npm gets packages",
    "rust": "where cargo gets packages",
    "go": "where go gets modules",
    "ruby": "where gem gets packages",
    "debian": "where apt gets packages",
}
"""Presets that this machine's own tools are asked for."""

ALWAYS = ("model-apis",)
"""An agent that cannot think does no work."""
_CALLED_FOR = {
    "pyproject.toml": "python", "requirements.txt": "python", "setup.py": "python",
    "Pipfile": "python", "uv.lock": "python", "poetry.lock": "python", "setup.cfg": "python",
    "package.json": "node", "Cargo.toml": "rust", "go.mod": "go", "Gemfile": "ruby",
}  # fmt: skip


_HOSTED = {".github": "github", ".gitlab-ci.yml": "gitlab"}


def called_for(names: Iterable[str]) -> tuple[str, ...]:
    """The presets for a project with these files, for all who did not choose: to build and to
    test it.
    """
    return (*ALWAYS, *_found(names, _CALLED_FOR))


def proposed(names: Iterable[str]) -> tuple[str, ...]:
    """The same with where the project is hosted, for an owner who sees it and can take it out."""
    names = list(names)
    return (*called_for(names), *_found(names, _HOSTED))


def _found(names: Iterable[str], presets: Mapping[str, str]) -> list[str]:
    tops = {name.partition("/")[0] for name in names}
    return sorted({presets[name] for name in tops if name in presets})


def expand(rules: Iterable[str], found: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """The rules, with presets in the place of their names; `found` are those of this machine."""
    for rule in rules:
        if rule in FOUND:
            yield from found.get(rule, ())
        else:
            yield from PRESETS.get(rule, (rule,))
