"""Directories of the host that no capsule ever sees, even if PATH or a variable names them.

A directory is refused if it is one of these, is inside one, or contains one. Names are
compared after all links are resolved.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Iterator, Mapping

from atoll.host import programs

_PERSONAL = (
    # Keys, credentials and accounts.
    ".ssh", ".gnupg", ".pki", ".password-store", ".netrc", ".authinfo", ".authinfo.gpg",
    ".aws", ".azure", ".boto", ".s3cfg", ".oci", ".kube", ".minikube", ".docker", ".helm",
    ".terraform.d", ".terraformrc", ".vault-token", ".databrickscfg", ".snowflake", ".snowsql",
    ".config", ".local/share/keyrings", ".local/share/kwalletd", ".git-credentials", ".gitconfig",
    ".subversion", ".hgrc", ".pgpass", ".my.cnf", ".mylogin.cnf", ".android", ".wine",
    ".Xauthority", ".ICEauthority", ".dotnet/corefx", ".nuget", ".opam/plugins",
    # Package managers' settings, which hold tokens.
    ".npmrc", ".yarnrc", ".yarnrc.yml", ".pypirc", ".pip", ".condarc", ".continuum",
    ".cargo/credentials", ".cargo/credentials.toml", ".cargo/config", ".cargo/config.toml",
    ".cargo/registry", ".gem/credentials", ".bundle", ".m2", ".gradle", ".ivy2", ".sbt",
    ".composer", ".local/share/uv/credentials", ".julia", ".huggingface", ".kaggle", ".jupyter",
    # Histories and editors.
    ".bash_history", ".zsh_history", ".zsh_sessions", ".histfile", ".python_history",
    ".node_repl_history", ".psql_history", ".mysql_history", ".sqlite_history", ".lesshst",
    ".viminfo", ".local/share/fish", ".local/share/nvim", ".vscode", ".vscode-server", ".idea",
    # Browsers, mail and messages.
    ".mozilla", ".thunderbird", ".var", "snap", ".local/share/evolution", ".mail", "Mail",
    "Maildir", "mbox", ".mbox",
    # Agents and their accounts.
    ".claude", ".claude.json", ".codex", ".gemini", ".cursor", ".copilot", ".aider.conf.yml",
    ".continue", ".codeium", ".windsurf", ".amp", ".opencode", ".local/share/opencode", ".goose",
    ".qwen", ".factory", ".openhands", ".ollama", ".local/share/claude", ".local/share/goose",
    ".local/share/cursor-agent",
    # What people write and collect.
    "Desktop", "Documents", "Downloads", "Music", "Pictures", "Public", "Templates", "Videos",
    ".local/share/Trash", ".local/share/recently-used.xbel", ".local/share/gvfs-metadata",
    ".local/share/containers", ".local/share/docker", ".local/share/flatpak", ".local/state",
    ".cache", ".local/share/atoll",
)  # fmt: skip
"""Below a home."""
_PROGRAMS_AMONG = (
    ".config/nvm/versions", ".local/share/flatpak/exports",
    ".local/share/claude/versions", ".claude/local", ".opencode/bin", ".amp/bin",
    ".local/share/cursor-agent/versions",
)  # fmt: skip
"""Below a home and in one of those, but only programs."""
_VARIABLES = (
    "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "GNUPGHOME",
    "DOCKER_CONFIG", "KUBECONFIG", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE",
    "AZURE_CONFIG_DIR", "CLOUDSDK_CONFIG", "GOOGLE_APPLICATION_CREDENTIALS", "CLAUDE_CONFIG_DIR",
    "CODEX_HOME", "PASSWORD_STORE_DIR", "NETRC", "PGPASSFILE", "HISTFILE", "MAIL", "ATOLL_HOME",
    "GIT_CONFIG_GLOBAL", "NPM_CONFIG_USERCONFIG", "SSH_AUTH_SOCK", "XAUTHORITY", "JULIA_DEPOT_PATH",
)  # fmt: skip
"""Variables of the owner that name such a directory."""
_CACHES = ("XDG_CACHE_HOME",)
_WHOLE_STORES = {".cargo/registry"}
_BELOW_VARIABLES = {
    "CARGO_HOME": ("credentials", "credentials.toml", "config", "config.toml", "registry"),
    "XDG_DATA_HOME": ("keyrings", "atoll", "uv/credentials", "fish", "nvim", "containers"),
}
_SYSTEM = (
    "/etc", "/var", "/run", "/proc", "/sys", "/boot", "/dev", "/lost+found", "/efi",
)  # fmt: skip
_HOMES = ("/home", "/root", "/Users")
_SHARED_HOMES = ("/home/linuxbrew/.linuxbrew",)
_SHARED_PARENTS = (".local", ".local/share", ".local/lib", "go", "sdk")
"""Below a home: not private themselves, but often with private files in them."""


class NeverShown:
    """For one owner; `roots` are projects, workspaces and homes of Atoll."""

    def __init__(
        self,
        owner: Mapping[str, str],
        roots: Iterable[str] = (),
        *,
        around_stores: Iterable[str] = (),
    ) -> None:
        """`around_stores` are private places below a home of which a part may be shown, though
        not the whole.
        """
        self._homes = tuple(_resolved(_homes(owner)))
        partly = set(around_stores)
        below = [
            f"{home}/{name}" for home in self._homes for name in _PERSONAL if name not in partly
        ]
        named = [owner.get(key, "") for key in _VARIABLES if not (partly and key in _CACHES)]
        for key, inner in _BELOW_VARIABLES.items():
            parts = [name for name in inner if f".cargo/{name}" not in partly]
            named += [f"{owner[key]}/{name}" for name in parts if owner.get(key)]
        places = [*below, *(place for place in named if os.path.isabs(place))]
        self.roots = tuple(_resolved([*roots, *programs.untrusted_roots()]))
        self.places = tuple(_resolved(places))
        among = [f"{home}/{name}" for home in self._homes for name in _PROGRAMS_AMONG]
        self._among = tuple(_resolved(among))
        parents = [f"{home}/{name}" for home in self._homes for name in ("", *_SHARED_PARENTS)]
        parents += [f"{home}/{name}" for home in self._homes for name in partly - _WHOLE_STORES]
        parents += [owner.get(key, "") for key in ("XDG_DATA_HOME", *(_CACHES if partly else ()))]
        self._parents = tuple(_resolved(["/", *_HOMES, *parents]))

    def why(self, place: str) -> str | None:
        """Why an absolute path is not shown, or None if it may be. Links must be resolved."""
        if programs.is_below(place, self._among):
            return self._why_below(place, self.roots, "a project or Atoll's home")
        reason = self._why_below(place, self.roots, "a project or Atoll's home")
        reason = reason or self._why_below(place, self.places, "a private directory")
        if reason is None and any(programs.is_below(parent, [place]) for parent in self._parents):
            return "it is shared by many programs"
        if reason is None and not programs.is_below(place, self._homes):
            reason = self._why_below(place, _SYSTEM, "a system directory")
            if programs.is_below(place, _HOMES) and not programs.is_below(place, _SHARED_HOMES):
                reason = "it is in another user's home"
        return reason

    def is_private(self, place: str) -> bool:
        """Whether a path is a private place of the owner, or inside or above one.

        Unlike for `why`, it may be in a project: repositories borrow objects from one another.
        """
        return self._why_below(place, self.places, "") is not None

    @staticmethod
    def _why_below(place: str, hidden: Iterable[str], what: str) -> str | None:
        for other in hidden:
            if programs.is_below(place, [other]):
                return f"it is in {what}, `{other}`"
            if programs.is_below(other, [place]):
                return f"it holds {what}, `{other}`"
        return None

    @property
    def homes(self) -> tuple[str, ...]:
        """Those that belong to the owner; never the root of everything."""
        return tuple(home for home in self._homes if home != "/" and _is_own(home))


def _homes(owner: Mapping[str, str]) -> Iterator[str]:
    yield owner.get("HOME", "")
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return
    # Users for services have a directory of the system's there.
    if _is_own(home):
        yield home


def _is_own(place: str) -> bool:
    try:
        return os.stat(place).st_uid == os.geteuid()
    except OSError:
        return False


def _resolved(places: Iterable[str]) -> Iterator[str]:
    """Each as it is named and as it resolves."""
    found: dict[str, None] = {}
    for place in places:
        if os.path.isabs(place):
            found[os.path.normpath(place)] = found[os.path.realpath(place)] = None
    return iter(found)
