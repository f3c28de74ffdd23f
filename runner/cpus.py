"""How many processors this process may use, which in a container are fewer than the machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import ceil
from pathlib import Path


def usable_cpus(root: Path = Path("/")) -> int:
    """Those that the process may be put on, or as many as its control groups grant time for, if that is less.

    A group's share is the file `cpu.max` (Linux, admin-guide/cgroup-v2) or the pair `cpu.cfs_quota_us` and
    `cpu.cfs_period_us` (scheduler/sched-bwc); half a processor counts as one.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([cpus, *(max(1, ceil(share)) for share in _shares(root))])


def limit_xla_threads() -> None:
    """Have XLA start no more threads than there are processors to use; to be called before its first use."""
    os.environ.setdefault("PJRT_NPROC", str(usable_cpus()))


def _shares(root: Path) -> Iterator[float]:
    """The processors that each group grants which this process is in, those around it included."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for mount in (root / "sys/fs/cgroup" / name for name in (controllers or ".", "unified")):
            group = mount / path.lstrip("/")
            for folder in (group, *(parent for parent in group.parents if parent.is_relative_to(mount))):
                if controllers:
                    quota, period = (_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
                else:
                    quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
                if quota.isdigit() and period.isdigit() and int(period):
                    yield int(quota) / int(period)


def _read(file: Path) -> str:
    """Empty where there is no such file, as in other systems, or it may not be read."""
    try:
        return file.read_text()
    except OSError:
        return ""
