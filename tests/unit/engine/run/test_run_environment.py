"""Variables of a run, from words and files; no message contains a value."""

from __future__ import annotations

import pytest

from atoll.engine.run.run_environment import (
    FILE_LIMIT_BYTES,
    VALUE_LIMIT_BYTES,
    load_file,
    parse_words,
    require_variables,
)
from atoll.engine.run.runs import RunSpec
from atoll.model.errors import SpecError

VALUE = "s3cr3t-canary"


def test_words():
    owner = {"FROM_OWNER": "theirs"}
    assert parse_words(("A=1", "B=x=y", "C=", "FROM_OWNER", "A=2"), owner) == {
        "A": "2", "B": "x=y", "C": "", "FROM_OWNER": "theirs",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("MISSING", "not set in your environment"),
        (f"={VALUE}", "is not a variable name"),
        (f"A-B={VALUE}", "is not a variable name"),
        (f"ATOLL_RUN={VALUE}", "is set by Atoll itself"),
        (f"HOME={VALUE}", "is set by Atoll itself"),
        (f"A={VALUE}\0", "null byte"),
        ("A=" + VALUE + "x" * VALUE_LIMIT_BYTES, "longer than"),
        (VALUE, "is not a variable name"),
    ],
)
def test_refused_words(word, message):
    with pytest.raises(SpecError, match=message) as caught:
        parse_words((word,), {})
    assert VALUE not in str(caught.value)
    assert VALUE not in str(caught.value.hint)


def test_file(tmp_path):
    path = tmp_path / "env"
    path.write_text(
        "# comment\n\nA=plain value # comment\nexport B = 'single # $x'\r\n"
        'C="two\\nlines \\"q\\" \\\\ \\d" # comment\nD=\nE=a#b\nF=#c\n'
    )
    assert load_file(str(path)) == {
        "A": "plain value", "B": "single # $x", "C": 'two\nlines "q" \\ \\d', "D": "", "E": "a#b",
        "F": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (VALUE, "line 2 is not `KEY=VALUE`"),
        (f"A='{VALUE}", "line 2: the quotes do not match"),
        (f'A="{VALUE}" rest', "line 2: the quotes do not match"),
        (f"1A={VALUE}", "line 2: the name is not"),
        (f"ATOLL_RUN={VALUE}", "line 2: the name is set by Atoll"),
    ],
)
def test_refused_lines(tmp_path, line, message):
    path = tmp_path / "env"
    path.write_text(f"OK=1\n{line}\n")
    with pytest.raises(SpecError, match=message) as caught:
        load_file(str(path))
    assert str(path) in str(caught.value)
    assert VALUE not in str(caught.value)


def test_refused_files(tmp_path):
    with pytest.raises(SpecError, match="cannot read"):
        load_file(str(tmp_path / "none"))
    path = tmp_path / "env"
    path.write_bytes(b"#" * (FILE_LIMIT_BYTES + 1))
    with pytest.raises(SpecError, match="larger than"):
        load_file(str(path))
    path.write_bytes(b"A=\xff\n")
    with pytest.raises(SpecError, match="not UTF-8"):
        load_file(str(path))


def test_representation_has_no_value():
    spec = RunSpec(argv=("x",), private_env={"KEY": VALUE}, redact=(VALUE.encode(),))
    assert VALUE not in repr(spec)
    assert "KEY" in repr(spec)


def test_all_variables_are_bounded():
    with pytest.raises(SpecError, match="take more than"):
        require_variables({f"A{number}": "x" * 100_000 for number in range(11)})
