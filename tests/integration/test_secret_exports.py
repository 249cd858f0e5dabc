"""Commits that contain a known secret stay in their capsule, whatever brings them out."""

from __future__ import annotations

import pytest

from atoll.host.process import wait_until
from persons import as_both

VALUE = "sk-canary-91cc-value"
LEAK = f"echo '{VALUE}' >leak; git add --all; git commit -qm work"


@pytest.fixture
def known(person):
    """A capsule, and a secret that it was not granted."""
    person.atoll("new", "x")
    person.atoll("secret", "set", "API_KEY", input=VALUE)
    return person


def commit_inside(person, script, name="x"):
    """Returns the warning of the automatic export."""
    done = person.atoll("run", name, "--", "sh", "-euc", script)
    assert VALUE not in done.stderr
    return done.stderr


def refused(person, *words):
    done = person.atoll(*words, check=False)
    assert done.returncode == 4, done.stdout + done.stderr
    assert VALUE not in done.stdout + done.stderr
    return done.stderr


def objects(person):
    listed = person.git("cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    content = person.run("git", "cat-file", "--batch", input=listed.encode(), text=False).stdout
    return listed, content


@as_both
def test_every_way_out_is_refused(known):
    before = objects(known)
    warning = commit_inside(known, LEAK)
    assert "(`leak`, line 1) contains the secret `API_KEY`; nothing was exported" in warning
    assert "(`leak`, line 1)" in refused(known, "export", "x")
    assert "(`leak`, line 1)" in refused(known, "commit", "x", "-m", "more")
    # Nor on top of it, and not in a background run.
    known.atoll(
        "run", "x", "-d", "--", "sh", "-euc", "echo more >more; git add .; git commit -qm 2"
    )
    known.atoll("wait", "x")
    assert "(`leak`, line 1)" in refused(known, "export", "x")
    assert objects(known) == before
    assert known.git("branch", "--list", "atoll/*") == ""

    commit_inside(known, "git reset -q --hard HEAD~2; echo fine >fine; git add .; git commit -qm 3")
    assert known.git("show", "atoll/x:fine") == "fine\n"
    # What is not committed is looked at when Atoll commits it, and so is the message.
    commit_inside(known, f"echo '{VALUE}' >leak")
    assert "(`leak`, line 1)" in refused(known, "export", "x", "--all")
    commit_inside(known, "echo x >leak")
    assert "(its message)" in refused(known, "commit", "x", "-m", f"uses {VALUE}")
    known.atoll("commit", "x", "-m", "uses it")
    assert known.git("show", "atoll/x:leak") == "x\n"
    assert VALUE.encode() not in objects(known)[1]


def test_recovery_keeps_it_and_exports_it_no_more(known):
    """A recovery point is the owner's own: it loses nothing. Its ref makes nothing known."""
    commit_inside(known, LEAK)
    known.atoll("rm", "x", "--force")
    assert VALUE.encode() in objects(known)[1]
    known.atoll("recover", "x")
    assert "`leak`, line 1" in refused(known, "export", "x")
    assert known.git("branch", "--list", "atoll/*") == ""


def test_locked_vault_exports_nothing_of_who_had_a_value(known):
    known.atoll("secret", "grant", "API_KEY", "x")
    known.atoll("secret", "revoke", "API_KEY", "x")
    known.atoll("new", "y")
    known.atoll("secret", "passphrase", input="correct horse battery\n")
    script = "echo fine >fine; git add .; git commit -qm fine"
    assert "cannot be searched for secrets" in commit_inside(known, script)
    assert "cannot be searched for secrets" in refused(known, "export", "x")
    assert "secrets" not in commit_inside(known, script, "y")
    assert known.git("branch", "--list", "--format=%(refname:short)", "atoll/*") == "atoll/y\n"
    known.env["ATOLL_PASSPHRASE"] = "correct horse battery"
    known.atoll("export", "x")
    assert known.git("show", "atoll/x:fine") == "fine\n"
    # The process that exports a background run gets the key, and no passphrase.
    later = "echo later >later; git add .; git commit -qm later"
    known.atoll("run", "x", "-d", "--", "sh", "-euc", later)
    known.atoll("wait", "x")
    assert wait_until(lambda: "later" in known.git("log", "-1", "atoll/x"), timeout_s=30)


def test_secret_that_is_brokered_now_was_a_value_before(known):
    known.atoll("secret", "grant", "API_KEY", "x")
    known.atoll("secret", "set", "API_KEY", "--broker", "api.example.org", input=VALUE)
    known.atoll("secret", "passphrase", input="correct horse battery\n")
    script = f"echo '{VALUE}' >leak; git add .; git commit -qm leak"
    assert "cannot be searched for secrets" in commit_inside(known, script)
    assert known.git("branch", "--list", "atoll/*") == ""


def test_copies_of_who_had_a_value_are_not_exported_either(known):
    known.atoll("secret", "grant", "API_KEY", "x")
    script = f"echo '{VALUE}' >leak; git add .; git commit -qm leak"
    assert "contains the secret" in commit_inside(known, script)
    known.atoll("secret", "revoke", "API_KEY", "x")
    known.atoll("fork", "x", "forked")
    known.atoll("rm", "x", "--force")
    known.atoll("secret", "passphrase", input="correct horse battery\n")
    known.atoll("recover", "x", "--as", "recovered")
    for name in ("forked", "recovered"):
        assert "cannot be searched for secrets" in refused(known, "export", name)
    assert known.git("branch", "--list", "atoll/*") == ""


def test_content_of_lfs_is_refused(known):
    script = f"""
printf 'a\\nb\\n{VALUE}' >content; oid=$(sha256sum content | cut -d' ' -f1)
place=.git/lfs/objects/$(echo $oid | cut -c1-2)/$(echo $oid | cut -c3-4); mkdir -p $place
printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:%s\\nsize %d\\n' \\
    $oid $(wc -c <content) >large.bin
mv content $place/$oid; git add --all; git commit -qm large
"""
    warning = commit_inside(known, script)
    assert "line 3 contains the secret `API_KEY`; nothing was exported" in warning
    assert [p for p in (known.repo / ".git/lfs").rglob("*") if p.is_file()] == []
    assert known.git("branch", "--list", "atoll/*") == ""


def test_commits_of_submodules_are_refused(known):
    known.make_repo({"a": "1\n"}, name="inner")
    known.git("-c", "protocol.file.allow=always", "submodule", "add", known.place / "inner", "sub")
    known.commit("with a submodule")
    known.atoll("new", "y")
    inner = f"cd sub; echo '{VALUE}' >leak; git add .; git commit -qm inner; cd .."
    warning = commit_inside(known, f"{inner}; git add sub; git commit -qm outer", "y")
    assert "the submodule `sub`" in warning
    assert "(`leak`, line 1) contains the secret `API_KEY`" in warning
    assert known.git("branch", "--list", "atoll/*") == ""
