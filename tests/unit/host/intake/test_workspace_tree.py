"""Trees that are built from files agree with what git itself would commit."""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess

import pytest

from atoll.host import process
from atoll.host.intake import comparison, tree_objects
from atoll.host.intake.workspace_tree import (  # fmt: skip
    blob_ids,
    commit,
    diff,
    open_store,
    publish,
    tracked,
    write_tree,
)
from atoll.model.errors import StateError
from atoll.model.untrusted import InsidePath, ObjectId, Untrusted
from present import present
from readers import DirectoryReader

WHO = ("A U Thor", "a@example.org")


def inside(*names: str | bytes) -> list[InsidePath]:
    return [InsidePath(os.fsencode(name)) for name in names]


@pytest.fixture
def opened(tmp_path):
    """`opened(repo)`: a store for it."""
    made = []

    def make(repo):
        made.append(open_store(str(repo / ".git"), scratch=tmp_path / "scratch"))
        return made[-1].__enter__()

    yield make
    for one in made:
        one.__exit__(None, None, None)
    assert not (tmp_path / "scratch").exists() or list((tmp_path / "scratch").iterdir()) == []


def head(git, repo) -> str:
    return git("rev-parse", "HEAD", cwd=repo).strip()


def git_ids(git, repo) -> dict[bytes, str]:
    """What `git add` makes of all files."""
    git("add", "--all", "--force", cwd=repo)
    lines = git("ls-files", "--stage", "-z", cwd=repo).split("\0")[:-1]
    return {os.fsencode(line.split("\t", 1)[1]): line.split(" ")[1] for line in lines}


def own_ids(repo, store, base) -> dict[bytes, str]:
    paths = [
        InsidePath(os.fsencode(path.relative_to(repo)))
        for path in repo.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(repo).parts
    ]
    found = blob_ids(store, base, DirectoryReader(repo), paths)
    return {path.raw: name for path, name in found.items()}


def test_tracked_is_what_git_lists(repo, git, opened):
    (repo / "link").symlink_to("/etc/passwd")
    (repo / "run.sh").write_text("#!/bin/sh\n")
    (repo / "run.sh").chmod(0o755)
    (repo / ":(top)odd\n").write_text("x")
    git("add", "--all", cwd=repo)
    git("commit", "--quiet", "--message", "more", cwd=repo)
    store = opened(repo)
    found = tracked(store, head(git, repo))
    assert found[InsidePath(b"link")].mode == 0o120000
    assert found[InsidePath(b"run.sh")].mode == 0o100755
    assert {p.raw: e.object_id for p, e in found.items()} == git_ids(git, repo)
    some = inside("run.sh", ":(top)odd\n", "src", "*", "missing")
    assert set(tracked(store, head(git, repo), some)) == set(inside("run.sh", ":(top)odd\n"))
    assert tracked(store, head(git, repo), []) == {}
    many = [*some, *inside(*(f"none-{number}" for number in range(600)))]
    assert tracked(store, head(git, repo), many) == tracked(store, head(git, repo), some)


def test_tree_with_a_path_that_no_file_can_have(repo, git, opened):
    raw = b"100644 ..\0" + bytes.fromhex(git("rev-parse", "HEAD:app.py", cwd=repo).strip())
    argv = ["git", "hash-object", "-w", "--literally", "-t", "tree", "--stdin"]
    tree = subprocess.run(argv, input=raw, cwd=repo, capture_output=True, check=True).stdout
    with pytest.raises(StateError, match="invalid path"):
        tracked(opened(repo), tree.decode().strip())


