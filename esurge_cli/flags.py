"""Flags declared as the fields of a dataclass, once for all the commands that take them.

A command's parameter whose type is such a dataclass becomes its fields' flags; one whose type is a list of it takes
each flag as a list with commas, and gets every combination. A flag that is not on the command line is looked for in
the environment (`ESURGE_MAX_NUM_SEQS` for `--max-num-seqs`), then in the file that `--config` names.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from esurge_cli.config_file import use_defaults
from runner.errors import UserError


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """How a flag's text is read; `parse` raises ValueError with what is wrong."""

    metavar: str
    parse: Callable[[str], Any] = str


TEXT = Kind("TEXT")
PATH = Kind("FILE", Path)


@dataclasses.dataclass(frozen=True, slots=True)
class Flag:
    """What a dataclass' field is as a flag: put it into the field's `Annotated`. `names` are besides the field's own.

    Fields of type bool are switches and have no kind; those of type list[str] may be repeated.
    """

    help: str
    kind: Kind = TEXT
    names: tuple[str, ...] = ()
    shown_default: str | None = None


def with_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the flags of its dataclass parameters, and `--config`."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, _Group] = {}
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        hint = hints[name]
        swept = get_origin(hint) is list and dataclasses.is_dataclass(get_args(hint)[0])
        options_class = get_args(hint)[0] if swept else hint
        if isinstance(options_class, type) and dataclasses.is_dataclass(options_class):
            groups[name] = _Group(options_class, swept)
            parameters += groups[name].parameters()
        else:
            parameters.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))
    parameters.append(_CONFIG)

    @wraps(command)
    def with_groups(**values: Any) -> Any:
        del values["config"]
        made = {name: group.make(values) for name, group in groups.items()}
        return command(**values, **made)

    # Typer reads both.
    with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_groups.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_groups


def arguments_of(options: Any) -> list[str]:
    """The command line that says all of a group's values, those that are as by default too."""
    values = {flag_name(field.name): getattr(options, field.name) for field in dataclasses.fields(options)}
    return [argument for name, value in values.items() for argument in _said(name, value)]


def _said(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return [name if value else f"--no-{name[2:]}"]
    if isinstance(value, list):
        return [f"{name}={item}" for item in value]
    return [f"{name}={json.dumps(value) if isinstance(value, dict) else value}"]


class _Group:
    """One dataclass of flags; `swept` where each is a list with commas."""

    def __init__(self, options_class: type, swept: bool) -> None:
        self._class = options_class
        self._swept = swept
        hints = get_type_hints(options_class, include_extras=True)
        self._fields = [(field, *_split(hints[field.name])) for field in dataclasses.fields(options_class)]

    def parameters(self) -> list[inspect.Parameter]:
        return [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=self._default(field, hint),
                annotation=Annotated[self._typer_type(hint), self._option(field, hint, flag)],
            )
            for field, hint, flag in self._fields
        ]

    def make(self, values: dict[str, Any]) -> Any:
        """Take the group's flags out of `values`. Raises UserError for one that cannot be read."""
        lists = {
            field.name: self._read(field, hint, flag, values.pop(field.name)) for field, hint, flag in self._fields
        }
        combinations = [
            self._class(**dict(zip(lists, combination, strict=True)))
            for combination in itertools.product(*lists.values())
        ]
        return combinations if self._swept else combinations[0]

    def _read(self, field: dataclasses.Field[Any], hint: Any, flag: Flag, value: Any) -> list[Any]:
        """All values of a flag; where it is not swept there is one."""
        if value is None or value == []:
            return [field.default if field.default_factory is dataclasses.MISSING else field.default_factory()]
        if hint is bool:
            return value if isinstance(value, list) else [value]
        if hint == list[str]:
            return [value]
        pieces = [piece.strip() for piece in value.split(",")] if self._swept else [value]
        try:
            return [flag.kind.parse(piece) for piece in pieces]
        except ValueError as error:
            raise UserError(f"{flag_name(field.name)} {value}: {error}") from error

    def _default(self, field: dataclasses.Field[Any], hint: Any) -> Any:
        return field.default if hint is bool and not self._swept else None

    def _typer_type(self, hint: Any) -> Any:
        if hint is bool:
            return list[bool] | None if self._swept else bool
        return list[str] | None if hint == list[str] else str | None

    def _option(self, field: dataclasses.Field[Any], hint: Any, flag: Flag) -> Any:
        name = flag_name(field.name)
        names = [f"{name}/--no-{name[2:]}"] if hint is bool else [name, *flag.names]
        default = flag.shown_default or _shown(field.default)
        return typer.Option(
            *names,
            help=f"{flag.help}  [default: {default}]" if default else flag.help,
            metavar=None if hint is bool else flag.kind.metavar,
            show_default=False,
        )


def _shown(default: Any) -> str | None:
    """A switch that is off needs no words."""
    if default is None or default is False or default is dataclasses.MISSING:
        return None
    return "on" if default is True else str(default)


def flag_name(field_name: str) -> str:
    return "--" + field_name.replace("_", "-")


def _split(hint: Any) -> tuple[Any, Flag]:
    """A field's own type, without None, and its Flag."""
    own, flag = get_args(hint)
    return own, flag


_CONFIG = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar="ESURGE_CONFIG",
            show_envvar=False,
            is_eager=True,
            callback=use_defaults,
            help="TOML or YAML file of the flags here, by their names.",
        ),
    ],
)
