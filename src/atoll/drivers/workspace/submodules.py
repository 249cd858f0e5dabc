"""Submodules of a capsule, and the owner's repositories that they correspond to.

A submodule corresponds to the owner's submodule at the same path or, where the owner has none there
(after `git mv` in the capsule, or if it is not checked out), to the one of the same name below
`.git/modules`. Names and paths come from a capsule: they are only looked up below the owner's
checkout and repository, without following symbolic links. A repository among the owner's files that
is no submodule of the owner is never used, whatever the capsule's commits record.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from atoll.host import files, git
from atoll.host.beneath import TreeReader
from atoll.host.intake.index import parse_index
from atoll.host.intake.refs import AgentRefs, RefBudget, load_refs
from atoll.host.intake.tree_objects import TreeEntry
from atoll.host.tree.merged_tree import MergedTree, PlainTree
from atoll.model.errors import StateError
from atoll.model.plan import WorkspacePlan
from atoll.model.untrusted import InsidePath, ObjectId, Untrusted, find_module_name, find_path

_POINTER_BYTES = 1 << 16
_GIT = InsidePath(b".git")
MODULES = _GIT.child(b"modules")
_SHA1_BYTES = 20
_COMPARED_BYTES = 64 << 20
_INDEX_BYTES = 64 << 20
_INDEX_BYTES_PER_LOOK = 4096
_MOST_LOOKS = 10_000
_DEEPEST = 30
_PARTS_PER_LOOK = 8


class OwnerCheck(Protocol):
    """What is known of a submodule outside the capsule. A submodule is identified by the path of
    its files, or by that of its repository if it has no files.
    """

    def has_all(
        self, module: InsidePath, tips: Collection[ObjectId], *, known: Collection[ObjectId]
    ) -> bool:
        """Whether all of these exist elsewhere; `known` ones do."""

    def entries(self, module: InsidePath, commit: ObjectId) -> dict[InsidePath, TreeEntry] | None:
        """The entries that a commit tracks; None if unknown."""


def find_head(tree: TreeReader, module: InsidePath) -> ObjectId | None:
    """The commit that a submodule of a private repository has checked out."""
    place = find_repository(tree, module)
    refs = None if place is None else load_refs(tree, place)
    return None if refs is None else refs.head


def is_submodule(tree: TreeReader, module: InsidePath) -> bool:
    """Whether a nested repository is where git keeps those of submodules."""
    place = find_repository(tree, module)
    return place is not None and place.is_below(MODULES)


def has_changed(tree: MergedTree, below: TreeReader, module: InsidePath) -> bool:
    """Whether the content of any file of a submodule differs from `below`: git rewrites many files
    without changing them.
    """

    def skip(path: InsidePath, is_directory: bool) -> bool:  # noqa: FBT001 - called so
        del is_directory
        return not (path.is_below(module) or module.is_below(path))

    changes = tree.changes(skip=skip)
    for path in {*changes.entries, *changes.hidden, *changes.special, *changes.closed}:
        if path.is_below(module):
            now, before = (_content(reader, path) for reader in (tree, below))
            if now is None or now != before:
                return True
    return False


def _content(tree: TreeReader, path: InsidePath) -> tuple[bytes, bool] | None:
    """The content of a file, and whether it is executable; None for anything else."""
    handle = tree.find_file(path)
    if handle is None:
        return None
    with open(handle, "rb") as stream:
        content = stream.read(_COMPARED_BYTES + 1)
        is_executable = bool(os.fstat(handle).st_mode & 0o100)
    return (content, is_executable) if len(content) <= _COMPARED_BYTES else None


def find_moved(
    tree: MergedTree, below: TreeReader | None, owner: OwnerCheck | None = None
) -> set[InsidePath]:
    """Submodules whose repositories have new refs or staged content compared with `below` that the
    owner does not know, even if their files are unchanged. They are identified by the path of
    their files, or of their repository if they have none.

    Submodules that are too large to examine, or cannot be read, are included.
    """
    budget = RefBudget(_MOST_LOOKS)
    walk = _Walk(tree, budget)
    changes = tree.changes(skip=walk.skip)
    touched = {*changes.entries, *changes.hidden, *changes.special, *changes.closed}
    if walk.is_too_deep or budget.is_spent() or MODULES in touched:
        return {MODULES}
    places = {place for path in touched if (place := walk.place_of(path)) is not None}
    moved = set()
    for place in sorted(places):
        module = walk.files_of(place)
        if not _Repository(tree, below, place, budget).is_known(owner, module):
            moved.add(module)
        if budget.is_spent():
            return {MODULES}
    return moved


class _Walk:
    """Finds the repository that a path below `.git/modules` belongs to."""

    def __init__(self, tree: TreeReader, budget: RefBudget) -> None:
        self._tree = tree
        self._budget = budget
        self._around: dict[InsidePath, InsidePath | None] = {}
        self._files: dict[InsidePath, InsidePath] = {}
        self.is_too_deep = False

    def skip(self, path: InsidePath, is_directory: bool) -> bool:  # noqa: FBT001 - called so
        """Skips objects: those that matter are named by a ref."""
        if path in (_GIT, MODULES):
            return False
        if self.is_too_deep or self._budget.is_spent() or not path.is_below(MODULES):
            return True
        if not is_directory:
            return not self._budget.spend()
        above = path.parent
        if path.name == b"objects" and above is not None and self._is_repository(above):
            return True
        self._find_around(path)
        self.is_too_deep = len(path.parts) > _DEEPEST
        return self.is_too_deep

    def place_of(self, path: InsidePath) -> InsidePath | None:
        """The repository that a file or unreadable directory belongs to."""
        above = path.parent
        if above is None or not path.is_below(MODULES):
            return None
        outer = self._find_around(above)
        return path if _begins(above, outer) else outer

    def files_of(self, place: InsidePath) -> InsidePath:
        """The path of a repository's files, derived from its name, which is their first path; the
        repository itself if there are no files.
        """
        if place not in self._files:
            self._files[place] = self._find_files(place)
        return self._files[place]

    def _find_files(self, place: InsidePath) -> InsidePath:
        above = place.parent
        outer = None if above is None else self._find_around(above)
        named = place.raw.removeprefix(MODULES.raw + b"/")
        if outer not in (None, MODULES):
            # Its name is a path in the files of its parent submodule.
            name = place.raw.removeprefix(outer.raw + b"/modules/")
            named = self.files_of(outer).raw + b"/" + name
        module = find_path(Untrusted(named))
        return place if module is None or find_repository(self._tree, module) != place else module

    def _find_around(self, path: InsidePath) -> InsidePath | None:
        """The repository that a directory belongs to. Below each `modules` the first directory
        counts as one: if it is damaged or only contains others, that cannot be decided.
        """
        if not path.is_below(MODULES):
            return None
        if path not in self._around:
            above = path.parent
            outer = None if above is None else self._find_around(above)
            is_one = _begins(above, outer) or self._is_repository(path)
            self._around[path] = path if is_one else outer
        return self._around[path]

    def _is_repository(self, path: InsidePath) -> bool:
        self._budget.spend(1 + len(path.parts) // _PARTS_PER_LOOK)
        has_head = self._tree.kind(path.child(b"HEAD")) is not None
        return has_head and self._tree.kind(path.child(b"objects")) == "directory"


def _begins(above: InsidePath | None, outer: InsidePath | None) -> bool:
    """Whether a repository is expected in `above`, which belongs to `outer`."""
    return outer is None or above == outer.child(b"modules")


class _Repository:
    """The repository of a submodule, now and in `below`."""

    def __init__(
        self, tree: TreeReader, below: TreeReader | None, place: InsidePath, budget: RefBudget
    ) -> None:
        self._tree = tree
        self._below = below
        self._place = place
        self._budget = budget

    def is_known(self, owner: OwnerCheck | None, module: InsidePath) -> bool:
        """Whether everything that it names was there before or exists elsewhere."""
        before = None if self._below is None else load_refs(self._below, self._place)
        now = load_refs(self._tree, self._place, self._budget)
        if now is None or now.refused or (before is None and owner is None):
            return False
        known = set(() if before is None else _tips(before))
        fresh = set(_tips(now)) - known
        if fresh and (owner is None or not owner.has_all(module, fresh, known=known)):
            return False
        return self._stages_nothing_new(now, owner, module)

    def _stages_nothing_new(
        self, now: AgentRefs, owner: OwnerCheck | None, module: InsidePath
    ) -> bool:
        content, before = (
            None if tree is None else tree.read(self._place.child(b"index"), limit_bytes=limit)
            for tree, limit in ((self._tree, _INDEX_BYTES), (self._below, 2 * _INDEX_BYTES))
        )
        if content is None:
            return self._tree.kind(self._place.child(b"index")) is None
        if content == before:
            return True
        if not self._budget.spend(len(content) // _INDEX_BYTES_PER_LOOK):
            return False
        id_bytes = len(now.head or "") // 2 or _SHA1_BYTES
        staged, known = (
            None if text is None else parse_index(text, id_bytes=id_bytes)
            for text in (content, before)
        )
        if staged is None:
            return False
        fresh = {(e.path, e.object_id) for e in staged} - {
            (e.path, e.object_id) for e in known or ()
        }
        if not fresh:
            return True
        held = None if owner is None or now.head is None else owner.entries(module, now.head)
        return held is not None and fresh <= {(path, e.object_id) for path, e in held.items()}


def _tips(refs: AgentRefs) -> Iterator[ObjectId]:
    if refs.head is not None:
        yield refs.head
    yield from refs.refs.values()
    yield from refs.fetched.values()
    yield from refs.stashes
    yield from refs.worktrees


def find_repository(tree: TreeReader, module: InsidePath) -> InsidePath | None:
    """The repository of a submodule: its `.git` directory, or the target of its `.git` file if that
    is where git keeps repositories of submodules.
    """
    link = module.child(b".git")
    if tree.kind(link) == "directory":
        return link
    pointer = tree.read(link, limit_bytes=_POINTER_BYTES) or b""
    named = pointer.removeprefix(b"gitdir: ").rstrip(b"\n")
    place = os.path.normpath(module.raw + b"/" + named)
    path = find_path(Untrusted(place)) if named and not named.startswith(b"/") else None
    return None if path is None or not path.is_below(MODULES) else path


_SHA1 = 40
_MISSING = (1, 128, 129)


class ModulePlace(NamedTuple):
    """The owner's and the capsule's repository of a submodule."""

    owner: str | None
    """The git directory; None when the owner has none."""
    inside: InsidePath | None
    """In the capsule; None if there is none."""


def find_place(plan: WorkspacePlan, tree: TreeReader, module: InsidePath) -> ModulePlace:
    """`module` is the path of a submodule's files, or of its repository below `.git/modules`."""
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
    """Whether the owner's index has a submodule at a path, nested or not."""
    above = path.parent
    while above is not None and find_module(plan, above) is None:
        above = above.parent
    top = plan.checkout if above is None else os.path.join(plan.checkout, os.fsdecode(above.raw))
    name = os.fsdecode(path.raw if above is None else path.raw[len(above.raw) + 1 :])
    words = ("--literal-pathspecs", "ls-files", "--stage", "-z", "--", name)
    answer = git.git(*words, cwd=top, allowed=(0, *_MISSING))
    return answer.code == 0 and answer.stdout.startswith(b"160000 ")


def make_place(plan: WorkspacePlan, inside: InsidePath) -> str:
    """Creates an empty repository of the owner for a submodule that only the capsule has, where
    `git submodule update --init` looks for it. Raises StateError if its name is unusable.
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
            f"the submodule in `{inside.shown()}` has an unusable name",
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
    """Removes a repository that was not needed, and its empty parent directories."""
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
    """Whether the path is free, and in no other repository except below its `modules`."""
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
    """Whether all of these exist."""
    asked = "".join(f"{name}\n" for name in names).encode()
    words = ("cat-file", "--batch-check=%(objecttype)")
    answer = git.git(*words, cwd=git_dir, env={"GIT_DIR": git_dir}, stdin=asked)
    return not any(line.endswith(" missing") for line in answer.lines)


def is_kept(git_dir: str, commit: str) -> bool:
    """Whether a commit is reachable from a ref of the owner: otherwise `git gc` removes it."""
    answer = git.git(
        "for-each-ref", "--count=1", f"--contains={commit}", "--format=%(refname)",
        cwd=git_dir, env={"GIT_DIR": git_dir}, allowed=(0, *_MISSING),
    )  # fmt: skip
    return answer.code == 0 and bool(answer.text)
