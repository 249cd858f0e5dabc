"""Where a project's layers lie: built aside, synced, renamed into place, never changed again.

    ROOT/layers/ID/tree      what the layer holds, below `workspace/`, `home/` and `tmp/`
    ROOT/layers/ID/layer.json  what it is; there is none in an upper layer that is still written
    ROOT/layers/ID/work      overlayfs' own scratch place, beside such an upper layer
    ROOT/history/            git objects that capsules can read: see `history.py`
    ROOT/inside/             mount points of a capsule's view, the same for all of a project

A layer's name says what it holds; a directory of that name is a whole layer or does not exist.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from atoll.host import files
from atoll.model.errors import DriverError, PrerequisiteError, StateError

if TYPE_CHECKING:
    from atoll.host.trees import Manifest

_BUILDING = ".new-"
_FEW = 100
_DIGESTS = "digests.json"
WORKSPACE = "workspace"

Tell = Callable[[str, int, int, int, int], None]
"""Hears (what is frozen, files done, files in all, bytes done, bytes in all)."""


class Layer(NamedTuple):
    """A frozen layer, as its `layer.json` tells."""

    id: str
    kind: str
    below: tuple[str, ...] = ()
    """The layers that a delta needs under it, the lowest first."""
    files: int = 0
    bytes: int = 0
    about: str = ""
    """What people would call it: a commit, a directory, a snapshot."""

    @property
    def stack(self) -> tuple[str, ...]:
        return (*self.below, self.id)


class Pool:
    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.layers = self.root / "layers"
        self.history = self.root / "history"
        self.inside = self.root / "inside"

    def make(self) -> None:
        for place in (self.layers, self.state, self.objects, self.large_files):
            if not place.is_dir():
                files.make_private_directory(place)

    @property
    def state(self) -> Path:
        """Where a view shows all that a capsule may write: workspace, home and tmp."""
        return self.inside / "state"

    @property
    def objects(self) -> Path:
        """Where a view shows the history store of its git layer."""
        return self.inside / "objects"

    @property
    def large_files(self) -> Path:
        """Where a view shows the Git LFS objects of its git layer: git-lfs looks for those of an
        alternate beside it.
        """
        return self.inside / "lfs"

    @contextmanager
    def turn(self, *, shared: bool) -> Iterator[None]:
        """Shared while layers are chosen and built, alone while unused ones are collected."""
        self.make()
        handle = os.open(self.layers, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def tree(self, layer: str) -> Path:
        return self.layers / layer / "tree"

    def find(self, layer: str) -> Layer | None:
        """A frozen layer; None when there is none. Raises StateError when it is damaged."""
        content = files.read_regular(self.layers / layer / "layer.json", limit_bytes=1 << 24)
        if content is None:
            return None
        try:
            raw = json.loads(content)
            return Layer(**{**raw, "below": tuple(raw["below"])})
        except (ValueError, TypeError, KeyError) as error:
            raise StateError(
                f"the layer `{layer}` is damaged", hint="atoll warm --check"
            ) from error

    def all(self) -> list[str]:
        return sorted(path.name for path in self.layers.iterdir() if path.name[0] != ".")

    @contextmanager
    def building(self) -> Iterator[Path]:
        """A place to build a layer in; goes away unless it was frozen."""
        place = self.layers / f"{_BUILDING}{os.urandom(6).hex()}"
        (place / "tree").mkdir(parents=True, mode=0o755)
        try:
            yield place
        except (OSError, DriverError) as error:
            raise _explained(error, self.layers) from error
        finally:
            if place.exists():
                files.remove_tree(place, within=self.root)

    def freeze(self, place: Path, layer: Layer, *, digests: dict[str, str] | None = None) -> Layer:
        """Makes what was built the layer of its name. The same made twice is one.

        `digests` are those of the files below `workspace/`, where the builder knows them.
        """
        if digests is None:
            found = _scan(place / "tree" / WORKSPACE)
            digests = self._digests(place / "tree" / WORKSPACE)
            layer = layer._replace(files=len(found), bytes=sum(s.size for s in found.values()))
        content = json.dumps(digests).encode(errors="surrogatepass")
        (place / _DIGESTS).write_bytes(content)
        files.write_atomic(place / "layer.json", json.dumps(layer._asdict()).encode())
        sync(place)
        try:
            os.rename(place, self.layers / layer.id)
        except OSError:
            if self.find(layer.id) is None:
                raise
        files.sync_directory(self.layers)
        return layer

    def freeze_moment(self, place: Path, *, about: str = "") -> Layer:
        """Makes what was built a layer that holds a capsule's own state at one moment.

        Without digests and without waiting for the disk: the point that needs it is marked when
        it has been synced.
        """
        layer = Layer(id=f"s{place.name.removeprefix(_BUILDING)}", kind="snapshot", about=about)
        (place / _DIGESTS).write_text("{}")
        (place / "layer.json").write_text(json.dumps(layer._asdict()))
        os.rename(place, self.layers / layer.id)
        return layer

    @staticmethod
    def _digests(root: Path) -> dict[str, str]:
        from atoll.host.contents import digest_entries  # noqa: PLC0415 - only to freeze or check

        return digest_entries(root, _scan(root)) if root.is_dir() else {}

    def damage(self, layer: Layer) -> list[str]:
        """What in a layer is not as it was frozen: paths, empty when all is well."""
        content = files.read_regular(self.layers / layer.id / _DIGESTS, limit_bytes=1 << 31)
        try:
            expected: dict[str, str] = json.loads(content or b"")
        except ValueError:
            return [_DIGESTS]
        if layer.kind in ("snapshot", "composed"):
            return []
        now = self._digests(self.tree(layer.id) / WORKSPACE)
        changed = {path for path in expected.keys() & now.keys() if expected[path] != now[path]}
        return sorted(changed | (expected.keys() ^ now.keys()))

    def new_upper(self) -> str:
        """A layer to write to."""
        layer = f"u{os.urandom(6).hex()}"
        self.make_upper(layer)
        return layer

    def make_upper(self, layer: str) -> None:
        place = self.layers / layer
        for part in ("work", "tree"):
            (place / part).mkdir(parents=True, exist_ok=True, mode=0o755)

    def remains(self) -> list[Path]:
        """What builders that were killed left. Only to be asked when the pool's turn is ours."""
        places = (
            self.layers,
            self.root,
            *(self.root / name for name in ("commits", "pins", "history")),
        )
        # Nothing else here has a hidden name.
        return [
            p for place in places if place.is_dir() for p in place.iterdir() if p.name[0] == "."
        ]

    def free_bytes(self) -> int:
        status = os.statvfs(self.layers)
        return status.f_bavail * status.f_frsize


