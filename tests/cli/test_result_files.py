"""Files of results: what they hold at the end, and that nothing but time is lost whatever happens before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from result_files import Crash, Job, crash_at, let_go, lines_of, rows

from esurge_cli.errors import RunFailed
from esurge_cli.options import OutputOptions
from esurge_cli.results.result import Status
from esurge_cli.results.target import Target
from runner.errors import UserError

TEXTS = [f"text {i}" if i % 5 else f"!bad {i}" for i in range(40)]
KINDS = {
    "jsonl": ("out.jsonl", {}),
    "unordered": ("out.jsonl", {"unordered": True}),
    "gz": ("out.jsonl.gz", {}),
    "zst": ("out.jsonl.zst", {}),
    "parquet": ("out.parquet", {}),
    "text": ("out.txt", {}),
    "shards": ("out/", {"shard_rows": 8}),
    "parquet shards": ("out/", {"shard_rows": 8, "output_format": "parquet"}),
}


def make(folder: Path, kind: str = "jsonl", texts: Any = TEXTS, **options: Any) -> Job:
    folder.mkdir(exist_ok=True)
    name, flags = KINDS[kind]
    return Job(f"{folder}/{name}", rows(*texts, n=2), dict(flags), **options)


def content(folder: Path) -> dict[str, Any]:
    """All files that are not hidden; lines of an unordered one in an order that can be compared."""
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("[!.]*")) if path.is_file()
    }


def in_order(files: dict[str, bytes]) -> dict[str, list[bytes]]:
    return {name: sorted(data.splitlines()) for name, data in files.items()}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_rows_are_appended_as_they_finish_and_put_in_order_at_the_end(tmp_path: Path) -> None:
    job = make(tmp_path, stop_after=20)
    job.run()
    assert (tmp_path / "out.jsonl").read_bytes() == b"".join(lines_of(job.rows[index]) for index in job.made)
    assert job.made != sorted(job.made)
    whole = make(tmp_path / "whole")
    whole.run()
    assert (tmp_path / "whole" / "out.jsonl").read_bytes() == b"".join(map(lines_of, whole.rows))


def test_a_run_that_was_stopped_is_gone_on_with(tmp_path: Path, kind: str) -> None:
    whole, job = make(tmp_path / "whole", kind), make(tmp_path / "stopped", kind, stop_after=17, seed=1)
    whole.run()
    job.run()
    first = set(job.made)
    job.stop_after = None
    job.run(resume=True)
    assert first | set(job.made) == set(range(40))
    assert not first & set(job.made)
    expected, found = content(tmp_path / "whole"), content(tmp_path / "stopped")
    assert (in_order(found) == in_order(expected)) if kind == "unordered" else (found == expected)
    job.run(resume=True)
    assert job.made == []
    assert content(tmp_path / "stopped") == found


def test_a_crash_at_any_effect_on_the_disk_loses_nothing(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every boundary, before and in the midst of it, and then a second one while the run is gone on with."""
    make(tmp_path / "whole", kind).run()
    expected = content(tmp_path / "whole")
    with crash_at(monkeypatch, 10**9) as effects:
        make(tmp_path / "counted", kind).run()
    step = 1 if len(effects) < 200 else 3
    for effect in range(0, len(effects), step):
        for torn in (False, True) if effects[effect] == "write" else (False,):
            folder = tmp_path / f"{effect}-{torn}"
            crashed = make(folder, kind)
            with crash_at(monkeypatch, effect, torn), pytest.raises(Crash):
                crashed.run()
            again = make(folder, kind, seed=2)
            with crash_at(monkeypatch, effect % 11, torn):
                try:
                    again.run(resume=True)
                except Crash:
                    again.seed = 3
            with crash_at(monkeypatch, 10**9):
                again.run(resume=True)
            found = content(folder)
            assert (in_order(found) == in_order(expected)) if kind == "unordered" else (found == expected), effect


