"""Options from the environment, as containers have them: NARWHAL_TRIO_SERVE_PORT=8000."""

from __future__ import annotations

import os

import click
from click.core import ParameterSource

PREFIX = "NARWHAL_TRIO"


def name_variables(command: click.Command, prefix: str = PREFIX) -> None:
    """Give each option of `command`, and of those in it, the variable that is called as it is.

    click would call it after the function's argument, which need not be the option's name, and
    would take `NARWHAL_TRIO_VERSION`, which containers have for other reasons, for `--version`.
    """
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            name_variables(each, f"{prefix}_{_upper(name)}")
        return
    for option in command.params:
        if isinstance(option, click.Option):
            longest = max(option.opts, key=len)
            own = [option.envvar] if isinstance(option.envvar, str) else option.envvar or []
            option.envvar = [*own, f"{prefix}_{_upper(longest.lstrip('-'))}"]


def blame_variable(error: click.BadParameter) -> None:
    """Have the message name the variable that a bad value came from, if it did."""
    context, option = error.ctx, error.param
    if context is None or not isinstance(option, click.Option) or option.name is None:
        return
    if context.get_parameter_source(option.name) is ParameterSource.ENVIRONMENT:
        told = next(name for name in option.envvar or () if os.environ.get(name))
        error.param_hint = f"'{option.opts[0]}' (environment variable {told})"


def _upper(name: str) -> str:
    return name.replace("-", "_").upper()
