"""Finds drivers by name. The only module that imports concrete drivers, and loads plugins.

A plugin registers an entry point in the group `atoll.workspace`, `atoll.isolation` or
`atoll.browser` that yields a driver class. Built-in names take precedence. Every function that
returns a driver raises PrerequisiteError when there is none of that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from atoll.drivers.contracts import (
    BrowserDriver,
    DrivenBrowser,
    EventFormat,
    FoundLogin,
    HomeFile,
    InsideLogin,
    IsolationDriver,
    KeyStore,
    LayeredDriver,
    SharedDriver,
    ValueSource,
    Vault,
    WorkspaceDriver,
)
from atoll.model.errors import PrerequisiteError

if TYPE_CHECKING:
    from atoll.model.adapter import AdapterSpec, Login

_WORKSPACE = {
    "checkout": "atoll.drivers.workspace.checkout:CheckoutWorkspace",
    "worktree": "atoll.drivers.workspace.worktree:WorktreeWorkspace",
    "overlay": "atoll.drivers.workspace.overlay:OverlayWorkspace",
    "btrfs": "atoll.drivers.workspace.plain:BtrfsWorkspace",
    "reflink": "atoll.drivers.workspace.plain:ReflinkWorkspace",
    "copy": "atoll.drivers.workspace.plain:CopyWorkspace",
}
LAYERED = ("overlay", "btrfs", "reflink", "copy")
"""The `LayeredDriver`s, in order of preference."""
_ISOLATION = {
    "open": "atoll.drivers.isolation.process:OpenProcess",
    "process": "atoll.drivers.isolation.process:ScrubbedProcess",
    "namespace": "atoll.drivers.isolation.namespace:NamespaceProcess",
    "sandbox": "atoll.drivers.isolation.sandbox:SandboxProcess",
}
_BROWSER = {
    "chromium": "atoll.drivers.browser.chromium:ChromiumBrowser",
    "firefox": "atoll.drivers.browser.firefox:FirefoxBrowser",
}
BROWSERS = ("chromium", "firefox")
"""In order of preference."""
_SOURCES = {
    "env": "atoll.drivers.secret.sources:VariableSource",
    "file": "atoll.drivers.secret.sources:FileSource",
    "command": "atoll.drivers.secret.sources:CommandSource",
    "keyring": "atoll.drivers.secret.sources:KeyringSource",
}
DRIVEN = "chromium"
"""The one that can run headless inside a capsule."""


def workspace_driver(name: str) -> WorkspaceDriver:
    return cast("WorkspaceDriver", _load("atoll.workspace", _WORKSPACE, name))


def shared_driver(name: str) -> SharedDriver:
    """For names of drivers that use the owner's repository."""
    return cast("SharedDriver", _load("atoll.workspace", _WORKSPACE, name))


def layered_driver(name: str) -> LayeredDriver:
    """For names of drivers that have layers."""
    return cast("LayeredDriver", _load("atoll.workspace", _WORKSPACE, name))


def isolation_driver(name: str) -> IsolationDriver:
    return cast("IsolationDriver", _load("atoll.isolation", _ISOLATION, name))


def browser_driver(name: str) -> BrowserDriver:
    return cast("BrowserDriver", _load("atoll.browser", _BROWSER, name))


def driven_browser() -> DrivenBrowser:
    return cast("DrivenBrowser", _load("atoll.browser", _BROWSER, DRIVEN))


def secret_source(name: str) -> ValueSource:
    return cast("ValueSource", _load("atoll.secret-source", _SOURCES, name))


def vault(directory: Path) -> Vault:
    """The vault in a directory, which need not exist."""
    from atoll.drivers.secret.vault import FileVault  # noqa: PLC0415 - few verbs have secrets

    return FileVault(directory)


def key_store(directory: Path) -> KeyStore:
    """Where the key of the vault in a directory is."""
    from atoll.drivers.secret.key_store import FileKeyStore  # noqa: PLC0415 - as above

    return FileKeyStore(directory)


def survey_toolchains(
    owner: Mapping[str, str], roots: Sequence[str]
) -> tuple[list[str], tuple[str, ...]]:
    """The toolchain directories that capsules can see, and those that are refused, with reasons."""
    from atoll.drivers.isolation import toolchains  # noqa: PLC0415 - only for `doctor`

    found = toolchains.find(owner, roots)
    return [place.at for place in found.shown], found.refused


