"""Values from inside a capsule: only validators look at them, and those never raise."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.model.untrusted import (
    InsidePath,
    Untrusted,
    find_module_name,
    find_number,
    find_object_id,
    find_path,
    find_ref_name,
    show,
)


@pytest.mark.parametrize("value", [Untrusted(b"x"), InsidePath(b"x")], ids=["bytes", "path"])
def test_nothing_is_text_before_it_is_validated(value):
    for use in (
        lambda: str(value),
        lambda: f"{value}",
        lambda: "/etc/" + value,
        lambda: os.path.join("/etc", value),
        lambda: os.fspath(value),
        lambda: open(value),  # noqa: SIM115 - it is never opened
    ):
        with pytest.raises(TypeError):
            use()


@given(st.binary())
def test_validators_never_raise(raw):
    value = Untrusted(raw)
    for find in (find_path, find_object_id, find_ref_name, find_module_name):
        find(value)
    find_number(value, most=10**6)
    assert show(value).isprintable()


@given(st.binary(max_size=60))
def test_accepted_path_stays_beneath(raw):
    path = find_path(Untrusted(raw))
    if path is None:
        return
    place = os.path.normpath(os.path.join(b"/root", path.raw))
    assert place.startswith(b"/root/")
    assert path.shown().isprintable()
    assert b"\n" not in path.quoted()


@pytest.mark.parametrize(
    "raw",
    [b"", b"/", b"/etc/passwd", b"..", b"a/../b", b"a/..", b".", b"a/./b", b"a//b", b"a/", b"a\0b",
     b"x" * 5000],
)  # fmt: skip
def test_path_that_may_lead_elsewhere_is_refused(raw):
    assert find_path(Untrusted(raw)) is None
    with pytest.raises(ValueError, match="plain"):
        InsidePath(raw)


@pytest.mark.parametrize("raw", [b"-rf", b"a\nb", b"\x1b[2J", b"caf\xe9", b"...", b"a b", b".git"])
def test_odd_path_is_a_path(raw):
    path = find_path(Untrusted(raw))
    assert path is not None
    assert path.raw == raw


def test_quoting_is_gits_own(repo, git):
    names = [b"a b", b'quo"te', b"back\\slash", b"line\nbreak", b"caf\xe9", b"\x01", b"plain"]
    for name in names:
        (repo / os.fsdecode(name)).write_text("x")
    git("add", "--all", cwd=repo)
    listed = git("ls-files", cwd=repo).splitlines()
    for name in names:
        quoted = InsidePath(name).quoted().decode()
        expected = next(line for line in (quoted, quoted[1:-1]) if line in listed or line == quoted)
        # Git writes some bytes by a letter, and quotes only what needs it: both mean the same.
        spelled = quoted.replace("\\012", "\\n")
        assert spelled in listed or spelled[1:-1] in listed, (expected, listed)


@pytest.mark.parametrize(
    "raw",
    [b"--index-output=/etc/passwd", b"HEAD", b"0" * 39, b"0" * 41, b"G" * 40, b"A" * 40,
     b"0" * 40 + b"\n", b" " + b"0" * 39],
)  # fmt: skip
def test_what_is_no_object_id_is_refused(raw):
    assert find_object_id(Untrusted(raw)) is None


@pytest.mark.parametrize("size", [40, 64])
def test_object_ids_of_both_formats(size):
    assert find_object_id(Untrusted(b"a" * size)) == "a" * size


@given(st.text(max_size=30))
def test_accepted_refs_are_refs_to_git(tail):
    ref = find_ref_name(Untrusted(os.fsencode("refs/heads/" + tail) if _encodable(tail) else b""))
    if ref is None:
        return
    assert not ref.startswith("-")
    assert ".." not in ref
    assert "\n" not in ref


def _encodable(text):
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


@pytest.mark.parametrize(
    "raw",
    [b"HEAD", b"refs/heads/../../x", b"refs/heads/a..b", b"refs/heads/.a", b"refs/heads/a.lock",
     b"refs/heads/a b", b"refs/heads/a\nb", b"refs/heads//a", b"refs/heads/", b"refs/heads/a~1",
     b"refs/heads/@{x", b"-refs/heads/a", b"refs/heads/" + b"x" * 2000],
)  # fmt: skip
def test_what_is_no_ref_is_refused(raw):
    assert find_ref_name(Untrusted(raw)) is None


def test_what_is_shown_is_short():
    assert len(show(Untrusted(b"x" * 10**6))) == 400


@pytest.mark.parametrize(
    ("raw", "is_usable"),
    [(b"lib", True), (b"third party/o\xc3\xa9.git", True), (b"lib/modules/deep", True),
     (b".vim/x", True), (b"a.lock", False), (b"a.LOCK/b", False), (b"config", False),
     (b"lib/HEAD", False), (b"a/Hooks/b", False), (b"\x1b]0;pwn\x07\nX", False),
     (b"a\xe2\x80\xaeb", False), (b"\xff", False), (b"-x", False), (b"a/../b", False),
     (b" a", False), (b"a\\b", False), (b".git", False), (b"x" * 256, False)],
)  # fmt: skip
def test_names_of_submodules(raw, is_usable):
    assert (find_module_name(Untrusted(raw)) is not None) == is_usable
