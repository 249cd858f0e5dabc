"""What is written into a checkout of the owner's."""

from __future__ import annotations

import os
import subprocess

from atoll.host.recovery.restored_files import remove_bare_heads


def test_no_directory_stays_that_git_takes_for_a_repository(repo, git):
    for place in ("a/bare", "a/linked", "a/not"):
        subprocess.run(["git", "init", "--quiet", "--bare", place], cwd=repo, check=True)
    os.rename(repo / "a/bare/objects", repo / "a/kept")
    (repo / "a/bare/objects").symlink_to("../kept")
    os.rename(repo / "a/linked/refs", repo / "a/away")
    (repo / "a/linked/commondir").write_text("../not\n")
    (repo / "a/not/HEAD").unlink()
    (repo / "a/not/HEAD").mkdir()
    for name in ("HEAD", "objects", "refs"):
        (repo / name).mkdir()
    left_out = [path.shown() for path in remove_bare_heads(repo)]
    assert left_out == ["a/bare/HEAD", "a/linked/HEAD"]
    for place in (".", "a/bare", "a/linked", "a/not"):
        found = git("rev-parse", "--show-toplevel", cwd=repo / place)
        assert found == f"{repo}\n"
    assert (repo / "a/bare/config").is_file()
    assert (repo / "HEAD").is_dir()
    assert (repo / ".git/HEAD").is_file()
