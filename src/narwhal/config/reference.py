"""The reference page of the fleet file, made from the schema.

`python -m narwhal.config.reference` writes it to standard output; docs/configuration.md is that.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, get_origin

from narwhal.config.describe import accepts, default_text
from narwhal.config.effective import limits
from narwhal.config.example import example_fleet
from narwhal.config.fleet import FleetConfig
from narwhal.config.rules import RULES
from narwhal.config.settings import fields_of, section_of, setting_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import attrs

_INTRODUCTION = """\
# The fleet file

<!-- Made by `python -m narwhal.config.reference > docs/configuration.md`. Do not edit. -->

One JSON file describes a fleet: its engines, the service it promises, and how the router
behaves. `narwhal-trio config example` prints a complete one with a note on every setting.

```console
$ narwhal-trio config check fleet.json          # all mistakes, a line each; exit status 1
$ narwhal-trio config show fleet.json           # every value that holds, and where it is from
$ narwhal-trio config show fleet.json --format json
$ narwhal-trio config example > fleet.json
```

## How a file is read

- The file is JSON in UTF-8. A key given twice in one object, `NaN` and `Infinity` are mistakes.
- A key that begins with `_` is a note, wherever it stands, and means nothing. Any other key that
  is not in the tables below is a mistake; the message names the nearest one that is.
- Types are strict. `true` is no number, `2.0` is no integer, `"2"` is neither; an integer may
  stand where a number is due. `null` may stand only where a table says so.
- All mistakes are reported together, a line each, with path, value and what would be accepted:
  `fleet.json: serving.max_attempts must be between 1 and 3, not 7`.
- An engine's address may be one whole `${NAME}`, which stands for the environment variable
  `NAME`. The variable must be set and not empty.
- No secret stands in the file. Keys and tokens are in the environment variables that
  `engine.engine_api_key_env`, `serving.api_key_env` and `control.token_env` name, and in the file
  `serving.api_keys_file`; no command prints one. See [security](security.md).
- Relative paths start from the router's working directory.

## What has no effect yet

Every setting is checked, and one waits for what will use it: `engines[].attestation_url`.
"""

_RULES = """\
## Rules between settings

Each refuses only what cannot work. Where two limits merely overlap, the tighter one holds.

- `engines[].iid` and the host and port of `engines[].url` are unique in a file: the router counts
  what each engine holds, and would count one engine as two.
"""

_DERIVED = """\
## Derived values

| Value | From |
|---|---|
| control connections | `engine.control_connections`; at `0`, two for each engine and at least four |
| requests held at one time | `serving.max_connections` + `serving.queue_capacity`; one more gets 429 before its body is read |
"""  # noqa: E501  (rows of a Markdown table are one line each)

_LIMITS = """\
## Limits

Every time limit has a name, which stands in errors, journal and metrics. The bounds below are
those of the defaults; `narwhal-trio config show` prints the ones of a file. A limit inside a
request ends with the request's own deadline at the latest.

| Limit | Setting | Bound | From | Until | When it is reached |
|---|---|---|---|---|---|
"""


def markdown() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    parts += (_section(title, help_, fields) for title, help_, fields in _sections())
    parts.append(_RULES + "".join(f"- `{rule.field}`: {rule.says}\n" for rule in RULES))
    parts.append(_DERIVED)
    parts.append(_LIMITS + "".join(_limit_rows()))
    return "\n".join(parts)


def _sections() -> Iterator[tuple[str, str, list[attrs.Attribute[Any]]]]:
    """Title, one sentence and own fields of each section, the top level first."""
    yield "Top level", "", list(fields_of(FleetConfig))
    yield from _below(FleetConfig, "")


def _below(section: type, prefix: str) -> Iterator[tuple[str, str, list[attrs.Attribute[Any]]]]:
    for field in fields_of(section):
        inner = section_of(field.type)
        if inner is None:
            continue
        path = prefix + field.name
        several = get_origin(field.type) is tuple
        title = f"`{path}[]`" if several else f"`{path}`"
        yield title, setting_of(field).help, list(fields_of(inner))
        yield from _below(inner, f"{path}.")


def _section(title: str, sentence: str, fields: Iterable[attrs.Attribute[Any]]) -> str:
    lines = [f"## {title}", ""]
    if sentence:
        lines += [sentence, ""]
    lines += ["| Key | Default | Takes | Unit | Meaning |", "|---|---|---|---|---|"]
    lines += [_row(field) for field in fields]
    return "\n".join(lines) + "\n"


def _row(field: attrs.Attribute[Any]) -> str:
    setting = setting_of(field)
    default = default_text(field)
    if default not in {"required", ""}:
        default = f"`{default}`"
    return f"| `{field.name}` | {default} | {accepts(field)} | {setting.unit} | {setting.help} |"


def _limit_rows() -> Iterator[str]:
    for limit in limits(example_fleet()):
        yield (
            f"| `{limit.limit.value}` | `{limit.field}` | {limit.bound} | {limit.begins} "
            f"| {limit.ends} | {limit.fires} |\n"
        )


if __name__ == "__main__":
    sys.stdout.write(markdown())
