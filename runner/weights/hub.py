"""Models of the Hugging Face Hub, kept in its usual cache (HF_HOME, HF_HUB_OFFLINE and HF_TOKEN apply)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from runner.errors import UserError
from runner.progress import Progress
from runner.weights.folder import TOKENIZER_FILES, first_line, has_tokenizer, read_json
from runner.weights.safetensors import INDEX, SINGLE

_TIMEOUT = 5
"""Seconds to wait for the Hub's answer to the first question; without a limit of our own there is none."""

_ENDINGS = (".json", ".jinja", ".model", ".txt", ".safetensors")
_NOT_LOADED = ("consolidated", "adapter_model")
"""Beginnings of the names of safetensors that repeat the weights in another layout, or are no whole model."""


def cached(model: str, revision: str | None = None) -> Path | None:
    """The folder of a model that is in the cache with all its weights; never asks the Hub."""
    try:
        folder = Path(
            snapshot_download(model, revision=revision, allow_patterns=["config.json"], local_files_only=True)
        )
    except LocalEntryNotFoundError:
        return None
    return folder if _has_all_weights(folder) else None


def fetch(model: str, revision: str | None, progress: Progress) -> Path:
    """The folder of a model as the Hub has it now; the cached one where the Hub cannot be reached.

    Fetches config, tokenizer and safetensors only. Task "download" counts bytes. Raises UserError.
    """
    return _fetch(model, revision, progress, _wanted, cached)


def fetch_tokenizer(model: str, progress: Progress) -> Path:
    """The folder of a model with its tokenizer alone, otherwise as `fetch`."""
    return _fetch(model, None, progress, _wanted_of_tokenizer, _cached_tokenizer)


def _fetch(
    model: str,
    revision: str | None,
    progress: Progress,
    wanted: Callable[[str, Iterable[str]], list[str]],
    cached: Callable[[str, str | None], Path | None],
) -> Path:
    """`wanted` chooses of the repository's files, `cached` finds what is in the cache already."""
    shown = model if revision is None else f"{model} at revision {revision}"
    try:
        info = HfApi().model_info(model, revision=revision, timeout=_TIMEOUT)
        files = wanted(model, [file.rfilename for file in info.siblings or []])
        return Path(snapshot_download(model, revision=revision, allow_patterns=files, tqdm_class=_bar_class(progress)))
    except GatedRepoError as error:
        raise UserError(f"{shown} is gated: accept its terms on the Hub, then set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"{shown} is neither a local path nor a model that the Hub shows to you; where it is private, set HF_TOKEN"
        ) from error
    except RevisionNotFoundError as error:
        raise UserError(f"{model} has no revision {revision!r}") from error
    except HFValidationError as error:
        raise UserError(f"{model!r} is neither a local path nor a possible name on the Hub") from error
    except UserError:
        raise
    except Exception as error:  # of the HTTP library, which is not the same in every release of huggingface_hub
        folder = cached(model, revision)
        if folder is not None:
            return folder
        raise UserError(f"{shown} is not on this machine, and {_why_not_fetched(error)}") from error


def _why_not_fetched(error: Exception) -> str:
    if isinstance(error, OfflineModeIsEnabled):
        return "cannot be fetched from the Hub: HF_HUB_OFFLINE is set; unset it, or name a local path"
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if status == 401:
        return "the Hub does not accept your token: renew HF_TOKEN, or what hf auth login has kept"
    if status == 403:
        return "the Hub forbids it to you: HF_TOKEN must be of an account, and have the rights, to read it"
    return f"cannot be fetched from the Hub: {first_line(error)}"


def _wanted(model: str, files: Iterable[str]) -> list[str]:
    """The files to fetch of those that the repository has: only its top folder's, and no second copy of the weights."""
    top = [file for file in files if "/" not in file and file.endswith(_ENDINGS) and not file.startswith(_NOT_LOADED)]
    if not any(file.endswith(".safetensors") for file in top):
        raise UserError(f"{model} has no safetensors on the Hub; for a GGUF, fetch the file and name its path")
    return top


def _wanted_of_tokenizer(model: str, files: Iterable[str]) -> list[str]:
    return [file for file in files if "/" not in file and file.endswith(_ENDINGS) and not file.endswith(".safetensors")]


def _cached_tokenizer(model: str, revision: str | None) -> Path | None:
    """The folder of a model whose tokenizer is in the cache, with or without its weights."""
    try:
        folder = Path(
            snapshot_download(model, revision=revision, allow_patterns=TOKENIZER_FILES, local_files_only=True)
        )
    except LocalEntryNotFoundError:
        return None
    return folder if has_tokenizer(folder) else None


def _has_all_weights(folder: Path) -> bool:
    index = folder / INDEX
    shards = set(read_json(index).get("weight_map", {}).values()) if index.exists() else {SINGLE}
    return all((folder / file).exists() for file in {"config.json", *shards})


def _bar_class(progress: Progress) -> type[tqdm]:
    """The Hub's client shows progress through a tqdm class alone; this one shows nothing and reports the bytes."""
    lock, most = threading.Lock(), 0.0

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            kwargs["file"] = open(os.devnull, "w")  # noqa: PTH123, SIM115 - lives as long as the bar
            super().__init__(*args, **kwargs)

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal most
            shown = super().update(n)
            if self.unit == "B":
                # One bar counts bytes received, another bytes written, from several threads: the larger is shown.
                with lock:
                    most = max(most, self.n)
                    progress("download", most, self.total)
            return shown

    return Bar
