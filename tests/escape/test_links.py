"""Links that an agent leaves are followed inside at most: never by who builds its room, or by the
host's own commands.
"""

from __future__ import annotations

import os

import pytest

from atoll.engine.enclosure import views
from atoll.engine.run import runs
from atoll.model.errors import AtollError

# What the agent does; $PROJECT is its workspace, $SECRET a directory of the host.
PLANTS = {
    "a toolchain is a link": "rm -rf ~/.pyenv ~/.nvm; ln -s $SECRET ~/.pyenv; ln -s /etc ~/.nvm",
    "a directory above a toolchain is a link": "rm -rf ~/.local ~/.cargo; "
    "ln -s $SECRET ~/.local; ln -s / ~/.cargo",
    "a link to everything": "ln -s / ~/code; ln -s / code; ln -s / /tmp/code",
    "the way to the workspace is a link": "cd /tmp; top=$(echo $PROJECT | cut -d/ -f1-3); "
    "mv $top aside 2>/dev/null; ln -s / $top 2>/dev/null; ln -s $SECRET /tmp/pytest-of-other",
    "the way to the home is a link": "cd /tmp; top=$(echo $HOME | cut -d/ -f1-3); "
    "mv $top aside 2>/dev/null; ln -s $SECRET $top 2>/dev/null",
    "loops": "ln -s loop ~/loop; ln -s ../loop loop; ln -sfn . ~/.local; ln -sfn .. ~/.cache",
    "a file is a link": "for f in .gitconfig .bashrc .profile; do rm -f ~/$f; "
    "ln -s $SECRET/file ~/$f; done",
    "git is a link": "mv .git .moved; ln -s $SECRET .git",
    "pipes in the place of files": "for f in .pyenv .cargo; do rm -rf ~/$f; mkfifo ~/$f; "
    "done; rm README.md; mkfifo README.md",
}


@pytest.fixture
def owner(tmp_path, monkeypatch):
    """A home with toolchains, which lies where agents can plant: below /tmp."""
    home = tmp_path / "owner"
    for name in (".pyenv/bin", ".local/bin", ".cargo/bin", ".nvm"):
        (home / name).mkdir(parents=True)
        (home / name / "tool").write_text("#!/bin/sh\necho tool\n")
        (home / name / "tool").chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture
def secret(tmp_path):
    place = tmp_path / "secret"
    place.mkdir()
    (place / "file").write_text("secret\n")
    return place


def digest(*places):
    found = {}
    for place in places:
        for directory, names, files in os.walk(place):
            for name in [*names, *files]:
                path = os.path.join(directory, name)
                status = os.lstat(path)
                found[path] = (status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns)
    return found


@pytest.mark.parametrize("plant", PLANTS)
def test_the_room_is_built_anew(owner, secret, project, capsule, plant):
    script = f"export PROJECT='{capsule.record.workspace}' SECRET='{secret}'; {PLANTS[plant]}; true"
    before = digest(owner, secret)
    assert capsule.run(["sh", "-c", script]).exit_code == 0
    views.end_view(project.session, capsule.record)
    look = (
        f"cat {secret}/file ~/.pyenv/file ~/.local/file ~/code{secret}/file; "
        "for d in ~/.pyenv ~/.local ~/.nvm ~/code/etc; do echo x > $d/x; done"
    )
    seen = capsule.run(["sh", "-c", look])
    assert b"secret\n" not in seen.stdout
    for act in (capsule.diff, lambda: capsule.export(everything=True)):
        try:
            act()
        except AtollError:
            continue
    capsule.remove(force=True)
    assert digest(owner, secret) == before


def test_control_the_links_lead_out_without_walls(owner, secret, project):
    """The same plant at level `clone`, where the host's files are there: reading works."""
    capsule = project.new("y", level="clone")
    done = capsule.run(["sh", "-c", f"ln -s {secret} ~/code; cat ~/code/file"])
    assert done.stdout == b"secret\n"


def test_toolchains_are_read_only_inside(owner, capsule):
    done = capsule.run(
        ["sh", "-c", "~/.pyenv/bin/tool; echo x >> ~/.pyenv/bin/tool; mv ~/.pyenv ~/p"]
    )
    assert done.stdout == b"tool\n"
    assert done.exit_code != 0
    assert (owner / ".pyenv/bin/tool").read_text() == "#!/bin/sh\necho tool\n"


def test_names_of_commands_do_not_lead_out(secret, capsule):
    """The keeper looks for a command in the room before it is there itself."""
    (secret / "tool").write_text("#!/bin/sh\necho out\n")
    (secret / "tool").chmod(0o755)
    capsule.run(["sh", "-c", f"ln -s {secret}/tool ./tool; ln -s {secret} ./place"])
    for argv in (("./tool",), ("./place/tool",), (f"{secret}/tool",), ("../../../../../bin/no",)):
        assert capsule.run(argv).exit_code in {126, 127}


ESCAPES = (
    b"\x1b]52;c;ZXZpbA==\x07", b"\x1b]0;title\x07", b"\x1bP$q\x22p\x1b\\", b"\x1b[?1049h",
    b"\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", b"\x9b2J", b"\xff\xfe\x00\x80", b"\x05",
    b"\x07" * 50, b"\x1b[6n", b"\x1b[21t", b"\x1b]50;?\x07", b"\xc2\x9b31m",
    b"\r\x1b[2K", b"\x08" * 9,
)  # fmt: skip


def test_terminal_escapes_are_harmless_in_logs(project, capsule, repo, atoll):
    """P26."""
    octal = "".join(f"\\{byte:03o}" for escape in ESCAPES for byte in (*escape, 10))
    spec = runs.RunSpec(argv=("printf", octal), background=True)
    run = capsule.start(spec)
    capsule.wait(run, timeout_s=20)
    raw = b"".join(entry.data for entry in capsule.log(run))
    assert b"\x1b]52" in raw
    done = atoll("logs", "x", cwd=repo)
    shown = done.stdout + done.stderr
    assert not [c for c in shown if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160]
