"""Rules for requests, and the paths that they are compared with."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.model.request_rules import (
    canonical_path,
    find_denial,
    is_of_repository,
    parse_repository,
    parse_rule,
    split_target,
)


@pytest.mark.parametrize(
    ("rule", "method", "path", "is_match"),
    [
        ("POST /v1/messages", "POST", "/v1/messages", True),
        ("POST /v1/messages", "POST", "/v1/messages/", False),
        ("POST /v1/messages", "post", "/v1/messages", False),
        ("post /v1/messages", "POST", "/v1/messages", True),
        ("POST /v1/*", "POST", "/v1/", True),
        ("POST /v1/*", "POST", "/v1", False),
        ("POST /v1*", "POST", "/v1", True),
        ("* /v1/*", "DELETE", "/v1/x/y", True),
        ("GET /*:stream", "GET", "/models/a:stream", True),
        ("GET /*:stream", "GET", "/models/a:stream/x", False),
        ("GET /a*b*c", "GET", "/abc", True),
        ("GET /a*b*c", "GET", "/acb", False),
        ("GET /ab*b", "GET", "/ab", False),
        ("GET /*", "GET", "/", True),
    ],
)
def test_rule_matches(rule, method, path, is_match):
    assert parse_rule(rule).matches(method, path) is is_match


@pytest.mark.parametrize(
    "text",
    ["", "POST", "/v1", "POST v1", "POST /v1?x", "POST /v1#x", "PO ST /x y", "POST /a/../b",
     "POST //x", "POST /a%2fb", "POST /\x00", "P0ST! /x", "POST /ä", "POST /a b"],
)  # fmt: skip
def test_malformed_rule(text):
    with pytest.raises(ValueError, match=r"is not|must have|has a path"):
        parse_rule(text)


LETTERS = st.text("ab/*", max_size=12)


@given(LETTERS, st.text("ab/", max_size=16))
def test_star_is_any_characters(pattern, path):
    """As a regular expression says it, which would be too slow for hostile paths."""
    rule, path = f"/{pattern}", f"/{path}"
    if "//" in rule:
        return
    expected = re.fullmatch(".*".join(map(re.escape, rule.split("*"))), path)
    assert parse_rule(f"GET {rule}").matches("GET", path) is (expected is not None)


def test_matching_takes_linear_time():
    rule = parse_rule("GET /" + "*a" * 30 + "b")
    assert not rule.matches("GET", "/" + "a" * 8000)


@pytest.mark.parametrize(
    "path",
    ["/a/../b", "/a/./b", "/..", "/.", "/a/..;x/b", "/a//b", "//a", "/a%2fb", "/a%2Fb", "/%2e%2e/b",
     "/a/%2e/b", "/a\\b", "/a%5cb", "/%252e%252e", "/a%00", "/a%0d%0ab", "/a%7f", "/%", "/%g0",
     "/%ff", "/.;/a", "/...", "/a/..%20/b", "/a/%20../b", "/a/.%20./b", "/a/..%c2%a0/b", "/a/%20/b",
     "/a/..%e2%80%8b/b", "/a/..%ef%bb%bf/b", "/a/%ef%bc%8e%ef%bc%8e/b", "/a/%e2%80%a5/b",
     "/a/%e2%80%a4%e2%80%a4/b", "/a/%ef%bd%a1./b", "/a%ef%bc%8fb", "/a%ef%bc%bcb", "/..%20;x/b"],
)  # fmt: skip
def test_ambiguous_path_is_refused(path):
    with pytest.raises(ValueError, match=r"has |is not"):
        canonical_path(path)


@pytest.mark.parametrize(
    ("path", "plain"),
    [("/", "/"), ("/v1/x", "/v1/x"), ("/%76%31", "/v1"), ("/a%20b", "/a b"), ("/%c3%a4", "/ä"),
     ("/a;x=1/b", "/a;x=1/b"), ("/.a./b..", "/.a./b.."), ("/a%20./.b", "/a ./.b"),
     ("/a/", "/a/"), ("/m:gen", "/m:gen")],
)  # fmt: skip
def test_canonical_path(path, plain):
    assert canonical_path(path) == plain


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=40))
def test_canonical_path_is_what_every_server_sees(text):
    try:
        plain = canonical_path(f"/{text}")
    except ValueError:
        return
    assert plain == unquote(f"/{text}", errors="strict")
    assert unquote(plain) == plain
    assert not {"", ".", ".."} & set(plain.split("/")[1:-1])


@pytest.mark.parametrize(
    "target", ["", "*", "x", "http://a/b", "/a b", "/a#b", "/ä", "/a\r\nb", "/" + "a" * 9000]
)
def test_target_in_another_form(target):
    with pytest.raises(ValueError, match=r"is too long|does not begin|has a fragment"):
        split_target(target)


def test_target_is_split_once():
    assert split_target("/a?b=/c?d") == ("/a", "?b=/c?d")
    assert split_target("/a") == ("/a", "")


def test_denial_wins():
    allow, deny = ["* /v1/*"], ["* /v1/files*"]
    assert find_denial("GET", "/v1/x", allow=allow, deny=deny) is None
    assert "denies" in (find_denial("GET", "/v1/files/1", allow=allow, deny=deny) or "")
    assert find_denial("GET", "/v2", allow=allow, deny=deny) == "no rule allows it"
    assert find_denial("GET", "/v2", allow=[], deny=deny) is None


def test_slash_at_the_end_hides_nothing():
    deny = ["* /v1/x", "* /v1/y*z"]
    for path in ("/v1/x", "/v1/x/", "/v1/x;a/", "/v1/x/;a", "/v1/yz/"):
        assert "denies" in (find_denial("GET", path, allow=[], deny=deny) or ""), path
    assert find_denial("GET", "/v1/x/z", allow=[], deny=deny) is None
    # What is allowed is not more than the rule says.
    assert find_denial("GET", "/v1/x/", allow=["* /v1/x"], deny=[]) == "no rule allows it"


@pytest.mark.parametrize("path", ["/v1;a/files", "/v1/files;a", "/v1/files;a/1"])
def test_path_parameters_hide_nothing(path):
    assert "denies" in (find_denial("GET", path, allow=[], deny=["* /v1/files*"]) or "")
    assert find_denial("GET", path, allow=["* /v1;*", "* /v1/files;*"], deny=[]) is not None
    assert find_denial("GET", path, allow=["* /v1*"], deny=["* /v2"]) is None


@pytest.mark.parametrize(
    ("method", "target", "is_fine"),
    [
        ("GET", "/o/n/info/refs?service=git-upload-pack", True),
        ("GET", "/O/N.git/info/refs?service=git-receive-pack", True),
        ("POST", "/o/n.git/git-upload-pack", True),
        ("POST", "/o/n/git-receive-pack", True),
        ("POST", "/o/n.git/info/lfs/objects/batch", True),
        ("GET", "/o/n/info/refs", False),
        ("GET", "/o/n/info/refs?service=git-upload-archive", False),
        ("GET", "/o/n/info/refs?service=git-upload-pack&x=1", False),
        ("POST", "/o/n/git-upload-pack?x", False),
        ("GET", "/o/n.git/HEAD", False),
        ("GET", "/o/n", False),
        ("GET", "/o/n.git.git/info/refs?service=git-upload-pack", False),
        ("GET", "/o/nn/info/refs?service=git-upload-pack", False),
        ("GET", "/x/o/n/info/refs?service=git-upload-pack", False),
        ("DELETE", "/o/n/info/lfs/locks", False),
        ("GET", "/o/\u212an/info/refs?service=git-upload-pack", False),
    ],
)
def test_requests_of_one_repository(method, target, is_fine):
    path, mark, query = target.partition("?")
    assert is_of_repository(method, path, mark + query, "o/n") is is_fine


def test_repository_names():
    assert parse_repository("owner/name.git") == "owner/name"
    assert parse_repository("group/sub/name") == "group/sub/name"
    for text in (
        "",
        "name",
        "/name",
        "owner/",
        "owner/..",
        "a/b c",
        "a/b?c",
        "a//b",
        "https://a/b",
    ):
        with pytest.raises(ValueError, match="owner/name"):
            parse_repository(text)
