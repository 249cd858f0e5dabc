"""The owner's own repositories of submodules, and which of them belongs to a capsule's.

It is the one of the owner's submodule at the same path or, where the owner has none there, the one
of the same name below `.git/modules`: after `git mv` in the capsule, or if the owner's checkout
does not have the submodule. Names and paths come from a capsule. They are only looked up below the
owner's checkout and repository, without following a link. A repository in the owner's files that
is no submodule of the owner's is never used, whatever the capsule's commits record.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.workspace.submodules import MODULES, find_repository
from atoll.host import files, git
from atoll.host.beneath import TreeReader
from atoll.host.merged import PlainTree
from atoll.model.errors import StateError
from atoll.model.plan import WorkspacePlan
from atoll.model.untrusted import InsidePath, ObjectId, Untrusted, find_module_name

_POINTER_BYTES = 1 << 16
_SHA1 = 40
_MISSING = (1, 128, 129)


class ModulePlace(NamedTuple):
    """Where the two repositories of a submodule are."""

    owner: str | None
    """The git directory; None when the owner has none."""
    inside: InsidePath | None
    """In the capsule; None when there is none."""


def find_place(plan: WorkspacePlan, tree: TreeReader, module: InsidePath) -> ModulePlace:
    """`module` is where the files of a submodule are, or its repository below `.git/modules`."""
    inside = module if module.is_below(MODULES) else find_repository(tree, module)
    owner = find_module(plan, module)
    if owner is None and inside is not None and inside.is_below(MODULES):
        named = _named(plan, os.fsdecode(_name_of(inside)))
        owner = str(named) if _is_repository(named) and _is_free_of_links(plan, named) else None
    return ModulePlace(owner, inside)


def find_module(plan: WorkspacePlan, path: InsidePath) -> str | None:
    """The git directory of the owner's submodule at a path."""
    if path.is_below(MODULES) or not Path(plan.checkout).is_dir():
        return None
    with PlainTree(Path(plan.checkout)) as checkout:
        link = path.child(b".git")
        place = os.path.join(plan.checkout, os.fsdecode(link.raw))
        if checkout.kind(link) == "directory":
            # Its repository was never moved below the project's.
            is_module = _is_repository(Path(place)) and _is_submodule(plan, path)
            return place if is_module else None
        pointer = checkout.read(link, limit_bytes=_POINTER_BYTES)
    if pointer is None or not pointer.startswith(b"gitdir: "):
        return None
    named = os.fsdecode(pointer.removeprefix(b"gitdir: ").rstrip(b"\n"))
    real = os.path.realpath(os.path.join(os.path.dirname(place), named))
    return real if real.startswith(os.path.realpath(plan.repository) + "/modules/") else None


def _is_submodule(plan: WorkspacePlan, path: InsidePath) -> bool:
    """Whether the owner's index has a submodule at a path, which may lie in another submodule."""
    above = path.parent
    while above is not None and find_module(plan, above) is None:
        above = above.parent
    top = plan.checkout if above is None else os.path.join(plan.checkout, os.fsdecode(above.raw))
    name = os.fsdecode(path.raw if above is None else path.raw[len(above.raw) + 1 :])
    words = ("--literal-pathspecs", "ls-files", "--stage", "-z", "--", name)
    answer = git.git(*words, cwd=top, allowed=(0, *_MISSING))
    return answer.code == 0 and answer.stdout.startswith(b"160000 ")


def make_place(plan: WorkspacePlan, inside: InsidePath) -> str:
    """Makes an empty repository of the owner's for a submodule that only the capsule has, where
    `git submodule update --init` looks for it. Raises StateError when its name is unusable.
    """
    if not inside.is_below(MODULES):
        path = str(inside.parent and inside.parent.shown())
        raise StateError(
            f"you have no repository for it, and the capsule has it in `{path}/.git`, which is not "
            "where git keeps the repositories of submodules",
            hint=f"inside: git submodule absorbgitdirs {path} (after git submodule add --force "
            f"URL {path}, if `.gitmodules` does not name it), or: git rm --cached {path}",
        )
    name = find_module_name(Untrusted(_name_of(inside)))
    place = None if name is None else _named(plan, name)
    if place is None or not _is_usable(plan, place) or not _is_free_of_links(plan, place):
        raise StateError(
            f"the submodule in `{inside.shown()}` has a name that cannot be used",
            hint="inside: git submodule add --name NAME URL PATH, with another name",
        )
    kind = "sha1" if len(plan.base_commit) == _SHA1 else "sha256"
    words = ("init", "--quiet", "--bare", "--template=", f"--object-format={kind}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        git.git(*words, str(place), cwd=plan.repository)
        # It gets a work tree when the owner checks it out.
        git.git("config", "core.bare", "false", cwd=str(place), env={"GIT_DIR": str(place)})
    except BaseException:
        drop_place(plan, str(place))
        raise
    return str(place)


def drop_place(plan: WorkspacePlan, place: str) -> None:
    """Removes a repository that was made for nothing, and the directories that it leaves empty."""
    top = Path(os.path.realpath(plan.repository), "modules")
    files.remove_tree(Path(place), within=top)
    with suppress(OSError):
        for above in Path(place).parents:
            if not above.is_relative_to(top):
                return
            above.rmdir()


def _name_of(inside: InsidePath) -> bytes:
    return inside.raw[len(MODULES.raw) + 1 :]


def _named(plan: WorkspacePlan, name: str) -> Path:
    return Path(os.path.realpath(plan.repository), "modules", name)


def _is_usable(plan: WorkspacePlan, place: Path) -> bool:
    """Whether nothing is there, and it lies in no other repository but below its `modules`."""
    if os.path.lexists(place):
        return False
    top = Path(os.path.realpath(plan.repository), "modules")
    below: Path = place
    for above in place.parents:
        if above == top:
            return True
        if _is_repository(above) and below.name != "modules":
            return False
        below = above
    return False


def _is_free_of_links(plan: WorkspacePlan, place: Path) -> bool:
    top = os.path.realpath(plan.repository)
    return os.path.realpath(place) == str(place) and str(place).startswith(f"{top}/modules/")


def _is_repository(place: Path) -> bool:
    return (place / "HEAD").exists() and (place / "objects").is_dir()


def has_object(git_dir: str, name: str) -> bool:
    env = {"GIT_DIR": git_dir}
    return git.git("cat-file", "-e", name, cwd=git_dir, env=env, allowed=(0, 1, 128)).code == 0


def has_objects(git_dir: str, names: Iterable[ObjectId]) -> bool:
    """Whether all of these are there."""
    asked = "".join(f"{name}\n" for name in names).encode()
    words = ("cat-file", "--batch-check=%(objecttype)")
    answer = git.git(*words, cwd=git_dir, env={"GIT_DIR": git_dir}, stdin=asked)
    return not any(line.endswith(" missing") for line in answer.lines)


def is_kept(git_dir: str, commit: str) -> bool:
    """Whether a ref of the owner's leads to a commit: without one `git gc` removes it."""
    answer = git.git(
        "for-each-ref", "--count=1", f"--contains={commit}", "--format=%(refname)",
        cwd=git_dir, env={"GIT_DIR": git_dir}, allowed=(0, *_MISSING),
    )  # fmt: skip
    return answer.code == 0 and bool(answer.text)