def sync(place: Path) -> None:
    """Has a tree written to its disk: by name if it is small, else with all of its filesystem,
    where others may have much more to write.
    """
    from atoll.host import kernel, trees  # noqa: PLC0415 - libc is not for every command

    found = list(islice(trees.walk(place), _FEW + 1))
    if len(found) > _FEW:
        kernel.sync_filesystem(place)
        return
    try:
        for path, status in reversed(found):
            if stat.S_ISREG(status.st_mode):
                files.sync_file(place / path)
            elif stat.S_ISDIR(status.st_mode):
                files.sync_directory(place / path)
        files.sync_directory(place)
    except PermissionError:
        # Something in it is closed to its owner, who cannot name it then.
        kernel.sync_filesystem(place)


def _scan(root: Path) -> Manifest:
    """The regular files of a tree."""
    from atoll.host import trees  # noqa: PLC0415 - only to freeze or check

    found = trees.scan(root).entries if root.is_dir() else {}
    return {path: stamp for path, stamp in found.items() if stamp.is_file}


def _explained(error: OSError | DriverError, place: Path) -> Exception:
    from atoll.host import space  # noqa: PLC0415 - only when something is wrong

    if space.is_shortage(error):
        return PrerequisiteError(f"no space left in `{place}`", hint=f"df -h '{place}'; atoll gc")
    return error
