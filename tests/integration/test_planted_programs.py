"""Programs that an agent leaves where the owner's PATH leads, and output without an end."""

from __future__ import annotations

import sys

from persons import as_both

PLANT = """
mkdir -p .venv/bin
for name in cp unshare git rm mkdir mv tar sh bwrap python3 setsid env; do
    printf '#!/bin/sh\\nid > %s/marker-%s\\n' "$PLACE" $name > .venv/bin/$name
    chmod +x .venv/bin/$name
done
"""
FALLBACK = """
echo closed > closed; chmod 000 closed
mkdir -p moved/deep; echo x > moved/deep/file
git init -q nested; echo x > nested/file
python3 -c "import os; os.setxattr('/tmp', 'user.overlay.redirect', b'/x')" || true
"""


def markers(person):
    return sorted(path.name for path in person.place.glob("marker-*"))


@as_both
def test_no_command_starts_a_planted_program(person):
    """E4: not even where it works without walls, as `rm --force` may to keep what it removes."""
    person.write({".gitignore": ".venv\n"})
    person.git("add", "--all")
    person.git("commit", "-q", "-m", "ignore")
    person.atoll("new", "x")
    person.sh("x", f"PLACE={person.place}; {PLANT}{FALLBACK}")
    # The same on the host, where the owner has run it once by mistake or has merged it.
    place = person.repo / ".venv/bin"
    person.run("sh", "-c", f"PLACE={person.place}; {PLANT}")
    active = {"PATH": f"{place}:.venv/bin:{person.env['PATH']}", "VIRTUAL_ENV": str(place.parent)}
    for words in (("show", "x"), ("diff", "x"), ("snapshot", "x"), ("fork", "x", "y"), ("ls",),
                  ("doctor",), ("export", "x"), ("rm", "--force", "x"), ("rm", "--force", "y"),
                  ("gc",)):  # fmt: skip
        person.atoll(*words, check=False, env=active)
        assert markers(person) == [], words
    assert person.answer("ls") == []
    # As a control: a plain process with this PATH starts them.
    person.run("/usr/bin/env", "cp", env=active)
    assert markers(person) == ["marker-cp"]


@as_both
def test_output_without_an_end_is_not_collected(person):
    """F5: the memory that a command takes does not grow with what is written inside."""
    person.atoll("new", "x")
    person.sh("x", """
        git config filter.e.clean "sh -c 'head -c 400000000 /dev/zero >&2; cat'"
        mkdir -p .git/info; echo 'README.md filter=e' > .git/info/attributes
        # Of the same size, so that git must read it to know.
        tr a-z b-za < README.md > new; cat new > README.md; rm new; touch -d '+20 sec' README.md
    """)  # fmt: skip
    program = (
        "import resource, subprocess, sys\n"
        "subprocess.run([sys.executable, '-m', 'atoll', *sys.argv[1:]], capture_output=True)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    peak_kib = int(person.run(sys.executable, "-c", program, "show", "x").stdout)
    assert peak_kib < 200_000
