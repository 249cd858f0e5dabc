"""Which checks a project has: those that its file declares, else those that are detected."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from atoll.engine.project import trust
from atoll.engine.project.settings import Config, load_config
from atoll.engine.state.session import Session
from atoll.host import git
from atoll.model.check import CheckSource, CheckSpec
from atoll.model.errors import PrerequisiteError, SpecError, StateError
from atoll.model.names import printable, slug
from atoll.model.state import ProjectRecord

_MOST_CHECKS = 50
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def select_checks(
    session: Session, project: ProjectRecord, names: Sequence[str] = ()
) -> list[CheckSpec]:
    """The checks with these names, or all: those that the project file declares, else those that
    are detected.

    Raises StateError when the file is not trusted or when there are no checks, SpecError for an
    unknown name, PrerequisiteError for one that needs services.
    """
    known = find_checks(session, project)
    if not known:
        raise StateError(
            f"`{project.name}` declares no checks, and none are detected",
            hint="declare [checks.test] in atoll.toml (atoll init writes one), then: atoll trust",
        )
    _require_known(names, known)
    chosen = [known[name] for name in dict.fromkeys(names)] if names else list(known.values())
    require_startable(chosen)
    return chosen


def choose_checks(
    session: Session, project: ProjectRecord, words: Sequence[str]
) -> list[CheckSpec]:
    """The checks that `--check` names, each a name or a shell command.

    Raises what `select_checks` raises, and SpecError for a word that is neither.
    """
    if len(words) > _MOST_CHECKS:
        raise SpecError(f"there are more than {_MOST_CHECKS} checks")
    # A command of the owner's needs no approved file.
    has_names = any(map(_NAME.fullmatch, words))
    known = find_checks(session, project) if has_names else {}
    named = [word for word in words if word in known]
    if named:
        select_checks(session, project, named)
    found: dict[str, CheckSpec] = {}
    for word in words:
        spec = known[word] if word in known else _parse_command(word, known, found)
        found[spec.name] = spec
    return list(found.values())


def _parse_command(
    word: str, known: dict[str, CheckSpec], found: dict[str, CheckSpec]
) -> CheckSpec:
    if not word.strip() or "\0" in word:
        raise SpecError("`--check` needs the name of a check or a shell command")
    if _NAME.fullmatch(word):
        names = f"one of: {', '.join(known)}; " if known else ""
        raise SpecError(
            f"there is no check `{printable(word[:60])}`",
            hint=f"{names}a command: --check 'exec {word}'",
        )
    if word in (spec.command for spec in found.values()):
        raise SpecError(f"`--check {printable(word[:60])}` is given twice")
    first = next(iter(_split(word)), "")
    stem = slug(os.path.basename(first))[:20].strip("-") or "check"
    name, number = stem, 1
    while name in known or name in found:
        number += 1
        name = f"{stem}-{number}"
    return CheckSpec(name=name, command=word, source=CheckSource.COMMAND_LINE)


def _split(text: str) -> list[str]:
    """The words of a shell command, as far as they can be told without a shell."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def find_checks(session: Session, project: ProjectRecord) -> dict[str, CheckSpec]:
    """Every check of a project by name, in the order of its file. Raises StateError when the file
    is not trusted.
    """
    config = load_config(Path(project.root), session.owner)
    if config.file is not None and config.file.checks:
        _require_trust(session, config)
        return dict(config.file.checks)
    return detect_checks(project)


def detect_checks(project: ProjectRecord) -> dict[str, CheckSpec]:
    """The checks that the files of the owner's checkout suggest."""
    from atoll.engine.project import detection  # noqa: PLC0415 - heavy

    found = detection.detect(Path(project.root), git.tracked(cwd=project.root))
    return {
        name: CheckSpec(name=name, command=command, source=CheckSource.DETECTED)
        for name, command in found.checks
    }


def _require_trust(session: Session, config: Config) -> None:
    trust.require_trust(session, config)
    file = config.file
    if file is None or trust.is_trusted(session, file):
        return
    is_known = session.store.trusted_digest(str(file.path)) is not None
    lines = "\n".join(f"  {name}: {printable(one.command)}" for name, one in file.checks.items())
    raise StateError(
        f"`{file.path}` {'has changed since it was approved' if is_known else 'is not approved'}, "
        f"and its checks are commands:\n{lines}",
        hint="read it, then: atoll trust",
    )


def _require_known(names: Sequence[str], known: dict[str, CheckSpec]) -> None:
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise SpecError(
                f"there is no check `{printable(name)}`",
                hint=f"did you mean `{close[0]}`?" if close else f"one of: {', '.join(known)}",
            )


def require_startable(specs: Sequence[CheckSpec]) -> None:
    """Raises PrerequisiteError when one of the checks needs services."""
    needy = [spec for spec in specs if spec.needs]
    if needy:
        first = needy[0]
        raise PrerequisiteError(
            f"the check `{first.name}` needs the services {', '.join(first.needs)}, which Atoll "
            "cannot start yet",
            hint="name the checks without `needs`, or start the services in the check's command",
        )
