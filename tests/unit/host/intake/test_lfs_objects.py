from __future__ import annotations

import hashlib

import pytest

from atoll.host.intake.lfs_objects import LfsStore
from atoll.model.errors import DriverError
from atoll.model.lfs import Pointer


def pointer_to(content):
    return Pointer(hashlib.sha256(content).hexdigest(), len(content))


def test_an_object_is_stored_once_it_is_what_its_pointer_says(tmp_path):
    store, pointer = LfsStore.of(str(tmp_path)), pointer_to(b"onetwo")
    assert not store.has(pointer)
    assert store.take(pointer, [b"one", b"two"])
    assert store.has(pointer)
    oid = pointer.oid
    assert (tmp_path / "lfs/objects" / oid[:2] / oid[2:4] / oid).read_bytes() == b"onetwo"


@pytest.mark.parametrize("end", [b"", b"end", b"end" + bytes(5000), b"\0"])
def test_blocks_of_zeros_take_no_disk(end, tmp_path):
    """Otherwise a sparse file of a capsule costs the owner more than the capsule's limit."""
    pieces = [bytes(1 << 20)] * 8 + [b"x" * 5000 + bytes(1 << 20) + b"y" + bytes(20_000), end]
    content = b"".join(pieces)
    store, pointer = LfsStore.of(str(tmp_path)), pointer_to(content)
    assert store.take(pointer, pieces)
    path = store.path_of(pointer)
    assert path.read_bytes() == content
    assert path.stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize("pieces", [[b"one"], [b"onetwo", b"three"], [b"twoone"], []])
def test_anything_else_leaves_nothing_behind(pieces, tmp_path):
    store, pointer = LfsStore.of(str(tmp_path)), pointer_to(b"onetwo")
    assert not store.take(pointer, pieces)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_no_more_is_read_than_the_pointer_names(tmp_path):
    read = []

    def pieces():
        for number in range(1000):
            read.append(number)
            yield b"x" * 100

    assert not LfsStore.of(str(tmp_path)).take(Pointer("0" * 64, 150), pieces())
    assert len(read) == 2


@pytest.mark.parametrize(
    ("storage", "place"), [("", "git/lfs"), ("media", "git/media"), ("/elsewhere", "elsewhere")]
)
def test_the_store_is_where_the_owner_says(storage, place, tmp_path):
    given = f"{tmp_path}{storage}" if storage.startswith("/") else storage
    store = LfsStore.of(f"{tmp_path}/git", given)
    assert store.objects == tmp_path / place / "objects"


def test_a_store_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "lfs").write_text("")
    with pytest.raises(DriverError, match="LFS objects cannot be written"):
        LfsStore.of(str(tmp_path)).take(pointer_to(b"one"), [b"one"])


def test_an_object_is_added_as_a_link_unless_another_user_can_change_it(tmp_path):
    source = LfsStore(tmp_path / "source")
    plain, shared, wrong = pointer_to(b"plain"), pointer_to(b"shared"), pointer_to(b"right")
    assert source.take(plain, [b"plain"])
    assert source.take(shared, [b"shared"])
    assert source.all() == sorted([plain, shared])
    source.path_of(shared).chmod(0o666)
    source.path_of(wrong).parent.mkdir(parents=True)
    source.path_of(wrong).write_bytes(b"wrong")
    target = LfsStore(tmp_path / "target")
    assert target.add(plain, source)
    assert target.add(shared, source)
    assert target.path_of(plain).stat().st_nlink == 2
    assert target.path_of(shared).stat().st_nlink == 1
    assert not target.path_of(shared).stat().st_mode & 0o022
    # What is put back is read.
    assert not LfsStore(tmp_path / "third").copy(wrong, source)
    assert not target.add(pointer_to(b"nowhere"), source)
