"""The fleet of a replay: its file with some settings changed, and the profiles of its engines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from narwhal.cli.running import fail, fail_config
from narwhal.config import parse_fleet, read_fleet
from narwhal.config.document import parse_json, read_bytes
from narwhal.config.presets import without_copied_defaults
from narwhal.model import ConfigError
from narwhal.profiles import load_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from narwhal.cli.replay_options import Setting
    from narwhal.config import FleetConfig
    from narwhal.profiles import Profile


def read_document(path: str) -> dict[str, Any]:
    """The document of a fleet file that is right as it stands; exits with what is wrong."""
    try:
        read_fleet(path, environ=os.environ)
        document = parse_json(read_bytes(path))
    except ConfigError as error:
        raise fail_config(error) from error
    assert isinstance(document, dict)  # noqa: S101 - no other document is a fleet
    return document


def with_settings(
    path: str, document: Mapping[str, Any], settings: Iterable[Setting], *, option: str
) -> FleetConfig:
    """The fleet with `settings` in place of its own; exits with what is wrong with them.

    Where they begin with a preset, defaults that the file has copied give way to it. `path` is the
    file's, and `option` where the settings come from, for messages.
    """
    changed: dict[str, Any] = dict(document)
    settings = list(settings)
    if settings and settings[0].path == "controller.preset":
        changed = without_copied_defaults(changed)
    for setting in settings:
        changed = _changed(changed, setting, setting.path.split("."), option)
    try:
        return parse_fleet(changed, name=Path(path).name, environ=os.environ)
    except ConfigError as error:
        said = " ".join(map(str, settings))
        raise fail(*(f"{option}: {problem} (with {said})" for problem in error.problems)) from error


def _changed(
    document: dict[str, Any], setting: Setting, keys: list[str], option: str
) -> dict[str, Any]:
    """A copy with the value put in its place; the document itself stays as it is."""
    key, *rest = keys
    if not rest:
        return {**document, key: setting.value}
    inner = document.get(key, {})
    if not isinstance(inner, dict):
        raise fail(
            f"{option}: {setting.path}: {key} has no fields of its own in the fleet file; change "
            "it in the file, or give the whole of it as JSON"
        )
    return {**document, key: _changed(inner, setting, rest, option)}


def profiles_of(config: FleetConfig, path: str | None, *, option: str) -> dict[str, Profile]:
    """The profiles of all engines of the fleet, from `path` or else from its own store."""
    store = config.profiles.path if path is None else path
    if path is None and not Path(store).exists():
        raise fail(
            f"profiles.path: there is no {store} in {Path.cwd()}; run it where there is, or name a "
            f"store with {option} FILE"
        )
    iids = [spec.iid for spec in config.engines]
    try:
        return load_store(store, iids=iids).profiles
    except ConfigError as error:
        hint = f"; {option} FILE names another store" if path is None else ""
        raise fail(*(f"{option}: {problem}{hint}" for problem in error.problems)) from error
