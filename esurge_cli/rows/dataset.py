"""Datasets of the Hub or of a folder, through the `datasets` package, streaming."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from esurge_cli.rows.columns import as_json, check_columns
from esurge_cli.rows.fields import FieldNames
from esurge_cli.rows.kinds import InputKind
from esurge_cli.rows.row import Record
from esurge_cli.rows.stream import failure
from runner.errors import UserError


class HubDataset:
    """One split of a dataset; `name` is a Hub id or a folder, of data files or of `save_to_disk`.

    Raises UserError for what cannot be found, or has no such columns.
    """

    kind = InputKind.DATASET

    def __init__(self, name: str, config: str | None, split: str, names: FieldNames) -> None:
        self._name = f"the dataset {name}"
        if Path(name).is_file():
            raise UserError(f"{name} is a file, which is read as INPUT; --dataset takes a folder or a name of the Hub")
        try:
            self._rows = iter(_load(name, config, split))
            first = next(self._rows, None)
        except UserError:
            raise
        except Exception as error:  # as many kinds as there are hubs and formats
            raise UserError(f"{self._name} cannot be read: {_first_line(error)}") from error
        if first is not None:
            check_columns(self._name, list(first), names)
            self._rows = itertools.chain([first], self._rows)

    def records(self) -> Iterator[Record]:
        """`line` counts the rows. Raises RunFailed where the dataset cannot be read to its end."""
        line = 0
        while True:
            line += 1
            try:
                fields = next(self._rows)
            except StopIteration:
                return
            except Exception as error:
                raise failure(self._name, error) from error
            yield Record(line, as_json(fields))

    def count(self) -> int | None:
        """It takes reading."""
        return None


def _load(name: str, config: str | None, split: str) -> Any:
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    if _is_saved(Path(name)):
        return _load_saved(name, split)
    return datasets.load_dataset(name, config, split=split, streaming=True)


def _is_saved(folder: Path) -> bool:
    return (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()


def _load_saved(name: str, split: str) -> Any:
    import datasets

    saved = datasets.load_from_disk(name)
    if not isinstance(saved, datasets.DatasetDict):
        return saved
    if split not in saved:
        raise UserError(f"the dataset {name} has no split {split}; it has {', '.join(saved)}")
    return saved[split]


def _first_line(error: Exception) -> str:
    """The packages' messages go on with advice for their own callers."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
