"""`esurge generate` as a process: stopped, killed, left without its files, and at work on other formats."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from fake_engine import process, wait_until

ROWS = 60

_KILLS = int(os.environ.get("ESURGE_TEST_KILLS", "4"))
"""How often a process is killed in each of the formats."""

_QUIET = ("--progress", "none", "--no-enable-prefix-caching")
"""What a prompt finds in the cache depends on what ran before it, and `cached_tokens` says so."""


def write_input(folder: Path, count: int = ROWS) -> str:
    """Short rows and long ones, those of several samples and bad ones."""
    chance = random.Random(0)
    path = folder / "in.jsonl"
    with path.open("w") as file:
        for i in range(count):
            row = {"id": f"q{i}", "prompt": "x" * chance.randint(1, 30) + str(i), "n": chance.choice([1, 1, 3])}
            file.write("{broken\n" if i % 17 == 5 else json.dumps(row) + "\n")
    return str(path)


def run(*arguments: str, pause: float = 0.0) -> tuple[int, str]:
    """The exit status, and what is said."""
    with process(*arguments, *_QUIET, pause=pause, stdin=subprocess.DEVNULL) as esurge:
        _, errors = esurge.communicate(timeout=120)
        return esurge.returncode, errors


def visible(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("[!.]*")) if path.is_file()}


def state(folder: Path) -> dict[str, int]:
    """The sizes of all files, hidden ones too."""
    sizes = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            sizes[str(path)] = path.stat().st_size
    return sizes


@pytest.mark.parametrize(
    "flags",
    [
        ["out.jsonl"],
        ["out.jsonl.zst"],
        ["out.parquet", "--keep-fields", "all"],
        ["out/", "--shard-rows", "13"],
    ],
    ids=["jsonl", "zst", "parquet", "shards"],
)
def test_killed_again_and_again_it_ends_as_if_it_had_not_been(tmp_path: Path, flags: Sequence[str]) -> None:
    path = write_input(tmp_path)
    name, *rest = flags
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    assert run(path, "-o", str(tmp_path / "whole") + "/" + name, *rest)[0] == 3
    killed = tmp_path / "killed"
    arguments = [path, "-o", f"{killed}/{name}", *rest, "--resume", "--max-num-seqs", "4"]
    chance = random.Random(len(name))
    num_killed = 0
    while num_killed < _KILLS:
        before = state(killed)
        with process(*arguments, *_QUIET, pause=0.003, stdin=subprocess.DEVNULL) as esurge:
            wait_until(lambda before=before, esurge=esurge: state(killed) != before or esurge.poll() is not None, 60)
            time.sleep(chance.uniform(0, 0.4))
            esurge.kill()
        num_killed += esurge.returncode == -signal.SIGKILL
        if esurge.returncode >= 0:  # it came to its end before
            assert esurge.returncode == 3
            assert visible(killed) == visible(tmp_path / "whole")
            shutil.rmtree(killed)
            killed.mkdir()
    status, errors = run(*arguments)
    assert status == 3, errors
    assert visible(killed) == visible(tmp_path / "whole")


def test_sigterm_lets_the_rows_in_flight_end(tmp_path: Path) -> None:
    path, out = write_input(tmp_path), tmp_path / "out.jsonl"
    sizes = ["--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--no-enable-prefix-caching"]
    arguments = [path, "-o", str(out), *sizes]
    with process(*arguments, pause=0.02, stdin=subprocess.DEVNULL) as esurge:
        wait_until(lambda: out.exists() and out.stat().st_size > 0, 60)
        esurge.terminate()
        errors = esurge.stderr.read()  # type: ignore[union-attr]
        assert esurge.wait(60) == 128 + signal.SIGTERM
    assert f"to go on: esurge generate {path} -o {out}" in errors
    assert "--resume" in errors.splitlines()[-1]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    indices = {row["index"] for row in rows}
    assert 4 <= len(indices) < ROWS
    whole = tmp_path / "whole.jsonl"
    run(path, "-o", str(whole))
    assert run(*arguments, "--resume")[0] == 3
    assert out.read_bytes() == whole.read_bytes()


def test_sigterm_twice_ends_it_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with process(write_input(tmp_path), "-o", str(out), pause=30, stdin=subprocess.DEVNULL) as esurge:
        wait_until(lambda: out.exists(), 60)
        time.sleep(0.5)
        for _ in range(2):
            esurge.terminate()
            time.sleep(0.2)
        assert esurge.wait(10) == 128 + signal.SIGTERM


def test_an_input_that_breaks_off_costs_no_row_before_it(tmp_path: Path) -> None:
    """A compressed file that is cut off: what can be read of it is generated, and the run can be gone on with."""
    import gzip

    path, out = tmp_path / "in.jsonl.gz", tmp_path / "out.jsonl"
    lines = b"".join(b'{"id": %d, "prompt": "%d"}\n' % (i, i) for i in range(2000))
    data = gzip.compress(lines)
    path.write_bytes(data[: len(data) // 2])
    status, errors = run(str(path), "-o", str(out))
    assert status == 1
    assert str(path) in errors
    assert "Traceback" not in errors
    num_read = out.read_bytes().count(b"\n")
    assert 500 < num_read < 1500
    path.write_bytes(data)
    assert run(str(path), "-o", str(out), "--resume")[0] == 0
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == list(range(2000))


def test_standard_input_that_stalls_is_waited_for(tmp_path: Path) -> None:
    with process("-", "--progress", "none") as esurge:
        for i in range(3):
            esurge.stdin.write(json.dumps({"prompt": f"{i}"}) + "\n")  # type: ignore[union-attr]
            esurge.stdin.flush()  # type: ignore[union-attr]
            assert json.loads(esurge.stdout.readline())["text"] == str(i)  # type: ignore[union-attr]
            time.sleep(1.0)
        esurge.stdin.close()  # type: ignore[union-attr]
        assert esurge.wait(30) == 0


@pytest.mark.parametrize(("limit", "status"), [("2", 1), ("3", 3), ("99%", 3), ("0", 1)])
def test_too_many_errors_end_the_run(tmp_path: Path, limit: str, status: int) -> None:
    """Of 60 rows 4 are broken: the fifth of every 17."""
    path = write_input(tmp_path)
    found, errors = run(path, "-o", str(tmp_path / "out.jsonl"), "--max-errors", limit)
    if limit == "3":
        assert (found, "4 of" in errors) == (1, True)
    else:
        assert found == status
    assert ("more than --max-errors allows" in errors) == (found == 1)


def test_a_second_run_of_the_same_output_is_refused(tmp_path: Path) -> None:
    path, out = write_input(tmp_path), tmp_path / "out.jsonl"
    with process(path, "-o", str(out), pause=0.2, stdin=subprocess.DEVNULL) as esurge:
        wait_until(lambda: out.exists(), 60)
        status, errors = run(path, "-o", str(out), "--resume")
        esurge.kill()
    assert status == 2
    assert "another run is writing" in errors


def test_errors_are_tried_again_once_their_cause_is_gone(tmp_path: Path) -> None:
    path, out = write_input(tmp_path), tmp_path / "out.jsonl"
    run(path, "-o", str(out))
    assert run(path, "-o", str(out), "--resume")[0] == 3
    good = Path(path).read_text().replace("{broken", '{"prompt": "mended"}')
    Path(path).write_text(good)
    status, errors = run(path, "-o", str(out), "--resume", "--retry", "error", "--summary", str(tmp_path / "s.json"))
    assert status == 0, errors
    rows = json.loads((tmp_path / "s.json").read_text())["rows"]
    assert (rows["ok"], rows["kept"], rows["kept_failed"]) == (4, ROWS - 4, 0)
    assert 'error":null' in out.read_text()
    assert all(json.loads(line)["error"] is None for line in out.read_text().splitlines())


def test_settings_that_have_changed_are_said(tmp_path: Path) -> None:
    path, out = write_input(tmp_path), tmp_path / "out.jsonl"
    run(path, "-o", str(out))
    _, errors = run(path, "-o", str(out), "--resume", "--max-tokens", "3")
    assert "max_tokens was None and is 3: rows that were generated before will be generated again" in errors
    assert all(json.loads(line)["usage"]["completion_tokens"] <= 3 for line in out.read_text().splitlines())


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system is mounted")
def test_a_full_file_system(tmp_path: Path) -> None:
    """A small tmpfs fills up: an error of one line, whole rows; with room again the run goes on."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        path = tmp_path / "in.jsonl"
        path.write_text("".join(json.dumps({"id": i, "prompt": "y" * 20}) + "\n" for i in range(400)))
        status, errors = run(str(path), "-o", str(folder / "out.jsonl"))
        assert status == 1
        assert "No space left on device" in errors
        assert "Traceback" not in errors
        data = (folder / "out.jsonl").read_bytes()
        assert data.endswith(b"\n")
        assert all(json.loads(line)["text"] == "y" * 20 for line in data.splitlines())
        subprocess.run(["mount", "-o", "remount,size=1m", folder], check=True)
        assert run(str(path), "-o", str(folder / "out.jsonl"), "--resume")[0] == 0
        ids = [json.loads(line)["id"] for line in (folder / "out.jsonl").read_text().splitlines()]
        assert ids == list(range(400))
    finally:
        subprocess.run(["umount", folder], check=False)


