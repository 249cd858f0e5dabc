"""The words on a screen, from the output of programs as they were recorded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.engine.agent.screen_text import find_last_words, read_screen
from atoll.keeper.log import LogEntry
from atoll.model.agent import AgentEventKind

RULE = "\r\n──────────\r\n"
BOX = f"{RULE}\x1b[2m>\x1b[0m {RULE}  ⏵⏵ bypass permissions on (shift+tab to cycle)"
LAST_WORDS: dict[str, tuple[str, str]] = {
    "nothing": ("", ""),
    "plain text": ("one\r\nheard hello\r\n", "heard hello"),
    "a prompt": ("heard hello\r\nready> ", "ready>"),
    "colours and a title": ("\x1b]0;✳ title here\x07\x1b[31mIt is\x1b[0m done\r\n", "It is done"),
    "an input box below": (f"⏺ Written to hello.txt.{BOX}", "Written to hello.txt."),
    "frames only": ("╭───╮\r\n│ ▝ ▀ │\r\n╰───╯\r\n - \r\n13;", ""),
    "a spinner below": ("Written.\r\n✳ Percolating… (3s · esc to interrupt)", "Written."),
    "another spinner": ("Written.\r\n⠋ Thinking...", "Written."),
    "a status line": ("Written.\r\n~/repo   main   sonnet-4.5   100%", "Written."),
    "a status line with dots": ("• Written.\r\n\r\n gpt-5 default · /tmp/repo", "Written."),
    "a directory": ("Written.\r\n /tmp/h/repo [⎇ atoll/x]", "Written."),
    "a placeholder": ("✦ Written.\r\n *   Type your message or @path/to/file", "Written."),
    "words in pieces": ("\x1b[5;3HAnsw\x1b[7;1Hfooter\x1b[5;7Her number 1.\x1b[7;1H\x1b[K",
                        "Answer number 1."),
    "words written over": ("Answer nothing\r\x1b[7Cnumber 12\x1b[K", "Answer number 12"),
    "an erased screen": ("old words\x1b[2J\x1b[H\x1b[3;1Hnew words", "new words"),
    "a line above": ("one two\r\nthree four\x1b[1A\r\x1b[2Kfive six\x1b[1B\r\x1b[2K", "five six"),
    "a scrolled screen": ("".join(f"line number {n}\r\n" for n in range(99)), "line number 98"),
    "hidden characters": ("no\u200bth\u202eing\r\n", "nothing"),
    "the end of a sequence": ("4;12mHello there\r\n", "4;12mHello there"),
}  # fmt: skip


@pytest.mark.parametrize("case", LAST_WORDS)
def test_last_words(case: str) -> None:
    text, words = LAST_WORDS[case]
    data = text.encode()
    halves = [
        LogEntry(1.0, "out", data[: len(data) // 2]),
        LogEntry(2.0, "out", data[len(data) // 2 :]),
    ]
    assert find_last_words(halves) == words


MOVES = [f"\x1b[{values}{final}" for values in ("", "0", "7", "99999999", "5;9", ";;;")
         for final in "ABCDEFGHJKLMPSTXdfr@"]  # fmt: skip


@given(
    st.lists(
        st.one_of(st.sampled_from([*MOVES, "\x1bM", "\n", "\r", "\b", "\t", "\x1b["]), st.text())
    )
)
def test_any_output_is_read(pieces: list[str]) -> None:
    words = find_last_words([LogEntry(1.0, "out", "".join(pieces).encode(errors="replace"))])
    assert "\x1b" not in words
    assert len(words.splitlines()) <= 1


def entries(*texts: str) -> list[LogEntry]:
    return [LogEntry(float(at), "out", text.encode()) for at, text in enumerate(texts, 1)]


SCREENS = ("\x1b[?1049h", "\x1b[?2004h> ", "\x1b[3;4Hx", "\x1b[2A", "\x1b[10G")


@pytest.mark.parametrize("drawn", SCREENS)
def test_screen_is_one_notice(drawn: str) -> None:
    found = list(read_screen(entries(drawn, "│ x │\r\n", drawn), is_plain=False, name="x"))
    assert [(e.kind, e.text, e.at) for e in found] == [
        (AgentEventKind.NOTICE, "its screen has no transcript; to see it: atoll attach x", 1.0)
    ]


def test_lines_are_text() -> None:
    lines = entries("\x1b[1mone\x1b[0m\r\n", "two\x1b[K\r\nthr", "ee")
    found = list(read_screen(lines, is_plain=False, name="x"))
    assert [e.text for e in found] == ["\x1b[1mone\x1b[0m", "two\x1b[K", "three"]


def test_program_that_is_known_to_write_lines() -> None:
    found = list(read_screen(entries("\x1b[2Aone\r\n"), is_plain=True, name="x"))
    assert [e.text for e in found] == ["\x1b[2Aone"]
