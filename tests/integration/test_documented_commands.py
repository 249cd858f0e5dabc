"""Runs the commands of README, tutorial and how-to guides as they are printed there.

Each page has one project and one shell. A command that the page shows with an `error:` has to fail,
every other one has to succeed. What cannot be run here is listed with its reason.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300

# (page, beginning of the command, reason); `*` is any page.
NOT_RUN = (
    ("*", "make demo", "tests/architecture/test_setup.py runs it"),
    ("README.md", "make test", "runs this test"),
    ("README.md", "pipx install", "changes the machine"),
    ("docs/how-to/open-in-an-editor.md", "atoll edit", "starts an editor; see test_edit.py"),
    ("docs/how-to/keep-an-agent-in.md", "atoll run fix-auth -- python3", "needs cgroups"),
    ("docs/how-to/keep-an-agent-in.md", "atoll run fix-auth -- sh -c 'for", "needs cgroups"),
    ("docs/how-to/open-in-an-editor.md", "atoll code", "starts an editor; see test_editors.py"),
    ("docs/how-to/bring-work-out.md", "atoll run textures", "needs git-lfs; see test_lfs.py"),
    ("docs/how-to/bring-work-out.md", "atoll rm textures", "needs git-lfs; see test_lfs.py"),
    ("docs/how-to/bring-work-out.md", "git merge -q atoll/textures", "see test_lfs.py"),
    ("docs/how-to/recover-work.md", "atoll recover --gone", "see test_repository_gone.py"),
    ("docs/how-to/keep-an-agent-in.md", "atoll verify", "long; tests/escape runs it"),
    ("docs/how-to/reach-a-capsule.md", "atoll open", "needs a server of another user"),
    ("docs/how-to/shell-completion.md", 'eval "$(atoll completion zsh', "needs zsh"),
    ("docs/how-to/shell-completion.md", "atoll completion fish", "writes to the owner's home"),
    ("docs/how-to/shell-completion.md", "atoll run t", "shows a key, not a command"),
    ("docs/how-to/benchmark.md", "atoll bench", "takes minutes; see test_bench.py"),
    ("docs/how-to/give-an-agent-a-browser.md", "", "needs a browser; see test_browser.py"),
    ("docs/how-to/clean-up-after-a-crash.md", "", "needs crashes; see tests/faults"),
    ("docs/how-to/run-an-agent.md", "", "needs an agent's program; see test_agents.py"),
    ("docs/how-to/add-a-driver.md", "", "is about the source tree"),
    ("*", 'atoll race "make the', "needs the programs of agents; see test_agent_programs.py"),
    ("README.md", "atoll compare importer", "goes on with that race"),
    ("README.md", "atoll pick importer", "goes on with that race"),
    ("README.md", "atoll promote importer-codex", "goes on with that race"),
    ("README.md", "atoll undo", "goes on with that race"),
)
# (page, command, how many times it has been run before): what a reader has done in between.
BETWEEN = {
    ("docs/how-to/warm-a-project.md", "atoll new b", 0): (
        "mkdir node_modules/added && echo 1 > node_modules/added/index.js"
    ),
    ("docs/how-to/warm-a-project.md", "atoll warm --check", 2): (
        'echo bad > "$(find "$ATOLL_HOME"/pools -path "*/node_modules/p9/index.js" | head -1)"'
    ),
    ("docs/how-to/bring-work-out.md", "atoll run fix-add -- git commit", 0): (
        "git update-ref refs/heads/atoll/fix-add"
        " $(git commit-tree -p atoll/fix-add -m mine atoll/fix-add^{tree})"
    ),
    ("docs/how-to/travel-in-time.md", "atoll rollback shop-db 1", 0): (
        "atoll run shop-db -d -- sleep 600"
    ),
    ("docs/how-to/keep-an-agent-in.md", "atoll new fix-auth --limit", 0): "atoll rm fix-auth",
    ("docs/how-to/check-the-work.md", "atoll bisect fix-auth", 0): (
        "atoll snapshot fix-auth && atoll run fix-auth -- touch broken"
    ),
    ("docs/how-to/give-a-capsule-a-secret.md", "atoll secret grant SENTRY", 0): (
        'printf \'[secrets.SENTRY_TOKEN]\\nfrom = { command = "echo token" }\\n'
        'as = { broker = "sentry.io" }\\n\' > atoll.toml'
    ),
    ("docs/how-to/race-attempts.md", "atoll race ls", 0): (
        "atoll race --name faster -n 2 -- ./attempt"
    ),
    ("docs/how-to/promote-work.md", "atoll approve fix-auth", 0): (
        "atoll promote fix-auth --to production"
    ),
    ("docs/how-to/promote-work.md", "atoll undo fix-auth", 0): "atoll promote fix-auth",
    ("docs/how-to/write-a-project-file.md", "atoll new z", 0): (
        "printf '[capsule]\\nlevl = 1\\n' > atoll.toml"
    ),
    ("docs/how-to/write-a-project-file.md", "atoll new z", 1): (
        "printf '[capsule]\\nsetup = [\"true\"]\\n' > atoll.toml"
    ),
}
# Exit codes of commands that print no `error:` and yet fail.
CODES = {
    ("docs/how-to/check-the-work.md", "atoll try fix-auth", 0): 1,
    # It has ended by then.
    ("docs/how-to/race-attempts.md", "atoll race stop", 0): 4,
    ("docs/how-to/warm-a-project.md", "atoll warm --check", 1): 1,
    ("docs/how-to/warm-a-project.md", "atoll warm --check", 2): 1,
    ("docs/how-to/keep-an-agent-in.md", "atoll run fix-auth --write", 0): 2,
    ("docs/how-to/keep-an-agent-in.md", "atoll run fix-auth -- curl", 0): 56,
    ("docs/tutorial/first-capsule.md", "atoll run fix-add -- make test", 0): 2,
}
BEFORE = {
    "README.md": (
        "git init -q any-git-repo && (cd any-git-repo && printf 'test:\\n\\ttrue\\n' > Makefile"
        " && git add -A && git commit -qm start"
        " && atoll new fix-add && atoll run fix-add -- touch calc.py)"
        " && printf 'echo \\043 fixed >> calc.py\\n' > ../agent.sh"
    ),
    "docs/tutorial/first-capsule.md": "cd ..",
    "docs/how-to/bring-work-out.md": "atoll new fix-add",
    "docs/how-to/check-the-work.md": (
        'printf \'[checks.test]\\nrun = "test ! -e broken"\\n[checks.bench]\\nrun = "true"\\n\''
        " > atoll.toml && atoll trust && atoll new fix-auth"
    ),
    "docs/how-to/race-attempts.md": (
        "printf '#!/bin/sh\\necho $MODEL $SEED $* >> found.txt\\n' > attempt && chmod +x attempt"
        " && printf 'one\\ntwo\\n' > prompts.txt && git add -A && git commit -qm attempt"
        " && printf '[checks.test]\\nrun = \"test -s found.txt\"\\n' > atoll.toml && atoll trust"
    ),
    "docs/how-to/compare-and-pick.md": (
        'printf \'[checks.test]\\nrun = "sh tests/all.sh"\\n[checks.bench]\\n'
        'run = "echo seconds $(wc -c <src/orders/y) s lower"\\nfigures = true\\n\' > atoll.toml'
        " && mkdir tests && echo true > tests/all.sh && git add -A && git commit -qm tests"
        " && atoll trust && atoll race --name import --vary KIND=fast,slow,weak -- sh -c '"
        "case $KIND in fast) echo > src/orders/y; echo true > tests/fast.sh;;"
        " slow) echo 22 > src/orders/y;; weak) echo 333 > src/orders/y;; esac'"
    ),
    "docs/how-to/promote-work.md": (
        'printf \'[checks.test]\\nrun = "test -e fixed"\\n[stages.local]\\n[stages.production]\\n'
        'approve = true\\nrun = "true"\\n\' > atoll.toml && atoll trust && atoll new fix-auth'
        " && atoll run fix-auth -- touch fixed && atoll commit fix-auth -m fix"
    ),
    "docs/how-to/open-in-an-editor.md": "atoll new fix-add",
    "docs/how-to/keep-an-agent-in.md": "atoll new fix-auth",
    "docs/how-to/travel-in-time.md": "atoll new shop-db",
    "docs/how-to/recover-work.md": (
        "atoll new idea && atoll run idea -- sh -c 'echo x > notes.txt' && atoll rm idea --force"
    ),
    "docs/how-to/reach-a-capsule.md": (
        "printf '[services.web]\\ncommand = \"x\"\\nport = 3000\\n' > atoll.toml && atoll trust"
        " && atoll new fix-auth && atoll new other"
    ),
}
# Capsules of other projects; the fixture removes those of this one.
AFTER = {"README.md": "atoll rm fix-auth fix-add --force"}
NEEDS_DAEMON = (
    "README.md",
    "docs/how-to/run-several-agents.md",
    "docs/how-to/reach-a-capsule.md",
    "docs/how-to/keep-an-agent-in.md",
    "docs/how-to/give-a-capsule-a-secret.md",
)
# What stands for something else: an agent, a tool that may not be here, an id.
STAND_INS = (
    (r"\bspawn claude\b", "spawn script:../agent.sh"),
    (r"\bAGENT\b", "sh -c 'echo fixed > fix.txt'"),
    (r"\bnpx codemod rename-api\b", "touch broken"),
    (r"\bnpm run dev\b", "python3 -m http.server 3000"),
    (r"\bsqlite3 shop\.db\b", "python3 sql.py shop.db"),
    (
        r"refs/atoll/recovery/[\w/-]+",
        "$(git for-each-ref --format='%(refname)' refs/atoll/recovery)",
    ),
    (r"/tmp/build-of-fix-add", "../build-of-fix-add"),
)
PROJECT = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "Makefile": "test:\n\tpython3 -c 'import calc'\n",
    "src/payments/x": "1\n",
    "src/orders/y": "1\n",
    "sql.py": "import sqlite3, sys\nwith sqlite3.connect(sys.argv[1]) as db:\n"
    "    for line in sys.argv[2].replace('\"', \"'\").split(';'):\n"
    "        print(*(row[0] for row in db.execute(line)), sep='\\n')\n",
    ".gitignore": "node_modules/\n.venv/\nbuild/\n__pycache__/\n",
}
IGNORED = {
    **{f"node_modules/p{n}/index.js": "1\n" for n in range(12)},
    ".venv/pyvenv.cfg": "home = /usr/bin\n",
    "build/out": "1\n",
}


class Shown(NamedTuple):
    """A command as a page shows it."""

    command: str
    output: str


def commands(text: str) -> list[Shown]:
    """Those of the `console` blocks, and of indented blocks that begin with one of ours."""
    blocks = re.findall(r"^( *)```console\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    found: list[Shown] = []
    for indent, block in blocks:
        pieces = re.split(rf"^{indent}\$ ", block, flags=re.MULTILINE)
        found += [Shown(*piece.split("\n", 1)) for piece in pieces[1:]]
    outside = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^    (?:\$ )?((?:atoll|make|pipx|uv|eval) .*)$", outside, re.MULTILINE)
    return found + [Shown(line.partition("  #")[0], "") for line in lines]


PAGES = {
    path.relative_to(ROOT).as_posix(): commands(path.read_text("utf-8"))
    for path in (
        ROOT / "README.md",
        *sorted((ROOT / "docs" / "tutorial").glob("*.md")),
        *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    )
}


def find_reason(page: str, command: str) -> str | None:
    return next(
        (why for at, start, why in NOT_RUN if at in ("*", page) and command.startswith(start)), None
    )


def test_every_exception_is_needed():
    used = {
        (at, start)
        for at, start, _ in NOT_RUN
        for page, shown in PAGES.items()
        if at in ("*", page) and (not start or any(s.command.startswith(start) for s in shown))
    }
    assert used == {(at, start) for at, start, _ in NOT_RUN}
    for page, start, _ in (*BETWEEN, *CODES):
        assert any(shown.command.startswith(start) for shown in PAGES[page]), (page, start)


RUN = {
    page: [one for one in shown if find_reason(page, one.command) is None]
    for page, shown in PAGES.items()
}


@pytest.mark.parametrize("page", [page for page, shown in RUN.items() if shown])
def test_commands_of(page, person, request):
    root = person.repo = person.make_repo(
        PROJECT, name="elsewhere" if "tutorial" in page else "shop"
    )
    person.write(IGNORED, root)
    person.write(
        {"atoll": f'#!/bin/sh\nexec {sys.executable} -m atoll "$@"\n'}, person.place / "bin"
    )
    (person.place / "bin" / "atoll").chmod(0o755)
    if page in NEEDS_DAEMON:
        request.getfixturevalue("well_known_ports")
        person.wants_daemon()
    script, expected = render(page)
    done = person.run(
        "bash", "-c", script, cwd=root, check=False, timeout=TIMEOUT_S,
        env={"PATH": f"{person.place}/bin:{person.env['PATH']}"},
    )  # fmt: skip
    said = f"{done.stdout}\n{done.stderr}"
    codes = [int(code) for code in re.findall(r"^@@ (\d+)$", done.stdout, re.MULTILINE)]
    assert len(codes) == len(expected), said
    wrong = [
        f"exit code {code}: {command}"
        for (command, wanted), code in zip(expected, codes, strict=True)
        if (code != wanted if wanted is not None else code == 0)
    ]
    assert not wrong, f"{wrong}\n{said}"


def render(page: str) -> tuple[str, list[tuple[str, int | None]]]:
    """A script, and its commands with their exit codes; None stands for any failure."""
    lines = ["exec 2>&1 </dev/null", "last=0", BEFORE.get(page, "")]
    expected: list[tuple[str, int | None]] = []
    counts: dict[str, int] = {}
    for shown in RUN[page]:
        key = next(
            (start for at, start, _ in (*BETWEEN, *CODES)
             if at == page and shown.command.startswith(start)),
            "",
        )  # fmt: skip
        number = counts.get(key, 0)
        counts[key] = number + 1
        command = shown.command
        for pattern, stand_in in STAND_INS:
            # The text as it is: backslashes in it mean nothing.
            command = re.sub(pattern, stand_in.replace("\\", r"\\"), command)
        lines += [
            BETWEEN.get((page, key, number), ""),
            f"printf '%s\\n' {shlex.quote('$ ' + command)}",
            f"(exit $last); eval {shlex.quote(command)}; last=$?; printf '\\n@@ %s\\n' $last",
        ]
        fails = re.search(r"^error:", shown.output, re.MULTILINE)
        expected.append((command, CODES.get((page, key, number), None if fails else 0)))
    return "\n".join([*lines, AFTER.get(page, "")]), expected
