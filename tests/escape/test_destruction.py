"""Commands that destroy: inside they may destroy the capsule, outside not one bit changes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from atoll.testing.remains import checkout_digest

COMMANDS = {
    "rm of everything": "rm -rf --no-preserve-root / 2>/dev/null",
    "rm by name": "rm -rf {repo} {repo}/.git /usr /etc /root /home ~ /tmp /var 2>/dev/null; "
    "find {repo} -delete 2>/dev/null; find / -xdev -delete 2>/dev/null",
    "chmod": "chmod -R 777 / 2>/dev/null; chown -R 65534 /etc {repo}; chmod -R 0 {repo}",
    "kill": "(for n in $(seq 1 3000); do kill -9 $n; done) 2>/dev/null; kill -9 -1",
    "git push": "git remote add o {repo}; git commit -q --allow-empty -m e; "
    "git push --force o HEAD:main; git push --force {git} HEAD:refs/heads/main; "
    "git push o --delete main; git push --mirror {git}",
    "git reset": "git reset --hard -q; git clean -fdxq; git update-ref -d refs/heads/main; "
    "git branch -D main; git reflog expire --expire=now --all; git gc -q --prune=now",
    "disks": "for d in /dev/sda /dev/vda /dev/loop0 /dev/nvme0n1 disk; do mknod disk b 254 0; "
    "mkfs.ext4 -F $d; dd if=/dev/zero of=$d bs=512 count=1; wipefs -a $d; done",
    "overwrite what runs": "for f in /usr/bin/* /bin/sh {git}/config {git}/HEAD; do "
    "echo > $f; done 2>/dev/null",
    "move the ground": "mv {repo} {repo}.gone; mv / /gone; mv /usr /usr.gone; rm -rf {git}",
    "the machine": "reboot -f; poweroff -f; halt -f; echo b > /proc/sysrq-trigger; kill -INT 1; "
    "systemctl poweroff; docker run -v /:/host alpine rm -rf /host; swapoff -a; rmmod ext4; "
    "modprobe -r overlay; sysctl -w kernel.panic=1; mount -o remount,ro /; umount -l /; "
    "hostname gone; date -s 2001-01-01",
}


@pytest.fixture
def bystander():
    """A process of the host that must live on."""
    with subprocess.Popen(["sleep", "1000"]) as child:
        yield child
        assert child.poll() is None
        child.send_signal(signal.SIGKILL)


def host_mounts():
    """Mount points and options, without what other tests mount meanwhile."""
    found = [row.split() for row in Path("/proc/self/mountinfo").read_text().splitlines()]
    return sorted((row[4], row[5]) for row in found if not row[4].startswith(tempfile.gettempdir()))


def host_facts(repo):
    return {
        "checkout": checkout_digest(repo),
        "name": socket.gethostname(),
        "mounts": host_mounts(),
        "usr": [(e.name, e.stat(follow_symlinks=False).st_mtime_ns) for e in os.scandir("/usr")],
        "shell": os.stat("/bin/sh").st_mtime_ns,
        "panic": Path("/proc/sys/kernel/panic").read_text(),
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_the_host_does_not_change(project, repo, git, bystander, command, tmp_path, monkeypatch):
    # Without the toolchains of whoever runs the tests: walking through them takes its time.
    monkeypatch.setenv("HOME", str(tmp_path / "owner"))
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")
    capsule, other = project.new("x"), project.new("y")
    other.run(["sh", "-c", "echo mine > mine.txt"])
    before, refs = host_facts(repo), git("for-each-ref", "refs/heads/main", cwd=repo)
    script = COMMANDS[command].format(repo=repo, git=repo / ".git")
    clock = time.time() - time.monotonic()
    capsule.run(["sh", "-c", script], timeout_s=60)
    assert host_facts(repo) == before
    assert abs(time.time() - time.monotonic() - clock) < 60
    assert git("for-each-ref", "refs/heads/main", cwd=repo) == refs
    git("fsck", "--full", "--strict", cwd=repo)
    assert other.run(["cat", "mine.txt"]).stdout == b"mine\n"
    for one in (capsule, other):
        one.remove(force=True)
    assert checkout_digest(repo) == before["checkout"]


@pytest.mark.parametrize("command", ["rm by name", "git push", "overwrite what runs"])
def test_control_the_command_destroys_without_walls(tmp_path, repo, command, git):
    """On a copy of the checkout, with nothing but that copy in reach of the command."""
    before = checkout_digest(repo)
    script = COMMANDS[command].format(repo=repo, git=repo / ".git")
    refs = git("for-each-ref", cwd=repo)
    words = ["bwrap", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin"]
    words += ["--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc"]
    words += ["--dev", "/dev", "--bind", str(repo), str(repo), "--chdir", str(repo)]
    words.append("--unshare-all")
    subprocess.run([*words, "sh", "-c", script], check=False, capture_output=True, timeout=60)
    after = checkout_digest(repo) if (repo / ".git").exists() else ""
    assert after != before or git("for-each-ref", cwd=repo, check=False) != refs
