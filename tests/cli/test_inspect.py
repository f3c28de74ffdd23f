"""`esurge inspect`, on tiny checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from esurge_cli.app import app
from runner.errors import UserError
from runner.weights.safetensors import SafetensorsCheckpoint


def inspect(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["inspect", *arguments])


def value_of(result: Result, name: str) -> str:
    (line,) = [line for line in result.stdout.splitlines() if line.startswith(f"{name} ")]
    return line.removeprefix(name).strip()


def test_a_hybrid_model(tiny_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SafetensorsCheckpoint, "tensor", lambda *_: pytest.fail("weights were loaded"))
    folder = tiny_checkpoint("gemma3_text")
    flags = ["--max-num-seqs", "8", "--max-batched-tokens", "32", "--num-pages", "81", "--page-size", "16"]
    result = inspect(str(folder), *flags)
    assert result.exit_code == 0, result.exception
    # 2 of 4 layers see 32 tokens; each layer keeps 2 heads of 16, keys and values, of 4 bytes.
    assert value_of(result, "architecture") == "gemma3_text, 4 layers of 64"
    assert value_of(result, "attention") == "2 sliding (32), 2 full; 4 heads of 16, 2 of keys and values"
    assert value_of(result, "context") == "512 of 512 tokens"
    assert value_of(result, "KV cache") == "1 KiB a token in float32"
    # A page is one group's: 16 tokens, 2 layers, 256 bytes.
    assert value_of(result, "pages") == "81 of 16 tokens, 648 KiB"
    # The longest sequence has 32 pages of the full group, and 5 of the window's: any 31 + 32 tokens in a row.
    assert value_of(result, "these hold") == "at least 640 tokens, or 2 sequences of 512"
    assert value_of(result, "compiled") == "4 programs: steps of 8, 16, 32 tokens; sampling of 8"
    groups = [line.split() for line in result.stdout.splitlines()[-4:] if line.strip()]
    assert groups[-2:] == [
        ["0", "the", "last", "32", "tokens", "2", "0.5", "5"],
        ["1", "every", "token", "2", "0.5", "32"],
    ]


def test_the_model_may_be_named_by_the_flag(tiny_checkpoint: Callable[..., Path]) -> None:
    folder = str(tiny_checkpoint("llama"))
    assert value_of(inspect("--model", folder), "attention").startswith("3 full;")
    both = inspect(folder, "--model", folder)
    assert isinstance(both.exception, UserError)


def test_what_does_not_fit_is_one_line(tiny_checkpoint: Callable[..., Path]) -> None:
    result = inspect(str(tiny_checkpoint("llama")), "--num-pages", "5")
    assert isinstance(result.exception, UserError)
    assert "the longest that fits is 64 tokens" in str(result.exception)
    missing = inspect("./nowhere")
    assert str(missing.exception) == "./nowhere does not exist"
