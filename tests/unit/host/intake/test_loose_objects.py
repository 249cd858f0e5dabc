"""Loose objects as an agent may have written them: exactly what their names say, or absent."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import zlib
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.host.intake.loose_objects import LooseObjects, PackWriter
from atoll.host.intake.refs import GIT_DIRECTORY
from atoll.host.intake.transfer import Transfer, TransferLimits
from atoll.model.untrusted import ObjectId
from present import present
from readers import DirectoryReader


def put(root: Path, data: bytes, *, packed: bytes | None = None) -> ObjectId:
    name = ObjectId(hashlib.sha1(data).hexdigest())
    path = root / ".git" / "objects" / name[:2] / name[2:]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zlib.compress(data) if packed is None else packed)
    return name


def loose_in(root: Path, transfer: Transfer) -> LooseObjects:
    return LooseObjects(DirectoryReader(root), GIT_DIRECTORY, transfer)


@pytest.fixture
def transfer():
    return Transfer.start((), TransferLimits())


def test_links_are_those_that_git_follows(repo, git, transfer):
    git("tag", "--annotate", "--message", "object 1\n", "v1", cwd=repo)
    loose = loose_in(repo, transfer)
    ahead = [git("rev-parse", "v1", cwd=repo).strip()]
    seen = set()
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            ahead += present(loose.load(name)).links
    listed = git("rev-list", "--objects", "--no-object-names", "v1", cwd=repo).split()
    assert seen == {*listed, git("rev-parse", "v1", cwd=repo).strip()}
    assert seen <= set(loose.names())


def test_pack_of_loose_objects_is_read_by_git(repo, git, tmp_path, transfer):
    loose = loose_in(repo, transfer)
    names = sorted(loose.names())
    with FileIO(tmp_path / "pack", "x+") as file:
        pack = PackWriter(file, transfer, algorithm="sha1")
        for name in names:
            assert loose.copy(name, pack) is not None
        assert loose.copy(ObjectId("1" * 40), pack) is None
        pack.finish()
        assert file.tell() == pack.size_bytes == os.path.getsize(file.name)
    git("init", "--quiet", "--bare", tmp_path / "other", cwd=tmp_path)
    subprocess.run(
        ["git", "index-pack", "--stdin"],
        cwd=tmp_path / "other",
        input=(tmp_path / "pack").read_bytes(),
        check=True,
        capture_output=True,
    )
    found = git(
        "cat-file", "--batch-all-objects", "--batch-check=%(objectname)", cwd=tmp_path / "other"
    )
    assert found.split() == names


def test_submodules_are_not_followed(tmp_path, transfer):
    blob = bytes.fromhex("11" * 20)
    body = b"160000 sub\0" + bytes.fromhex("22" * 20) + b"100644 z\0" + blob
    name = put(tmp_path, b"tree %d\0" % len(body) + body)
    assert present(loose_in(tmp_path, transfer).load(name)).links == ["11" * 20]


def test_message_that_looks_like_links(tmp_path, transfer):
    body = b"tree %s\nauthor x\n\nparent %s\n" % (b"1" * 40, b"2" * 40)
    name = put(tmp_path, b"commit %d\0" % len(body) + body)
    assert present(loose_in(tmp_path, transfer).load(name)).links == ["1" * 40]


def test_broken_object_leaves_the_pack_as_it_was(tmp_path, transfer):
    good = b"blob 3\0abc"
    name = put(tmp_path, good)
    bad = put(tmp_path, b"blob 300000\0" + b"x" * 300_000, packed=zlib.compress(b"blob 300000\0xy"))
    loose = loose_in(tmp_path, transfer)
    with FileIO(tmp_path / "pack", "x+") as file:
        pack = PackWriter(file, transfer, algorithm="sha1")
        loose.copy(name, pack)
        size = file.tell()
        assert loose.copy(bad, pack) is None
        assert (file.tell(), pack.size_bytes, pack.objects) == (size, size, 1)


@settings(max_examples=200)
@given(st.data())
def test_anything_is_an_object_or_not(data):
    kind = data.draw(st.sampled_from([b"blob", b"tree", b"commit", b"tag"]))
    body = data.draw(st.binary(max_size=200))
    content = b"%s %d\0" % (kind, len(body) + data.draw(st.integers(0, 1))) + body
    packed = bytearray(zlib.compress(content))
    for _ in range(data.draw(st.integers(0, 2))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    del packed[data.draw(st.integers(1, len(packed))) :]
    with tempfile.TemporaryDirectory() as place:
        name = put(Path(place), content, packed=bytes(packed))
        found = loose_in(Path(place), Transfer.start((), TransferLimits())).load(name)
    if found is not None:
        assert content.startswith(b"%s %d\0" % (kind, len(body)))
        assert zlib.decompressobj().decompress(bytes(packed)) == content
