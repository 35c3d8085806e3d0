"""Lists of keys, addresses to listen on, and where keys come from."""

from __future__ import annotations

import pytest
from config_samples import document, parse, problems
from hypothesis import given
from hypothesis import strategies as st

from narwhal.config import client_keys, control_token
from narwhal.config.binds import BadBind, is_loopback, split_bind
from narwhal.config.keys import split_keys
from narwhal.model import ConfigError

_keys = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters=",#"))


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("one", ("one",)),
        ("one,two", ("one", "two")),
        (" one ,\n two\r\n\n,", ("one", "two")),
        ("one\none\n", ("one",)),
        ("# alice\none\n#bob\ntwo#2\n", ("one", "two#2")),
    ],
)
def test_a_list_of_keys(text: str, keys: tuple[str, ...]) -> None:
    assert split_keys(text) == keys


@given(st.lists(_keys.filter(bool), min_size=1, unique=True), st.sampled_from([",", "\n", " ,\n"]))
def test_keys_come_back_in_their_order(keys: list[str], between: str) -> None:
    assert list(split_keys(between.join(keys))) == keys


@pytest.mark.parametrize("text", ["", " ", ",\n,", "# none", "hu sh", "hu\tsh", "h\x00sh", "hüsh"])
def test_what_is_no_list_of_keys_is_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match=r"^holds ") as wrong:
        split_keys(text)
    assert "sh" not in str(wrong.value).replace("that", "")


def test_keys_of_clients_come_from_the_environment() -> None:
    config = parse(document(serving__api_key_env="KEYS"), KEYS="hush-1,hush-2")
    assert client_keys(config, {"KEYS": "hush-3\nhush-4"}) == ("hush-3", "hush-4")
    assert client_keys(parse(document()), {}) == ()
    assert "hush" not in repr(config)
    for environ in ({}, {"KEYS": ""}, {"KEYS": " , "}):
        with pytest.raises(ConfigError, match=r"^serving\.api_key_env names .* variable KEYS, "):
            client_keys(config, environ)
        (line,) = problems(document(serving__api_key_env="KEYS"), **environ)
        assert line.startswith("serving.api_key_env names the environment variable KEYS, which ")


def test_the_token_of_the_control_routes_comes_from_the_environment() -> None:
    config = parse(document(control__token_env="TOKEN"), TOKEN="hush")
    assert control_token(config, {"TOKEN": "other"}) == "other"
    assert control_token(parse(document()), {}) is None
    (line,) = problems(document(control__token_env="TOKEN"), TOKEN="one two")
    assert line.startswith("control.token_env names the environment variable TOKEN, which holds bl")


@pytest.mark.parametrize(
    ("text", "bind"),
    [
        ("127.0.0.1:9000", ("127.0.0.1", 9000)),
        ("[::1]:0", ("::1", 0)),
        ("[0:0::1]:1", ("::1", 1)),
        ("node-1.local:65535", ("node-1.local", 65535)),
    ],
)
def test_addresses_to_listen_on(text: str, bind: tuple[str, int]) -> None:
    assert split_bind(text) == bind


@pytest.mark.parametrize(
    "text", ["h", ":1", "h:", "h:-1", "h:65536", "[1.2.3.4]:1", "::1:9", "h:1/"]
)
def test_what_is_no_address_to_listen_on(text: str) -> None:
    with pytest.raises(BadBind, match="must "):
        split_bind(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::1%lo", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("localhost", False),
    ],
)
def test_what_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
