"""Brings the files and the index of an owner's checkout from one commit to another.

Nothing of the owner's is overwritten: a path that differs from the old commit in the index or in
the working tree, or an untracked file in the way, ignored ones included, stops it before anything
is changed. Git's lock of the index is held throughout, by a file that says whose it is.

An update that was killed can be continued: every changed path is compared with both commits. What
is as in one of them, or what a killed git left of one, is Atoll's; anything else is the owner's and
stops it again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from atoll.engine.promotion.checkouts import WorkingTree, require_quiet
from atoll.engine.promotion.path_changes import (
    FileState,
    PathChange,
    TreeSide,
    find_case_conflicts,
    find_changes,
    find_obstructions,
    is_absent,
    is_missing,
)
from atoll.host import files, git
from atoll.host.process import Completed, wait_until
from atoll.model.errors import AtollError, DriverError, StateError
from atoll.model.names import printable

_MARK = b"atoll promotion\n"
"""The content of an index lock of Atoll: git's own is an index, or empty."""
_COPY = "atoll-index"
_SIDE = "atoll-side-index"
_BUSY_S = 2.0
_MOST_NAMES = 10
_COMPARED_BYTES = 256 << 20

_OF_ATOLL = frozenset(set(FileState) - {FileState.OTHER})
"""What an update that was killed can have left."""

Reach = Callable[[str], None]
"""Called with the name of a step once it is done."""


class CheckoutUpdate(NamedTuple):
    """What is brought where."""

    place: WorkingTree
    repository: str
    old: str
    new: str
    keeps_index: bool = False
    """Only the working tree changes, as `git apply` does; the index stays at `index_at`."""
    index_at: str = ""
    """Of an update that keeps the index: the commit that the index has at the changed paths."""

    def reversed(self) -> CheckoutUpdate:
        return self._replace(old=self.new, new=self.old)

    @property
    def none(self) -> str:
        """The id of no object."""
        return "0" * len(self.old)

    @property
    def git_dir(self) -> Path:
        return Path(self.place.git_dir)

    @property
    def copy(self) -> Path:
        """A copy of the index, in which git prepares the new one."""
        return self.git_dir / _COPY

    def git(
        self,
        *words: str,
        index: Path | None = None,
        stdin: bytes | None = None,
        keep_fds: Sequence[int] = (),
        allowed: Sequence[int] = (0,),
    ) -> Completed:
        """Runs git in the checkout, with the owner's filters as usual there."""
        env = {} if index is None else {"GIT_INDEX_FILE": str(index)}
        return git.git(
            *git.untrusted_options(self.repository), *words,
            cwd=self.place.root, env=env, stdin=stdin, keep_fds=keep_fds, alone=True,
            allowed=allowed,
        )  # fmt: skip


class Obstacle(StateError):  # noqa: N818 - a state of affairs
    """Something of the owner's is in the way; nothing was changed."""

    def __init__(self, message: str, *, hint: str, paths: Sequence[str]) -> None:
        super().__init__(message, hint=hint)
        self.paths = tuple(paths)


@contextmanager
def index_locked(place: WorkingTree) -> Iterator[None]:
    """Holds git's lock of a checkout's index. The caller has its turn at the repository, so a lock
    of Atoll's that is there was left by a command that was killed.
    """
    path = Path(place.git_dir, "index.lock")
    remove_own_lock(path)

    def is_made() -> bool:
        try:
            files.write_new(path, _MARK)
        except StateError:
            return False
        return True

    if not wait_until(is_made, timeout_s=_BUSY_S):
        raise StateError(
            f"another git is changing the index of `{printable(place.root)}`, or one was killed",
            hint=f"if no git is running there: rm '{path}'",
        )
    try:
        yield
    finally:
        remove_own_lock(path)


def remove_own_lock(path: Path) -> None:
    """Removes a lock of the index that Atoll made, and no other."""
    try:
        content = files.read_regular(path, limit_bytes=len(_MARK))
    except StateError:
        return
    # It may have been killed while it wrote; an empty one may be git's.
    if content and _MARK.startswith(content):
        path.unlink(missing_ok=True)


def discard_remains(place: WorkingTree) -> None:
    """Removes what an update that was killed has left in git's directory of a checkout."""
    for name in (_COPY, _SIDE):
        for suffix in ("", ".lock"):
            Path(place.git_dir, f"{name}{suffix}").unlink(missing_ok=True)
    remove_own_lock(Path(place.git_dir, "index.lock"))


