"""What a fleet file takes from the environment: whole addresses, and every key and token.

They are read when they are needed and are no part of a `FleetConfig`, so that printing one can
never print a key. The loader looks at them as well, but a config may have been made in Python, or
the environment have changed: so each function here may raise `ConfigError`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from narwhal.config.faults import Faults
from narwhal.config.keys import HEADER_SAFE, split_keys
from narwhal.model import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.config.fleet import FleetConfig
    from narwhal.config.texts import TextKind

_WHOLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


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


def variable_complaint(
    name: str, environ: Mapping[str, str], *, several: bool = False
) -> str | None:
    """What is wrong with the key, or the `several`, that the variable `name` should hold."""
    if missing := _absence(name, environ):
        return f"names the environment variable {name}, which {missing}"
    if several:
        try:
            split_keys(environ[name])
        except ValueError as wrong:
            return f"names the environment variable {name}, which {wrong}"
    elif not HEADER_SAFE.fullmatch(environ[name]):
        return (
            f"names the environment variable {name}, which holds blanks, line breaks or other "
            "characters that a key in an HTTP header cannot have"
        )
    return None


def engine_api_key(config: FleetConfig, environ: Mapping[str, str]) -> str | None:
    """The key that `engine.engine_api_key_env` names, `None` if it names none."""
    return _held("engine.engine_api_key_env", config.engine.engine_api_key_env, environ)


def control_token(config: FleetConfig, environ: Mapping[str, str]) -> str | None:
    """The token that `control.token_env` names, `None` if it names none."""
    return _held("control.token_env", config.control.token_env, environ)


def client_keys(config: FleetConfig, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The keys that `serving.api_key_env` names; those of a file are not among them."""
    name = config.serving.api_key_env
    held = _held("serving.api_key_env", name, environ, several=True)
    return () if held is None else split_keys(held)


def _held(
    field: str, name: str | None, environ: Mapping[str, str], *, several: bool = False
) -> str | None:
    if name is None:
        return None
    if complaint := variable_complaint(name, environ, several=several):
        raise ConfigError([f"{field} {complaint}"])
    return environ[name]


def _absence(name: str, environ: Mapping[str, str]) -> str | None:
    if name not in environ:
        return "is not set"
    return None if environ[name] else "is empty"
