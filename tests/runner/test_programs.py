"""The sizes that programs are compiled for, and their count."""

from __future__ import annotations

import pytest

from runner.programs import Programs, bucket_of, token_buckets
from runner.progress import no_progress


@pytest.mark.parametrize(
    ("size", "bucket"),
    [(1, 8), (8, 8), (9, 16), (17, 32), (33, 64), (65, 96), (96, 96), (97, 128), (129, 256), (1025, 2048)],
)
def test_a_size_is_rounded_up_to_a_power_of_two_or_96(size, bucket):
    assert bucket_of(size) == bucket


def test_the_buckets_of_a_budget_end_with_the_one_that_holds_it():
    assert token_buckets(100) == [8, 16, 32, 64, 96, 128]
    assert token_buckets(2048) == [8, 16, 32, 64, 96, 128, 256, 512, 1024, 2048]


class Lowered:
    def __init__(self, log, program):
        self.log, self.program = log, program

    def compile(self):
        self.log.append(self.program)
        return self.program


def test_what_was_compiled_ahead_is_not_compiled_again():
    log = []
    programs = Programs({kind: lambda size, kind=kind: Lowered(log, (kind, size)) for kind in ("forward", "sample")})
    programs.compile_all([("forward", 8), ("forward", 16), ("sample", 8)], no_progress)
    assert sorted(log) == [("forward", 8), ("forward", 16), ("sample", 8)]
    assert programs.get("forward", 16) == ("forward", 16)
    assert programs.num_compilations == 3
    assert programs.get("sample", 16) == ("sample", 16)
    assert programs.num_compilations == 4
    programs.compile_all([("forward", 8), ("sample", 16)], no_progress)
    assert programs.num_compilations == 4
