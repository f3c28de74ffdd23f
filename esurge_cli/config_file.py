"""What a command's flags are where the command line does not say: the environment, then the file of `--config`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from runner.errors import UserError

_PREFIX = "ESURGE_"


def use_defaults(context: typer.Context, file: Path | None) -> None:
    """Make the environment and the config file the defaults of the command's flags; the environment wins."""
    parameters = {parameter.name: parameter for parameter in context.command.params if parameter.name}
    defaults = {} if file is None else _read_config(file, _names(parameters))
    for name, parameter in parameters.items():
        text = os.environ.get(variable_of(name))
        if text is not None and parameter.param_type_name == "option":
            defaults[name] = text
    context.default_map = {
        name: [value] if parameters[name].multiple and not isinstance(value, list) else value
        for name, value in defaults.items()
    }


def variable_of(name: str) -> str:
    """Of the environment, for the flag of this parameter."""
    return _PREFIX + name.upper()


def _names(parameters: dict[str, Any]) -> dict[str, str]:
    """From how a flag may be called in a file, with - or _, to its parameter."""
    return {
        spelling.lstrip("-").replace("-", "_"): name
        for name, parameter in parameters.items()
        for spelling in parameter.opts
        if parameter.param_type_name == "option" and name not in ("config", "help")
    }


def _read_config(file: Path, names: dict[str, str]) -> dict[str, Any]:
    """A TOML or YAML file of flags. Raises UserError for a name that is no flag of the command."""
    values = {}
    for key, value in _load(file).items():
        name = names.get(str(key).replace("-", "_"))
        if name is None:
            raise UserError(f"{file}: there is no flag --{key} here")
        if isinstance(value, dict):
            raise UserError(f"{file}: {key} must be a value, not a table")
        values[name] = [str(item) for item in value] if isinstance(value, list) else _as_typed(value)
    return values


def _as_typed(value: Any) -> Any:
    """What would stand on the command line; switches stay booleans."""
    return value if isinstance(value, bool) else str(value)


def _load(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".toml":
            import tomllib

            values = tomllib.loads(text)
        elif file.suffix in (".yaml", ".yml"):
            import yaml  # type: ignore[import-untyped]

            values = yaml.safe_load(text) or {}
        else:
            raise UserError(f"{file}: a config file is named .toml, .yaml or .yml")
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    except UserError:
        raise
    except Exception as error:  # of either parser
        raise UserError(f"{file} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UserError(f"{file} holds no names and values")
    return values
