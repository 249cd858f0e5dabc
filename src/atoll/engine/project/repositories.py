"""Clones of repositories that are given by URL: projects without a checkout of the owner's.

The repository is not trusted: nothing of it runs on the host. A clone has no hooks of its own, and
filters that the owner has installed for other repositories are off, also when its files are frozen
into layers.
"""

from __future__ import annotations

import re
from pathlib import Path

from atoll.engine.project.project_paths import CLONES
from atoll.engine.state.session import Session
from atoll.host import files, git, locks
from atoll.model.errors import AtollError, DriverError, SpecError
from atoll.model.lfs import WITHOUT_LFS
from atoll.model.names import printable, short_hash, slug

_URL = re.compile(r"(?:https|ssh|file)://[!-~]{1,2000}|[\w.-]{1,64}@[\w.-]{1,253}:[!-~]{1,1000}")
_USER_CHARACTERS = 24
"""A longer user name is a token, as of GitHub."""
_PROTOCOLS = "https:ssh:file"
_SAFE = ("-c", "core.sshCommand=ssh -oBatchMode=yes", *WITHOUT_LFS)
_PASSED = ("SSH_AUTH_SOCK",)


def is_url(text: str) -> bool:
    """Whether a word is meant as a URL and not as a path."""
    return "://" in text or (_URL.fullmatch(text) is not None and not Path(text).exists())


def ensure_clone(session: Session, url: str) -> Path:
    """The checkout of a repository: a new clone, or an earlier one with what was added since.

    Raises SpecError for a URL that is not cloned, DriverError when git fails.
    """
    _require_no_password(url)
    if not _URL.fullmatch(url) or url.startswith("-"):
        raise SpecError(
            f"`{printable(url[:80])}` is not a URL that can be cloned",
            hint="https://HOST/OWNER/NAME, ssh://…, user@HOST:PATH or file:///PATH",
        )
    name = slug(re.split(r"[/:]", url.rstrip("/").removesuffix(".git"))[-1]) or "repository"
    place = session.home / CLONES / f"{name}-{short_hash(url)}"
    files.make_private_directory(place.parent)
    lock = locks.Lock(session.home / "locks" / f"repository-{place.name}")
    lock.acquire(wait=True)
    with lock:
        if place.is_dir():
            _refresh(session, place)
        else:
            _clone(session, url, place)
    return place


def _require_no_password(url: str) -> None:
    """Git would keep the password in the clone's config, and repeat it in messages."""
    scheme, mark, rest = url.partition("://")
    host = rest.partition("/")[0]
    user, at, _ = host.rpartition("@")
    if at:
        is_secret = ":" in user or (len(user) > _USER_CHARACTERS and scheme.strip() != "ssh")
    else:
        # A password with a slash, unless it is a port.
        is_secret = "@" in rest and re.fullmatch(r"[^:]*:[0-9]{0,5}|[^:]*|\[.*", host) is None
    if mark and is_secret:
        shown = printable(f"{scheme[-20:]}://…@{rest.rpartition('@')[2][:80]}")
        raise SpecError(
            f"the URL `{shown}` contains a password or a token, which git would store in the clone",
            hint="configure a git credential helper (git help credentials), or use ssh",
        )


def _options(cwd: str) -> list[str]:
    """Options of git with which no filter of the owner's runs on files that are not trusted."""
    return [*_SAFE, *git.without_filters([*git.filter_names(cwd=cwd), "filter.lfs"])]


def _environment(session: Session) -> dict[str, str]:
    passed = {name: session.owner[name] for name in _PASSED if name in session.owner}
    return {"GIT_ALLOW_PROTOCOL": _PROTOCOLS, "GIT_LFS_SKIP_SMUDGE": "1", **passed}


def _clone(session: Session, url: str, place: Path) -> None:
    part = place.with_name(f".{place.name}")
    files.remove_tree(part, within=place.parent)
    try:
        git.git(
            *_options(str(place.parent)), "clone", "--quiet", "--template=",
            "--no-recurse-submodules", "--", url, str(part),
            cwd=str(place.parent), env=_environment(session), alone=True,
        )  # fmt: skip
        git.mark_untrusted(str(part))
    except DriverError as error:
        files.remove_tree(part, within=place.parent)
        raise DriverError(
            f"`{printable(url)}` could not be cloned: {_reason(error.message)}",
            hint="clone it yourself, then: atoll spawn --repo PATH",
        ) from error
    except BaseException:
        files.remove_tree(part, within=place.parent)
        raise
    part.rename(place)


def _reason(message: str) -> str:
    """What git and its helpers say of a failure: its first line, which names the cause."""
    said = message.partition(" failed with exit code ")[2].partition(": ")[2] or message
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    first = re.sub(r"^(?:fatal|error|warning): |^ssh: ", "", lines[0]) if lines else "no reason"
    return printable(re.sub(r"^unable to access '[^']*': ", "", first))


def _refresh(session: Session, place: Path) -> None:
    """Fetches what was added; an unreachable server leaves the clone as it was."""
    try:
        where, env = str(place), _environment(session)
        git.mark_untrusted(where)
        options = _options(where)
        git.git(*options, "fetch", "--quiet", "--no-recurse-submodules", cwd=where, env=env)
        git.git(*options, "merge", "--quiet", "--ff-only", "@{upstream}", cwd=where, env=env)
    except AtollError as error:
        session.warn(f"`{place}` was not updated: {printable(error.message[:300])}")
