"""A capsule's runs land in its workspace, whatever an agent does to the directories above it."""

from __future__ import annotations

import shutil

import pytest

from persons import as_both

MOVES = {
    "renamed": "mv $1 $1-elsewhere",
    "exchanged": "mkdir $1-planted && mv -T --exchange $1-planted $1",
    "renamed by the system call": "python3 -c \"import os; os.rename('$1', '$1-elsewhere')\"",
    "removed": "rmdir $1",
    "replaced by another": "mkdir -p $1-planted/shop/deep && mv -T $1-planted $1",
    "replaced by a link": "ln -sfnT /usr $1",
}


def shop(person, *above):
    """The person's project, moved to where the capsule's own processes own what is above."""
    place = person.place.joinpath(*above, "shop")
    person.run("mkdir", "-p", place.parent, cwd=person.place)
    shutil.move(person.repo, place)
    person.repo = place
    return place


@pytest.mark.parametrize("above", [("owner", "code"), ("owner", "a", "b", "c")], ids="/".join)
@as_both
def test_directories_above_the_workspace_cannot_be_moved(person, above):
    place = shop(person, *above)
    person.atoll("new", "x")
    person.sh("x", "echo mine > mark; cd ~ && touch beside")
    home = person.place / "owner"
    tops = [parent for parent in place.parents if home in parent.parents]
    assert tops
    for top in tops:
        for name, move in MOVES.items():
            person.atoll(
                "run", "x", "--", "sh", "-c", f"set -- {top}; cd ~; {move}; mkdir -p {place}",
                check=False,
            )  # fmt: skip
            assert person.sh("x", "pwd; cat mark") == f"{place}\nmine\n", (name, top)
    assert person.atoll("diff", "x", "--stat").returncode == 0
    # Each attempt in its own right: the names of others are free, and HOME is still theirs.
    person.sh("x", f"cd ~ && mv beside moved && mkdir -p d/e && mv d f && cd {place} && mv mark m2")
    person.end_view("x")
    assert person.sh("x", "pwd; cat m2; ls -d ~/moved ~/f/e") == (
        f"{place}\nmine\n{home}/f/e\n{home}/moved\n"
    )


def test_control_directories_beside_can_be_moved(person):
    """The same moves work on a directory of the same home in which no workspace lies."""
    shop(person, "owner", "code")
    person.atoll("new", "x")
    for name, left in {
        "renamed": ["free-elsewhere"],
        "renamed by the system call": ["free-elsewhere"],
        "removed": [],
        "replaced by another": ["free", "free/shop", "free/shop/deep"],
    }.items():
        said = person.sh(
            "x",
            f"cd ~; mkdir free; set -- ~/free; {MOVES[name]}; find free* 2> /dev/null | sort\n"
            "rm -rf ~/free*",
        )
        assert said.splitlines() == left, name


@as_both
def test_only_a_part_can_be_written_below_a_fixed_place(person):
    place = shop(person, "owner", "code")
    person.atoll("new", "x")
    script = f"touch src/new && ! touch top 2>/dev/null && ! mv {place.parent} ~/e 2>/dev/null; pwd"
    assert person.sh("x", script, options=("--write", "src")) == f"{place}\n"
    assert person.sh("x", "ls src/new; ls top 2>/dev/null || true") == "src/new\n"


TOOLS = "owner/.pyenv/bin"


def lay_tools(person):
    person.run("mkdir", "-p", person.place / TOOLS, cwd=person.place)


@as_both
def test_names_for_what_is_in_the_way_do_not_run_out(person):
    lay_tools(person)
    person.atoll("new", "x")
    taken = (
        "for i in $(seq 0 1100); do touch ~/.pyenv.moved-aside-$i; done; touch ~/.pyenv.moved-aside"
    )
    # A toolchain is a mount point while it is shown, and a plain name when it is not.
    hidden = person.place / "hidden"
    (person.place / "owner/.pyenv").rename(hidden)
    person.end_view("x")
    person.sh("x", f"rm -rf ~/.pyenv; echo mine > ~/.pyenv; {taken}")
    hidden.rename(person.place / "owner/.pyenv")
    person.end_view("x")
    assert (
        person.sh("x", "test -d ~/.pyenv/bin; cat ~/.pyenv.moved-aside-????????????????")
        == "mine\n"
    )


@as_both
def test_home_that_cannot_be_written_does_not_keep_the_room_from_being_built(person):
    lay_tools(person)
    person.atoll("new", "x")
    hidden = person.place / "hidden"
    (person.place / "owner/.pyenv").rename(hidden)
    person.end_view("x")
    person.sh("x", "echo work > work; rm -rf ~/.pyenv; echo mine > ~/.pyenv; chmod 555 ~")
    hidden.rename(person.place / "owner/.pyenv")
    person.end_view("x")
    assert person.sh("x", "test -d ~/.pyenv/bin; cat ~/.pyenv.moved-aside work") == "mine\nwork\n"


def test_objects_from_a_store_with_an_odd_name(person):
    """The owner's repository borrows from a place that git can only name in quotes."""
    store = person.place / 'odd "store"\nhere'
    person.git("clone", "--quiet", "--bare", person.repo, store, cwd=person.place)
    shutil.rmtree(person.repo / ".git/objects")
    (person.repo / ".git/objects/info").mkdir(parents=True)
    (person.repo / ".git/objects/pack").mkdir()
    quoted = str(store / "objects").replace('"', '\\"').replace("\n", "\\n")
    (person.repo / ".git/objects/info/alternates").write_text(f'"{quoted}"\n')
    assert person.git("fsck") == ""
    person.atoll("new", "x")
    assert person.sh("x", "git log --format=%s; git show HEAD:README.md") == "first\n# Sample\n"
