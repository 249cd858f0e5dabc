"""`tools/setup` on machines that lack things, played by small programs in a private PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

NEEDED = [
    "sh",
    "cat",
    "cp",
    "date",
    "dirname",
    "env",
    "flock",
    "grep",
    "head",
    "id",
    "mkdir",
    "mktemp",
    "rm",
    "sed",
    "sleep",
    "tail",
    "touch",
    "chmod",
]
PYTHON = f"""\
#!/bin/sh
echo "python $*" >>"$CALLS"
case "$*" in
*_base_executable*) echo "$0" ;;
*"-m venv"*)
    mkdir -p .venv/bin
    cp "$0" .venv/bin/python
    echo "VIRTUAL_ENV=$PWD/.venv" >.venv/bin/activate
    touch .venv/bin/pip && chmod +x .venv/bin/pip ;;
*"-m pip"*)
    [ -z "$PIP_FAILS" ] || {{ echo "no route to the index"; exit 1; }}
    touch .venv/bin/atoll && chmod +x .venv/bin/atoll ;;
*ensurepip*) exit "${{NO_VENV:-0}}" ;;
*) exec {sys.executable!r} "$@" ;;
esac
"""
RECORDER = '#!/bin/sh\necho "${0##*/} $*" >>"$CALLS"\n'
FAILING = RECORDER + "exit 1\n"
# What apt-get does as far as the set-up can see: the program is there afterwards.
APT = (
    RECORDER
    + """\
[ "$1" = install ] || exit 0
for word; do
    [ "$word" != bubblewrap ] || { touch "$BIN/bwrap" && chmod +x "$BIN/bwrap"; }
