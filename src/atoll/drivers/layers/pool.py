"""The pool of a project's layers: built in a temporary directory, synced, renamed, immutable.

    ROOT/layers/ID/tree      the content, below `workspace/`, `home/` and `tmp/`
    ROOT/layers/ID/layer.json  the description; absent while an upper layer is in use
    ROOT/layers/ID/work      overlayfs' work directory beside such an upper layer
    ROOT/history/            git objects that capsules can read: see `history.py`
    ROOT/inside/             mount points of a capsule's view, the same for all of a project

A layer's id is derived from its content; a directory of that name is complete or does not exist.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from atoll.host import files, locks
from atoll.model.errors import DriverError, PrerequisiteError, StateError
from atoll.model.layers import LayerKind

if TYPE_CHECKING:
    from atoll.host.tree.manifests import Manifest

_BUILDING = ".new-"
_FEW = 100
_DIGESTS = "digests.json"
WORKSPACE = "workspace"

FreezeProgress = Callable[[str, int, int, int, int], None]
"""Receives (layer being frozen, files done, files in total, bytes done, bytes in total)."""


class Layer(NamedTuple):
    """A frozen layer, as described by its `layer.json`."""

    id: str
    kind: str
    below: tuple[str, ...] = ()
    """The layers below a delta, lowest first."""
    files: int = 0
    bytes: int = 0
    about: str = ""
    """A description for people: a commit, a directory, a snapshot."""

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
        """The mount point of everything that a capsule may write: workspace, home and tmp."""
        return self.inside / "state"

    @property
    def objects(self) -> Path:
        """The mount point of the history store."""
        return self.inside / "objects"

    @property
    def large_files(self) -> Path:
        """The mount point of the LFS objects, where git-lfs looks for those of an alternate."""
        return self.inside / "lfs"

    def turn(self, *, shared: bool) -> AbstractContextManager[int]:
        """Locks the pool: shared to select and build layers, exclusively to collect unused ones."""
        self.make()
        return locks.hold_directory(self.layers, shared=shared)

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
        """A directory for building a layer; removed unless it was frozen."""
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
        """Turns what was built into a layer. Freezing the same content twice is fine.

        `digests` are those of the files below `workspace/`, if the builder knows them.
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
        """Turns what was built into a layer with a capsule's state at one moment.

        Computes no digests and does not wait for the disk: the snapshot that needs the layer is
        marked once it is synced.
        """
        layer = Layer(
            id=LayerKind.SNAPSHOT.layer(place.name.removeprefix(_BUILDING)),
            kind="snapshot",
            about=about,
        )
        (place / _DIGESTS).write_text("{}")
        (place / "layer.json").write_text(json.dumps(layer._asdict()))
        os.rename(place, self.layers / layer.id)
        return layer

    @staticmethod
    def _digests(root: Path) -> dict[str, str]:
        from atoll.host.tree.file_contents import digest_entries  # noqa: PLC0415 - only to freeze or check

        return digest_entries(root, _scan(root)) if root.is_dir() else {}

    def damage(self, layer: Layer) -> list[str]:
        """The paths in a layer that differ from what was frozen; empty if it is intact."""
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

    def make_upper(self, layer: str) -> None:
        place = self.layers / layer
        for part in ("work", "tree"):
            (place / part).mkdir(parents=True, exist_ok=True, mode=0o755)

    def remains(self) -> list[Path]:
        """Remains of killed builders. The caller must hold the pool's lock exclusively."""
        places = (
            self.layers,
            self.root,
            *(self.root / name for name in ("commits", "pins", "history")),
        )
        # No other hidden names are used here.
        return [
            p for place in places if place.is_dir() for p in place.iterdir() if p.name[0] == "."
        ]


def new_upper() -> str:
    """A name for an upper layer that no other layer has."""
    return LayerKind.UPPER.layer(os.urandom(6).hex())


def sync(place: Path) -> None:
    """Syncs a tree to disk: file by file if it is small, otherwise its entire filesystem."""
    from atoll.host import kernel  # noqa: PLC0415 - libc is not for every command
    from atoll.host.tree import manifests  # noqa: PLC0415 - libc is not for every command

    found = list(islice(manifests.walk(place), _FEW + 1))
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
        # An entry is not accessible to its owner, so it cannot be synced by name.
        kernel.sync_filesystem(place)


def _scan(root: Path) -> Manifest:
    """The regular files of a tree."""
    from atoll.host.tree import manifests  # noqa: PLC0415 - only to freeze or check

    found = manifests.scan(root).entries if root.is_dir() else {}
    return {path: stamp for path, stamp in found.items() if stamp.is_file}


def _explained(error: OSError | DriverError, place: Path) -> Exception:
    from atoll.host import disk_space  # noqa: PLC0415 - only when something is wrong

    if disk_space.is_shortage(error):
        return PrerequisiteError(f"no space left in `{place}`", hint=f"df -h '{place}'; atoll gc")
    return error