def test_tree_that_unfolds(repo, git, opened, monkeypatch):
    """A few kilobytes of trees that list more paths than can be counted."""
    name = git("rev-parse", "HEAD:app.py", cwd=repo).strip()
    kind, mode = "blob", "100644"
    for _ in range(10):
        lines = "".join(f"{mode} {kind} {name}\tf{number}\n" for number in range(10))
        argv = ["git", "mktree"]
        done = subprocess.run(argv, input=lines.encode(), cwd=repo, capture_output=True, check=True)
        name, kind, mode = done.stdout.decode().strip(), "tree", "040000"
    limited = {**present(tree_objects.listing.__kwdefaults__), "limit_bytes": 1 << 20}
    for walk in (tree_objects.listing, tree_objects.compared):
        monkeypatch.setattr(walk, "__kwdefaults__", limited)
    with pytest.raises(StateError, match="expands to too many files"):
        tracked(opened(repo), name)
    with pytest.raises(StateError, match="expands to too many files"):
        comparison.difference(opened(repo), head(git, repo), name)


@pytest.mark.parametrize("kind", ["sha1", "sha256"])
def test_plain_files_have_the_ids_that_git_gives(tmp_path, git, opened, kind):
    repo = tmp_path / "new"
    git("init", "--quiet", f"--object-format={kind}", repo, cwd=tmp_path)
    (repo / "empty").touch()
    (repo / "big").write_bytes(os.urandom(3 << 20))
    (repo / "sub").mkdir()
    (repo / "sub" / "crlf").write_bytes(b"one\r\ntwo\r\n")
    git("commit", "--quiet", "--allow-empty", "--message", "x", cwd=repo)
    store = opened(repo)
    own = own_ids(repo, store, head(git, repo))
    assert own == git_ids(git, repo)
    assert len(own) == 3


CONVERTED = {
    "unix.txt": b"one\ntwo\n", "dos.txt": b"one\r\ntwo\r\n", "mixed.txt": b"one\r\ntwo\n",
    "binary.bin": b"one\r\n\0two\r\n", "dos.sh": b"one\r\n", "kept.dos": b"one\r\n",
    "id.c": b"$Id: something $\r\n", "wide.w": "one\n".encode("utf-16-le"),
    "sub/dos.txt": b"one\r\n", "sub/plain.dat": b"one\r\n", "line\nend.txt": b"one\r\n",
}  # fmt: skip
ATTRIBUTES = {
    "none": {},
    "auto": {".gitattributes": b"* text=auto\r\n"},
    "many": {
        ".gitattributes": b"*.txt text\n*.sh eol=lf\n*.dos -text\n*.c ident\n"
        b"*.w working-tree-encoding=UTF-16LE\n[attr]raw -text\n",
        "sub/.gitattributes": b"dos.txt raw\nplain.dat crlf=input\n",
    },
}


@pytest.mark.parametrize("autocrlf", ["false", "true", "input"])
@pytest.mark.parametrize("attributes", ATTRIBUTES)
def test_converted_files_have_the_ids_that_git_gives(make_repo, git, opened, attributes, autocrlf):
    repo = make_repo(files={})
    git("config", "core.autocrlf", autocrlf, cwd=repo)
    git("config", "core.safecrlf", "false", cwd=repo)
    (repo / "sub").mkdir()
    for name, content in ATTRIBUTES[attributes].items():
        (repo / name).write_bytes(content)
    # What is committed with CRLF stays so.
    (repo / "old.txt").write_bytes(b"one\r\n")
    blob = git("hash-object", "-w", "--no-filters", "old.txt", cwd=repo).strip()
    git("update-index", "--add", "--cacheinfo", f"100644,{blob},old.txt", cwd=repo)
    if ATTRIBUTES[attributes]:
        git("add", *ATTRIBUTES[attributes], cwd=repo)
    git("commit", "--quiet", "--message", "first", cwd=repo)
    (repo / "old.txt").write_bytes(b"one\r\ntwo\r\n")
    for name, content in CONVERTED.items():
        (repo / name).write_bytes(content)
    store = opened(repo)
    own = own_ids(repo, store, head(git, repo))
    written = write_all(repo, store, head(git, repo))
    expected = git_ids(git, repo)
    assert own == expected
    assert written == git("write-tree", cwd=repo).strip()


