"""The `narwhal-trio` command."""

from __future__ import annotations

import errno
from typing import Any

import click

from narwhal.cli.check_command import check
from narwhal.cli.completion_command import completion
from narwhal.cli.config_commands import config_group
from narwhal.cli.demo_command import demo
from narwhal.cli.emulate_command import emulate
from narwhal.cli.engines_command import engines_group
from narwhal.cli.profile_command import profile
from narwhal.cli.report_command import report
from narwhal.cli.running import drop_output, fail
from narwhal.cli.serve_command import serve
from narwhal.cli.simulate_command import simulate_group
from narwhal.cli.top_command import top
from narwhal.cli.variables import blame_variable, name_variables
from narwhal.model.version import __version__

# What a file that output is redirected to can have, and no other call of a command runs into.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class _Commands(click.Group):
    """Says in a line that output found no room. A closed pipe is click's, and said by nobody.

    What is wrong with a value of the environment is said of its variable.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.BadParameter as error:
            blame_variable(error)
            raise
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            drop_output()
            raise fail(
                f"the output cannot be written: {error.strerror}; make room for it"
            ) from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="narwhal-trio")
def main() -> None:
    """Route LLM requests over engines that split prefill from decode."""


main.add_command(serve)
main.add_command(demo)
main.add_command(emulate)
main.add_command(check)
main.add_command(top)
main.add_command(report)
main.add_command(profile)
main.add_command(engines_group)
main.add_command(config_group)
main.add_command(simulate_group)
main.add_command(completion)

name_variables(main)