def test_openai_requests_are_answered_as_openai_does(tmp_path: Path) -> None:
    """By files and by a pipe, without a word about it; what such an answer has no place for is refused."""
    bodies = [{"prompt": "ab"}, {"messages": [{"role": "user", "content": "Hi"}]}, {"prompt": 1}]
    urls = ["/v1/completions", "/v1/chat/completions", "/v1/completions"]
    requests = [
        {"custom_id": f"r{i}", "method": "POST", "url": url, "body": {"model": "m"} | body}
        for i, (url, body) in enumerate(zip(urls, bodies, strict=True))
    ]
    path, out = tmp_path / "requests.jsonl", tmp_path / "out.jsonl"
    path.write_text("".join(json.dumps(request) + "\n" for request in requests))
    assert run(str(path), "-o", str(out))[0] == 3
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert [answer["custom_id"] for answer in answers] == ["r0", "r1", "r2"]
    assert [answer["response"]["status_code"] for answer in answers] == [200, 200, 400]
    assert answers[0]["response"]["body"]["choices"][0]["text"] == "ab"
    assert answers[1]["response"]["body"]["choices"][0]["message"]["content"] == "user: Hi\nassistant:"
    before = out.read_bytes()
    assert run(str(path), "-o", str(out), "--resume", "--retry", "error")[0] == 3
    assert out.read_bytes() == before
    with process("-", *_QUIET) as esurge:
        piped, _ = esurge.communicate(path.read_text(), timeout=60)
    assert piped.encode() == before
    status, errors = run(str(path), "--keep-fields", "all")
    assert (status, "has no place in openai output" in errors) == (2, True)


