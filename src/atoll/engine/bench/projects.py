"""Projects to measure on: generated, the same on every machine, never committed.

Their shape is that of real ones (a few large packages and many small ones, scopes, a virtual
environment, one large build product). Contents repeat, so that making one takes seconds; for who
copies files, that changes nothing.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from atoll.host import files, git, kernel
from atoll.host.process import pause
from atoll.model.errors import StateError

_VERSION = 1
"""Of the generator: a kept project of another one is not used again."""
_THREADS = 4
_CONTENTS = 256
_PER_DIRECTORY = 12
_CHUNK_BYTES = 4 << 20
_BLOCK_BYTES = 4096
_SETTLED_S = 1.1
"""Git does not trust the stat data of a file that is as young as its index, by the second."""
_IGNORE = b"node_modules/\n.venv/\nbuild/\n"
_WORDS = (b"return", b"import", b"function", b"const", b"value", b"index", b"self", b"module",
          b"export", b"async", b"await", b"(a, b)", b"=>", b"{\n", b"}\n", b";\n")  # fmt: skip
_PARTS = ("lib", "dist/cjs", "dist/esm", "src/internal", "types", "test/fixtures")


class Shape(NamedTuple):
    """How many files a project has, and of which mean size."""

    name: str
    tracked: int
    tracked_bytes: int
    modules: int = 0
    modules_bytes: int = 0
    packages: int = 0
    venv: int = 0
    venv_bytes: int = 0
    build_bytes: int = 0

    @property
    def files(self) -> int:
        return self.tracked + self.modules + self.venv + (1 if self.build_bytes else 0)

    @property
    def size_bytes(self) -> int:
        """What it takes on a disk, roughly: files fill whole blocks."""
        half = _BLOCK_BYTES // 2
        return (
            self.tracked * (self.tracked_bytes + half)
            + self.modules * (self.modules_bytes + half)
            + self.venv * (self.venv_bytes + half)
            + self.build_bytes
        )

    @property
    def ignored(self) -> tuple[str, ...]:
        """The directories that a `git worktree` lacks."""
        named = {"node_modules": self.modules, ".venv": self.venv, "build": self.build_bytes}
        return tuple(name for name, count in named.items() if count)

    def scaled(self, scale: float) -> Shape:
        def less(count: int) -> int:
            return max(1, round(count * scale)) if count else 0

        if scale == 1:
            return self
        return self._replace(
            name=f"{self.name}x{scale:g}",
            tracked=max(4, less(self.tracked)),
            modules=less(self.modules),
            packages=less(self.packages),
            venv=less(self.venv),
            build_bytes=less(self.build_bytes),
        )


SHAPES = {
    "S": Shape(name="S", tracked=500, tracked_bytes=7_000),
    "M": Shape(
        name="M", tracked=5_000, tracked_bytes=7_000, modules=60_000, modules_bytes=13_000,
        packages=1_200, venv=6_000, venv_bytes=42_000, build_bytes=500_000_000,
    ),
    "L": Shape(
        name="L", tracked=200_000, tracked_bytes=1_500, modules=100_000, modules_bytes=1_500,
        packages=2_500,
    ),
}  # fmt: skip


class Generated(NamedTuple):
    shape: Shape
    root: Path
    """The checkout."""


def generate(shape: Shape, root: Path) -> Generated:
    """Makes a project at `root`, which must not exist. On failure the caller removes it."""
    root.mkdir(parents=True)
    _commit(root, shape)
    _write_all(root / "node_modules", _module_files(shape), _contents(2, shape.modules_bytes))
    _write_all(root / ".venv", _venv_files(shape), _contents(3, shape.venv_bytes))
    _link(root, shape)
    if shape.build_bytes:
        _write_large(root / "build" / "bundle.bin", shape.build_bytes)
    git.git("config", "atoll.bench", _signature(shape), cwd=str(root))
    pause(_SETTLED_S)
    git.git("update-index", "-q", "--refresh", "--force-write-index", cwd=str(root))
    kernel.sync_filesystem(root)
    return Generated(shape, root)


def reuse(shape: Shape, root: Path) -> Generated | None:
    """A project that was kept, if one is there. Raises StateError when it is another one."""
    if not root.is_dir():
        return None
    if git.setting("atoll.bench", cwd=str(root)) != _signature(shape):
        raise StateError(
            f"`{root}` is not a project that this benchmark generated",
            hint="remove it, or choose another directory with --keep",
        )
    return Generated(shape, root)


def _signature(shape: Shape) -> str:
    return " ".join(map(str, (_VERSION, *shape)))


def _contents(seed: int, mean_bytes: int) -> list[bytes]:
    """Texts whose sizes spread as those of source files do, and have exactly this mean."""
    dice = random.Random(seed)  # noqa: S311 - the same for everyone, by intent
    sizes = [dice.lognormvariate(0, 1.2) for _ in range(_CONTENTS)]
    factor = mean_bytes * _CONTENTS / sum(sizes)
    whole = [max(16, round(size * factor)) for size in sizes]
    text = b" ".join(dice.choices(_WORDS, k=max(whole) // 4 + 1_000))
    made = []
    for number, size in enumerate(whole):
        start = number % 997
        made.append((b"// %05d\n" % number + text[start:])[:size])
    return made


def _commit(root: Path, shape: Shape) -> None:
    """Git itself writes the tracked files: as the index will have them, with several threads."""
    contents = _contents(1, shape.tracked_bytes)
    parts = [b"blob\nmark :%d\ndata %d\n%s\n" % (number, len(content), content)
             for number, content in enumerate([_IGNORE, *contents], 1)]  # fmt: skip
    parts.append(
        b"commit refs/heads/main\ncommitter Atoll bench <bench@localhost> 1700000000 +0000\n"
        b"data 5\nbench\n"
    )
    for number, path in enumerate(_tracked_files(shape)):
        mark = 1 if path == ".gitignore" else 2 + number % _CONTENTS
        parts.append(b"M 100644 :%d %s\n" % (mark, path.encode()))
    cwd = str(root)
    git.git("init", "--quiet", "--initial-branch=main", ".", cwd=cwd)
    # The user may not have configured a name for git.
    git.git("config", "user.name", "Atoll bench", cwd=cwd)
    git.git("config", "user.email", "bench@localhost", cwd=cwd)
    git.git("fast-import", "--quiet", cwd=cwd, stdin=b"".join(parts))
    git.git("-c", "checkout.workers=0", "reset", "--hard", "--quiet", cwd=cwd)


def _tracked_files(shape: Shape) -> Iterator[str]:
    named = [".gitignore", "package.json", "package-lock.json", "README.md"]
    yield from named
    for number in range(shape.tracked - len(named)):
        directory = number // _PER_DIRECTORY
        yield f"src/area{directory // 40:03d}/part{directory % 40:02d}/file{number:06d}.py"


def _module_files(shape: Shape) -> Iterator[str]:
    """Paths below `node_modules`: the first packages are large, most have a handful of files."""
    if not shape.modules:
        return
    yield ".package-lock.json"
    weights = [(rank + 3) ** -1.1 for rank in range(shape.packages)]
    total = sum(weights)
    spare = max(0, shape.modules - 1 - 3 * shape.packages)
    made = 1
    for rank, weight in enumerate(weights):
        is_last = rank == len(weights) - 1
        count = 3 + int(spare * weight / total)
        count = shape.modules - made if is_last else min(count, shape.modules - made)
        made += count
        yield from _package_files(_package_name(rank), count)


def _package_name(rank: int) -> str:
    if rank % 5 == 4:
        return f"@scope{rank % 35:02d}/package-{rank:04d}"
    # Two versions of one thing: the second lies below who needs it.
    nested = f"package-{rank - 1:04d}/node_modules/" if rank % 40 == 7 else ""
    return f"{nested}package-{rank:04d}"


def _package_files(name: str, count: int) -> Iterator[str]:
    first = ("package.json", "index.js", "README.md", "LICENSE")[:count]
    yield from (f"{name}/{file}" for file in first)
    for number in range(count - len(first)):
        directory = number // _PER_DIRECTORY
        part = _PARTS[directory % len(_PARTS)]
        deeper = f"/d{directory // len(_PARTS):02d}" if directory >= len(_PARTS) else ""
        yield f"{name}/{part}{deeper}/file{number:04d}.js"


def _venv_files(shape: Shape) -> Iterator[str]:
    if not shape.venv:
        return
    yield "pyvenv.cfg"
    scripts = min(30, shape.venv // 10)
    yield from (f"bin/tool{number:02d}" for number in range(scripts))
    for number in range(shape.venv - 1 - scripts):
        place = f"lib/python3.11/site-packages/library{number // 100:02d}/sub{number // 20:03d}"
        kind = "__pycache__/{}.cpython-311.pyc" if number % 2 else "{}.py"
        yield f"{place}/" + kind.format(f"module{number // 2:04d}")


def _link(root: Path, shape: Shape) -> None:
    """The links that package managers make."""
    if shape.modules:
        (root / "node_modules" / ".bin").mkdir()
        for rank in range(0, shape.packages, 6):
            target = f"../{_package_name(rank)}/index.js"
            (root / "node_modules" / ".bin" / f"tool-{rank:04d}").symlink_to(target)
    if shape.venv:
        (root / ".venv" / "bin").mkdir(exist_ok=True)
        (root / ".venv" / "bin" / "python").symlink_to("/usr/bin/python3")


def _write_all(place: Path, paths: Iterator[str], contents: Sequence[bytes]) -> None:
    """Writes files by directory, a few directories at a time."""
    batches: dict[str, list[tuple[str, bytes]]] = {}
    for number, path in enumerate(paths):
        directory, _, name = path.rpartition("/")
        batches.setdefault(directory, []).append((name, contents[number % len(contents)]))
    with ThreadPoolExecutor(_THREADS) as crew:
        tasks = [
            crew.submit(_write_batch, place / directory, batch)
            for directory, batch in batches.items()
        ]
        try:
            for task in tasks:
                task.result()
        except BaseException:
            # Ctrl-C must not wait for pending work.
            crew.shutdown(wait=False, cancel_futures=True)
            raise


def _write_batch(directory: Path, batch: list[tuple[str, bytes]]) -> None:
    os.makedirs(directory, exist_ok=True)
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        for name, content in batch:
            file = os.open(name, flags, 0o644, dir_fd=handle)
            os.write(file, content)
            os.close(file)
    finally:
        os.close(handle)


def _write_large(path: Path, size_bytes: int) -> None:
    """Real data: a hole would be copied for nothing."""
    files.make_private_directory(path.parent)
    chunk = random.Random(4).randbytes(_CHUNK_BYTES)  # noqa: S311 - the same for everyone
    with open(path, "wb", buffering=0) as stream:
        starts = range(0, size_bytes, _CHUNK_BYTES)
        stream.writelines(chunk[: size_bytes - start] for start in starts)
