"""Manifests on disk: what a tree held when it was last looked at."""

from __future__ import annotations

import marshal
from functools import partial
from hashlib import blake2b
from pathlib import Path

from atoll.host.files import write_atomic
from atoll.host.trees import Manifest, Stamp, without_collector
from atoll.model.errors import StateError

# Version 1 had no ctimes: what it describes may have changed unseen, so it is copied anew.
_HEADER = b"atoll manifest 2\n"
_DIGEST_BYTES = 16


def save_manifest(path: Path, manifest: Manifest) -> None:
    # By columns: the format knows tuples but no records, and this is the fastest way around.
    columns = tuple(zip(*manifest.values(), strict=True))
    # Version 2 is the last that does not search for repeated objects, of which there are none.
    content = marshal.dumps((tuple(manifest), columns), 2)
    write_atomic(path, _HEADER + _digest(content) + content)


def load_manifest(path: Path) -> Manifest:
    """Raises StateError for a file that is missing, damaged or from another version of Atoll."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StateError(f"the manifest `{path}` cannot be read: {error.strerror}") from error
    if not data.startswith(_HEADER):
        raise StateError(f"`{path}` is no manifest that this version of Atoll knows")
    start = len(_HEADER) + _DIGEST_BYTES
    content = memoryview(data)[start:]
    # Checked first: damaged content could crash the interpreter.
    if data[len(_HEADER) : start] != _digest(content):
        raise StateError(f"the manifest `{path}` is damaged")
    with without_collector():
        names, columns = marshal.loads(content)  # noqa: S302 - it is as this module wrote it
        # As `Stamp._make`, but without a call into Python for each.
        stamps = map(partial(tuple.__new__, Stamp), zip(*columns, strict=True))
        return dict(zip(names, stamps, strict=True))


def _digest(content: bytes | memoryview) -> bytes:
    return blake2b(content, digest_size=_DIGEST_BYTES).digest()
