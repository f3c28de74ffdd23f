"""Results as a Parquet file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_IN_GROUP = 1 << 14
_IS_JSON = {b"esurge": b"json"}
_LONG = 1 << 63

Kind = str
"""Of a value: null, bool, int, float, str, int list, str list; json for all else."""


class Parquet:
    """The fields of flat lines as columns, 16,384 rows in a group.

    A field that is copied from the row gets the type that its values have; where they have several types, or are
    objects, it is a column of JSON text. Ids of which some are text are all text.
    """

    is_plain = False

    def write(self, path: Path, blocks: Iterable[bytes]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = _schema(_kinds(blocks))
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            rows = _rows(blocks)
            while group := list(islice(rows, _ROWS_IN_GROUP)):
                columns = [_values(column, group) for column in schema]
                writer.write_table(pa.table(columns, schema=schema))

    def read(self, path: Path) -> Iterator[bytes]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            json_names = [column.name for column in file.schema_arrow if _is_json(column)]
            for batch in file.iter_batches(_ROWS_IN_GROUP):
                for row in batch.to_pylist():
                    row |= {name: orjson.loads(row[name]) for name in json_names if row[name] is not None}
                    yield orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def _rows(blocks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    return (orjson.loads(line) for block in blocks for line in block.splitlines())


def _kinds(blocks: Iterable[bytes]) -> dict[str, set[Kind]]:
    """Of all values of each field."""
    kinds: dict[str, set[Kind]] = defaultdict(set)
    for row in _rows(blocks):
        for name, value in row.items():
            kinds[name].add(_kind(value))
    return kinds


def _kind(value: Any) -> Kind:
    if value is None:
        return "null"
    if isinstance(value, list) and value:
        inner = {_kind(item) for item in value}
        return f"{inner.pop()} list" if inner in ({"int"}, {"str"}) else "json"
    if isinstance(value, int) and not isinstance(value, bool):
        return "int" if -_LONG <= value < _LONG else "json"
    return type(value).__name__ if isinstance(value, bool | float | str) else "json"


def _schema(kinds: Mapping[str, set[Kind]]) -> pa.Schema:
    import pyarrow as pa

    fixed = _fixed_types()
    names = [*_FIRST, *(name for name in kinds if name not in _FIRST)]
    return pa.schema(
        [
            pa.field(name, fixed[name]) if name in fixed else _inferred(name, kinds.get(name, set()) - {"null"})
            for name in names
        ]
    )


_FIRST = ("id", "index", "sample", "text", "finish_reason", "stop_reason", "usage", "error")


def _fixed_types() -> dict[str, pa.DataType]:
    import pyarrow as pa

    token = {"token_id": pa.int32(), "logprob": pa.float64(), "rank": pa.int64(), "token": pa.string()}
    logprobs = pa.list_(pa.struct({**token, "top": pa.list_(pa.struct(token))}))
    return {
        "index": pa.int64(),
        "sample": pa.int32(),
        "text": pa.string(),
        "finish_reason": pa.string(),
        "usage": pa.struct(dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens"), pa.int64())),
        "error": pa.struct({"type": pa.string(), "message": pa.string(), "line": pa.int64()}),
        "token_ids": pa.list_(pa.int32()),
        "logprobs": logprobs,
        "prompt_logprobs": logprobs,
    }


def _inferred(name: str, kinds: set[Kind]) -> pa.Field:
    import pyarrow as pa

    types = {
        frozenset(): pa.string(),
        frozenset({"str"}): pa.string(),
        frozenset({"bool"}): pa.bool_(),
        frozenset({"int"}): pa.int64(),
        frozenset({"float"}): pa.float64(),
        frozenset({"int", "float"}): pa.float64(),
        frozenset({"int list"}): pa.list_(pa.int64()),
        frozenset({"str list"}): pa.list_(pa.string()),
    }
    if name in ("id", "stop_reason") and kinds != {"int"}:
        return pa.field(name, pa.string())
    known = types.get(frozenset(kinds))
    return pa.field(name, known) if known is not None else pa.field(name, pa.string(), metadata=_IS_JSON)


def _is_json(column: pa.Field) -> bool:
    return (column.metadata or {}).get(b"esurge") == b"json"


def _values(column: pa.Field, rows: Sequence[Mapping[str, Any]]) -> pa.Array:
    import pyarrow as pa

    values = [row.get(column.name) for row in rows]
    if _is_json(column):
        values = [None if value is None else orjson.dumps(value).decode() for value in values]
    elif column.type == pa.string():
        values = [None if value is None else str(value) for value in values]
    return pa.array(values, column.type)
