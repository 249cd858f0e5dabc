"""The parser of git's index agrees with git, and survives anything."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.host.intake.index import parse_index
from present import present

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "LC_ALL": "C.UTF-8",
}
NAME = st.binary(min_size=1, max_size=40).filter(
    lambda raw: b"/" not in raw and b"\0" not in raw and raw not in (b".", b"..")
)
PATHS = st.lists(st.lists(NAME, min_size=1, max_size=4).map(b"/".join), max_size=20, unique=True)
ENTRY = st.tuples(st.sampled_from(["100644", "100755", "120000", "160000"]), st.binary(max_size=3))


def run(*args, cwd, given=b"", check=True):
    return subprocess.run(
        ["git", *args], cwd=cwd, env=ENVIRONMENT, input=given, capture_output=True, check=check,
        timeout=60,
    ).stdout  # fmt: skip


def make_index(place: Path, entries, *, version=2, kind="sha1") -> bytes:
    """Has git write an index of `entries` (mode, id, stage, path)."""
    run("init", "--quiet", f"--object-format={kind}", cwd=place)
    lines = b"".join(
        f"{mode} {name} {stage}\t".encode() + path + b"\0" for mode, name, stage, path in entries
    )
    run("-c", f"index.version={version}", "-c", "core.protectHFS=false",
        "update-index", "-z", "--index-info", cwd=place, given=lines)  # fmt: skip
    path = place / ".git" / "index"
    return path.read_bytes() if path.exists() else b""


def listed(place: Path) -> list[tuple[str, str, int, bytes]]:
    found = []
    for line in run("ls-files", "--stage", "-z", cwd=place).split(b"\0")[:-1]:
        head, _, path = line.partition(b"\t")
        mode, name, stage = head.decode().split(" ")
        found.append((mode, name, int(stage), path))
    return found


def parsed(content: bytes, id_bytes: int = 20) -> list[tuple[str, str, int, bytes]]:
    entries = parse_index(content, id_bytes=id_bytes)
    assert entries is not None
    return [(f"{e.mode:o}", e.object_id, e.stage, e.path.raw) for e in entries]


@pytest.mark.parametrize("kind", ["sha1", "sha256"])
@pytest.mark.parametrize("version", [2, 4])
@settings(max_examples=15)
@given(PATHS, st.data())
def test_agrees_with_git(kind, version, paths, data):
    width = 40 if kind == "sha1" else 64
    entries = [
        (
            data.draw(st.sampled_from(["100644", "100755", "120000", "160000"])),
            hashlib.sha256(path).hexdigest()[:width],
            data.draw(st.sampled_from([0, 0, 0, 1, 2, 3])),
            path,
        )
        for path in paths
    ]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        try:
            content = make_index(place, entries, version=version, kind=kind)
        except subprocess.CalledProcessError:
            return  # git refuses the path, e.g. one that has `.git` in it
        if content:
            assert parsed(content, width // 2) == listed(place)


@pytest.fixture
def staged(repo, git):
    (repo / "later.txt").write_text("x\n")
    git("add", "--intent-to-add", "later.txt", cwd=repo)
    git("update-index", "--assume-unchanged", "README.md", cwd=repo)
    git("update-index", "--skip-worktree", "app.py", cwd=repo)
    return repo / ".git" / "index"


def test_flags_and_version_3(staged):
    content = staged.read_bytes()
    assert content[4:8] == b"\0\0\0\3"
    entries = {entry.path.raw: entry for entry in present(parse_index(content, id_bytes=20))}
    assert [p for p, e in entries.items() if e.intent_to_add] == [b"later.txt"]
    assert [p for p, e in entries.items() if e.skip_worktree] == [b"app.py"]
    assert set(entries) == {
        b".gitignore", b"README.md", b"app.py", b"later.txt", b"src/calc.py"
    }  # fmt: skip


def test_checksum_is_right_or_zero(staged):
    content = staged.read_bytes()
    assert parse_index(content, id_bytes=20) is not None
    assert parse_index(content[:-20] + bytes(20), id_bytes=20) is not None
    assert parse_index(content[:-20] + b"1" * 20, id_bytes=20) is None


def test_split_index(repo, git):
    git("update-index", "--split-index", cwd=repo)
    assert parse_index((repo / ".git" / "index").read_bytes(), id_bytes=20) is None


def test_sparse_index(repo, git):
    git("sparse-checkout", "set", "--cone", "--sparse-index", cwd=repo)
    git("status", cwd=repo)
    assert parse_index((repo / ".git" / "index").read_bytes(), id_bytes=20) is None


def entry(path: bytes, *, mode=0o100644, flags=0) -> bytes:
    head = bytes(24) + struct.pack(">I", mode) + bytes(12) + b"\1" * 20 + struct.pack(">H", flags)
    return head + path + bytes(8 - (len(head) + len(path)) % 8)


def index_of(*entries: bytes, count=None, version=2, rest=b"") -> bytes:
    head = struct.pack(">4sII", b"DIRC", version, len(entries) if count is None else count)
    return head + b"".join(entries) + rest + bytes(20)


def test_what_the_hostile_cases_are_made_of_is_accepted():
    content = index_of(entry(b"a"), entry(b"b/c"), rest=b"TREE\0\0\0\2xx")
    assert [e.path.raw for e in present(parse_index(content, id_bytes=20))] == [b"a", b"b/c"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"DIRC",
        bytes(32),
        index_of(entry(b"a"), count=2),
        index_of(entry(b"a"), count=0xFFFFFFFF),
        index_of(entry(b"a"), version=1),
        index_of(entry(b"a"), version=5),
        index_of(entry(b"../a")),
        index_of(entry(b"/etc/passwd")),
        index_of(entry(b"a//b")),
        index_of(entry(b"")),
        index_of(entry(b"x" * 5000)),
        index_of(entry(b"a", mode=0o40000)),
        index_of(entry(b"a", mode=0o100666)),
        index_of(entry(b"a", flags=0x4000)),
        index_of(entry(b"a"), entry(b"a")),
        index_of(entry(b"b"), entry(b"a")),
        index_of(entry(b"a"), rest=b"link\0\0\0\0"),
        index_of(entry(b"a"), rest=b"sdir\0\0\0\0"),
        index_of(entry(b"a"), rest=b"zzzz\0\0\0\0"),
        index_of(entry(b"a"), rest=b"TREE\xff\xff\xff\xff"),
        index_of(entry(b"a"), rest=b"TRE"),
        index_of(entry(b"a")[:-9]),
    ],
)
def test_malformed(content):
    assert parse_index(content, id_bytes=20) is None


def cut_entry(cut: bytes, rest: bytes) -> bytes:
    head = bytes(24) + struct.pack(">I", 0o100644) + bytes(12) + b"\1" * 20 + b"\0\0"
    return head + cut + rest + b"\0"


@pytest.mark.parametrize("cut", [b"\x02", b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x80" * 99])
def test_version_4_that_cuts_off_more_than_there_is(cut):
    good = index_of(cut_entry(b"\0", b"a"), cut_entry(b"\1", b"b"), version=4)
    assert [e.path.raw for e in present(parse_index(good, id_bytes=20))] == [b"a", b"b"]
    assert parse_index(
        index_of(cut_entry(b"\0", b"a"), cut_entry(cut, b"b"), version=4), id_bytes=20
    ) is None  # fmt: skip


def test_version_4_that_unfolds_to_much_more():
    """Every entry repeats a long path but for its last bytes."""
    names = sorted(
        bytes([a, b, c]) for a in range(1, 40) for b in range(1, 40) for c in range(1, 9)
    )
    many = [cut_entry(b"\0", b"x" * 4000 + names[0]), *(cut_entry(b"\3", n) for n in names[1:])]
    assert len(present(parse_index(index_of(*many[:1000], version=4), id_bytes=20))) == 1000
    assert parse_index(index_of(*many, version=4), id_bytes=20) is None


@settings(max_examples=300)
@given(st.data())
def test_anything_is_parsed_or_not(data):
    version = data.draw(st.integers(2, 4))
    base = bytearray(index_of(entry(b"a"), entry(b"b/c", flags=0x8000), version=version))
    if version == 4:
        base = bytearray(index_of(cut_entry(b"\0", b"a"), cut_entry(b"\1", b"b"), version=4))
    for _ in range(data.draw(st.integers(0, 4))):
        base[data.draw(st.integers(0, len(base) - 21))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 30))
    content = bytes(base[: len(base) - cut] if cut > 20 else base)
    for id_bytes in (20, 32):
        found = parse_index(content, id_bytes=id_bytes)
        assert found is None or all(len(e.object_id) == id_bytes * 2 for e in found)


@given(st.binary(max_size=300), st.integers(2, 4), st.integers(0, 5))
def test_noise(noise, version, count):
    header = struct.pack(">4sII", b"DIRC", version, count)
    for content in (noise, header + noise + bytes(20)):
        found = parse_index(content, id_bytes=20)
        assert found is None or len(found) <= max(count, len(noise))
