from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import traceback

import pytest

from atoll.drivers.contracts import VaultKey
from atoll.drivers.secret.vault import NAME, FileVault
from atoll.model.errors import StateError

KEY = VaultKey("first", b"k" * 32)
OTHER = VaultKey("first", b"o" * 32)
CANARY = b"canary-4c1e-value"


@pytest.fixture
def vault(tmp_path):
    return FileVault(tmp_path / "secrets")


def stored(vault):
    return json.loads(vault.path.read_text())


def store(vault, content):
    vault.path.write_text(json.dumps(content))


def value_of(vault, name="A", key=KEY, project="p"):
    return vault.find(key, project, name).value


def test_empty_vault_has_nothing(vault):
    assert vault.is_empty()
    assert vault.names("p") == []
    assert vault.find(KEY, "p", "A") is None
    assert not vault.remove("p", "A")
    assert not vault.path.parent.exists(), "reading creates nothing"


def test_values_come_back(vault):
    vault.put(KEY, "p", "A", CANARY)
    vault.put(KEY, "p", "B", b"\0\xff")
    vault.put(KEY, "q", "A", b"other")
    again = FileVault(vault.path.parent)
    assert [value_of(again), value_of(again, "B"), value_of(again, project="q")] == [
        CANARY, b"\0\xff", b"other",
    ]  # fmt: skip
    assert (again.names("p"), again.is_empty()) == (["A", "B"], False)


def test_file_is_private_and_has_no_value(vault):
    vault.put(KEY, "p", "A", CANARY)
    assert vault.path.stat().st_mode & 0o777 == 0o600
    assert vault.path.parent.stat().st_mode & 0o777 == 0o700
    content = vault.path.read_bytes()
    forms = (CANARY, base64.b64encode(CANARY)[:-4], CANARY.hex().encode())
    assert not any(form in content for form in forms)
    assert os.listdir(vault.path.parent) == [NAME], "no temporary file is left"


def test_length_is_rounded(vault):
    vault.put(KEY, "p", "A", b"1234")
    vault.put(KEY, "p", "B", b"123456")
    entries = stored(vault)["entries"]["p"]
    assert len(entries["A"]["sealed"]) == len(entries["B"]["sealed"])


def test_earlier_values_are_kept_for_searches(vault):
    for value in (b"1", b"2", b"2", b"3", b"4", b"5"):
        vault.put(KEY, "p", "A", value)
    kept = vault.find(KEY, "p", "A")
    assert (kept.value, kept.earlier) == (b"5", (b"4", b"3", b"2"))
    vault.put(KEY, "p", "A", b"4")
    assert vault.find(KEY, "p", "A").earlier == (b"5", b"3", b"2")


def test_value_of_other_settings_is_replaced_by_a_change_only(vault):
    assert vault.put(KEY, "p", "A", CANARY, revision="one")
    assert vault.put(KEY, "p", "A", b"rotated", revision="one")
    assert not vault.put(KEY, "p", "A", b"late", revision="two")
    kept = vault.find(KEY, "p", "A")
    assert (kept.value, kept.revision, kept.earlier) == (b"rotated", "one", (CANARY,))
    assert vault.put(KEY, "p", "A", b"new", revision="two", is_change=True)
    kept = vault.find(KEY, "p", "A")
    assert (kept.value, kept.revision, kept.earlier) == (b"new", "two", (b"rotated", CANARY))


def test_removed_value_is_gone(vault):
    vault.put(KEY, "p", "A", b"1")
    assert vault.remove("p", "A")
    assert not vault.remove("p", "A")
    assert vault.find(KEY, "p", "A") is None
    assert stored(vault)["entries"] == {}


def test_entries_cannot_be_exchanged(vault):
    vault.put(KEY, "p", "A", b"one")
    vault.put(KEY, "p", "B", b"two")
    vault.put(KEY, "q", "A", b"three")
    content = stored(vault)
    own, others = content["entries"]["p"], content["entries"]["q"]
    own["A"], own["B"] = own["B"], own["A"]
    own["C"] = others["A"]
    others["A"] = own["A"]
    store(vault, content)
    for project, name in (("p", "A"), ("p", "B"), ("p", "C"), ("q", "A")):
        with pytest.raises(StateError, match="was changed by something else"):
            vault.find(KEY, project, name)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("at", 1.5),
        ("revision", "other"),
        ("nonce", base64.b64encode(b"n" * 12).decode()),
        ("nonce", "short"),
        ("sealed", base64.b64encode(b"s" * 80).decode()),
        ("sealed", ""),
        ("sealed", "%%%"),
    ],
)
def test_changed_field_is_found(vault, field, value):
    vault.put(KEY, "p", "A", CANARY)
    content = stored(vault)
    content["entries"]["p"]["A"][field] = value
    store(vault, content)
    with pytest.raises(StateError, match="was changed by something else") as caught:
        vault.find(KEY, "p", "A")
    assert "atoll secret rm A" in str(caught.value.hint)


