"""Runs on a terminal."""

from __future__ import annotations

import contextlib
import signal

from atoll.keeper.wire import MessageKind

WAIT = "while :; do sleep 0.05; done"


def start(keep, script: str, **changes):
    keeper = keep("sh", "-c", script, tty=True, foreground=True, stdin="client", **changes)
    return keeper, keeper.client("foreground", rows=30, cols=100)


def test_it_is_a_terminal_of_the_size_asked_for(keep):
    keeper, client = start(keep, "test -t 0 && test -t 1 && test -t 2 && stty size </dev/tty")
    assert client.read_to_end()["exit_code"] == 0
    assert client.out == b"30 100\r\n"
    keeper.wait_ended()


def test_resize(keep):
    keeper, client = start(keep, f"trap 'stty size' WINCH; echo up; {WAIT}")
    client.read_until(lambda: b"up" in client.out, "the first word")
    client.send_json(MessageKind.RESIZE, {"rows": 50, "cols": 132})
    client.read_until(lambda: b"50 132" in client.out, "the new size")
    client.send_json(MessageKind.RESIZE, {"rows": -1, "cols": 1 << 40})
    assert keeper.stop(grace_s=0.3).reason == "stopped"


def test_ctrl_c(keep):
    keeper, client = start(keep, f"echo up; {WAIT}")
    client.read_until(lambda: b"up" in client.out, "the first word")
    client.send(MessageKind.STDIN, b"\x03")
    ended = client.read_to_end()
    assert (ended["reason"], ended["signal"]) == ("signalled", signal.SIGINT)
    assert b"^C" in client.out
    keeper.wait_ended()


def test_signal_goes_to_the_foreground_group(keep):
    script = 'set -m; sh -c \'trap "echo inner; exit 3" INT; echo up; ' + WAIT + "'; echo code $?"
    keeper, client = start(keep, script)
    client.read_until(lambda: b"up" in client.out, "the inner command")
    client.send_json(MessageKind.SIGNAL, {"signal": int(signal.SIGINT)})
    assert client.read_to_end()["reason"] == "exited"
    assert client.out == b"up\r\ninner\r\ncode 3\r\n"
    keeper.wait_ended()


def test_end_of_input(keep):
    keeper, client = start(keep, "stty -echo; echo up; cat; echo over")
    client.read_until(lambda: b"up" in client.out, "the first word")
    client.send(MessageKind.STDIN, b"line\nrest")
    client.send(MessageKind.STDIN_EOF)
    with contextlib.suppress(BrokenPipeError):  # it may be over by now
        client.send(MessageKind.STDIN_EOF)
    assert client.read_to_end()["exit_code"] == 0
    assert client.out == b"up\r\nline\r\nrestover\r\n"
    keeper.wait_ended()


def test_long_output_arrives_whole(keep):
    keeper, client = start(keep, "seq 100000")
    assert client.read_to_end()["exit_code"] == 0
    assert client.out == b"".join(b"%d\r\n" % number for number in range(1, 100001))
    keeper.wait_ended()
    assert keeper.logged()[-8:] == b"100000\r\n"


def test_command_that_lets_go_of_its_terminal(keep):
    script = "exec 0<&- 1>&- 2>&-; sleep 0.2; exec >/dev/tty; echo back; exit 4"
    keeper, client = start(keep, script)
    assert client.read_to_end()["exit_code"] == 4
    assert client.out == b"back\r\n"
    keeper.wait_ended()


def test_hangup(keep):
    keeper, client = start(keep, "sleep 1000 & nohup sleep 1000 >/dev/null 2>&1 & echo up; cat")
    client.read_until(lambda: b"up" in client.out, "the first word")
    client.close()
    assert keeper.wait_ended().reason == "hangup"


def test_attached_client_writes_too(keep):
    keeper = keep("sh", "-c", "read x; echo got $x", tty=True, stdin="client")
    client = keeper.client("attach", rows=10, cols=20)
    client.send(MessageKind.STDIN, b"word\n")
    assert client.read_to_end()["exit_code"] == 0
    assert b"got word\r\n" in client.out
    keeper.wait_ended()


def test_without_client_input_stdin_is_empty(keep):
    keeper = keep("sh", "-c", "cat; test -t 1", tty=True)
    assert keeper.wait_ended().exit_code == 0


def test_replay_asks_the_terminal_nothing(keep):
    """A client that comes late sees the screen; only one that is there is asked."""
    queries = r"\033[6n\033]11;?\033\\\033[?u\033[>q\033P+q544e\033\\"
    halves = r"printf '\033['; read -r go; printf '6n'"
    script = f"stty -echo; printf 'one{queries}two\\033[1mbold\\n'; {halves}; echo up; read -r go"
    keeper, client = start(keep, script)
    client.read_until(lambda: b"\033[" in client.out[-2:], "the first half of a query")
    client.send(MessageKind.STDIN, b"\n")
    client.read_until(lambda: b"up" in client.out, "the last word")
    assert client.out.count(b"\033[6n") == 2
    late = keeper.client("attach")
    late.read_until(lambda: b"up" in late.out, "the replay")
    assert late.out == b"onetwo\033[1mbold\r\nup\r\n"
    client.send(MessageKind.STDIN, b"\n")
    assert late.read_to_end()["exit_code"] == 0
    keeper.wait_ended()


def test_replay_of_other_output_is_whole(keep):
    keeper = keep("sh", "-c", r"printf '\033[6nup\n'; exec sleep 1000")
    late = keeper.client("attach")
    late.read_until(lambda: b"up" in late.out, "the replay")
    assert late.out == b"\033[6nup\n"
    assert keeper.stop().reason == "stopped"
