"""The offline policy: other order, same rows, less work."""

from __future__ import annotations

import random

from fake_runner import FakeRunner, continuation
from scenarios import add, full, make_request, make_scheduler, new_ids, step

from scheduler import CacheGroupsConfig, CacheGroupSpec, EngineRequest, EngineRequestStatus, Scheduler
from scheduler.offline import throughput_order
from scheduler.simulate import Row, prefix_rows, simulate


def ordered(*requests: EngineRequest, cached: dict[str, int] | None = None) -> list[str]:
    """Ids in the order for throughput, with pages of 4, where so many tokens of some are cached."""
    for request in requests:
        request.max_num_tokens = request.num_prompt_tokens + request.sampling_params.max_tokens
    return [
        request.request_id
        for request in throughput_order(list(requests), 4, lambda request: (cached or {}).get(request.request_id, 0))
    ]


def test_the_longest_come_first_where_nothing_is_shared() -> None:
    assert ordered(
        make_request("14", [1] * 4, max_tokens=10),
        make_request("30", [2] * 10, max_tokens=20),
        make_request("25", [3] * 20, max_tokens=5),
    ) == ["30", "25", "14"]


def test_those_that_share_a_page_follow_the_longest_of_them() -> None:
    assert ordered(
        make_request("short", [1, 2, 3, 4, 9], max_tokens=1),
        make_request("alone", [5] * 10, max_tokens=10),
        make_request("long", [1, 2, 3, 4, 8], max_tokens=50),
    ) == ["long", "short", "alone"]


def test_less_than_a_page_in_common_is_nothing_shared() -> None:
    assert ordered(
        make_request("5", [1, 2, 3, 9], max_tokens=1),
        make_request("9", [4] * 4, max_tokens=5),
        make_request("20", [1, 2, 3, 8], max_tokens=16),
    ) == ["20", "9", "5"]


def test_forks_deep_in_a_shared_prefix_are_grouped_too() -> None:
    head, left, right = [1] * 40, [2] * 8, [3] * 8
    assert ordered(
        make_request("left 1", head + left + [4], max_tokens=1),
        make_request("right 1", head + right + [4], max_tokens=2),
        make_request("left 2", head + left + [5], max_tokens=9),
        make_request("right 2", head + right + [5], max_tokens=1),
    ) == ["left 2", "left 1", "right 1", "right 2"]


def test_a_prefix_that_is_cached_comes_before_the_longest() -> None:
    assert ordered(
        make_request("long", [1] * 8, max_tokens=50),
        make_request("cached", [2] * 8, max_tokens=1),
        make_request("more cached", [3] * 12, max_tokens=1),
        cached={"cached": 4, "more cached": 8},
    ) == ["more cached", "cached", "long"]


def test_equal_tokens_under_different_salts_are_not_shared() -> None:
    requests = [make_request(f"{i}", [1] * 8, max_tokens=i % 3, cache_salt=str(i % 2)) for i in range(6)]
    assert [int(request_id) % 2 for request_id in ordered(*requests)] in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])


def test_a_prompt_in_a_prompt_in_a_prompt_1000_times_is_ordered() -> None:
    requests = [make_request(str(i), [1] * (4 * i), max_tokens=1) for i in range(1, 1001)]
    assert sorted(ordered(*requests), key=int) == [str(i) for i in range(1, 1001)]


def test_no_request_is_overtaken_by_more_than_the_look_ahead_of_1024() -> None:
    scheduler = make_scheduler(policy="offline", max_num_seqs=1)
    add(scheduler, make_request("first", [1] * 8, max_tokens=1))
    for i in range(2000):
        add(scheduler, make_request(str(i), [2 + i] * 8, max_tokens=10))
    begun = []
    while "first" not in begun:
        begun += new_ids(scheduler.schedule())
        scheduler.finish_requests(begun[-1], EngineRequestStatus.FINISHED_ABORTED)
    assert len(begun) == 1024


