"""What a fleet file takes from the environment: whole addresses, and the engines' key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from narwhal.config.faults import Faults
from narwhal.model import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.config.fleet import FleetConfig
    from narwhal.config.texts import TextKind

_WHOLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# What an HTTP header takes as one token (RFC 9110, section 5.5), without blanks and tabs.
_HEADER_SAFE = re.compile(r"[\x21-\x7e]+")


def resolve(reference: str, kind: TextKind, environ: Mapping[str, str]) -> str:
    """The value that `${NAME}` stands for.

    Raises `Faults`, which name the variable and never repeat what it holds.
    """
    found = _WHOLE.fullmatch(reference)
    if found is None:
        raise Faults.one("must be one whole ${NAME}, or hold no ${ at all")
    name = found[1]
    if missing := _absence(name, environ):
        raise Faults.one(f"is ${{{name}}}, and the environment variable {name} {missing}")
    value = environ[name]
    if complaint := kind.complaint(value):
        raise Faults.one(
            f"is ${{{name}}}, and what the environment variable {name} holds {complaint}"
        )
    return value


def variable_complaint(name: str, environ: Mapping[str, str]) -> str | None:
    """What is wrong with the key that the environment variable `name` should hold."""
    if missing := _absence(name, environ):
        return f"names the environment variable {name}, which {missing}"
    if not _HEADER_SAFE.fullmatch(environ[name]):
        return (
            f"names the environment variable {name}, which holds blanks, line breaks or other "
            "characters that a key in an HTTP header cannot have"
        )
    return None


def engine_api_key(config: FleetConfig, environ: Mapping[str, str]) -> str | None:
    """The key that `engine.engine_api_key_env` names, `None` if it names none.

    It is read when it is needed and is no part of a `FleetConfig`, so that printing one can
    never print a key. Raises `ConfigError` if the variable does not hold one: the loader looks
    at it as well, but a config may have been made in Python, or the environment have changed.
    """
    name = config.engine.engine_api_key_env
    if name is None:
        return None
    if complaint := variable_complaint(name, environ):
        raise ConfigError([f"engine.engine_api_key_env {complaint}"])
    return environ[name]


def _absence(name: str, environ: Mapping[str, str]) -> str | None:
    if name not in environ:
        return "is not set"
    return None if environ[name] else "is empty"