def start(update: CheckoutUpdate, *, turn: int, reach: Reach) -> None:
    """Brings a checkout to the new commit, but for its index. The caller holds the index lock.

    Raises Obstacle when something of the owner's is in the way, StateError when the checkout is in
    no state for it: then nothing was changed. When git fails in the middle, it is taken back.
    """
    discard_copies(update)
    require_quiet(update.place)
    _require_supported(update)
    changes = find_changes(update.old, update.new, repository=update.repository)
    if update.keeps_index and update.index_at != update.old:
        # The files are ahead of the index, as an earlier landing has left them.
        # Those that are as after it already, the owner has brought back.
        allowed = {FileState.OLD, FileState.NEW, FileState.EITHER}
        states = _require_known(update, changes, allowed=allowed)
        _copy_index(update)
        _set_entries(update, changes, states)
    else:
        _copy_index(update)
        _require_clean(update, changes)
    reach("prepared")
    _read_tree(update, changes, turn=turn)
    reach("files")


def resume(update: CheckoutUpdate, *, turn: int, reach: Reach) -> None:
    """Continues an update that was killed, from any step. Raises Obstacle when a changed path is
    neither as before nor as after it.
    """
    discard_copies(update)
    require_quiet(update.place)
    changes = find_changes(update.old, update.new, repository=update.repository)
    states = _require_known(update, changes)
    _copy_index(update)
    _remove_cut(update, changes, states)
    _set_entries(update, changes, states)
    reach("prepared")
    _run_read_tree(update, _mixed_tree(update, changes, states), turn=turn)
    reach("files")


def finish(update: CheckoutUpdate) -> None:
    """Puts the prepared index into place."""
    if update.keeps_index:
        update.copy.unlink(missing_ok=True)
        return
    files.sync_file(update.copy)
    os.replace(update.copy, update.git_dir / "index")
    files.sync_directory(update.git_dir)


def discard_copies(update: CheckoutUpdate) -> None:
    """But not the lock, which the caller holds."""
    for name in (_COPY, _SIDE):
        for suffix in ("", ".lock"):
            (update.git_dir / f"{name}{suffix}").unlink(missing_ok=True)


def is_untouched(update: CheckoutUpdate) -> bool:
    """Whether nothing is left of an update: it was not begun, or the owner has committed or
    reverted what it changed.

    Files that the owner has changed count as untouched: they are not Atoll's.
    """
    changes = find_changes(update.old, update.new, repository=update.repository)
    head = update.git("rev-parse", "--verify", "HEAD").text.strip()
    since = {change.path: change.new for change in find_changes(
        update.old, head, repository=update.repository
    )}  # fmt: skip
    at_head = {change.path: since.get(change.path, change.old) for change in changes}
    states = _survey(update, changes)
    begun = [c.path for c in changes if states[c.path] in (FileState.NEW, FileState.CUT)]
    if set(begun) - _matching(update, {path: at_head[path] for path in begun}):
        return False
    staged = {} if update.keeps_index else _staged(update)
    return not any(
        change.new != at_head[change.path] and staged.get(change.path, [None]) == [change.new]
        for change in changes
    )


def _copy_index(update: CheckoutUpdate) -> None:
    index = update.git_dir / "index"
    if index.exists():
        # With its time: git takes a file for unchanged that was edited within the second of its
        # entry, if the index is younger than that.
        shutil.copy2(index, update.copy)
    update.git("update-index", "-q", "--refresh", index=update.copy, allowed=(0, 1))


def _require_supported(update: CheckoutUpdate) -> None:
    if git.setting("core.sparseCheckout", cwd=update.place.root) == "true":
        raise StateError(
            f"`{printable(update.place.root)}` is a sparse checkout: nothing can be landed there",
            hint="git sparse-checkout disable, or git switch to another branch there",
        )


def _require_clean(update: CheckoutUpdate, changes: Sequence[PathChange]) -> None:
    """Raises Obstacle with every path that the owner has changed and that would change."""
    wanted = {change.path for change in changes}
    problems: dict[str, list[str]] = {}

    def add(what: str, paths: Sequence[str]) -> None:
        if mine := sorted(wanted.intersection(paths)):
            problems[what] = mine

    def listed(*words: str) -> list[str]:
        text = update.git(*words, index=update.copy).text
        return [path for path in text.split("\0") if path]

    flagged = [entry.partition(" ") for entry in listed("ls-files", "-v", "-z")]
    hidden = [path for tag, _, path in flagged if tag == "S" or tag.islower()]
    add("hidden from git by skip-worktree or assume-unchanged", hidden)
    unmerged = [entry.partition("\t")[2] for entry in listed("ls-files", "-u", "-z")]
    add("unmerged", unmerged)
    names = ("--name-only", "-z", "--no-renames", "--no-ext-diff", "--ignore-submodules=dirty")
    add("staged", listed("diff-index", "--cached", *names, update.old))
    add("changed", listed("diff-files", *names))
    if blocking := find_obstructions(update.place.root, changes):
        problems["not tracked by git"] = blocking
    if git.setting("core.ignoreCase", cwd=update.place.root) == "true":
        conflicts = find_case_conflicts(update.new, changes, repository=update.repository)
        add("names that differ only in case", conflicts)
    if not problems:
        return
    paths = list(dict.fromkeys(path for found in problems.values() for path in found))
    lines = "".join(f"\n  {what}: {_shown(found)}" for what, found in problems.items())
    raise Obstacle(
        f"your own work at `{printable(update.place.root)}` is in the way; nothing was changed"
        f"{lines}",
        hint=f"git -C '{printable(update.place.root)}' status; commit or stash these, then run "
        "this again",
        paths=paths,
    )


