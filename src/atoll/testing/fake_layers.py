"""A fake of the layered drivers: layers are plain directories, which it merges when it reads.

It has no git, no mounts and no tools. Everything is on disk, so that any instance in any process
continues what another began:

    REPOSITORY/commits/ID/tree         the files of a commit
    REPOSITORY/commits/ID/parent       the id of the commit before it, if there is one
    POOL/layers/ID/tree/workspace      the files that a layer adds or replaces
    POOL/layers/ID/removed.json        the files of lower layers that it removes

The branch of a workspace is a file in `.git/refs/heads`, as in a git repository.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from atoll.drivers.contracts import (
    Author,
    CommitResult,
    ExportedCommits,
    ProbeResult,
    Sealed,
    WorkspaceRequest,
)
from atoll.drivers.layers.pool import WORKSPACE, Layer, Pool, new_upper
from atoll.host import files
from atoll.model.enclosure import View
from atoll.model.errors import PrerequisiteError, StateError
from atoll.model.layers import LayerKind
from atoll.model.names import branch_of, printable
from atoll.model.plan import WorkspacePlan
from atoll.model.secretvalues import SecretSearch
from atoll.model.state import WHOLE, Patch, Problem, RecoveryPoint, Work
from atoll.testing.fakes import Content, digest_of, read_content, write_content

_FILE = stat.S_IFREG | 0o644
_GIT = ".git/"
_HEAD = ".git/HEAD"
_HEADS = "refs/heads/"
_REMOVED = "removed.json"


class FakeLayered:
    """A `LayeredDriver` without a view: nothing can run in its workspaces.

    `write` and `remove` do what processes inside would do; `record` and `freeze` stand for the
    owner's commits and for the layers that are frozen from them.
    """

    name = "fake"
    stores_changes = True

    # The owner, and the processes inside

    def record(self, repository: str, content: Content, *, parent: str = "") -> str:
        """Stores a commit in the owner's repository; returns its id. Moves no ref."""
        commit = digest_of({**content, "": (0, parent.encode())})
        place = _commits(repository) / commit
        if not place.is_dir():
            write_content(place / "tree", content)
            (place / "tree").mkdir(parents=True, exist_ok=True)
            (place / "parent").write_text(parent)
        return commit

    def freeze(self, pool: Pool, repository: str, commit: str) -> tuple[str, ...]:
        """The layers of a commit, made if necessary."""
        layer = Layer(id=LayerKind.COMMIT.layer(commit[:12]), kind="commit", about=commit)
        if pool.find(layer.id) is None:
            pool.make()
            with pool.building() as place:
                write_content(place / "tree" / WORKSPACE, _require_commit(repository, commit))
                (place / "layer.json").write_text(json.dumps(layer._asdict()))
                os.rename(place, pool.layers / layer.id)
        return (layer.id,)

    def write(self, plan: WorkspacePlan, name: str, data: bytes) -> None:
        _write(plan, {name: (_FILE, data)})

    def remove(self, plan: WorkspacePlan, name: str) -> None:
        place = _place(plan)
        (place / "tree" / WORKSPACE / name).unlink(missing_ok=True)
        _note_removed(place, {*_removed(place), name})

    def read(self, plan: WorkspacePlan, name: str) -> bytes | None:
        found = _workspace(plan).get(name)
        return None if found is None else found[1]

    # The contract

    def check(self, home: Path) -> list[Problem]:
        del home
        return []

    def probe(self, home: Path) -> ProbeResult:
        del home
        return ProbeResult(self.name, "plain directories can be made anywhere")

    def plan(self, request: WorkspaceRequest) -> WorkspacePlan:
        if Path(request.checkout) in Path(request.pool).parents:
            raise PrerequisiteError(f"the layers are inside the project `{request.checkout}`")
        plan = request.planned(self.name, path=request.checkout, branch=branch_of(request.name))
        return plan._replace(pool=request.pool, way=request.mode)

    def on(self, plan: WorkspacePlan, layers: tuple[str, ...], upper: str) -> WorkspacePlan:
        return plan._replace(layers=layers, upper=upper)

    def prepare(self, plan: WorkspacePlan) -> None:
        Pool(plan.pool).make_upper(plan.upper)

    def apply(self, plan: WorkspacePlan, *, lock: int) -> None:
        del lock
        self.prepare(plan)
        made = {
            f"{_GIT}{_HEADS}{plan.branch}": f"{plan.base_commit}\n",
            _HEAD: f"ref: {_HEADS}{plan.branch}\n",
        }
        known = _workspace(plan)
        new = {name: (_FILE, text.encode()) for name, text in made.items() if name not in known}
        _write(plan, new)

    def tools(self, plan: WorkspacePlan) -> str:
        del plan
        return ""

    def view(self, plan: WorkspacePlan) -> View:
        if not Path(plan.checkout).is_dir():
            raise StateError(f"the checkout `{plan.checkout}` does not exist")
        _require_commit(plan.repository, plan.base_commit)
        self.prepare(plan)
        return View(user=os.geteuid() != 0, pool=str(Pool(plan.pool).layers), mounts=())

    def seal(self, plan: WorkspacePlan, *, busy: bool) -> Sealed:
        if not busy:
            layers = (*plan.layers, plan.upper)
            after = self.on(plan, layers, new_upper())
            self.prepare(after)
            return Sealed(layers=layers, plan=after)
        pool = Pool(plan.pool)
        with pool.building() as place:
            write_content(place / "tree", read_content(pool.tree(plan.upper)))
            _note_removed(place, _removed(_place(plan)))
            layer = pool.freeze_moment(place)
        return Sealed(layers=(*plan.layers, layer.id), plan=plan)

    def discard(self, plan: WorkspacePlan, *, home: Path) -> None:
        if plan.upper:
            files.discard(_place(plan), home=home)

    def release(self, plan: WorkspacePlan, *, home: Path, keep_branch: bool) -> None:
        # There is no branch in the owner's repository.
        del keep_branch
        self.discard(plan, home=home)

    def is_untouched(self, plan: WorkspacePlan) -> bool:
        place = _place(plan)
        return place.is_dir() and not read_content(place / "tree") and not _removed(place)

    def is_pristine(self, plan: WorkspacePlan) -> bool:
        pool, own = Pool(plan.pool), (*plan.own_layers, plan.upper)
        if plan.is_dirty or not _place(plan).is_dir():
            return False
        changed = _merge(pool, own)
        is_removed = any(_removed(pool.layers / layer) for layer in own)
        return not is_removed and changed == {
            f"{_GIT}{_HEADS}{plan.branch}": (_FILE, f"{plan.base_commit}\n".encode()),
            _HEAD: (_FILE, f"ref: {_HEADS}{plan.branch}\n".encode()),
        }

    def place(self, plan: WorkspacePlan) -> Path | None:
        del plan
        return None

    def tip(self, plan: WorkspacePlan) -> str | None:
        return _read_ref(_workspace(plan), f"{_HEADS}{plan.branch}")

    def work(self, plan: WorkspacePlan) -> Work:
        if not _place(plan).is_dir():
            return Work()
        content = _workspace(plan)
        tip = _read_ref(content, _head_ref(content)) or plan.base_commit
        before = _find_commit(plan.repository, tip)
        if before is None:
            return Work(nested=WHOLE)
        now = _files(content)
        return Work(
            uncommitted=_shown(name for name in before if now.get(name) != before[name]),
            untracked=_shown(now.keys() - before.keys()),
            commits=0 if plan.branch is None else _distance(plan, tip),
        )

    def save(
        self, plan: WorkspacePlan, *, point: str, base: str, home: Path
    ) -> RecoveryPoint | None:
        aside, note = home / "recovered" / point, home / "points" / f"{point}.json"
        known = _load_point(note)
        if not self.work(plan).any:
            return known
        content = _workspace(plan)
        tip = _read_ref(content, _head_ref(content)) or plan.base_commit
        commit = self.record(plan.repository, _files(content), parent=tip)
        if known is not None and known.commit == commit:
            return known
        files.remove_tree(aside, within=home)
        write_content(aside, _files(content))
        made = RecoveryPoint(
            id=point,
            capsule=point.partition("/")[0],
            ref=f"fake/{point}",
            commit=commit,
            base_commit=base,
            head_commit=tip,
            stored_at=time.time(),
            files=str(aside),
        )
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(made._asdict()))
        return made

    def put_back(self, plan: WorkspacePlan, aside: Path) -> None:
        if not aside.is_dir():
            raise StateError(f"`{aside}` cannot be read")
        kept = read_content(aside)
        for name in _files(_workspace(plan)).keys() - kept.keys():
            self.remove(plan, name)
        _write(plan, kept)

    def diff(self, plan: WorkspacePlan, *, base: str, stat: bool) -> Patch:
        del stat
        return _patch(_require_commit(plan.repository, base), _files(_workspace(plan)))

    def diff_since(self, plan: WorkspacePlan, layers: tuple[str, ...], *, stat: bool) -> Patch:
        del stat
        return _patch(_files(_merge(Pool(plan.pool), layers)), _files(_workspace(plan)))

    def export_commits(
        self, plan: WorkspacePlan, *, everything: bool, search: SecretSearch | None = None
    ) -> ExportedCommits | None:
        tip = self.tip(plan)
        if tip is None:
            return None
        before, now = _require_commit(plan.repository, tip), _files(_workspace(plan))
        if everything and before != now:
            _require_clean(now, search)
            return ExportedCommits(self.record(plan.repository, now, parent=tip))
        return ExportedCommits(tip)

    def commit(
        self,
        plan: WorkspacePlan,
        message: str,
        author: Author,
        *,
        search: SecretSearch | None = None,
    ) -> CommitResult:
        # A commit of the fake has neither.
        del message, author
        content = _workspace(plan)
        tip = self.tip(plan)
        if tip is None or _head_ref(content) != f"{_HEADS}{plan.branch}":
            raise StateError(f"HEAD is not on the branch `{plan.branch}`")
        now = _files(content)
        if _find_commit(plan.repository, tip) == now:
            raise StateError("nothing has changed")
        _require_clean(now, search)
        made = self.record(plan.repository, now, parent=tip)
        return CommitResult(made, tip, pack=repr(sorted(now.items())).encode())

    def tree(self, plan: WorkspacePlan) -> str:
        return digest_of(_files(_workspace(plan)))

    def has_hook(self, plan: WorkspacePlan, name: str) -> bool:
        return f"{_GIT}hooks/{name}" in _workspace(plan)

    def rename(self, plan: WorkspacePlan, *, former: str) -> None:
        content = _workspace(plan)
        tip = _read_ref(content, f"{_HEADS}{former}")
        if _HEAD not in content:
            raise StateError("the repository in the workspace has been replaced")
        if tip is not None:
            self.remove(plan, f"{_GIT}{_HEADS}{former}")
            self.write(plan, f"{_GIT}{_HEADS}{plan.branch}", f"{tip}\n".encode())
        if _head_ref(content) == f"{_HEADS}{former}":
            self.write(plan, _HEAD, f"ref: {_HEADS}{plan.branch}\n".encode())


