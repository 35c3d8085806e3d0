"""Addresses of engines."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from narwhal.config.urls import BadUrl, Url, canonical_url, split_url


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://h", Url("http", "h", 80, "")),
        ("https://h", Url("https", "h", 443, "")),
        ("http://h/", Url("http", "h", 80, "")),
        ("HTTP://Some-Host.Example_1:65535", Url("http", "some-host.example_1", 65535, "")),
        ("http://10.0.0.7:1", Url("http", "10.0.0.7", 1, "")),
        ("http://[FE80::0001]:8000", Url("http", "fe80::1", 8000, "")),
    ],
)
def test_addresses(text: str, url: Url) -> None:
    assert split_url(text) == url
    assert split_url(canonical_url(text)) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h:80",
        "//h",
        "http:/h",
        "http://",
        "http://:80",
        "http://h:",
        "http://h:0",
        "http://h:65536",
        "http://h:8o",
        "http://h:80:80",
        "http://h:٣",
        "ftp://h",
        "http://a b",
        "http://h\t",
        "http://h\n",
        "http://h\\x",
        "http://bücher",
        "http://[::1",
        "http://[::g]",
        "http://[]",
        "http://::1",
        "http://1.2.3",
        "http://256.1.1.1",
        "http://u@h",
        "http://u:p@h",
        "http://h?x",
        "http://h#x",
        "http://h/?",
        "http://h/x",
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(BadUrl):
        split_url(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("http://u:p@h", "must not carry a user name or password"),
        ("http://h/?x", "must not have a query or a fragment"),
        ("http://h#x", "must not have a query or a fragment"),
        ("http://h/x", "must not have a path (the router adds the paths of the engine's API)"),
        ("http://h:0", "must have a port between 1 and 65535, not 0"),
        ("http://h:65536", "must have a port between 1 and 65535, not 65536"),
        ("http://1.2.3", "must be http:// or https:// with a host and, if need be, a port (1.2.3 "),
        ("h:80", "must be http:// or https:// with a host and, if need be, a port"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    with pytest.raises(BadUrl) as caught:
        split_url(text)
    assert str(caught.value).startswith(message)


def test_paths_where_they_are_allowed() -> None:
    assert split_url("http://h/a/B%20c/", path_allowed=True).path == "/a/B%20c"
    for text in ("http://h/a b", "http://h/a?b", "http://h/a#b", "http://h/ä"):
        with pytest.raises(BadUrl):
            split_url(text, path_allowed=True)


@given(
    st.text() | st.from_regex(r"https?://[a-zA-Z0-9.:@\[\]/?#%-]*", fullmatch=True), st.booleans()
)
@example("http://[::ffff:1.2.3.4]", False)
@settings(deadline=None)
def test_any_text_is_an_address_or_is_refused(text: str, path_allowed: bool) -> None:
    try:
        url = split_url(text, path_allowed=path_allowed)
    except BadUrl:
        return
    kept = canonical_url(text)
    assert split_url(kept, path_allowed=path_allowed) == url
    assert canonical_url(kept) == kept
    assert url.host == url.host.lower()
    assert not kept.endswith("/")