def write_all(repo, store, base, **options) -> str:
    changed = {}
    for path in repo.rglob("*"):
        name = path.relative_to(repo)
        if name.parts[0] != ".git" and path.is_file() and not path.is_symlink():
            changed[InsidePath(os.fsencode(name))] = (
                0o100755 if os.access(path, os.X_OK) and path.stat().st_mode & 0o100 else 0o100644
            )
    gone = [path for path in tracked(store, base) if not os.path.lexists(
        os.path.join(os.fsencode(repo), path.raw))]  # fmt: skip
    return write_tree(store, base, DirectoryReader(repo), changed, gone, **options)


def test_attributes_of_the_agent_have_no_say(repo, git, opened, tmp_path):
    """Neither planted in its files nor in its repository; no filter of its runs."""
    canary = tmp_path / "canary"
    store = opened(repo)
    base = head(git, repo)
    (repo / "app.py").write_bytes(b"changed\r\n")
    (repo / ".gitattributes").write_bytes(b"* text=auto filter=evil\r\n")
    git("config", "filter.evil.clean", f"touch {canary}; cat", cwd=repo)
    plain = subprocess.run(
        ["git", "hash-object", "--no-filters", "app.py"], cwd=repo, capture_output=True, check=True
    ).stdout.decode()
    assert own_ids(repo, store, base)[b"app.py"] == plain.strip()
    write_all(repo, store, base)
    assert not canary.exists()
    assert git_ids(git, repo)[b"app.py"] != plain.strip()
    assert canary.exists()


def test_planted_attributes_do_not_decide_about_other_files(make_repo, git, opened):
    """Neither from the staging directory nor from the index, where they pass through."""
    repo = make_repo(files={".gitattributes": "* text=auto\n", "sub/a": "x\n", "a": "x\n"})
    base = head(git, repo)
    unix = git_ids(git, repo)
    for name in (".gitattributes", "sub/.gitattributes"):
        (repo / name).write_bytes(b"* -text\r\n")
    for name in ("a", "sub/a", "z", "sub/z"):
        (repo / name).write_bytes(b"x\r\n")
    store = opened(repo)
    own = own_ids(repo, store, base)
    tree = tracked(store, write_all(repo, store, base))
    for path in (b"a", b"sub/a", b"z", b"sub/z"):
        assert own[path] == tree[InsidePath(path)].object_id == unix[b"a"], path
    # Control: git itself believes them.
    assert git_ids(git, repo)[b"a"] != unix[b"a"]


def test_conversion_of_files_that_are_all_new(repo, git, opened):
    git("config", "core.autocrlf", "input", cwd=repo)
    base = head(git, repo)
    (repo / "new.txt").write_bytes(b"one\r\n")
    store = opened(repo)
    found = blob_ids(store, base, DirectoryReader(repo), inside("new.txt"))
    assert found[InsidePath(b"new.txt")] == git("hash-object", "new.txt", cwd=repo).strip()


def test_filter_of_the_base_commit_does_not_run(make_repo, git, opened, tmp_path):
    canary = tmp_path / "canary"
    repo = make_repo(files={".gitattributes": "* filter=evil\n", "a": "x\n"})
    git("config", "filter.evil.clean", f"touch {canary}; cat", cwd=repo)
    (repo / "a").write_text("y\n")
    store = opened(repo)
    assert len(own_ids(repo, store, head(git, repo))) == 2
    write_all(repo, store, head(git, repo))
    assert not canary.exists()