def _require_clean(content: Content, search: SecretSearch | None) -> None:
    for name, (_, data) in content.items():
        found = search and (search.find(data) or search.find(name.encode()))
        if found:
            raise StateError(f"`{name}` contains the secret `{found.secret}`")


def _place(plan: WorkspacePlan) -> Path:
    return Pool(plan.pool).layers / plan.upper


def _workspace(plan: WorkspacePlan) -> Content:
    return _merge(Pool(plan.pool), (*plan.layers, plan.upper))


def _merge(pool: Pool, layers: Iterable[str]) -> Content:
    """What is in the workspace on these layers. Raises StateError when one of them is missing."""
    content: Content = {}
    for layer in layers:
        if not pool.tree(layer).is_dir():
            raise StateError(f"the layer `{layer}` is missing")
        for name in _removed(pool.layers / layer):
            content.pop(name, None)
        content |= read_content(pool.tree(layer) / WORKSPACE)
    return content


def _write(plan: WorkspacePlan, content: Content) -> None:
    place = _place(plan)
    write_content(place / "tree" / WORKSPACE, content)
    _note_removed(place, _removed(place) - content.keys())


def _removed(place: Path) -> set[str]:
    path = place / _REMOVED
    return set(json.loads(path.read_text())) if path.exists() else set()


