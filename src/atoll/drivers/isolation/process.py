"""Plain processes: no walls, but an environment built from an allow-list.

`process` gives a private HOME and TMPDIR (level `worktree`); `open` keeps the owner's
(level `none`). Neither stops a process from reading what its user may read: `docs/security.md`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from atoll.drivers.contracts import IsolationRequest, ProbeResult
from atoll.host import files
from atoll.host.programs import PROXY_VARIABLES
from atoll.model.enclosure import Enclosure, View
from atoll.model.plan import IsolationPlan
from atoll.model.state import Problem

_PLAIN = (
    "PATH",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TERM",
    "COLORTERM",
    "NO_COLOR",
    "FORCE_COLOR",
    "CI",
    "JAVA_HOME",
    "GOROOT",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
)
"""Variables that name paths or display settings, and hold no credentials."""

_LOCALE = (
    *("ALL", "ADDRESS", "COLLATE", "CTYPE", "IDENTIFICATION", "MEASUREMENT", "MESSAGES"),
    *("MONETARY", "NAME", "NUMERIC", "PAPER", "TELEPHONE", "TIME"),
)
"""Not all of `LC_*`: ssh forwards that prefix, so people use it for other variables."""


_TOOLCHAINS = {
    "RUSTUP_HOME": ".rustup",
    "PYENV_ROOT": ".pyenv",
    "NVM_DIR": ".nvm",
    "VOLTA_HOME": ".volta",
    "ASDF_DATA_DIR": ".asdf",
    "SDKMAN_DIR": ".sdkman",
    "RBENV_ROOT": ".rbenv",
    "MISE_DATA_DIR": ".local/share/mise",
}
"""Toolchains that search below HOME, which a capsule replaces by a private one. `~/.cargo` is left
out on purpose: it holds registry tokens."""


def allowed_environment(owner: Mapping[str, str]) -> dict[str, str]:
    """What a capsule's processes get of the owner's environment."""
    env = {key: owner[key] for key in _PLAIN if key in owner}
    env |= {key: owner[key] for key in (f"LC_{part}" for part in _LOCALE) if key in owner}
    env |= {
        key: value
        for key, value in owner.items()
        # A proxy's address may carry a password before the `@`.
        if key.lower() in PROXY_VARIABLES and "@" not in value
    }
    env.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    return env


def _toolchains(owner: Mapping[str, str]) -> dict[str, str]:
    home = owner.get("HOME") or "/nonexistent"
    places = {key: owner.get(key) or f"{home}/{below}" for key, below in _TOOLCHAINS.items()}
    # Not `Path.is_dir`, which raises on a permission error.
    return {key: place for key, place in places.items() if os.path.isdir(place)}


class ScrubbedProcess:
    """An ordinary process with a private HOME, TMPDIR and an environment from the allow-list."""

    name = "process"

    def check(self, home: Path) -> list[Problem]:
        del home
        return []

    def plan(self, request: IsolationRequest) -> IsolationPlan:
        return IsolationPlan(
            driver=self.name,
            workspace=request.workspace,
            private=f"{request.directory}/private",
            variables=dict(request.variables),
            author=request.author,
            email=request.email,
        )

    def apply(self, plan: IsolationPlan) -> None:
        if plan.private is None:
            return
        home, tmp = _places(plan.private)
        for directory in (home, tmp):
            files.make_private_directory(directory)
        files.write_atomic(home / ".gitconfig", render_git_config(plan).encode(), mode=0o644)

    def release(self, plan: IsolationPlan, *, home: Path) -> None:
        if plan.private is not None:
            files.remove_tree(Path(plan.private), within=home)

    def probe(self, place: Path) -> ProbeResult:
        del place
        return ProbeResult(self.name, "has no walls")

    def visible(self, plan: IsolationPlan, owner: Mapping[str, str]) -> list[str] | None:
        del plan, owner
        return None

    def extend_view(self, plan: IsolationPlan, view: View, owner: Mapping[str, str]) -> View:
        del plan, owner
        return view

    def enclosure(self, plan: IsolationPlan, owner: Mapping[str, str]) -> Enclosure:
        env = allowed_environment(owner)
        if plan.private is not None:
            home, tmp = _places(plan.private)
            env |= _toolchains(owner)
            env |= home_variables(str(home), str(tmp))
        return Enclosure(env={**env, **plan.variables}, cwd=plan.workspace)


class OpenProcess(ScrubbedProcess):
    """The same with the owner's own HOME and TMPDIR: level `none` isolates no file."""

    name = "open"

    def plan(self, request: IsolationRequest) -> IsolationPlan:
        return IsolationPlan(
            driver=self.name,
            workspace=request.workspace,
            private=None,
            variables=dict(request.variables),
        )

    def enclosure(self, plan: IsolationPlan, owner: Mapping[str, str]) -> Enclosure:
        kept = {key: owner[key] for key in ("HOME", "TMPDIR") if key in owner}
        inside = super().enclosure(plan, owner)
        return Enclosure(env={**kept, **inside.env}, cwd=inside.cwd)


def home_variables(home: str, tmp: str) -> dict[str, str]:
    return {
        "HOME": home,
        "TMPDIR": tmp,
        "XDG_CONFIG_HOME": f"{home}/.config",
        "XDG_CACHE_HOME": f"{home}/.cache",
        "XDG_DATA_HOME": f"{home}/.local/share",
        "XDG_STATE_HOME": f"{home}/.local/state",
    }


def _places(private: str) -> tuple[Path, Path]:
    return Path(private, "home"), Path(private, "tmp")


def render_git_config(plan: IsolationPlan) -> str:
    """The owner's identity and nothing else: no helper, no signing key, no include."""
    identity = {"name": plan.author, "email": plan.email}
    lines = ["[user]", *(f"\t{key} = {_quoted(value)}" for key, value in identity.items() if value)]
    # The owner's git has accepted this repository already; the private HOME must not undo that.
    lines += ["[safe]", f"\tdirectory = {_quoted(plan.workspace)}"]
    if plan.uid is not None:
        # Inside, the files are another user's than when the index was made.
        lines += ["[core]", "\tcheckStat = minimal"]
    return "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{escaped}"'