def test_a_torn_last_line_is_made_again_where_there_is_no_journal(tmp_path: Path) -> None:
    job = make(tmp_path)
    job.run()
    whole = (tmp_path / "out.jsonl").read_bytes()
    (tmp_path / "out.jsonl").write_bytes(whole[: len(whole) // 2])
    (tmp_path / ".out.jsonl.journal").unlink()
    job.run(resume=True)
    assert 18 <= len(job.made) <= 22
    assert (tmp_path / "out.jsonl").read_bytes() == whole


@pytest.mark.parametrize("has_journal", [True, False])
def test_lines_that_an_editor_has_changed_or_taken_out_are_told_by_themselves(
    tmp_path: Path, has_journal: bool
) -> None:
    job = make(tmp_path)
    job.run()
    path = tmp_path / "out.jsonl"
    kept = path.read_text().splitlines(keepends=True)
    del kept[30]  # one of two samples of a row
    kept[10] = kept[10].replace("text 6", "texture 6")
    path.write_text("".join(kept))
    if not has_journal:
        (tmp_path / ".out.jsonl.journal").unlink()
    job.run(resume=True)
    assert len(job.made) == 1
    expected = [lines_of(row).decode() for row in job.rows]
    assert path.read_text() == "".join(expected).replace('"text":"text 6"', '"text":"texture 6"', 1)


def test_a_row_that_has_changed_is_made_again(tmp_path: Path, kind: str) -> None:
    make(tmp_path / "a", kind).run()
    texts = [*TEXTS[:7], "other", *TEXTS[8:]]
    changed, whole = make(tmp_path / "a", kind, texts), make(tmp_path / "whole", kind, texts)
    writer = changed.run(resume=True)
    whole.run()
    assert changed.made == [7]
    assert writer.num_changed == 1
    assert in_order(content(tmp_path / "a")) == in_order(content(tmp_path / "whole"))


def test_all_rows_are_made_again_where_the_settings_have_changed(tmp_path: Path) -> None:
    job = make(tmp_path, settings={"temperature": 0})
    job.run()
    job.settings = {"temperature": 1}
    target = Target.of(OutputOptions(output=str(job.output), resume=True))
    assert target.changed_settings(job.settings) == ["temperature was 0 and is 1"]
    assert job.run(resume=True).num_changed == 40
    assert sorted(job.made) == list(range(40))


def test_a_row_that_has_moved_is_known_by_its_id(tmp_path: Path, kind: str) -> None:
    """New rows before and between; only they are made, and those of another shard."""
    make(tmp_path / "a", kind, stop_after=35).run()
    first = make(tmp_path / "a", kind)
    new = rows("new", "newer", n=2)
    order = [new[0], *first.rows[:20], new[1], *first.rows[20:]]
    for job in (first, whole := make(tmp_path / "whole", kind)):
        job.rows = [
            type(row)(i, i + 1, "n" + str(row.id) if row in new else row.id, row.prompt, row.sampling, row.data)
            for i, row in enumerate(order)
        ]
    whole.run()
    first.run(resume=True)
    assert in_order(content(tmp_path / "a")) == in_order(content(tmp_path / "whole"))
    if "shards" not in kind:
        assert len(first.made) <= 2 + 40 - 35


def test_a_moved_row_is_made_again_where_its_random_numbers_derive_from_its_index(tmp_path: Path) -> None:
    job = make(tmp_path, texts=["a", "b", "c"], temperature=1.0)
    job.run()
    job.rows = [type(row)(i, i + 1, row.id, row.prompt, row.sampling, row.data) for i, row in enumerate(job.rows[1:])]
    job.run(resume=True)
    assert sorted(job.made) == [0, 1]


def test_rows_that_are_no_longer_in_the_input_go(tmp_path: Path, kind: str) -> None:
    make(tmp_path / "a", kind).run()
    make(tmp_path / "whole", kind, TEXTS[:14]).run()
    shorter = make(tmp_path / "a", kind, TEXTS[:14])
    num_dropped = shorter.run(resume=True).num_dropped
    assert shorter.made == []
    assert num_dropped == (2 if "shards" in kind else 26)  # of the last shard: those after it go as they are
    assert in_order(content(tmp_path / "a")) == in_order(content(tmp_path / "whole"))


def test_a_run_over_a_part_of_the_input_leaves_the_other_rows(tmp_path: Path, kind: str) -> None:
    """The first ten rows, then the rest of them, in two runs, and once more a part that is there."""
    whole = make(tmp_path / "whole", kind)
    whole.run()
    for part in (slice(0, 10), slice(10, 40), slice(5, 8)):
        job = make(tmp_path / "a", kind, is_part=True)
        job.rows = job.rows[part]
        writer = job.run(resume=True)
        assert writer.num_dropped == 0
        assert len(job.made) == (0 if part.start == 5 else part.stop - part.start)
    assert in_order(content(tmp_path / "a")) == in_order(content(tmp_path / "whole"))


def test_ids_that_are_given_twice_are_kept_apart_by_index(tmp_path: Path) -> None:
    job = make(tmp_path, texts=["a", "b", "c", "d"])
    for row in job.rows:
        row.id = "same"
    job.run()
    job.run(resume=True)
    assert job.made == []
    assert (tmp_path / "out.jsonl").read_bytes() == b"".join(map(lines_of, job.rows))


@pytest.mark.parametrize(
    ("retry", "made"), [({Status.FAILED}, [1, 3]), ({Status.CUT}, [2]), ({Status.FAILED, Status.CUT}, [1, 2, 3])]
)
def test_rows_that_ended_badly_are_retried(tmp_path: Path, retry: set[Status], made: list[int]) -> None:
    job = make(tmp_path, texts=["a", "!b", "-c", "!d", "e"])
    job.run()
    before = (tmp_path / "out.jsonl").read_bytes()
    writer = job.run(resume=True, retry=frozenset(retry))
    assert sorted(job.made) == made
    assert writer.kept.total() == 5 - len(made)
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_an_existing_output_is_refused_and_untouched_unless_it_is_to_be_overwritten(tmp_path: Path, kind: str) -> None:
    job = make(tmp_path, kind)
    job.run()
    before = content(tmp_path)
    with pytest.raises(UserError, match="--resume to go on with"):
        job.run()
    assert content(tmp_path) == before
    make(tmp_path, kind, TEXTS[:3]).run(overwrite=True)
    make(tmp_path / "whole", kind, TEXTS[:3]).run()
    assert {name: data for name, data in content(tmp_path).items() if "whole" not in name} == content(
        tmp_path / "whole"
    )


@pytest.mark.parametrize("kind", ["gz", "parquet"])
def test_rows_of_an_interrupted_run_are_not_lost_by_a_run_that_does_not_go_on_with_them(
    tmp_path: Path, kind: str
) -> None:
    make(tmp_path, kind, stop_after=5).run()
    with pytest.raises(UserError, match="holds rows of a run that was interrupted"):
        make(tmp_path, kind).run()


@pytest.mark.parametrize("text", ["precious", "precious\n", '{"id": 1}\n', "[1]\n"])
def test_a_file_that_holds_no_results_is_not_gone_on_with(tmp_path: Path, text: str) -> None:
    job = make(tmp_path)
    (tmp_path / "out.jsonl").write_text(text)
    with pytest.raises(UserError, match="no output to go on with"):
        job.run(resume=True)
    assert content(tmp_path) == {"out.jsonl": text.encode()}


def test_text_without_a_journal_is_not_gone_on_with(tmp_path: Path) -> None:
    job = make(tmp_path, "text")
    (tmp_path / "out.txt").write_text("precious\n")
    with pytest.raises(UserError, match="has no journal"):
        job.run(resume=True)
    assert content(tmp_path) == {"out.txt": b"precious\n"}


def test_a_damaged_output_is_said_to_be(tmp_path: Path) -> None:
    job = make(tmp_path, "gz")
    (tmp_path / "out.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(UserError, match="is damaged"):
        job.run(resume=True)


def test_a_second_run_is_refused_while_the_first_goes_on(tmp_path: Path, kind: str) -> None:
    first = make(tmp_path, kind)
    target_writer: list[Any] = []

    def hold(writer: Any) -> bool:
        writer.admit(first.rows[0])
        target_writer.append(writer)
        raise KeyboardInterrupt

    first._write = hold  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        first.run()
    for flags in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(UserError, match="another run is writing"):
            make(tmp_path, kind).run(**flags)
    let_go(target_writer[0])
    make(tmp_path, kind).run(resume=True)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to("target.jsonl")
    job = Job(tmp_path / "link.jsonl", rows(*TEXTS))
    job.run(overwrite=True)
    assert (tmp_path / "link.jsonl").is_symlink()
    assert (tmp_path / "target.jsonl").read_bytes() == b"".join(map(lines_of, job.rows))


@pytest.mark.parametrize(
    ("output", "flags", "message"),
    [
        ("nowhere/out.jsonl", {}, "nowhere is not a folder"),
        ("nowhere/out/", {}, "nowhere is not a folder"),
        (None, {"resume": True}, "need an output"),
        (None, {"output_format": "parquet"}, "cannot be written to a pipe"),
        ("out.jsonl", {"resume": True, "overwrite": True}, "do not go together"),
        ("out.jsonl", {"retry": frozenset({Status.FAILED})}, "--retry needs --resume"),
    ],
)
def test_an_output_that_cannot_be_is_refused(
    tmp_path: Path, output: str | None, flags: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        Job("-" if output is None else f"{tmp_path}/{output}", []).run(**flags)


def test_a_full_disk_is_an_error_with_every_line_whole_and_the_run_can_be_gone_on_with(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: writes past it fail after what fits."""
    code = f"""
import resource, signal, sys
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[2])]!r}
from pathlib import Path
from result_files import Job, rows
from esurge_cli.errors import RunFailed
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    Job({str(tmp_path / "out.jsonl")!r}, rows(*["x" * 1000] * 200)).run()
except RunFailed as error:
    print(error)
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "File too large; the rows that were finished are whole" in output
    data = (tmp_path / "out.jsonl").read_bytes()
    assert data.endswith(b"\n")
    assert 97_000 < len(data) <= 100_000
    assert all(json.loads(line)["text"] == "x" * 1000 for line in data.splitlines())
    job = Job(tmp_path / "out.jsonl", rows(*["x" * 1000] * 200))
    job.run(resume=True)
    assert len(job.made) == 200 - data.count(b"\n")


def test_what_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("esurge_cli.results.disk.sync", fail)
    with pytest.raises(RunFailed, match="Input/output error"):
        make(tmp_path).run()


def test_columns_have_the_types_of_their_values(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from esurge_cli.results.parquet import Parquet

    values = [
        {"id": 1, "index": 0, "text": "a", "kept": [1], "mixed": 1, "none": None, "score": 1, "object": {"a": 1}},
        {"id": None, "index": 1, "text": None, "kept": None, "mixed": "x", "none": None, "score": 0.5, "object": None},
    ]
    Parquet().write(tmp_path / "out.parquet", [json.dumps(value).encode() + b"\n" for value in values])
    table = pq.read_table(tmp_path / "out.parquet")
    types = {name: table.schema.field(name).type for name in ("id", "text", "kept", "mixed", "score", "object")}
    assert types == {
        "id": pa.int64(),
        "text": pa.string(),
        "kept": pa.list_(pa.int64()),
        "mixed": pa.string(),
        "score": pa.float64(),
        "object": pa.string(),
    }
    assert table["mixed"].to_pylist() == ["1", '"x"']
    assert table["object"].to_pylist() == ['{"a":1}', None]
    read = [json.loads(line) for line in Parquet().read(tmp_path / "out.parquet")]
    assert [{name: row[name] for name in values[0]} for row in read] == values