def _note_removed(place: Path, names: set[str]) -> None:
    (place / _REMOVED).write_text(json.dumps(sorted(names)))


def _files(content: Content) -> Content:
    """Without the repository of the workspace."""
    return {name: entry for name, entry in content.items() if not name.startswith(_GIT)}


def _head_ref(content: Content) -> str:
    return content.get(_HEAD, (0, b""))[1].decode().removeprefix("ref: ").strip()


def _read_ref(content: Content, ref: str) -> str | None:
    found = content.get(f"{_GIT}{ref}")
    return None if found is None else found[1].decode().strip()


def _commits(repository: str) -> Path:
    return Path(repository, "commits")


def _find_commit(repository: str, commit: str) -> Content | None:
    tree = _commits(repository) / commit / "tree"
    return read_content(tree) if tree.is_dir() else None


def _require_commit(repository: str, commit: str) -> Content:
    found = _find_commit(repository, commit)
    if found is None:
        raise StateError(f"the commit `{printable(commit)}` is missing")
    return found


def _distance(plan: WorkspacePlan, tip: str) -> int:
    """The number of commits on top of the one that the workspace started from."""
    count, commit = 0, tip
    while commit and commit != plan.base_commit:
        parent = _commits(plan.repository) / commit / "parent"
        count, commit = count + 1, parent.read_text() if parent.exists() else ""
    return count


def _load_point(note: Path) -> RecoveryPoint | None:
    if not note.exists():
        return None
    # JSON knows no tuples.
    return RecoveryPoint(**{**json.loads(note.read_text()), "stashes": ()})


def _patch(before: Content, now: Content) -> Patch:
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    return Patch("".join(f"{name}\n" for name in changed).encode())


def _shown(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(printable(name) for name in sorted(names))
