"""From names to rows: files, folders, patterns, pipes and addresses, compressed or not."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import zstandard

from esurge_cli.errors import RunFailed
from esurge_cli.rows.fields import FieldNames, read_rows
from esurge_cli.rows.files import Files
from esurge_cli.rows.jsonl import read_jsonl
from esurge_cli.rows.kinds import InputKind, is_head, kind_of_head, kind_of_name
from esurge_cli.rows.lines import read_lines
from esurge_cli.rows.row import Row, RowError
from esurge_cli.rows.selection import Selection
from esurge_cli.rows.source import Source
from esurge_cli.rows.stream import Stream
from runner.errors import UserError

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def source_of(*inputs: Path | str, limit: int | None = None, **options: Any) -> Source:
    names = FieldNames()
    return Source(Files([str(name) for name in inputs], names, **options), names, Selection(limit=limit))


def prompts_of(*inputs: Path | str, **options: Any) -> list[Any]:
    """The prompts, and the types of errors."""
    return [row.prompt if isinstance(row, Row) else row.type.value for row in source_of(*inputs, **options).rows()]


def jsonl(*prompts: str) -> bytes:
    return b"".join(json.dumps({"prompt": prompt}).encode() + b"\n" for prompt in prompts)


def test_files_follow_each_other_and_are_read_lazily(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text('{"prompt": "1"}\n{"prompt": "2"}')
    second.write_text('\n{"prompt": "3"}\n')
    source = source_of(first, second)
    assert [(row.index, row.line, row.prompt) for row in source.rows()] == [(0, 1, "1"), (1, 2, "2"), (2, 2, "3")]  # type: ignore[union-attr]
    assert source.count() == 4  # blank lines cannot be told without reading
    rows = source_of(first, second, limit=1).rows()
    second.unlink()
    assert [row.index for row in rows] == [0]


def test_a_file_that_goes_away_ends_the_run_in_one_line(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path in (first, second):
        path.write_bytes(jsonl("1"))
    source = source_of(first, second)
    rows = source.rows()
    next(rows)
    second.unlink()
    with pytest.raises(RunFailed, match=r"b\.jsonl cannot be read to its end: No such file"):
        next(rows)
    assert source.count() is None


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "name the input"),
        (["nowhere.jsonl"], "nowhere.jsonl does not exist"),
        (["-", "-"], "only once"),
        (["nowhere*.jsonl"], r"no file is called nowhere\*.jsonl"),
        (["s3://bucket/x.jsonl"], "s3://bucket/x.jsonl needs a package that is not installed: pip install s3fs"),
        (["carrier-pigeon://x"], "carrier-pigeon://x cannot be read: Protocol not known: carrier-pigeon"),
        (["memory://nowhere/x.jsonl"], "memory://nowhere/x.jsonl does not exist"),
        (["memory://nowhere/*.jsonl"], "no file is called"),
    ],
)
def test_what_cannot_be_read_is_said_at_once(inputs: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        source_of(*inputs)


def test_standard_input_has_no_count() -> None:
    assert source_of("-").count() is None


def test_a_folder_is_its_files_of_known_kinds_sorted_but_no_hidden_ones(tmp_path: Path) -> None:
    files = {
        "b.jsonl": jsonl("b"),
        "a/z.txt": b"z\n",
        "a/y.jsonl.gz": gzip.compress(jsonl("y")),
        "notes.md": b"no",
        ".hidden.jsonl": jsonl("no"),
        ".git/x.txt": b"no",
    }
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert prompts_of(tmp_path) == ["y", "z", "b"]
    assert prompts_of(tmp_path, kind=InputKind.JSONL) == ["y", "b"]
    with pytest.raises(UserError, match="a folder without a file of a known kind"):
        source_of(tmp_path, kind=InputKind.CSV)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a folder without a file of a known kind; name the files in it"):
        source_of(tmp_path)


def test_patterns_are_sorted_and_a_file_that_is_called_like_one_is_that_file(tmp_path: Path) -> None:
    for name in ("b1.txt", "b0.txt", "c/b2.txt", "[b]0.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert prompts_of(tmp_path / "b*.txt") == ["b0.txt", "b1.txt"]
    assert prompts_of(tmp_path / "**/b?.txt") == ["b0.txt", "b1.txt", "c/b2.txt"]
    assert prompts_of(tmp_path / "[b]0.txt") == ["[b]0.txt"]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_are_read_as_they_are_also_several_in_one(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    prompts = [f"prompt {i}" for i in range(50_000)]
    path.write_bytes(COMPRESS[suffix](jsonl(*prompts[:40_000])) + COMPRESS[suffix](jsonl(*prompts[40_000:])))
    assert prompts_of(path) == prompts
    assert source_of(path).count() is None
    nameless = path.rename(tmp_path / "a")
    assert prompts_of(nameless) == prompts


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_torn_compressed_file_ends_the_run_after_the_rows_before_the_tear(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    source = random.Random(0)
    prompts = [f"{source.random()}" for _ in range(200_000)]
    data = COMPRESS[suffix](jsonl(*prompts))
    path.write_bytes(data[: 3 * len(data) // 4])
    rows = source_of(path).rows()
    seen: list[Any] = []
    with pytest.raises(RunFailed, match=rf"a\.jsonl{suffix} cannot be read to its end: .+"):
        seen.extend(row.prompt for row in rows)  # type: ignore[union-attr]
    assert len(seen) > 50_000
    assert seen == prompts[: len(seen)]


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("data", [b"", b'{"prompt": "not compressed"}\n'])
def test_a_file_that_is_only_named_as_compressed_ends_the_run(tmp_path: Path, suffix: str, data: bytes) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(data)
    with pytest.raises(RunFailed, match="it does not begin as a"):
        prompts_of(path)


def test_addresses_their_folders_and_patterns() -> None:
    memory = fsspec.filesystem("memory")
    for name, data in {
        "/in/b.jsonl": jsonl("b"),
        "/in/a/c.txt.zst": COMPRESS[".zst"](b"c"),
        "/in/.x.txt": b"no",
    }.items():
        memory.pipe(name, data)
    assert prompts_of("memory://in/b.jsonl") == ["b"]
    assert prompts_of("memory://in") == ["c", "b"]
    assert prompts_of("memory://in/*.jsonl") == ["b"]
    assert source_of("memory://in/b.jsonl").count() is None


def test_an_address_of_a_local_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl("a"))
    assert prompts_of(f"file://{tmp_path}/a.jsonl") == ["a"]


def test_a_read_that_fails_half_way_ends_the_run_after_the_rows_before() -> None:
    class Failing:
        """A file system's file that breaks with an error of its own kind."""

        def __init__(self) -> None:
            self._pieces = [jsonl("a", "b"), b'{"prompt": "c']

        def read(self, size: int = -1) -> bytes:
            if not self._pieces:
                raise LookupError("the bucket is gone")
            return self._pieces.pop(0)

        def close(self) -> None:
            pass

    rows = read_rows(read_jsonl(read_lines(Stream("s3://b/x", Failing()), 100)), FieldNames())
    assert [next(rows).prompt, next(rows).prompt] == ["a", "b"]  # type: ignore[union-attr]
    with pytest.raises(RunFailed, match="s3://b/x cannot be read to its end: the bucket is gone"):
        next(rows)