def test_no_request_begins_before_the_pool_has_the_pages_of_all_its_tokens() -> None:
    # 10 usable pages of 16; each request comes to 79 computed tokens: 5 pages.
    scheduler = make_scheduler(policy="offline", num_pages=11)
    add(scheduler, *[make_request(str(i), [i] * 16, max_tokens=64) for i in range(4)])
    assert len(new_ids(step(scheduler))) == 2
    while scheduler.has_unfinished_requests():
        step(scheduler)
    assert scheduler.get_stats().num_preemptions == 0


def test_a_request_that_waits_in_either_part_of_the_queue_can_be_ended() -> None:
    scheduler = make_scheduler(policy="offline", max_num_seqs=1)
    add(scheduler, *[make_request(str(i), [i] * 8, max_tokens=8 - i) for i in range(3)])
    step(scheduler)
    add(scheduler, make_request("late", [9] * 8))
    scheduler.finish_requests(["1", "late"], EngineRequestStatus.FINISHED_ABORTED)
    assert scheduler.get_request_counts() == (1, 1)


def simulated(policy: str, rows: list[Row], num_pages: int = 1000) -> tuple[int, int, float]:
    scheduler = make_scheduler(policy=policy, num_pages=num_pages, max_num_seqs=64, budget=512, max_model_len=2048)
    report = simulate(scheduler, rows, max_waiting=1024)
    return report.num_steps, report.num_computed_tokens, report.device_seconds


def test_shuffled_prefixes_are_computed_once_each() -> None:
    """64 prefixes of 512 tokens, 10 rows each, in a pool that holds 31 prefixes: the gain is over 1.5 in time."""
    rows = [row for row, _ in zip(prefix_rows(64), range(640), strict=False)]
    _, fcfs_computed, fcfs_seconds = simulated("fcfs", rows)
    _, computed, seconds = simulated("offline", rows)
    own = sum(len(row.prompt_token_ids) - 512 + row.output_length - 1 for row in rows)
    assert computed == 64 * 512 + own
    assert fcfs_computed > 2 * computed
    assert fcfs_seconds > 1.5 * seconds


def mixed_with_prefix(seed: int) -> list[Row]:
    """128 prompts of 32 to 256 tokens and 32 to 160 outputs, shuffled with 64 that share 512 tokens."""
    rng = random.Random(seed)
    rows = []
    for _ in range(128):
        length = rng.randint(32, 160)
        rows.append(Row([rng.randrange(50_000) for _ in range(rng.randint(32, 256))], length, length))
    rows += [row for row, _ in zip(prefix_rows(1), range(64), strict=False)]
    rng.shuffle(rows)
    return rows


def test_mixed_rows_and_one_shared_prefix_take_fewer_steps_in_a_large_pool() -> None:
    rows = mixed_with_prefix(seed=0)
    fcfs_steps, fcfs_computed, _ = simulated("fcfs", rows, num_pages=4000)
    steps, computed, _ = simulated("offline", rows, num_pages=4000)
    assert steps < 0.96 * fcfs_steps
    assert computed == fcfs_computed


def test_mixed_rows_and_one_shared_prefix_compute_fewer_tokens_in_a_small_pool() -> None:
    rows = mixed_with_prefix(seed=0)
    _, fcfs_computed, fcfs_seconds = simulated("fcfs", rows, num_pages=300)
    _, computed, seconds = simulated("offline", rows, num_pages=300)
    assert computed < 0.95 * fcfs_computed
    assert seconds < 0.96 * fcfs_seconds


def test_the_rows_are_the_same_as_with_fcfs() -> None:
    rows = [make_request(str(i), [i % 7] * 30 + [i], max_tokens=5 + i % 11) for i in range(50)]
    answers = {row.request_id: continuation(row.prompt_token_ids, row.sampling_params.max_tokens) for row in rows}
    groups = CacheGroupsConfig(40, [CacheGroupSpec(full(4))])
    scheduler: Scheduler = make_scheduler(policy="offline", num_pages=40, page_size=4, max_num_seqs=8, budget=64)
    runner = FakeRunner(groups, 4)
    add(scheduler, *rows)
    while scheduler.has_unfinished_requests():
        output = scheduler.schedule()
        scheduler.update_from_output(output, runner.run(output))
    assert {row.request_id: row.output_token_ids for row in rows} == answers
