"""What the native parts share: each is one call, in a library that the build makes of its folder (hatch_build.py)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path

import jax


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A call, by its name in its library and in XLA; `module` is the __file__ of the module beside the library."""

    name: str
    module: str

    def is_built(self) -> bool:
        """Whether the package's build found a compiler."""
        return self._library.exists()

    def register(self) -> None:
        """Let XLA call it, once a process however often this is asked. Raises OSError where it is not built."""
        _register(self.name, self._library)

    @property
    def _library(self) -> Path:
        return Path(self.module).with_name("_native.so")


@once
def _register(name: str, library: Path) -> None:
    handler = getattr(ctypes.CDLL(str(library)), name)
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="cpu")
