"""The commands as a user types them, on the default model: pipes, files, and every command in README."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """`shell(command)` runs a line of bash with esurge on its PATH, in a folder of its own; stdout and stderr apart."""
    folder = tmp_path_factory.mktemp("user")
    shutil.copytree(ROOT / "examples", folder / "examples")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ESURGE_MAX_MODEL_LEN": "512",
        "ESURGE_MAX_NUM_SEQS": "8",
        "ESURGE_MAX_NUM_BATCHED_TOKENS": "64",
    }

    def run(command: str, **options) -> subprocess.CompletedProcess[str]:
        line = f"set -o pipefail; {command}"
        return subprocess.run(
            ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=600, **options
        )

    run.folder = folder
    return run


def lines_of(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def write(shell, name: str, *rows: dict | str) -> None:
    text = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    (shell.folder / name).write_text(text)


def test_readmes_first_command_gives_twenty_good_rows(shell):
    """But for the install, which made the environment that this runs in, and with sizes that compile sooner."""
    command = re.search(r"^python3 -m venv .*pip install \. && (esurge generate .*)$", readme(), re.MULTILINE).group(1)
    result = shell(command)
    assert result.returncode == 0, result.stderr
    rows = lines_of(result.stdout)
    assert [row["index"] for row in rows] == list(range(20))
    assert all(row["error"] is None and row["finish_reason"] in ("stop", "length") for row in rows)


def test_readmes_pipe(shell):
    """With a few lines of Python in jq's place, which a machine may not have."""
    write(shell, "prompts.jsonl", {"prompt": "One, two,", "max_tokens": 4}, {"prompt": "A", "max_tokens": 2})
    (shell.folder / "jq").write_text("import sys, json\nfor line in sys.stdin:\n    print(json.loads(line)['text'])\n")
    result = shell(f"cat prompts.jsonl | esurge generate - --temperature 0 | {sys.executable} jq")
    assert result.returncode == 0, result.stderr
    assert "three" in result.stdout


def test_head_ends_the_command_quietly(shell):
    write(shell, "many.jsonl", *({"prompt": f"{i}", "max_tokens": 3} for i in range(60)))
    result = shell("esurge generate many.jsonl | head -1")
    assert len(lines_of(result.stdout)) == 1
    assert "Traceback" not in result.stderr
    assert "rror" not in result.stderr


def test_an_empty_file_has_no_rows_and_is_fine(shell):
    write(shell, "empty.jsonl")
    result = shell("esurge generate empty.jsonl")
    assert (result.returncode, result.stdout) == (0, "")


def test_a_broken_line_is_an_error_row_and_the_others_are_fine(shell):
    row = {"prompt": "Hello", "max_tokens": 3}
    write(shell, "broken.jsonl", row, '{"prompt": "no end', row)
    result = shell("esurge generate broken.jsonl")
    assert result.returncode == 3
    rows = lines_of(result.stdout)
    assert [row["finish_reason"] == "error" for row in rows] == [False, True, False]
    assert rows[1]["error"]["line"] == 2
    assert "1 row failed" in result.stderr


def test_the_same_seed_gives_the_same_rows_alone_and_together(shell):
    rows = [{"prompt": f"Story number {i}:", "max_tokens": 12, "seed": i} for i in range(6)]
    write(shell, "seeds.jsonl", *rows)
    together = [row["text"] for row in lines_of(shell("esurge generate seeds.jsonl").stdout)]
    alone = [row["text"] for row in lines_of(shell("esurge generate seeds.jsonl --max-num-seqs 1").stdout)]
    assert together == alone
    assert len(set(together)) == 6


def test_the_example_loop_runs_as_it_is_printed(shell):
    result = shell(f"{sys.executable} examples/python_loop.py")
    assert result.returncode == 0, result.stderr
    loop = re.search(r"while scheduler\.get.*?\n        ", readme(), re.DOTALL).group(0)
    example = (ROOT / "examples/python_loop.py").read_text()
    assert loop.rstrip() in example


def test_bench_sweeps_the_budget_and_compiles_nothing_while_it_measures(shell):
    sizes = "--num-prompts 6 --input-len 20 --output-len 4"
    result = shell(f"esurge bench {sizes} --max-batched-tokens 32,64 --json out.json")
    assert result.returncode == 0, result.stderr
    runs = json.loads((shell.folder / "out.json").read_text())
    assert len(runs) == 2


def test_inspect_reads_no_weights(shell):
    result = shell("esurge inspect")
    assert result.returncode == 0, result.stderr
    assert "llama" in result.stdout


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from esurge_cli.app import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'jax', 'numpy', 'torch', 'transformers', 'datasets'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.rstrip().endswith("[]"), result.stdout


def test_no_package_imports_torch():
    """transformers does where it is installed, as for these tests; esurge does not ask it to."""
    sources = [path for package in ("esurge_cli", "runner", "scheduler") for path in (ROOT / package).rglob("*.py")]
    assert len(sources) > 50
    assert not [path for path in sources if re.search(r"^\s*(import|from) torch\b", path.read_text(), re.MULTILINE)]


def readme() -> str:
    return (ROOT / "README.md").read_text()
