"""Options from the environment: called as they are, and named where their values are wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner, Result

from narwhal.cli import main


def options(
    command: click.Command = main, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Option]]:
    """Every option of every command, with the words that lead to it."""
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from options(each, (*words, name))
    else:
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                yield words, parameter


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environ)


def test_each_option_has_the_variable_that_is_called_as_it_is() -> None:
    seen = set()
    for words, option in options():
        flag = max(option.opts, key=len).removeprefix("--")
        wanted = "_".join(("NARWHAL_TRIO", *words, flag)).replace("-", "_").upper()
        assert isinstance(option.envvar, list)
        assert option.envvar[-1] == wanted
        assert wanted not in seen
        seen.add(wanted)
    assert {"NARWHAL_TRIO_SERVE_CONTROL_BIND", "NARWHAL_TRIO_ENGINES_LIST_FORMAT"} <= seen


def test_an_option_whose_argument_has_another_name() -> None:
    done = run("report", "-", NARWHAL_TRIO_REPORT_FORMAT="json")
    assert json.loads(done.stdout)["schema"] == "narwhal.report"


def test_the_command_line_comes_first() -> None:
    done = run("report", "-", "--format", "table", NARWHAL_TRIO_REPORT_FORMAT="json")
    assert done.stdout.startswith("journal ")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("NARWHAL_TRIO_SERVE_PORT", "99999", "serve --fleet x"),
        ("NARWHAL_TRIO_SERVE_RESUME", "maybe", "serve --fleet x"),
        ("NARWHAL_TRIO_REPORT_FORMAT", "xml", "report -"),
        ("NARWHAL_TRIO_ENGINES_DRAIN_DEADLINE", "soon", "engines drain d0"),
        ("NARWHAL_TRIO_EMULATE_FAULT", "zz(", "emulate --base-port 0"),
    ],
)
def test_a_bad_value_is_said_of_its_variable(variable: str, value: str, words: str) -> None:
    done = run(*words.split(), **{variable: value})
    assert done.exit_code == 2
    assert f"(environment variable {variable})" in done.stderr
    assert value in done.stderr


def test_a_bad_value_of_the_command_line_is_not() -> None:
    done = run("serve", "--fleet", "x", "--port", "99999", NARWHAL_TRIO_SERVE_HOST="x")
    assert "'--port': 99999" in done.stderr


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e400"])
def test_numbers_are_finite(value: str) -> None:
    floats = [each for _, each in options() if isinstance(each.type, click.types.FloatParamType)]
    assert len(floats) > 10
    for option in floats:
        with pytest.raises(click.BadParameter):
            option.type.convert(value, option, None)
    told = run("top", "--once", "--interval", value).stderr
    assert "--interval" in told
    assert value in told


@pytest.mark.parametrize("name", ["VERSION", "HELP"])
def test_variables_that_containers_have_for_other_reasons(name: str) -> None:
    done = run("report", "-", **{f"NARWHAL_TRIO_{name}": "0.1.0"})
    assert (done.exit_code, done.stdout.split()[0]) == (0, "journal")
