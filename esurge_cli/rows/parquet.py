"""Parquet files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from esurge_cli.rows.columns import as_json, check_columns
from esurge_cli.rows.fields import FieldNames
from esurge_cli.rows.row import Record
from esurge_cli.rows.stream import Stream, failure

if TYPE_CHECKING:
    import pyarrow.parquet

_BATCH = 1024
_BUFFER = 1 << 20
"""With `pre_buffer` or without a buffer, all of a row group is read at once (362 MiB for one of 300 MB, not 76)."""


def read_parquet(stream: Stream, names: FieldNames) -> Iterator[Record]:
    """A batch at a time is held; `line` counts the file's rows. Nested columns are lists and objects.

    Raises UserError for columns without the fields.
    """
    file = _open(stream)
    check_columns(stream.name, file.schema_arrow.names, names)
    rows = itertools.chain.from_iterable(_batches(file, stream.name))
    for line, fields in enumerate(rows, start=1):
        yield Record(line, as_json(fields))


def count_parquet(stream: Stream) -> int:
    """Rows, by what the end of the file says."""
    return _open(stream).metadata.num_rows


def _open(stream: Stream) -> pyarrow.parquet.ParquetFile:
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(
            stream.seekable_file(), buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
        )
    except Exception as error:  # ArrowException, OSError, and others of a damaged file
        raise failure(stream.name, error) from error


def _batches(file: pyarrow.parquet.ParquetFile, name: str) -> Iterator[list[dict[str, object]]]:
    try:
        for batch in file.iter_batches(_BATCH):
            yield batch.to_pylist()
    except Exception as error:
        raise failure(name, error) from error
