"""Small working drivers for tests: plain directories, no git, no walls, no tool.

They pass the same conformance suites as the real ones. Their state is in memory; what `release`
needs is in the plan.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from atoll.drivers.contracts import (
    BrowserRequest,
    IsolationRequest,
    ProbeResult,
    WorkspaceRequest,
)
from atoll.host import files
from atoll.model.enclosure import Enclosure, View
from atoll.model.errors import StateError
from atoll.model.names import printable
from atoll.model.plan import IsolationPlan, WorkspacePlan
from atoll.model.state import Patch, Problem, RecoveryPoint, Work
from atoll.model.untrusted import InsidePath

Content = dict[str, tuple[int, bytes]]
"""Mode and bytes by path; a link's bytes are its target."""


class FakeWorkspace:
    """Directories written from contents that were recorded before: `record` stands for a commit."""

    name = "fake"

    def __init__(self) -> None:
        self._contents: dict[str, Content] = {}
        self._points: dict[str, dict[str, RecoveryPoint]] = {}

    def record(self, directory: Path) -> str:
        """Remembers a directory as it is; what comes back can be a `base_commit`."""
        return self._remember(_files(directory))

    def _remember(self, content: Content) -> str:
        commit = digest_of(content)
        self._contents[commit] = content
        return commit

    def check(self, home: Path) -> list[Problem]:
        del home
        return []

    def plan(self, request: WorkspaceRequest) -> WorkspacePlan:
        return request.planned(self.name, path=request.path, branch=None)

    def apply(self, plan: WorkspacePlan, *, lock: int) -> None:
        del lock
        path = Path(plan.path)
        if path.exists():
            raise StateError(f"`{path}` is taken")
        files.make_private_directory(path)
        write_content(path, self._contents[plan.base_commit])

    def release(self, plan: WorkspacePlan, *, home: Path, keep_branch: bool) -> None:
        del keep_branch
        files.remove_tree(Path(plan.path), within=home)

    def work(self, plan: WorkspacePlan) -> Work:
        if not Path(plan.path).is_dir():
            return Work()
        before, now = self._contents[plan.base_commit], _files(Path(plan.path))
        return Work(
            uncommitted=_shown(name for name in before if now.get(name) != before[name]),
            untracked=_shown(now.keys() - before.keys()),
        )

    def save(
        self, plan: WorkspacePlan, *, point: str, base: str, home: Path
    ) -> RecoveryPoint | None:
        del home
        kept = self._points.setdefault(plan.repository, {})
        if not self.work(plan).any:
            return kept.get(point)
        commit = self._remember(_files(Path(plan.path)))
        if point not in kept or kept[point].commit != commit:
            kept[point] = RecoveryPoint(
                id=point,
                capsule=point.split("/", maxsplit=1)[0],
                ref=f"fake/{point}",
                commit=commit,
                base_commit=base,
                head_commit=plan.base_commit,
                stored_at=time.time(),
            )
        return kept[point]

    def diff(self, plan: WorkspacePlan, *, base: str, stat: bool) -> Patch:
        del stat
        before, now = self._contents[base], _files(Path(plan.path))
        changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        return Patch("".join(f"{name}\n" for name in changed).encode())

    def restore(
        self, plan: WorkspacePlan, point: RecoveryPoint, *, lock: int
    ) -> tuple[InsidePath, ...]:
        del lock
        root = Path(plan.path)
        for name in _files(root):
            (root / name).unlink()
        write_content(root, self._contents[point.commit])
        return ()