def test_large_files_become_pointers(make_repo, git, opened):
    repo = make_repo(files={".gitattributes": "*.bin filter=lfs -text\n", "a.bin": "old"})
    git("config", "filter.lfs.clean", "false", cwd=repo)
    git("config", "filter.lfs.required", "true", cwd=repo)
    content = b"a large file\n" * 1000
    sha256 = hashlib.sha256(content).hexdigest()
    pointer = (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {len(content)}\n"
    ).encode()
    (repo / "a.bin").write_bytes(content)
    (repo / "pointer.bin").write_bytes(pointer)
    (repo / "empty.bin").touch()
    store = opened(repo)
    base = head(git, repo)
    found = own_ids(repo, store, base)
    assert found[b"a.bin"] == found[b"pointer.bin"] != found[b"empty.bin"]
    tree = write_all(repo, store, base)
    made = commit(store, tree, [base], b"large\n", WHO, WHO, 1_700_000_000)
    publish(store, str(repo / ".git"), [made], known=[base])
    for name in ("a.bin", "pointer.bin"):
        assert git("cat-file", "blob", f"{made}:{name}", cwd=repo) == pointer.decode()
    assert git("cat-file", "blob", f"{made}:empty.bin", cwd=repo) == ""
    place = repo / ".git" / "lfs" / "objects" / sha256[:2] / sha256[2:4] / sha256
    assert place.read_bytes() == content
    assert len(list((repo / ".git" / "lfs" / "objects").rglob("*"))) == 3


def test_tree_of_changes(repo, git, opened):
    base = head(git, repo)
    (repo / "app.py").write_text("changed\n")
    (repo / "new\nline").write_text("x\n")
    (repo / "run").write_text("x\n")
    (repo / "run").chmod(0o755)
    (repo / "README.md").unlink()
    (repo / "link").symlink_to("../../etc/passwd")
    (repo / "src" / "calc.py").unlink()
    (repo / "src").rmdir()
    (repo / "src").write_text("a file now\n")
    store = opened(repo)
    missed: list[InsidePath] = []
    tree = write_tree(
        store,
        base,
        DirectoryReader(repo),
        {
            **dict.fromkeys(inside("app.py", "new\nline", "src", "vanished"), 0o100644),
            InsidePath(b"run"): 0o100755,
            InsidePath(b"link"): 0o120000,
            InsidePath(b"unknown-link"): 0o120000,
        },
        inside("README.md", "src/calc.py", "never/was"),
        {InsidePath(b"module"): ObjectId("1" * 40)},
        links={InsidePath(b"link"): Untrusted(b"../../etc/passwd")},
        missed=missed,
    )
    git("add", "--all", cwd=repo)
    git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},module", cwd=repo)
    assert tree == git("write-tree", cwd=repo).strip()
    assert missed == inside("unknown-link", "vanished")


def test_everything_removed_and_nothing_changed(repo, git, opened):
    base = head(git, repo)
    store = opened(repo)
    reader = DirectoryReader(repo)
    assert (
        write_tree(store, base, reader, {}, []) == git("rev-parse", "HEAD^{tree}", cwd=repo).strip()
    )
    empty = write_tree(store, base, reader, {}, list(tracked(store, base)))
    assert empty == git("hash-object", "-t", "tree", "/dev/null", cwd=repo).strip()
    assert tracked(store, empty) == {}


@pytest.mark.parametrize("name", [b".git/hooks/x", b"a/.GIT", b"git~1/x"])
def test_git_names_are_refused(repo, git, opened, name):
    with pytest.raises(StateError, match="git reserves the name"):
        write_tree(
            opened(repo), head(git, repo), DirectoryReader(repo), {InsidePath(name): 0o100644}, []
        )


