"""eSurgeRunner: a model on a device. Imported on first use, for it brings JAX with it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it would say that torch is missing: it should be

if TYPE_CHECKING:
    from runner.runner import eSurgeRunner

__all__ = ["eSurgeRunner"]


def __getattr__(name: str) -> Any:
    if name != "eSurgeRunner":
        raise AttributeError(f"module 'runner' has no attribute {name!r}")
    from runner.runner import eSurgeRunner

    return eSurgeRunner
