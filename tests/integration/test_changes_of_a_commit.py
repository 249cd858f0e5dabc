"""Facts about a change, on real repositories: what differs, what is risky, what became of the
tests.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from atoll.engine.change import changes as changes_module
from atoll.engine.change import objects
from atoll.engine.change.changes import ChangeKind, load_changes
from atoll.engine.change.dependency_files import find_dependency_files
from atoll.engine.change.objects import open_objects, read_blob
from atoll.engine.change.risky_files import find_risky
from atoll.engine.change.test_changes import find_test_changes
from atoll.model.errors import StateError

pytestmark = pytest.mark.quick

FILE, PROGRAM, LINK, SUBMODULE, TREE = "100644", "100755", "120000", "160000", "040000"
NOWHERE = "1" * 40


class Objects:
    """Makes trees from nothing, also such that no checkout would make."""

    def __init__(self, root):
        self.root, self.git_dir = root, str(root / ".git")

    def ask(self, *args, given=b""):
        done = subprocess.run(
            ["git", *args], cwd=self.root, input=given, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().decode()

    def blob(self, content):
        content = content.encode() if isinstance(content, str) else content
        return self.ask("hash-object", "-w", "--stdin", given=content)

    def tree(self, files):
        """`files` maps a path (text or bytes) to (mode, content or id)."""
        here: list[tuple[bytes, str, str]] = []
        below: dict[bytes, dict[bytes, tuple[str, object]]] = {}
        for path, (mode, content) in files.items():
            raw = os.fsencode(path)
            head, slash, rest = raw.partition(b"/")
            if slash:
                below.setdefault(head, {})[rest] = (mode, content)
                continue
            known = mode in {SUBMODULE, TREE}
            here.append((head, mode, content if known else self.blob(content)))
        here += [(head, TREE, self.tree(inner)) for head, inner in below.items()]
        here.sort(key=lambda entry: entry[0] + (b"/" if entry[1] == TREE else b""))
        content = b"".join(
            f"{mode.lstrip('0')} ".encode() + name + b"\0" + bytes.fromhex(object_id)
            for name, mode, object_id in here
        )
        words = ("hash-object", "-w", "-t", "tree", "--literally", "--stdin")
        return self.ask(*words, given=content)


@pytest.fixture
def made(make_repo):
    return Objects(make_repo())


def found_in(made, old, new, **more):
    changes = load_changes(made.git_dir, made.tree(old), made.tree(new))
    return {(os.fsencode(risky.path), risky.kind.value) for risky in find_risky(changes, **more)}


def test_what_differs(made):
    old = {
        "same": (FILE, "x"),
        "changed": (FILE, "a\nb\nc\n"),
        "gone": (FILE, "1\n2\n"),
        "mode": (FILE, "x"),
        "kind": (FILE, "x"),
        "binary": (FILE, b"\0a"),
        "dir": (FILE, "a file"),
    }
    new = {
        "same": (FILE, "x"),
        "changed": (FILE, "a\nB\nc\nd\n"),
        "new\n\t\"\x1b[31m": (FILE, "1\n"),
        b"\xff": (FILE, ""),
        "mode": (PROGRAM, "x"),
        "kind": (LINK, "same"),
        "binary": (FILE, b"\0b"),
        "dir/below": (FILE, "x\n"),
        "sub": (SUBMODULE, NOWHERE),
    }  # fmt: skip
    changes = load_changes(made.git_dir, made.tree(old), made.tree(new))
    assert changes.is_complete
    assert changes.is_counted
    files = {os.fsencode(file.path): file for file in changes.files}
    assert list(files) == sorted(files)
    kinds = {path: file.kind for path, file in files.items()}
    assert kinds == {
        b"changed": ChangeKind.MODIFIED,
        b"gone": ChangeKind.DELETED,
        b'new\n\t"\x1b[31m': ChangeKind.ADDED,
        b"\xff": ChangeKind.ADDED,
        b"mode": ChangeKind.MODIFIED,
        b"kind": ChangeKind.RETYPED,
        b"binary": ChangeKind.MODIFIED,
        b"dir": ChangeKind.DELETED,
        b"dir/below": ChangeKind.ADDED,
        b"sub": ChangeKind.ADDED,
    }
    counts = {path: (file.added, file.removed) for path, file in files.items()}
    assert counts[b"changed"] == (2, 1)
    assert counts[b"gone"] == (0, 2)
    assert counts[b'new\n\t"\x1b[31m'] == (1, 0)
    assert counts[b"binary"] == (None, None)
    assert (files[b"changed"].old_size, files[b"changed"].new_size) == (6, 8)
    assert (files[b"sub"].old_size, files[b"sub"].new_size) == (None, None)
    assert files[b"mode"].is_executable
    assert files[b"kind"].is_link
    assert files[b"sub"].is_submodule
    assert all(file.shown.isprintable() for file in changes.files)


def test_commits_and_what_is_missing(repo, git):
    base, tip = git("rev-list", "--reverse", "main", cwd=repo).split()
    changes = load_changes(str(repo / ".git"), base, tip)
    assert [(file.path, file.added) for file in changes.files] == [("README.md", 2)]
    assert (changes.added, changes.removed) == (2, 0)
    assert load_changes(str(repo / ".git"), tip, tip).files == ()
    assert find_risky(load_changes(str(repo / ".git"), tip, tip)) == []
    for missing in (NOWHERE, changes.files[0].new_id):
        with pytest.raises(StateError):
            load_changes(str(repo / ".git"), base, missing)
    for odd in ("main", "--output=x", ""):
        with pytest.raises(ValueError, match="object id"):
            load_changes(str(repo / ".git"), base, odd)


def test_nothing_of_the_repository_decides_what_is_seen(made, git, tmp_path):
    """Attributes, drivers, replaced objects and orders of files are for people."""
    proof = tmp_path / "proof"
    for key in ("diff.evil.textconv", "diff.evil.command", "diff.external", "filter.evil.smudge"):
        git("config", key, f"touch {proof}; cat", cwd=made.root)
    attributes = "* diff=evil filter=evil binary\n"
    (made.root / ".git" / ".gitattributes").write_text(attributes)
    (made.root / ".gitattributes").write_text(attributes)
    old = made.tree({".gitattributes": (FILE, attributes), "a": (FILE, "1\n")})
    new = made.tree({".gitattributes": (FILE, attributes), "a": (FILE, "1\n2\n")})
    git("replace", new, old, cwd=made.root)
    changes = load_changes(made.git_dir, old, new)
    assert [file.path for file in changes.files] == ["a"]
    assert not proof.exists()
    assert read_blob(made.git_dir, changes.files[0].new_id) == b"1\n2\n"


def test_blobs_are_read_within_bounds(made):
    large, small = made.blob("x" * 5000), made.blob("y")
    with open_objects(made.git_dir) as reader:
        assert reader.find_blob(large, limit_bytes=4999) is None
        assert reader.find_blob(small) == b"y"
        assert reader.find_blob(large) == b"x" * 5000
        assert reader.find_blob(NOWHERE) is None
        assert reader.find_blob(made.tree({"a": (FILE, "x")})) is None
        assert reader.find_blob(small) == b"y"


def test_tree_that_expands_without_end(made, monkeypatch):
    files = {f"f{number}": (FILE, "x") for number in range(10)}
    for _ in range(12):
        below = made.tree(files)
        files = {f"d{number}": (TREE, below) for number in range(10)}
    base = made.tree({"a": (FILE, "x")})
    changes = load_changes(made.git_dir, base, made.tree(files))
    assert not changes.is_complete
    assert [risky.kind.value for risky in find_risky(changes)] == ["unlisted"]
    assert find_test_changes(changes).is_weakened
    monkeypatch.setattr(changes_module, "_COUNTING_S", 0.0)
    changes = load_changes(made.git_dir, base, made.tree({"b": (FILE, "x")}))
    assert (changes.is_complete, changes.is_counted, changes.added) == (True, False, 0)


def test_risky_files(made, git):
    git("config", "core.hooksPath", "tools/hooks", cwd=made.root)
    package = '{"name": "a", "scripts": {"test": "x"}}'
    old = {
        "package.json": (FILE, package),
        "web/package.json": (FILE, package),
        "src/app.py": (FILE, "x"),
        "deploy": (PROGRAM, "x"),
        "tools/release.py": (FILE, "x"),
        "Readme": (FILE, "x"),
        "moved": (SUBMODULE, NOWHERE),
        "was-link": (LINK, "src"),
    }
    new = {
        "package.json": (FILE, package.replace('"a"', '"b"')),
        "web/package.json": (FILE, package.replace('"x"', '"y"')),
        "src/app.py": (FILE, "y"),
        "src/new.py": (FILE, "y"),
        "docs/x.md": (FILE, "y"),
        "deploy": (PROGRAM, "y"),
        "tools/release.py": (FILE, "y"),
        "tools/run": (PROGRAM, "#!/bin/sh"),
        "tools/hooks/anything": (FILE, "x"),
        ".github/workflows/x.yml": (FILE, "y"),
        "logo.png": (FILE, b"\x89PNG\0"),
        "Readme": (FILE, "x"),
        "README": (FILE, "x"),
        "moved": (SUBMODULE, "2" * 40),
        "was-link": (FILE, "x"),
        "evil\u202egnp.py": (FILE, "x"),
        "sub/.GIT/config": (FILE, "x"),
        "git~1/config": (FILE, "x"),
        "dot./x": (FILE, "x"),
        b"\xff": (FILE, "x"),
        "large": (FILE, "x" * (9 << 20)),
    }
    also = ["env X=1 ./deploy staging", "sh -c 'python3 -m tools.release'", "'unclosed"]
    assert found_in(made, old, new, also=also) == {
        (b"web/package.json", "package"),
        (b"deploy", "stage"),
        (b"tools/release.py", "stage"),
        (b"tools/run", "executable"),
        (b"tools/hooks/anything", "git-hook"),
        (b".github/workflows/x.yml", "ci"),
        (b"logo.png", "binary"),
        (b"README", "name"),
        (b"moved", "submodule"),
        ("evil\u202egnp.py".encode(), "name"),
        (b"sub/.GIT/config", "name"),
        (b"git~1/config", "name"),
        (b"dot./x", "name"),
        (b"\xff", "name"),
        (b"large", "binary"),
    }


@pytest.mark.parametrize(
    ("target", "is_risky"),
    [
        ("../src/app.py", False),
        ("../missing", False),
        (".", False),
        ("../in", False),
        ("/etc/passwd", True),
        ("../../outside", True),
        ("../src/../../outside", True),
        ("../deep/x", True),
        ("../up/b/../../..", True),
        ("../.git/hooks/pre-commit", True),
        ("../.GIT/config", True),
        ("link", True),
        ("a/" * 2000, False),
        ("a/../" * 3000, True),
    ],
)
def test_link_that_leaves_the_tree(made, target, is_risky):
    old = {
        "src/app.py": (FILE, "x"),
        "deep": (LINK, "src/../.."),
        "up": (LINK, "a"),
        "a/b": (FILE, "x"),
        "in": (LINK, "src"),
    }
    found = found_in(made, old, {**old, "links/link": (LINK, target)})
    assert ((b"links/link", "link") in found) == is_risky


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("cd ops && ./go.sh", "ops/go.sh"), ('"$PWD/ops/go.sh"', "ops/go.sh"),
        ("/home/me/project/ops/go.sh", "ops/go.sh"), ("ansible-playbook -i hosts/ x", "hosts/all"),
        ("python3 -mship.it now", "ship/it.py"), ("python3 -m ship.it", "ship/__init__.py"),
        ("kubectl apply -f k8s", "k8s/a/b.yaml"),
    ],
)  # fmt: skip
def test_program_that_a_stage_names_from_elsewhere(made, command, path):
    change = load_changes(
        made.git_dir, made.tree({}), made.tree({path: (FILE, "x"), "src/plan.txt": (FILE, "x")})
    )
    kinds = [(one.path, one.kind) for one in find_risky(change, also=[command])]
    assert kinds == [(path, "stage")]


def test_link_at_the_place_of_a_directory_that_is_run(made):
    base = {"docs/tasks.json": (FILE, "{}")}
    links = {".vscode": (LINK, "docs"), "notes": (LINK, "docs")}
    risky = find_risky(load_changes(made.git_dir, made.tree(base), made.tree(base | links)))
    assert [(one.path, one.kind) for one in risky] == [(".vscode", "editor")]
    links = {"ops": (LINK, "docs"), "notes": (LINK, "docs")}
    change = load_changes(made.git_dir, made.tree(base), made.tree(base | links))
    kinds = [one.kind for one in find_risky(change, also=["sh ops/go"], hooks_path="ops/hooks")]
    assert sorted(kinds) == ["git-hook", "stage"]
    links = {".vscode": (LINK, "docs"), "notes": (LINK, "docs")}
    # What stands there without the link is not what was reviewed, either.
    risky = find_risky(load_changes(made.git_dir, made.tree(base | links), made.tree(base)))
    assert [(one.path, one.kind) for one in risky] == [(".vscode", "editor")]


def test_manifest_that_is_now_a_link(made):
    old = {"package.json": (FILE, "{}"), "x": (FILE, "{}")}
    found = found_in(made, old, {**old, "package.json": (LINK, "x")})
    assert (b"package.json", "package") in found


def test_tests_that_are_removed_skipped_or_emptied(made):
    one = "def test_a():\n    assert 1\n    assert 2\n\ndef test_b():\n    assert 3\n"
    old = {
        "tests/test_one.py": (FILE, one),
        "tests/test_two.py": (FILE, "def test_c():\n    assert 1\n"),
        "tests/test_old.py": (FILE, "def test_d():\n    assert 1\n"),
        "tests/data/x.json": (FILE, "1"),
        "src/lib.rs": (FILE, "#[test]\nfn adds() {}\n"),
        "src/main.rs": (FILE, "fn main() {}\n"),
        "src/app.py": (FILE, "def test_looks_like_one(): pass"),
    }
    new = {
        "tests/test_one.py": (FILE, "def test_a():\n    assert 1\n"),
        "tests/test_two.py": (FILE, "@pytest.mark.skip\ndef test_c():\n    assert 1\n"),
        "tests/test_new.py": (FILE, "def test_d():\n    assert 1\ndef test_e(): pass\n"),
        "tests/data/x.json": (FILE, "2"),
        "src/lib.rs": (FILE, "fn adds() {}\n"),
        "src/main.rs": (FILE, "fn main() { go() }\n"),
        "pytest.ini": (FILE, "[pytest]\naddopts = -k a"),
        "package.json": (FILE, "{}"),
        "uv.lock": (FILE, ""),
    }
    changes = load_changes(made.git_dir, made.tree(old), made.tree(new))
    found = find_test_changes(changes)
    files = {file.path: file for file in found.files}
    assert set(files) == {
        "pytest.ini", "src/lib.rs", "tests/data/x.json", "tests/test_new.py", "tests/test_old.py",
        "tests/test_one.py", "tests/test_two.py",
    }  # fmt: skip
    assert files["tests/test_one.py"].removed == ("test_b",)
    assert files["tests/test_new.py"].added == ("test_d", "test_e")
    # `test_d` has only moved.
    assert (found.removed, found.added) == (2, 1)
    assert (found.skips_added, found.assertions_removed) == (1, 2)
    assert [file.path for file in found.deleted_files] == ["tests/test_old.py"]
    assert [file.path for file in found.settings] == ["pytest.ini"]
    assert found.is_weakened
    backwards = find_test_changes(load_changes(made.git_dir, changes.tip, changes.base))
    assert (backwards.removed, backwards.added) == (1, 2)
    same = load_changes(made.git_dir, made.tree({}), made.tree({"src/a.py": (FILE, "x")}))
    assert not find_test_changes(same).is_weakened
    dependencies = find_dependency_files(changes)
    assert [file.path for file in dependencies.manifests] == ["package.json"]
    assert [file.path for file in dependencies.locks] == ["uv.lock"]


def test_content_beyond_the_limit_is_said_to_be_unknown(made, monkeypatch):
    monkeypatch.setattr(objects, "BLOB_BYTES", 10)
    text = "def test_a(): pass\n" * 100_000
    old = made.tree({"tests/test_a.py": (FILE, text), "package-lock.json": (FILE, "{}")})
    new = made.tree({"tests/test_a.py": (FILE, ""), "package-lock.json": (FILE, "x" * (33 << 20))})
    changes = load_changes(made.git_dir, old, new)
    found = find_test_changes(changes)
    assert not found.is_complete
    assert found.is_weakened
    kinds = {risky.kind.value for risky in find_risky(changes)}
    assert kinds == {"source", "binary"}
