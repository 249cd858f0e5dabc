"""Planning: everything is decided, nothing is changed, and what cannot be kept is refused."""

from __future__ import annotations

import pytest

from atoll.engine.capsule.creation import SetupError
from atoll.engine.projects import CapsuleSpec, open_project
from atoll.model.errors import (
    IsolationError,
    PrerequisiteError,
    SpecError,
    StateError,
)
from atoll.testing.conformance.witness import look


@pytest.fixture
def project(repo, atoll_home):
    opened = open_project(repo)
    yield opened
    opened.session.store.close()


@pytest.fixture
def trusted(project):
    """`trusted(text)`: the project with this file, approved."""

    def write(text):
        (project.root / "atoll.toml").write_text(text)
        project.trust()
        return project

    return write


def test_plan_without_any_file(project, git):
    plan = project.plan("fix-auth")
    assert (plan.name, plan.level, plan.base_ref, plan.ports) == (
        "fix-auth",
        "worktree",
        "main",
        ("web",),
    )
    assert plan.base_commit == git("rev-parse", "HEAD", cwd=project.root).strip()
    assert plan.workspace.branch == "atoll/fix-auth"
    assert plan.workspace.path.endswith("/fix-auth")
    assert (plan.isolation.author, plan.isolation.email) == ("Test Owner", "owner@example.org")
    assert plan.time_limit_s is None


def test_plan_changes_nothing(project, atoll_home, tmp_path):
    before = look(project.root)
    project.plan("x")
    assert look(project.root) == before
    assert not list(atoll_home.glob("projects/*"))


def test_level_none_is_the_checkout(project):
    plan = project.plan("x", CapsuleSpec(level="none"))
    assert (plan.workspace.path, plan.workspace.branch) == (str(project.root), None)
    assert plan.isolation.private is None


@pytest.mark.parametrize("level", ["container", "vm"])
def test_missing_level_is_never_replaced_by_another(project, level):
    with pytest.raises(IsolationError) as caught:
        project.new("x", level=level)
    assert caught.value.exit_code == 6
    assert project.capsules() == []


@pytest.mark.parametrize("name", ["a/b", "..", "-x", "A", "", "x" * 300, "🚀", "a b", "x\n"])
def test_bad_name_is_refused_before_anything(project, name):
    with pytest.raises(SpecError):
        project.plan(name)


@pytest.mark.parametrize("base", ["nothing", "--upload-pack=x", "-h", "HEAD~99", "a..b", "", "\n"])
def test_base_that_names_no_commit(project, base):
    with pytest.raises(StateError, match="ambiguous revision") as caught:
        project.plan("x", CapsuleSpec(base=base))
    assert caught.value.message.isprintable()


def test_base_of_choice(project, git):
    first = git("rev-parse", "HEAD~1", cwd=project.root).strip()
    plan = project.plan("x", CapsuleSpec(base="HEAD~1"))
    assert (plan.base_commit, plan.base_ref) == (first, "HEAD~1")


def test_detached_head_is_called_so(project, git):
    git("switch", "--quiet", "--detach", cwd=project.root)
    assert project.plan("x").base_ref == "HEAD"


def test_repository_without_a_commit(make_repo, atoll_home):
    project = open_project(make_repo(files={}))
    with pytest.raises(StateError) as caught:
        project.plan("x")
    assert "git commit" in str(caught.value.hint)
    project.session.store.close()


@pytest.mark.parametrize(
    "limit", ["memory=1G", "disk=1G", "output=1M", "idle=1m", "cpus=1", "pids=100", "files=64"]
)
def test_limit_that_is_not_enforced_is_refused(project, limit):
    with pytest.raises(IsolationError) as caught:
        project.plan("x", CapsuleSpec(limits=(limit,)))
    assert caught.value.exit_code == 6
    name = limit.partition("=")[0]
    assert f"--limit {name}=none" in str(caught.value.hint)
    project.plan("x", CapsuleSpec(limits=(f"{name}=none",)))


def test_time_limit_is_kept(project):
    assert project.plan("x", CapsuleSpec(limits=("time=90s",))).time_limit_s == 90.0


@pytest.mark.parametrize("network", ["none", "allow"])
def test_network_that_is_not_walled_is_refused(project, network):
    with pytest.raises(IsolationError) as caught:
        project.plan("x", CapsuleSpec(network=network))
    assert caught.value.exit_code == 6
    assert "--network open" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('[capsule]\nlimits = { memory = "4G" }\n', IsolationError),
        ('[capsule]\nnetwork = "none"\n', IsolationError),
        ('[capsule]\nsetup_network = "none"\nsetup = ["true"]\n', IsolationError),
        ('[capsule]\nnetwork = "allow"\nallow = ["a.example.org"]\n', IsolationError),
        ('[capsule]\nlevel = "container"\n', IsolationError),
        ('[project]\ncarry = [".venv"]\n', PrerequisiteError),
        ('[tools]\nuse = "mise"\n', PrerequisiteError),
    ],
)
def test_part_that_does_not_work_yet_is_refused_when_it_is_used(trusted, text, error, monkeypatch):
    if "level" in text:
        monkeypatch.delenv("ATOLL_LEVEL")
    project = trusted(text)
    with pytest.raises(error) as caught:
        project.plan("x")
    assert caught.value.hint
    with pytest.raises(error):
        project.new("x")
    assert project.capsules() == []


