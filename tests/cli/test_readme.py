"""Every command in README runs, on an engine that echoes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_engine import process_code

ROOT = Path(__file__).parents[2]


def commands() -> list[str]:
    """Those of its blocks of shell, without what installs."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    return [line for line in lines if "pip install" not in line]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the files that README speaks of, and an `esurge` that needs no model."""
    for name in ("prompts.jsonl", "chats.jsonl", "reviews.jsonl", "more/rest.jsonl", "squad/validation.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"id": "q1", "prompt": "Hi", "question": "Why?", "text": "Good."}\n' * 3)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.csv").write_text("question\n" + "Why?\n" * 120)
    script = tmp_path / "esurge"
    script.write_text(f"#!{sys.executable}\n{process_code()}")
    script.chmod(0o755)
    peer = tmp_path / "peer.py"
    peer.write_text(f'#!{sys.executable}\nprint(\'{{"engine": "other", "output_tokens_per_s": 100}}\')\n')
    peer.chmod(0o755)
    jq = tmp_path / "jq"
    jq.write_text("#!/bin/sh\ncat\n")
    jq.chmod(0o755)
    return tmp_path


def test_there_are_commands() -> None:
    assert len(commands()) >= 8


@pytest.mark.parametrize("command", commands())
def test_it_runs(command: str, folder: Path) -> None:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env={"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), "HF_HUB_OFFLINE": "1", "ESURGE_PROGRESS": "none"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