def _shown(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(printable(name) for name in sorted(names))


class FakeIsolation:
    """Two directories and four variables; `enclosures` lists all that were handed out."""

    name = "fake"
    _KEPT = ("LANG", "PATH", "TERM", "USER")

    def __init__(self) -> None:
        self.enclosures: list[Enclosure] = []

    def _places(self, plan: IsolationPlan) -> dict[str, str]:
        return {"HOME": f"{plan.private}/home", "TMPDIR": f"{plan.private}/scratch"}

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
        for place in self._places(plan).values():
            files.make_private_directory(Path(place))

    def release(self, plan: IsolationPlan, *, home: Path) -> None:
        files.remove_tree(Path(str(plan.private)), within=home)

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
        env = {key: owner[key] for key in self._KEPT if key in owner}
        env |= self._places(plan)
        made = Enclosure(env={**env, **plan.variables}, cwd=plan.workspace)
        self.enclosures.append(made)
        return made


class FakeBrowser:
    """A browser whose program is any file called `fake-browser`.

    Its port speaks lines: `ask` is answered with `fake`, `open URL` and `close` with `done`.
    """

    name = "fake"
    _PROGRAM = "fake-browser"

    def find_program(self, path: str, *, avoid: str, chosen: str = "") -> str | None:
        places = [chosen] if chosen else [f"{place}/{self._PROGRAM}" for place in path.split(":")]
        for place in map(Path, places):
            if place.is_absolute() and place.is_file() and not _is_below(place, avoid):
                return str(place)
        return None

    def is_own(self, program: str) -> bool:
        return Path(program).name == self._PROGRAM

    def check(self) -> list[Problem]:
        return []

    def cure(self) -> str:
        return f"touch {self._PROGRAM}"

    def plan_window(self, request: BrowserRequest) -> tuple[str, ...]:
        kind = "--tab" if request.is_open else "--window"
        return (request.program, f"--profile={request.profile}", kind, request.url)

    def is_lasting(self, path: str) -> bool:
        return path not in ("cache", "lock")

    def plan_headless(self, request: BrowserRequest, *, port: int, cwd: str) -> tuple[str, ...]:
        profile = f"--profile={request.profile}"
        return (request.program, profile, f"--port={port}", f"--cwd={cwd}", request.url)

    def is_answering(self, dial: Callable[[], socket.socket]) -> bool:
        try:
            return self._ask(dial, "ask") == "fake"
        except OSError:
            return False

    def open_page(self, dial: Callable[[], socket.socket], url: str) -> None:
        self._order(dial, f"open {url}")

    def close(self, dial: Callable[[], socket.socket]) -> None:
        self._order(dial, "close")

    def _order(self, dial: Callable[[], socket.socket], line: str) -> None:
        if self._ask(dial, line) != "done":
            raise OSError("no browser answers")

    def _ask(self, dial: Callable[[], socket.socket], line: str) -> str:
        with dial() as sock, sock.makefile("rw", encoding="utf-8") as stream:
            stream.write(line + "\n")
            stream.flush()
            return stream.readline().strip()


def _is_below(place: Path, root: str) -> bool:
    return place.resolve().is_relative_to(Path(root).resolve())


def _files(root: Path) -> Content:
    """Without git's own files."""
    found = read_content(root)
    return {name: entry for name, entry in found.items() if ".git" not in Path(name).parts}


def read_content(root: Path) -> Content:
    """The files and links below a directory."""
    found: Content = {}
    for directory, directories, names in os.walk(root):
        links = [name for name in directories if Path(directory, name).is_symlink()]
        for path in (Path(directory, name) for name in (*names, *links)):
            mode = path.lstat().st_mode
            link = stat.S_ISLNK(mode)
            data = os.fsencode(path.readlink()) if link else path.read_bytes()
            found[str(path.relative_to(root))] = (mode, data)
    return found


def write_content(root: Path, content: Content) -> None:
    """Replaces files and links; follows none of them."""
    for name, (mode, data) in content.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if stat.S_ISLNK(mode):
            path.symlink_to(os.fsdecode(data))
        else:
            path.write_bytes(data)
            path.chmod(stat.S_IMODE(mode))


def digest_of(content: Content) -> str:
    """As long as the id of a commit."""
    digest = hashlib.sha1(repr(sorted(content.items())).encode(), usedforsecurity=False)
    return digest.hexdigest()
