"""Lines, and the files and pipes they go to."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from esurge_cli.errors import OutputClosed, RunFailed
from esurge_cli.results.flat import FlatLines
from esurge_cli.results.result import Result, Usage
from esurge_cli.results.writer import FileWriter, PipeWriter, check_output, make_writer
from esurge_cli.rows.row import Chat, ErrorType, Row, RowError
from runner.errors import UserError
from scheduler import FinishReason


def result(row: Row, sample: int = 0) -> Result:
    return Result(row, sample, " Paris.", FinishReason.STOP, None, Usage(5, 0, 3), [1, 2, 3], None)


def line_of(lines: FlatLines, row: Row) -> dict[str, Any]:
    return json.loads(lines.of_results([result(row)]))


ROW = Row(0, 1, "q1", "The capital", {}, {"id": "q1", "prompt": "The capital", "topic": "geo", "text": "own"})


def test_a_line_is_what_the_contract_shows() -> None:
    assert FlatLines(str).of_results([result(ROW)]) == (
        b'{"id":"q1","index":0,"sample":0,"text":" Paris.","finish_reason":"stop","stop_reason":null,'
        b'"usage":{"prompt_tokens":5,"cached_tokens":0,"completion_tokens":3},"error":null}\n'
    )


def test_an_error_is_one_line_without_text() -> None:
    error = RowError(3, 7, None, ErrorType.INVALID_JSON, "not JSON: oh")
    assert json.loads(FlatLines(str, keep_fields=["topic"]).of_error(error)) == {
        "id": None,
        "index": 3,
        "sample": 0,
        "text": None,
        "finish_reason": "error",
        "stop_reason": None,
        "usage": {"prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0},
        "error": {"type": "invalid_json", "message": "not JSON: oh", "line": 7},
        "topic": None,
    }


def test_more_fields_come_when_they_are_asked_for() -> None:
    plain = list(line_of(FlatLines(str), ROW))
    full = line_of(FlatLines(str, return_token_ids=True, include_prompt=True, keep_fields=["topic"]), ROW)
    assert list(full) == [*plain, "token_ids", "prompt", "topic"]
    assert (full["token_ids"], full["prompt"], full["topic"]) == ([1, 2, 3], "The capital", "geo")


def test_a_prompt_is_shown_as_the_row_has_it() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    lines = FlatLines(str, include_prompt=True)
    assert line_of(lines, Row(0, 1, None, Chat(messages)))["prompt"] == messages
    assert line_of(lines, Row(0, 1, None, [4, 5]))["prompt"] == [4, 5]


def test_all_fields_are_kept_those_that_the_output_has_under_another_name() -> None:
    line = line_of(FlatLines(str, keep_fields=["all"]), ROW)
    assert (line["id"], line["topic"], line["text"], line["input_text"]) == ("q1", "geo", " Paris.", "own")
    assert "input_id" not in line
    other_id = line_of(FlatLines(str, keep_fields=["all"], id_field="key"), ROW)
    assert other_id["input_id"] == "q1"


def test_a_field_that_a_row_lacks_is_null() -> None:
    assert line_of(FlatLines(str, keep_fields=["nope"]), ROW)["nope"] is None


def lines(index: int, count: int = 1) -> bytes:
    return b"".join(json.dumps({"index": index, "sample": sample}).encode() + b"\n" for sample in range(count))


ORDER = [2, 0, 5, 1, 4, 3]
SORTED = b"".join(lines(index, 2) for index in range(6))
AS_FINISHED = b"".join(lines(index, 2) for index in ORDER)


def write_all(writer: Any, is_complete: bool = True) -> None:
    for index in ORDER:
        writer.write(index, lines(index, 2))
        writer.flush()
    writer.close(is_complete)


def test_a_file_is_appended_to_as_rows_finish_and_put_in_order_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    writer = FileWriter(path, overwrite=False)
    writer.write(2, lines(2, 2))
    writer.flush()
    assert path.read_bytes() == lines(2, 2)
    for index in ORDER[1:]:
        writer.write(index, lines(index, 2))
    writer.close(is_complete=True)
    assert path.read_bytes() == SORTED
    assert list(tmp_path.iterdir()) == [path]


def test_a_row_that_is_left_out_leaves_no_gap(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path / "out.jsonl", overwrite=False)
    for index, text in ((2, lines(2)), (1, b""), (0, lines(0))):
        writer.write(index, text)
    writer.close(is_complete=True)
    assert (tmp_path / "out.jsonl").read_bytes() == lines(0) + lines(2)


@pytest.mark.parametrize(("ordered", "is_complete"), [(False, True), (True, False)])
def test_unordered_or_incomplete_it_stays_as_rows_finished(tmp_path: Path, ordered: bool, is_complete: bool) -> None:
    write_all(FileWriter(tmp_path / "out.jsonl", overwrite=False, ordered=ordered), is_complete)
    assert (tmp_path / "out.jsonl").read_bytes() == AS_FINISHED


def test_an_existing_file_is_refused_and_untouched_unless_it_is_to_be_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("precious")
    with pytest.raises(UserError, match="exists"):
        check_output(path, overwrite=False)
    with pytest.raises(UserError, match="exists"):
        FileWriter(path, overwrite=False)
    assert path.read_text() == "precious"
    check_output(path, overwrite=True)
    write_all(FileWriter(path, overwrite=True))
    assert path.read_bytes() == SORTED


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to("target.jsonl")
    write_all(FileWriter(tmp_path / "link.jsonl", overwrite=True))
    assert (tmp_path / "link.jsonl").is_symlink()
    assert (tmp_path / "target.jsonl").read_bytes() == SORTED


@pytest.mark.parametrize(("name", "message"), [("", "is a folder"), ("nowhere/out.jsonl", "nowhere is not a folder")])
def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_output(tmp_path / name, overwrite=True)


def test_a_full_disk_is_an_error_with_every_line_complete(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: writes past it fail after what fits."""
    path = tmp_path / "out.jsonl"
    code = f"""
import resource, signal
from pathlib import Path
from esurge_cli.errors import RunFailed
from esurge_cli.results.writer import FileWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
writer = FileWriter(Path({str(path)!r}), overwrite=False)
try:
    for index in range(10_000):
        writer.write(index, b'{{"index":%d}}\\n' % index)
        writer.flush()
except RunFailed as error:
    print(error)
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "File too large; its lines are complete" in output
    data = path.read_bytes()
    assert data.endswith(b"\n")
    assert 99_900 < len(data) <= 100_000
    assert [json.loads(line)["index"] for line in data.splitlines()] == list(range(data.count(b"\n")))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 100_000  # it was the child's alone


def test_a_pipe_holds_rows_back_until_those_before_them_are_out() -> None:
    file = io.BytesIO()
    writer = PipeWriter(file)
    seen = []
    for index in ORDER:
        writer.write(index, lines(index, 2))
        writer.flush()
        seen.append((file.getvalue().count(b"\n") // 2, writer.num_held))
    assert seen == [(0, 1), (1, 1), (1, 2), (3, 1), (3, 2), (6, 0)]
    writer.close(is_complete=True)
    assert file.getvalue() == SORTED


def test_unordered_it_holds_nothing_back() -> None:
    file = io.BytesIO()
    write_all(PipeWriter(file, ordered=False))
    assert file.getvalue() == AS_FINISHED


def test_finished_rows_of_an_interrupted_run_come_out() -> None:
    file = io.BytesIO()
    writer = PipeWriter(file)
    for index in (3, 1):
        writer.write(index, lines(index))
    writer.close(is_complete=False)
    assert file.getvalue() == lines(1) + lines(3)


class Broken(io.BytesIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, data: Any) -> int:
        raise self.error


def test_a_reader_that_went_away_is_no_error() -> None:
    writer = PipeWriter(Broken(BrokenPipeError()))
    writer.write(0, lines(0))
    with pytest.raises(OutputClosed):
        writer.flush()


def test_another_failure_is_one() -> None:
    writer = PipeWriter(Broken(OSError(errno.EIO, "Input/output error")))
    writer.write(0, lines(0))
    with pytest.raises(RunFailed, match="Input/output error"):
        writer.flush()


def test_a_device_is_written_like_a_pipe() -> None:
    check_output(Path(os.devnull), overwrite=False)
    assert isinstance(make_writer(Path(os.devnull), False, True, lambda: None), PipeWriter)  # type: ignore[arg-type,return-value]