def test_a_named_pipe_is_opened_once_and_its_kind_is_known(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    request = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hi"}}
    writer = threading.Thread(target=lambda: pipe.write_text(json.dumps(request) + "\n"))
    writer.start()
    source = source_of(pipe)
    assert source.kind is InputKind.OPENAI
    assert [(row.id, row.prompt) for row in source.rows()] == [("a", "Hi")]  # type: ignore[union-attr]
    writer.join()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.jsonl", InputKind.JSONL),
        ("a.NDJSON.gz", InputKind.JSONL),
        ("dir.txt/a.json.zst", InputKind.JSON),
        ("a.csv", InputKind.CSV),
        ("a.tsv.xz", InputKind.CSV),
        ("a.txt", InputKind.TEXT),
        ("s3://b/a.parquet", InputKind.PARQUET),
        ("a.gz", None),
        ("a.md", None),
        ("-", None),
    ],
)
def test_kinds_by_name(name: str, kind: InputKind | None) -> None:
    assert kind_of_name(name) == kind


REQUEST = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}'


@pytest.mark.parametrize(
    ("head", "nameless", "json_", "jsonl_"),
    [
        (b'{"prompt": "a"}\n', "jsonl", "jsonl", "jsonl"),
        (b'\xef\xbb\xbf\n \n{"prompt": "a"}\n', "jsonl", "jsonl", "jsonl"),
        (b'{"prompt": "a"}', "jsonl", "jsonl", "jsonl"),
        (b'{"prompt": "no end yet', "jsonl", "jsonl", "jsonl"),
        (b'{broken}\n{"prompt": "a"}\n', "jsonl", "json", "jsonl"),
        (b'{\n  "prompt": "a"\n}\n', "json", "json", "jsonl"),
        (b'{"messages": [\n', "json", "json", "jsonl"),
        (b'[{"prompt": "a"}]', "json", "json", "jsonl"),
        (b"[\n]", "json", "json", "jsonl"),
        (b"[INST] Hi [/INST]\n", "text", "json", "jsonl"),
        (b"The capital of France is\n", "text", "json", "jsonl"),
        (b"", "text", "json", "jsonl"),
        (REQUEST + b"\n", "openai", "openai", "openai"),
        (REQUEST[:30], "openai", "openai", "openai"),
        (b'{"custom_id": "a", "prompt": "no request"}\n', "jsonl", "jsonl", "jsonl"),
        (b"PAR1\x15\x04", "parquet", "json", "jsonl"),
    ],
)
def test_kinds_by_content(head: bytes, nameless: str, json_: str, jsonl_: str) -> None:
    found = [kind_of_head(head, named) for named in (None, InputKind.JSON, InputKind.JSONL)]
    assert found == [nameless, json_, jsonl_]


def test_a_line_that_is_not_blank_is_enough_to_tell_the_kind() -> None:
    assert not is_head(b"\xef\xbb\xbf\n\n{")
    assert is_head(b"\n{}\n")


def test_the_kind_of_the_source_is_that_of_the_first_file_or_the_one_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.jsonl").write_bytes(jsonl("b"))
    source = source_of(tmp_path)
    assert (source.kind, len(list(source.rows()))) == (InputKind.TEXT, 2)
    assert source_of(tmp_path, kind=InputKind.JSONL).kind is InputKind.JSONL


def test_errors_know_their_lines_in_each_file(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(b"\n" + jsonl("a") + b"broken\n")
    errors = [row for row in source_of(tmp_path).rows() if isinstance(row, RowError)]
    assert [(error.index, error.line) for error in errors] == [(1, 3), (3, 3)]
