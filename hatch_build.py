"""Build hook: compiles the native kernels where there is a C++ compiler; without one the XLA path is used."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
FOLDERS = [ROOT / "runner" / "attention" / "cpu", ROOT / "runner" / "linear" / "cpu"]
LIBRARY = "_native.so"
FLAGS = ["-O3", "-std=c++17", "-fPIC", "-ffp-contract=fast", "-fno-math-errno"]

# one compilation of kernel.cc for each instruction set: its function, its register's bytes, its flags
BASELINE = ("BaselineKernels", 16, [])
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"]
X86 = [("Avx2Kernels", 32, ["-mavx2", "-mfma"]), ("Avx512Kernels", 64, AVX512)]
# amx.cc, in the folders that have one, for compilers that know AMX (GCC 11, Clang 11)
AMX = [*AVX512, "-mamx-tile", "-mamx-bf16", "-DESURGE_VECTOR_BYTES=64"]


class NativeBuildHook(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            print("esurge: no C++ compiler found; all will run on XLA, which is slower on a CPU", file=sys.stderr)
            return
        try:
            for folder in FOLDERS:
                build(compiler, folder)
        except subprocess.CalledProcessError as error:
            print(f"esurge: the native kernels did not compile ({error}); all will run on XLA", file=sys.stderr)
            return
        build_data["artifacts"] += [str((folder / LIBRARY).relative_to(ROOT)) for folder in FOLDERS]
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def build(compiler: str, sources: Path, extra_flags: list[str] | None = None) -> None:
    """Compile a folder's sources on as many cores as there are, and link them into its library."""
    import jaxlib

    is_x86 = platform.machine() in ("x86_64", "AMD64")
    headers = ["-isystem", str(Path(jaxlib.__file__).parent / "include")]
    flags = [*FLAGS, *(["-DESURGE_X86"] if is_x86 else []), *headers, *(extra_flags or [])]
    has_amx = is_x86 and sys.platform == "linux" and (sources / "amx.cc").exists() and knows(compiler, AMX)
    if has_amx:
        flags.append("-DESURGE_AMX")
    # the least instructions first: of a function that several files hold a copy of, the linker takes the first one
    jobs = [("ffi.cc", "ffi.o", [])]
    for name, width, own in [BASELINE, *(X86 if is_x86 else [])]:
        jobs.append(("kernel.cc", f"{name}.o", [f"-DESURGE_KERNELS={name}", f"-DESURGE_VECTOR_BYTES={width}", *own]))
    if has_amx:
        jobs.append(("amx.cc", "amx.o", AMX))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as threads:
        objects = [str(Path(folder, name)) for _, name, _ in jobs]

        def compile_one(job: tuple[str, str, list[str]], output: str) -> None:
            source, _, own = job
            subprocess.run([compiler, *flags, *own, "-c", str(sources / source), "-o", output], check=True)

        list(threads.map(compile_one, jobs, objects))
        linked = Path(folder, "linked.so")
        subprocess.run([compiler, "-shared", *(extra_flags or []), *objects, "-o", str(linked)], check=True)
        target = sources / LIBRARY
        shutil.copyfile(linked, target.with_suffix(".new"))
        target.with_suffix(".new").replace(target)


def knows(compiler: str, flags: list[str]) -> bool:
    command = [compiler, *flags, "-fsyntax-only", "-x", "c++", os.devnull]
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


if __name__ == "__main__":
    for folder in FOLDERS:
        build(os.environ.get("CXX", "c++"), folder, sys.argv[1:])