_FORMATS = {
    "text": "atoll.drivers.agent.formats.text:TextFormat",
    "script": "atoll.drivers.agent.formats.script:ScriptFormat",
    "claude": "atoll.drivers.agent.formats.claude:ClaudeFormat",
    "qwen": "atoll.drivers.agent.formats.claude:ClaudeFormat",
    "codex": "atoll.drivers.agent.formats.codex:CodexFormat",
    "gemini": "atoll.drivers.agent.formats.gemini:GeminiFormat",
    "opencode": "atoll.drivers.agent.formats.opencode:OpenCodeFormat",
    "copilot": "atoll.drivers.agent.formats.copilot:CopilotFormat",
    "goose": "atoll.drivers.agent.formats.goose:GooseFormat",
    "pi": "atoll.drivers.agent.formats.pi:PiFormat",
    "cline": "atoll.drivers.agent.formats.cline:ClineFormat",
    "openhands": "atoll.drivers.agent.formats.openhands:OpenHandsFormat",
    "claude-session": "atoll.drivers.agent.formats.claude:ClaudeSession",
    "codex-session": "atoll.drivers.agent.formats.codex:CodexSession",
    "gemini-session": "atoll.drivers.agent.formats.gemini:GeminiSession",
    "qwen-session": "atoll.drivers.agent.formats.gemini:QwenSession",
    "pi-session": "atoll.drivers.agent.formats.pi:PiSession",
}


def adapters(
    extra: Mapping[str, AdapterSpec], *, source: str = "config.toml"
) -> dict[str, AdapterSpec]:
    """All agents by name: the built-in ones, with the tables of the user's settings over them.
    Raises SpecError, which names the `source`, when one of `extra` is incomplete.
    """
    from atoll.drivers.agent import loader  # noqa: PLC0415 - only for agents

    return loader.load_adapters(extra, source=source)


def event_format(name: str) -> EventFormat:
    """A reader of one turn's output. Raises PrerequisiteError when there is no such format."""
    return cast("EventFormat", _load("atoll.agent", _FORMATS, name))


def find_login(login: Login, owner: Mapping[str, str]) -> FoundLogin | None:
    """The owner's login as it is on the host now; None if there is none of this kind. `owner` is
    the owner's environment, with the secrets that stand in for variables. Raises StateError when
    there is a login that cannot be used.
    """
    from atoll.drivers.agent import logins  # noqa: PLC0415 - only for agents

    return logins.find_login(login, owner)


def inside_login(login: Login, found: FoundLogin, placeholder: str) -> InsideLogin:
    """What a capsule holds instead of a login. Pure, but for the time."""
    from atoll.drivers.agent import logins  # noqa: PLC0415 - only for agents

    return logins.inside_login(login, found, placeholder)


def home_files(
    spec: AdapterSpec,
    inside: InsideLogin,
    values: Mapping[str, str],
    carried: Sequence[HomeFile] = (),
) -> tuple[HomeFile, ...]:
    """The files of a capsule's home: carried ones, then those of the adapter and of the login, over
    them. `values` are `home` and `workspace`. Pure.
    """
    from atoll.drivers.agent import loader  # noqa: PLC0415 - only for agents

    return loader.home_files(spec, inside, values, carried)


def find_agent_program(spec: AdapterSpec, path: str, *, avoid: Sequence[str]) -> str | None:
    """The program of an agent on the owner's PATH; never one below `avoid`, the project."""
    from atoll.drivers.agent import agent_programs  # noqa: PLC0415 - only for agents

    return agent_programs.find_agent_program(spec, path, avoid=avoid)


def read_version(spec: AdapterSpec, program: str, owner: Mapping[str, str]) -> str:
    """What an agent's program prints as its version; empty when it fails or hangs."""
    from atoll.drivers.agent import agent_programs  # noqa: PLC0415 - only for agents

    return agent_programs.read_version(spec, program, owner)


def _load(group: str, built_in: dict[str, str], name: str) -> object:
    if name in built_in:
        module, _, attribute = built_in[name].partition(":")
        return getattr(import_module(module), attribute)()
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and only for plugins

    for entry in entry_points(group=group, name=name):
        return entry.load()()
    raise PrerequisiteError(
        f"no driver `{name}` for {group.removeprefix('atoll.')}",
        hint=f"install a package that offers the entry point `{group}` named `{name}`",
    )