done
"""
)


class Machine:
    """A checkout under a path with a space, and a PATH that holds only what it is given."""

    def __init__(self, root, place):
        self.checkout = place / "my checkout"
        self.bin = place / "bin"
        self.calls = place / "calls"
        (self.checkout / "tools").mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy(root / "tools" / "setup", self.checkout / "tools")
        shutil.copy(root / "pyproject.toml", self.checkout)
        for name in NEEDED:
            if found := shutil.which(name):
                (self.bin / name).symlink_to(found)
        self.add("python3", PYTHON)
        self.add("git", RECORDER)
        self.user("1000")

    def add(self, name, text):
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(text, encoding="utf-8")
        (self.bin / name).chmod(0o755)

    def user(self, uid):
        self.add("id", f"#!/bin/sh\necho {uid}\n")

    def setup(self, mode="demo", **env):
        self.calls.write_text("", encoding="utf-8")
        return subprocess.run(
            ["sh", "tools/setup", mode],
            cwd=self.checkout,
            env={
                "PATH": str(self.bin),
                "HOME": os.environ.get("HOME", "/"),
                "CALLS": str(self.calls),
                "BIN": str(self.bin),
                "TMPDIR": str(self.calls.parent),
                **env,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def called(self, start):
        lines = self.calls.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if line.startswith(start)]

    def installs(self):
        return [line for line in self.called("python ") if "-m pip" in line or "-m venv" in line]


@pytest.fixture
def machine(root, tmp_path):
    return Machine(root, tmp_path)


def test_second_run_does_nothing(machine):
    machine.add("bwrap", RECORDER)
    assert machine.setup().returncode == 0
    assert len(machine.installs()) == 2
    second = machine.setup()
    assert (second.returncode, second.stderr, machine.installs()) == (0, "", [])


def test_dev_serves_the_demo_but_not_the_reverse(machine):
    machine.setup("demo")
    machine.setup("dev")
    assert [line for line in machine.installs() if ".[dev]" in line]
    machine.setup("demo")
    assert machine.installs() == []


def test_changed_project_is_installed_again_in_the_same_environment(machine):
    machine.setup()
    with (machine.checkout / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    machine.setup()
    assert ["-m pip" in line for line in machine.installs()] == [True]


def test_moved_checkout_is_made_anew(machine):
    machine.setup()
    machine.checkout = machine.checkout.rename(machine.checkout.with_name("moved"))
    machine.setup()
    assert len(machine.installs()) == 2


def test_shim_of_an_absent_version_is_skipped(machine):
    machine.add("python3.12", PYTHON)
    machine.add("python3", "#!/bin/sh\necho 'shim: python3: command not found' >&2\nexit 127\n")
    assert machine.setup().returncode == 0


def test_no_python(machine):
    (machine.bin / "python3").unlink()
    machine.add("apt-get", RECORDER)
    result = machine.setup()
    assert result.returncode == 3
    assert "Python 3.11 or newer not found" in result.stderr
    assert "hint: sudo apt-get install python3 python3-venv" in result.stderr


def test_python_that_is_none(machine):
    result = machine.setup(PYTHON="/bin/true")
    assert result.returncode == 3
    assert "PYTHON=/bin/true is not a Python 3.11 or newer" in result.stderr


def test_python_without_venv(machine):
    machine.add("apt-get", RECORDER)
    result = machine.setup(NO_VENV="1")
    assert result.returncode == 3
    assert "-venv\n" in result.stderr
    assert "hint: sudo apt-get install python3" in result.stderr


def test_no_git(machine):
    (machine.bin / "git").unlink()
    machine.add("dnf", RECORDER)
    result = machine.setup()
    assert result.returncode == 3
    assert result.stderr == "setup: git not found\nhint: sudo dnf install git\n"


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        ("apt-get", "apt-get install bubblewrap"),
        ("dnf", "dnf install bubblewrap"),
        ("pacman", "pacman -S --needed bubblewrap"),
        ("zypper", "zypper install bubblewrap"),
        ("apk", "apk add bubblewrap"),
    ],
)
def test_ordinary_user_gets_the_exact_command(machine, manager, command):
    machine.add(manager, RECORDER)
    machine.add("sudo", FAILING)
    result = machine.setup()
    assert result.returncode == 0
    assert "not installed: bubblewrap" in result.stderr
    assert f"hint: sudo {command}\n" in result.stderr
    assert machine.called(manager) == []
    assert machine.called("sudo") == ["sudo -n true"]


def test_root_installs(machine):
    machine.user("0")
    machine.add("apt-get", APT)
    result = machine.setup()
    assert result.returncode == 0
    assert machine.called("apt-get") == ["apt-get install -y --no-install-recommends bubblewrap"]
    assert "not installed" not in result.stderr


def test_sudo_is_used_when_it_asks_nothing(machine):
    machine.add("sudo", RECORDER + 'shift\nexec "$@"\n')
    machine.add("true", "#!/bin/sh\n")
    machine.add("apt-get", APT)
    assert machine.setup().returncode == 0
    assert len(machine.called("apt-get install")) == 1
    assert all(line.startswith("sudo -n ") for line in machine.called("sudo"))


def test_failed_package_manager_is_not_tried_again(machine):
    machine.user("0")
    machine.add("apt-get", FAILING)
    first = machine.setup()
    assert first.returncode == 0
    assert [line.split()[1] for line in machine.called("apt-get")] == [
        "install",
        "update",
        "install",
    ]
    second = machine.setup()
    assert machine.called("apt-get") == []
    assert "hint: apt-get install bubblewrap\n" in second.stderr


def test_failed_install_shows_the_log_and_is_repeated(machine):
    result = machine.setup(PIP_FAILS="1")
    assert result.returncode == 3
    assert "no route to the index" in result.stderr
    assert "the whole log is in" in result.stderr
    assert machine.setup().returncode == 0
    assert len(machine.installs()) == 1


def test_uv_steps_in_for_a_missing_venv(machine):
    machine.add(
        "uv",
        RECORDER
        + """\
mkdir -p .venv/bin
cp "$BIN/python3" .venv/bin/python
[ "$1" = venv ] || { touch .venv/bin/atoll && chmod +x .venv/bin/atoll; }
""",
    )
    assert machine.setup("dev", NO_VENV="1").returncode == 0
    assert machine.called("uv") == [
        f"uv venv --python {machine.bin}/python3 .venv",
        "uv pip install --python .venv/bin/python --editable .[dev]",
    ]
    machine.setup("dev", NO_VENV="1")
    assert machine.called("uv") == []
