"""The native kernels' own tests again, on a build that AddressSanitizer and UndefinedBehaviorSanitizer watch.

They see all loads and stores but AMX's own, of whole tiles, which no compiler instruments.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TESTS = ["test_attention.py", "test_linear.py"]
FLAGS = [
    *("-O1", "-g1", "-fno-omit-frame-pointer"),
    # half of the compile time for two checks of pointers, what matters of which is AddressSanitizer's anyway
    *("-fsanitize=address,undefined", "-fno-sanitize=null,pointer-overflow", "-fno-sanitize-recover=undefined"),
]


def runtime(name: str) -> str:
    """A library of GCC's, which a process that is not built with it must load before all others."""
    command = [os.environ.get("CXX", "c++"), f"-print-file-name={name}"]
    path = subprocess.run(command, capture_output=True, text=True).stdout.strip() if shutil.which(command[0]) else ""
    if not Path(path).is_absolute():
        pytest.skip(f"no GCC, or without {name}")
    return path


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """`watched(*arguments)` runs pytest on a copy of the sources, built with the sanitizers."""
    runtimes = [runtime(name) for name in ("libasan.so", "libubsan.so", "libstdc++.so")]
    copy = tmp_path_factory.mktemp("watched")
    for package in ("runner", "scheduler"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for file in ("hatch_build.py", "pyproject.toml"):
        shutil.copy(ROOT / file, copy)
    for file in (*TESTS, "instructions.py"):
        shutil.copy(ROOT / "tests" / "runner" / file, copy)
    subprocess.run([sys.executable, "hatch_build.py", *FLAGS], cwd=copy, check=True)
    environment = os.environ | {
        "LD_PRELOAD": " ".join(runtimes),
        # leaks are of Python and XLA, and where memory is from takes longer to note than to use
        "ASAN_OPTIONS": "detect_leaks=0:malloc_context_size=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": str(copy),
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-v", "--capture=no", "-p", "no:cacheprovider", *arguments]
        return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)

    return run


@pytest.mark.parametrize("file", TESTS)
def test_the_kernels_make_no_hidden_mistake(watched, file):
    done = watched(file, "-k", "not xla")
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[:4000]}"
    assert re.search(r"\[native baseline.* PASSED", done.stdout), "nothing native was tested"
