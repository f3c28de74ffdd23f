"""The processors that control groups grant, from the files that Linux shows."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from runner.cpus import usable_cpus


@pytest.fixture(autouse=True)
def many_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))


def machine(folder, own_groups, **files):
    """A folder that looks like a machine's root; `files` are values by path, `__` standing for the slash."""
    contents = {"proc/self/cgroup": own_groups} | {
        "sys/fs/cgroup/" + name.replace("__", "/").replace("_max", ".max"): value for name, value in files.items()
    }
    for path, text in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("own", "files", "cpus"),
    [
        ("0::/\n", {}, 16),
        ("0::/\n", {"cpu_max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu_max": "max 100000\n"}, 16),
        ("0::/\n", {"cpu_max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu_max": "250000 100000\n"}, 3),
        ("0::/\n", {"cpu_max": "3200000 100000\n"}, 16),
        ("0::/pods/mine\n", {"pods__cpu_max": "300000 100000\n", "pods__mine__cpu_max": "max 100000\n"}, 3),
        ("0::/host/path/that/is/not/here\n", {"cpu_max": "400000 100000\n"}, 4),
        ("1:name=systemd:/\n0::/mine\n", {"unified__mine__cpu_max": "500000 100000\n"}, 5),
        ("garbage:a:b:c\n0::/\n", {"cpu_max": "what\n"}, 16),
    ],
)
def test_the_groups_share(tmp_path, own, files, cpus):
    assert usable_cpus(machine(tmp_path, own, **files)) == cpus


@pytest.mark.parametrize(("quota", "cpus"), [("600000", 6), ("-1", 16)])
def test_the_share_in_the_first_version(tmp_path, quota, cpus):
    root = machine(tmp_path, "3:cpuset:/\n4:cpu,cpuacct:/mine\n")
    folder = root / "sys/fs/cgroup/cpu,cpuacct/mine"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cpus(root) == cpus


def test_without_any_groups(tmp_path):
    assert usable_cpus(tmp_path) == 16


def test_xla_starts_as_many_threads():
    program = """
import os
from runner import cpus
cpus.usable_cpus = lambda: 1
cpus.limit_xla_threads()
import jax
jax.block_until_ready(jax.numpy.ones(3) + 1)
names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
print(sum("XLAEigen" in name for name in names))
"""
    environment = {name: value for name, value in os.environ.items() if name != "PJRT_NPROC"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "1"
