"""The text of a request depends on nothing that the scheduler decides."""

from __future__ import annotations

import random

import pytest
from fake_runner import FakeRunner, continuation

from scheduler import (
    CacheConfig,
    CacheGroupsConfig,
    CacheGroupSpec,
    Config,
    EngineRequest,
    FullAttentionSpec,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    SlidingWindowSpec,
    SpeculativeConfig,
)

FULL = FullAttentionSpec(4, 1, 8, "float32")
SLIDING_10 = SlidingWindowSpec(4, 1, 8, "float32", 10)
SLIDING_33 = SlidingWindowSpec(4, 1, 8, "float32", 33)
MIXES = {
    "full": [FULL],
    "sliding": [SLIDING_10],
    "full+sliding": [FULL, SLIDING_10],
    "sliding+full+sliding": [SLIDING_33, FULL, SLIDING_10],
}


def make_requests(count: int, seed: int) -> list[EngineRequest]:
    """Prompts of 1 to 139 tokens, most of which share a beginning."""
    rng = random.Random(seed)
    shared = [rng.randrange(1000) for _ in range(60)]
    return [
        EngineRequest(
            str(i),
            shared[: rng.randrange(60)] + [rng.randrange(1000) for _ in range(rng.randrange(1, 80))],
            SamplingParams(max_tokens=rng.randrange(1, 60)),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("num_drafts", [0, 3])
@pytest.mark.parametrize("num_pages", [1000, 120, 55])
@pytest.mark.parametrize("mix", MIXES)
def test_text_is_the_same_in_pools_large_and_small(mix: str, num_pages: int, num_drafts: int, caching: bool) -> None:
    groups = CacheGroupsConfig(num_pages, [CacheGroupSpec(spec) for spec in MIXES[mix]])
    config = Config(SchedulerConfig(8, 64, 200), CacheConfig(num_pages, 4, caching), SpeculativeConfig(num_drafts))
    scheduler, runner = Scheduler(config, groups), FakeRunner(groups, 4, draft_length=num_drafts)
    requests = make_requests(60, seed=num_pages)
    for request in requests:
        scheduler.add_request(request)
    errors = set()
    while scheduler.has_unfinished_requests():
        step = scheduler.schedule()
        assert sum(step.num_scheduled_tokens.values()) == step.total_num_scheduled_tokens <= 64
        for outputs in scheduler.update_from_output(step, runner.run(step)).values():
            errors |= {output.request_id for output in outputs.outputs if output.error}
    for request in requests:
        if request.request_id in errors:
            assert request.num_prompt_tokens >= request.max_num_tokens
            continue
        length = min(request.sampling_params.max_tokens, request.max_num_tokens - request.num_prompt_tokens)
        assert request.output_token_ids == continuation(request.prompt_token_ids, length)
    assert scheduler.reset_prefix_cache(), "all pages are free again"
