"""What the host unmounts is released by living views, and what it mounts stays out of sandboxes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

SCRIPT = r"""
set -eu
atoll() { "$PYTHON" -m atoll "$@"; }
# A mount namespace of the test's own, in which mounts propagate as on most machines.
mount --make-rshared /
mkdir "$DISK"; mount -t tmpfs -o size=1m disk-of-the-test "$DISK"
trap 'atoll rm --force x >/dev/null 2>&1; atoll daemon stop >/dev/null 2>&1 || true' EXIT
cd "$REPO"
atoll new x --level "$LEVEL" >/dev/null
atoll run x -- true
holders() { grep -ls "$1" /proc/[0-9]*/mountinfo | grep -v "^/proc/\(self\|$$\)/" || true; }
own=$(readlink /proc/self/ns/mnt)
others() {
    for one in $(holders "$1"); do
        test "$(readlink "${one%/mountinfo}/ns/mnt" 2>/dev/null || echo "$own")" = "$own" ||
            echo "$one"
    done
}
test -n "$(others disk-of-the-test)" || { echo "no view has a copy of the mount"; exit 1; }
umount "$DISK"
left=$(others disk-of-the-test)
test -z "$left" || { echo "still mounted: $left"; exit 1; }
if test "$LEVEL" = sandbox; then
    mount -t tmpfs late-mount /usr/share; echo secret >/usr/share/late
    atoll run x -- sh -c '! test -e /usr/share/late && ! grep -e master: -e late-mount \
        /proc/self/mountinfo'
    umount /usr/share
fi
atoll run x -- sh -c 'echo fine >still; cat still'
"""


@pytest.mark.parametrize("level", ["clone", "sandbox"])
def test_unmounting_reaches_living_views(repo, tmp_path, level):
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root can mount a disk")
    env = {
        **os.environ,
        "ATOLL_HOME": str(tmp_path / "home"),
        "DISK": str(tmp_path / "disk"),
        "REPO": str(repo),
        "PYTHON": sys.executable,
        "LEVEL": level,
    }
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", SCRIPT],
        env=env, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "fine"