def test_file_that_changes_meanwhile_is_missed(repo, git, opened, tmp_path):
    base = head(git, repo)
    store = opened(repo)

    class Growing(DirectoryReader):
        def find_file(self, path):
            found = super().find_file(path)
            if path.name == b"app.py":
                # Its time and size change after it was opened: seen at the end of reading.
                original = os.fstat

                def grow(handle):
                    status = original(handle)
                    if handle == found:
                        os.truncate(repo / "app.py", status.st_size + 1)
                    return status

                patch.setattr(os, "fstat", grow)
            return found

    (repo / "README.md").write_text("changed\n")
    missed: list[InsidePath] = []
    with pytest.MonkeyPatch.context() as patch:
        tree = write_tree(
            store,
            base,
            Growing(repo),
            dict.fromkeys(inside("README.md", "app.py"), 0o100644),
            [],
            missed=missed,
        )
    assert missed == inside("app.py")
    changed = tracked(store, tree)
    before = tracked(store, base)
    assert {path for path in before if before[path] != changed[path]} == set(inside("README.md"))


def test_large_content_needs_little_memory(repo, git, opened):
    """A sparse file of 600 MB passes without being in memory at once."""
    with (repo / "sparse").open("wb") as file:
        file.truncate(600 << 20)
    base = head(git, repo)
    store = opened(repo)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = blob_ids(store, base, DirectoryReader(repo), inside("sparse"))
    tree = write_tree(store, base, DirectoryReader(repo), {InsidePath(b"sparse"): 0o100644}, [])
    assert tracked(store, tree)[InsidePath(b"sparse")].object_id == found[InsidePath(b"sparse")]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_difference(repo, git, opened):
    base = head(git, repo)
    (repo / "app.py").write_text("print('changed')\n")
    (repo / ".gitattributes").write_text("*.py binary\n")
    git("config", "diff.external", "false", cwd=repo)
    git("config", "color.ui", "always", cwd=repo)
    store = opened(repo)
    tree = write_all(repo, store, base)
    old = git("rev-parse", "HEAD^{tree}", cwd=repo).strip()
    text = diff(store, old, tree, stat=False, limit_bytes=1 << 20)
    assert b"+print('changed')\n" in text
    assert b"\x1b" not in text
    assert b"app.py" in diff(store, old, tree, stat=True, limit_bytes=1 << 20)
    with pytest.raises(StateError, match="larger than 100"):
        diff(store, old, tree, stat=False, limit_bytes=100)
    # From now on the base says that it is binary.
    later = write_tree(store, tree, DirectoryReader(repo), {}, inside("app.py"))
    assert b"-print" not in diff(store, tree, later, stat=False, limit_bytes=1 << 20)


def test_commit_and_publish(repo, git, opened):
    base = head(git, repo)
    (repo / "app.py").write_text("changed\n")
    git("config", "i18n.commitEncoding", "IBM037", cwd=repo)
    store = opened(repo)
    tree = write_all(repo, store, base)
    message = "subject ü\n\nbody\0\n".encode() + b"\xff\n"
    made = commit(store, tree, [base], message, WHO, ("<> ", ""), 1)
    text = git("cat-file", "commit", base, cwd=repo)
    with pytest.raises(pytest.fail.Exception):
        git("cat-file", "-e", made, cwd=repo)
    assert publish(store, str(repo / ".git"), [made], known=[base]).objects == 3
    text = git("cat-file", "commit", made, cwd=repo)
    assert text == (
        f"tree {tree}\nparent {base}\nauthor A U Thor <a@example.org> 1 +0000\n"
        "committer Atoll <atoll@localhost> 1 +0000\n\nsubject ü\n\nbody\ufffd\n\ufffd\n"
    )
    assert publish(store, str(repo / ".git"), [made], known=[base, made]).objects == 0
    git("fsck", "--full", "--strict", cwd=repo)
    assert list((repo / ".git" / "objects").glob("tmp_*")) == []


def test_few_programs(repo, git, opened, monkeypatch):
    base = head(git, repo)
    store = opened(repo)
    heard: list[str] = []
    monkeypatch.setattr(process, "on_command", heard.append)
    blob_ids(store, base, DirectoryReader(repo), inside("app.py", "src/calc.py"))
    assert len(heard) == 1
    write_tree(store, base, DirectoryReader(repo), {InsidePath(b"app.py"): 0o100644}, [])
    assert len(heard) == 1