def test_all_that_is_missing_is_reported_together(trusted):
    project = trusted(
        '[project]\ncarry = [".venv"]\n[tools]\nuse = "nix"\n'
        '[secrets.KEY]\nfrom = { env = "KEY" }\n'
    )
    assert "KEY" in project.config().file.secrets, "declared, and granted by nobody"
    with pytest.raises(PrerequisiteError) as caught:
        project.plan("x")
    for part in (".venv", "nix"):
        assert part in caught.value.message
    assert "KEY" not in caught.value.message


def test_services_ask_for_their_ports(trusted):
    project = trusted(
        '[services.web]\ncommand = "serve"\nport = 3000\n'
        '[services.db]\ncommand = "db"\nport = 5432\n'
    )
    assert project.plan("x").ports == ("web", "db")


def test_set_up_runs_only_after_approval(project):
    (project.root / "atoll.toml").write_text('[capsule]\nsetup = ["touch made"]\n')
    with pytest.raises(StateError):
        project.new("x")
    assert project.capsules() == []
    project.trust()
    capsule = project.new("x")
    assert (capsule.path / "made").exists()
    assert not (project.root / "made").exists()
    capsule.remove(force=True)


def test_file_inside_a_capsule_counts_for_nothing(project):
    capsule = project.new("x")
    (capsule.path / "atoll.toml").write_text('[capsule]\nsetup = ["touch made"]\n')
    again = open_project(capsule.path)
    assert again.root == project.root
    assert again.config().file is None
    again.session.store.close()
    capsule.remove(force=True)


def test_failed_set_up_leaves_nothing(trusted, git):
    project = trusted('[capsule]\nsetup = ["true", "echo because >&2; exit 7", "touch never"]\n')
    with pytest.raises(SetupError) as caught:
        project.new("x")
    assert caught.value.exit_code == 1
    assert "because" in caught.value.message
    assert caught.value.hint
    assert project.capsules() == []
    assert git("branch", "--list", "atoll/*", cwd=project.root) == ""
    assert project.session.store.leased_ports() == set()


MEET = """
echo here > "$MEETING/$ATOLL_CAPSULE"
for i in $(seq 600); do test $(ls "$MEETING" | wc -l) = 3 && exit 0; sleep 0.05; done; exit 9
"""


def test_several_are_set_up_at_the_same_time(trusted, tmp_path):
    """Each set-up waits for the others."""
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    command = MEET.replace("$MEETING", str(meeting)).strip().replace("\n", "; ")
    project = trusted(f"[capsule]\nsetup = ['''{command}''']\n")
    made = project.new_many(["a", "b", "c"])
    assert [capsule.name for capsule in made] == ["a", "b", "c"]
    assert project.on_all(made, lambda capsule: capsule.run(["true"]).outcome.exit_code) == [0] * 3
    for capsule in made:
        capsule.remove()


def test_if_one_of_several_fails_none_is_kept(trusted, git):
    project = trusted(
        "[capsule]\nsetup = ['test $ATOLL_CAPSULE != b || exit 7; sleep 600', 'touch never']\n"
    )
    with pytest.raises(SetupError):
        project.new_many(["a", "b", "c"])
    assert project.capsules() == []
    assert project.session.store.runs() == []
    assert "atoll/" not in git("for-each-ref", cwd=project.root)


def test_taken_branch_is_refused_and_stays(project, git):
    git("branch", "atoll/x", "HEAD~1", cwd=project.root)
    before = git("rev-parse", "atoll/x", cwd=project.root)
    with pytest.raises(StateError) as caught:
        project.new("x")
    assert "git branch -m atoll/x" in str(caught.value.hint)
    assert git("rev-parse", "atoll/x", cwd=project.root) == before
    assert project.capsules() == []


def test_branch_that_is_checked_out_says_where(project, git, tmp_path):
    git("worktree", "add", "--quiet", "-b", "atoll/x", tmp_path / "side", cwd=project.root)
    with pytest.raises(StateError, match=f"`{tmp_path / 'side'}`"):
        project.new("x")


def test_taken_name_is_refused(project):
    with project.new("x"), pytest.raises(StateError, match="`x`"):
        project.new("x")


def test_variables_of_the_file_are_inside(trusted):
    project = trusted('[capsule]\nenv = { GREETING = "hello world" }\n')
    with project.new("x") as capsule:
        env = capsule.enclosure().env
        assert env["GREETING"] == "hello world"
        assert env["ATOLL_CAPSULE"] == "x"
        assert env["PORT"] == env["ATOLL_PORT_WEB"] == str(capsule.ports["web"])