def test_other_key(vault):
    vault.put(KEY, "p", "A", CANARY)
    with pytest.raises(StateError, match="was changed"):
        vault.find(OTHER, "p", "A")
    with pytest.raises(StateError, match="encrypted with another key"):
        vault.find(KEY._replace(id="second"), "p", "A")
    with pytest.raises(StateError, match="encrypted with another key"):
        vault.put(KEY._replace(id="second"), "p", "A", b"new")
    assert value_of(vault) == CANARY, "it is not overwritten with another key"


def test_newer_version_is_named(vault):
    vault.put(KEY, "p", "A", b"1")
    store(vault, {**stored(vault), "version": 7})
    with pytest.raises(StateError, match=r"newer Atoll \(version 7, this one knows 1\)"):
        vault.names("p")
    with pytest.raises(StateError, match="newer"):
        vault.put(KEY, "p", "A", b"2")
    assert stored(vault)["version"] == 7


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[" * 200_000, "[]", "null", '"x"', "\x00", "{}",
        '{"format": "atoll-vault", "version": "1", "entries": {}}',
        '{"format": "other", "version": 1, "entries": {}}',
        '{"format": "atoll-vault", "version": 1}',
        '{"format": "atoll-vault", "version": 1, "entries": []}',
        '{"format": "atoll-vault", "version": 1, "entries": {"p": []}}',
        '{"format": "atoll-vault", "version": 1, "entries": {"p": {"A": {}}}}',
        '{"format": "atoll-vault", "version": 1, "entries": {"p": {"A": "x"}}}',
    ],
)  # fmt: skip
def test_damaged_file(vault, content):
    vault.path.parent.mkdir(mode=0o700)
    vault.path.write_text(content)
    vault.path.chmod(0o600)
    for act in (
        lambda: vault.names("p"),
        lambda: vault.find(KEY, "p", "A"),
        lambda: vault.put(KEY, "p", "A", b"1"),
        lambda: vault.remove("p", "A"),
    ):
        with pytest.raises(StateError, match="is damaged"):
            act()
    assert vault.path.read_text() == content, "it is never overwritten"


def test_truncated_file(vault):
    vault.put(KEY, "p", "A", CANARY)
    whole = vault.path.read_bytes()
    for length in range(0, len(whole) - 1, 7):
        vault.path.write_bytes(whole[:length])
        with pytest.raises(StateError, match="is damaged"):
            vault.find(KEY, "p", "A")


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o602, 0o777])
def test_file_that_others_can_read_is_refused(vault, mode):
    vault.put(KEY, "p", "A", b"1")
    vault.path.chmod(mode)
    with pytest.raises(StateError, match="by others") as caught:
        vault.find(KEY, "p", "A")
    assert caught.value.hint == f"chmod 600 '{vault.path}'"


def test_link_is_not_followed(vault, tmp_path):
    vault.put(KEY, "p", "A", b"1")
    vault.path.rename(tmp_path / "elsewhere")
    vault.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="symbolic link"):
        vault.names("p")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_file_of_another_user_is_refused(vault):
    vault.put(KEY, "p", "A", b"1")
    os.chown(vault.path, 65_534, 65_534)
    with pytest.raises(StateError, match="belongs to user id 65534"):
        vault.names("p")


WRITER = """
import sys
from pathlib import Path
from atoll.drivers.contracts import VaultKey
from atoll.drivers.secret.vault import FileVault
vault = FileVault(Path(sys.argv[1]))
for number in range(10):
    vault.put(VaultKey("first", b"k" * 32), "p", f"{sys.argv[2]}{number}", b"x")
"""


def test_concurrent_writers_lose_nothing(vault):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, vault.path.parent, word]) for word in "ABC"
    ]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    assert vault.names("p") == sorted(f"{word}{n}" for word in "ABC" for n in range(10))
    assert value_of(vault, "C9") == b"x"


def test_nothing_shows_a_value(vault):
    vault.put(KEY, "p", "A", CANARY)
    kept = vault.find(KEY, "p", "A")
    vault.path.write_text("{")
    try:
        vault.find(KEY, "p", "A")
    except StateError as error:
        lines = traceback.TracebackException.from_exception(error, capture_locals=True).format()
        shown = repr(kept) + repr(KEY) + "".join(lines)
    assert "canary" not in shown
    assert "kkkk" not in shown
