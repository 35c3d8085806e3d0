"""`narwhal-trio completion`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click
from click.shell_completion import get_completion_class

if TYPE_CHECKING:
    from click.shell_completion import ShellComplete

_VARIABLE = "_NARWHAL_TRIO_COMPLETE"
"""What click looks for in the environment when the shell asks."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes SHELL complete this command's words.

    For bash and zsh: eval "$(narwhal-trio completion bash)", in the file that the shell reads when
    it starts. For fish: narwhal-trio completion fish | source.
    """
    root = context.find_root()
    made = cast("type[ShellComplete]", get_completion_class(shell))
    click.echo(made(root.command, {}, "narwhal-trio", _VARIABLE).source())