def _shown(paths: Sequence[str]) -> str:
    names = ", ".join(f"`{printable(path)}`" for path in paths[:_MOST_NAMES])
    rest = len(paths) - _MOST_NAMES
    return names if rest <= 0 else f"{names} and {rest} more"


def _require_known(
    update: CheckoutUpdate,
    changes: Sequence[PathChange],
    allowed: Collection[FileState] = _OF_ATOLL,
) -> dict[str, FileState]:
    states = _survey(update, changes)
    strange = [change.path for change in changes if states[change.path] not in allowed]
    staged = _strange_entries(update, changes)
    if not strange and not staged:
        return states
    lines = [f"\n  changed: {_shown(strange)}"] if strange else []
    lines += [f"\n  staged: {_shown(staged)}"] if staged else []
    landed = [change.path for change in changes if states[change.path] is FileState.NEW]
    lines += [f"\n  already as at {update.new[:10]}: {_shown(landed)}"] if landed else []
    raise Obstacle(
        f"paths at `{printable(update.place.root)}` are neither as at {update.old[:10]} nor as at "
        f"{update.new[:10]}; nothing was changed" + "".join(lines),
        hint=f"make each as at {update.new[:10]} or as at {update.old[:10]}, such as by "
        f"git -C '{printable(update.place.root)}' restore --source={update.old[:10]} "
        "--staged --worktree -- PATH, then run this again",
        paths=[*strange, *staged],
    )


def _survey(update: CheckoutUpdate, changes: Sequence[PathChange]) -> dict[str, FileState]:
    """How the files compare with the two commits, with the filters of the checkout."""
    as_old = _matching(update, {change.path: change.old for change in changes})
    as_new = _matching(update, {change.path: change.new for change in changes})
    return {
        change.path: _state(update, change, is_old=change.path in as_old,
                            is_new=change.path in as_new)
        for change in changes
    }  # fmt: skip


def _state(update: CheckoutUpdate, change: PathChange, *, is_old: bool, is_new: bool) -> FileState:
    if change.is_gitlink:
        return FileState.EITHER
    if is_new or is_old:
        return FileState.NEW if is_new else FileState.OLD
    if is_missing(update.place.root, change.path) or _is_cut(update, change):
        return FileState.CUT
    return FileState.OTHER


def _matching(update: CheckoutUpdate, side: Mapping[str, TreeSide | None]) -> set[str]:
    """The paths whose files are as in one of the commits."""
    absent = {p for p, entry in side.items() if entry is None and is_absent(update.place.root, p)}
    there = {path: entry for path, entry in side.items() if entry is not None}
    if not there:
        return absent
    index = update.git_dir / _SIDE
    index.unlink(missing_ok=True)
    try:
        update.git(
            "update-index",
            "-z",
            "--index-info",
            index=index,
            stdin=_index_lines(there.items(), update.none),
        )
        update.git("update-index", "-q", "--really-refresh", index=index, allowed=(0, 1))
        differing = update.git(
            "diff-files", "-z", "--name-only", "--no-ext-diff", "--ignore-submodules=all",
            index=index,
        )  # fmt: skip
    finally:
        index.unlink(missing_ok=True)
    return absent | (there.keys() - set(differing.text.split("\0")))


def _index_lines(entries: Iterable[tuple[str, TreeSide | None]], none: str) -> bytes:
    """The input of `update-index`; `none` is the id that means nothing."""
    lines = []
    for path, entry in entries:
        mode, name = ("0", none) if entry is None else entry
        lines.append(f"{mode} {name}\t".encode() + os.fsencode(path) + b"\0")
    return b"".join(lines)


def _is_cut(update: CheckoutUpdate, change: PathChange) -> bool:
    """Whether a file is the beginning of what git was writing when it was killed."""
    place = os.path.join(update.place.root, change.path)
    if os.path.islink(place) or not os.path.isfile(place):
        return False
    size = os.lstat(place).st_size
    if size > _COMPARED_BYTES:
        return False
    content = Path(place).read_bytes()
    for entry in (change.new, change.old):
        if entry is None or not entry.mode.startswith("100"):
            continue
        whole = update.git(
            "cat-file", "--filters", f"--path={change.path}", entry.object_id, allowed=(0, 128)
        )
        is_shorter = whole.code == 0 and len(content) < len(whole.stdout)
        if is_shorter and whole.stdout.startswith(content):
            return True
    return False


