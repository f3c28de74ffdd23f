"""Fixtures for all tests: tiny checkpoints, and two real models (mark the tests that ask for these as slow)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import GEMMA3_PACKAGES, SMOLLM2_PACKAGES, real_folder, real_gguf, write_tiny_checkpoint


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_checkpoint(model_type, **options)` writes a new folder; the options are write_tiny_checkpoint's."""

    def write(model_type: str, **options: object) -> Path:
        return write_tiny_checkpoint(tmp_path_factory.mktemp(model_type), model_type, **options)

    return write


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, Q4_1."""
    return real_gguf("smollm2-135m-instruct", SMOLLM2_PACKAGES)


@pytest.fixture(scope="session")
def gemma3_gguf() -> Path:
    """Gemma 3 270M, Q4_K_M."""
    return real_gguf("gemma-3-270m", GEMMA3_PACKAGES)


@pytest.fixture(scope="session")
def smollm2_folder(smollm2_gguf: Path) -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder in bfloat16."""
    return real_folder("smollm2-135m-instruct", smollm2_gguf)


@pytest.fixture(scope="session")
def gemma3_folder(gemma3_gguf: Path) -> Path:
    """Gemma 3 270M as a Hugging Face folder in bfloat16."""
    return real_folder("gemma-3-270m", gemma3_gguf)