def test_an_input_that_is_deleted_under_the_reader(tmp_path: Path) -> None:
    """The file that is open can be read to its end; the next one is gone, and that is said once the rows are out."""
    paths = [tmp_path / f"{i}.jsonl" for i in range(2)]
    for path in paths:
        path.write_text('{"prompt": "a"}\n' * 1500)
    out = tmp_path / "out.jsonl"
    arguments = [*map(str, paths), "-o", str(out), "--max-num-seqs", "4"]
    with process(*arguments, *_QUIET, pause=0.01, stdin=subprocess.DEVNULL) as esurge:
        wait_until(lambda: out.exists() and out.stat().st_size > 0, 60)
        for path in paths:
            path.unlink()
        _, errors = esurge.communicate(timeout=120)
    assert esurge.returncode == 1
    assert f"{paths[1]}" in errors
    assert "Traceback" not in errors
    assert sorted(json.loads(line)["index"] for line in out.read_text().splitlines()) == list(range(1500))


def test_flags_are_completed(tmp_path: Path) -> None:
    with process(
        env=os.environ | {"_ESURGE_COMPLETE": "complete_bash", "COMP_WORDS": "esurge generate --res", "COMP_CWORD": "2"}
    ) as esurge:
        suggested, _ = esurge.communicate(timeout=60)
    assert suggested.split() == ["--resume"]