def _strange_entries(update: CheckoutUpdate, changes: Sequence[PathChange]) -> list[str]:
    """Changed paths whose entry in the owner's index is of neither commit."""
    staged = _staged(update)
    allowed = {change.path: [change.old, change.new] for change in changes}
    if update.keeps_index:
        at = update.index_at
        sides = {change.path: (change.old if at == update.old else change.new)
                 for change in changes}  # fmt: skip
        allowed = {path: [entry] for path, entry in sides.items()}
    found = []
    for change in changes:
        entries = staged.get(change.path, [None])
        if len(entries) > 1 or entries[0] not in allowed[change.path]:
            found.append(change.path)
    return found


def _staged(update: CheckoutUpdate) -> dict[str, list[TreeSide | None]]:
    """The entries of the owner's index; those of an unmerged path have no id."""
    found: dict[str, list[TreeSide | None]] = {}
    for line in filter(None, update.git("ls-files", "-s", "-z").text.split("\0")):
        head, _, path = line.partition("\t")
        mode, name, stage = head.split(" ")
        found.setdefault(path, []).append(TreeSide(mode, name if stage == "0" else ""))
    return found


def _remove_cut(
    update: CheckoutUpdate, changes: Sequence[PathChange], states: Mapping[str, FileState]
) -> None:
    for change in changes:
        if states[change.path] is FileState.CUT and not is_missing(update.place.root, change.path):
            os.unlink(os.path.join(update.place.root, change.path))


def _set_entries(
    update: CheckoutUpdate, changes: Sequence[PathChange], states: Mapping[str, FileState]
) -> None:
    """Makes the copy of the index say which of the files are as after the update."""
    _add_entries(update, update.copy, changes, states)
    update.git("update-index", "-q", "--refresh", index=update.copy, allowed=(0, 1))


def _mixed_tree(
    update: CheckoutUpdate, changes: Sequence[PathChange], states: Mapping[str, FileState]
) -> str:
    """The tree of the old commit with the paths that are as after the update already."""
    index = update.git_dir / _SIDE
    try:
        update.git("read-tree", update.old, index=index)
        _add_entries(update, index, changes, states)
        return update.git("write-tree", index=index).text.strip()
    finally:
        index.unlink(missing_ok=True)


def _add_entries(
    update: CheckoutUpdate,
    index: Path,
    changes: Sequence[PathChange],
    states: Mapping[str, FileState],
) -> None:
    entries = [
        (change.path, change.new if states[change.path] is FileState.NEW else change.old)
        for change in changes
    ]
    # Removals first: a path may have become a directory.
    entries.sort(key=lambda pair: pair[1] is not None)
    lines = _index_lines(entries, update.none)
    update.git("update-index", "-z", "--index-info", index=index, stdin=lines)


def _read_tree(update: CheckoutUpdate, changes: Sequence[PathChange], *, turn: int) -> None:
    """Raises Unchanged when git fails and everything is as before."""
    try:
        _run_read_tree(update, update.old, turn=turn)
    except DriverError as failure:
        shown = printable(update.place.root)
        try:
            _take_back(update, [change.reversed() for change in changes], turn=turn)
        except (AtollError, OSError) as error:
            raise DriverError(
                f"{failure.message}; and the files at `{shown}` could not be brought back: {error}",
                hint="atoll promote again continues there",
            ) from error
        raise Unchanged(
            f"git could not bring `{shown}` to {update.new[:10]}; nothing was changed: "
            f"{failure.message}",
            hint=failure.hint,
        ) from failure


def _run_read_tree(update: CheckoutUpdate, before: str, *, turn: int) -> None:
    """Lets git bring the files to the new commit. Git inherits the turn at the repository, so that
    the next command waits for it when this process is killed.
    """
    words = ("read-tree", "-m", "-u", before, update.new)
    update.git(*words, index=update.copy, keep_fds=(turn,))


class Unchanged(DriverError):  # noqa: N818 - what came of a failure
    """Git failed, and everything is as before."""


def _take_back(update: CheckoutUpdate, changes: Sequence[PathChange], *, turn: int) -> None:
    discard_copies(update)
    back = update.reversed()
    states = _require_known(back, changes)
    _copy_index(back)
    _remove_cut(back, changes, states)
    _set_entries(back, changes, states)
    _run_read_tree(back, _mixed_tree(back, changes, states), turn=turn)
    discard_copies(back)
