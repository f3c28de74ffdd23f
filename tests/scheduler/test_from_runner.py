"""A scheduler made for a runner has its groups and limits."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from scenarios import add, full, make_request, make_requests

import scheduler
from scheduler import CacheGroupsConfig, CacheGroupSpec, Scheduler, SlidingWindowSpec


@dataclass
class Runner:
    """What `from_runner` reads of a runner."""

    max_model_len: int = 100
    max_num_seqs: int = 3
    page_size: int = 16
    num_pages: int = 50
    cache_groups: CacheGroupsConfig = field(
        default_factory=lambda: CacheGroupsConfig(
            50, [CacheGroupSpec(full()), CacheGroupSpec(SlidingWindowSpec(16, 1, 64, "float32", 32))]
        )
    )


def test_the_default_budget_is_max_model_len_100() -> None:
    made = Scheduler.from_runner(Runner())
    add(made, *make_requests(3, num_tokens=60))
    output = made.schedule()
    assert output.num_scheduled_tokens == {"0": 60, "1": 40}
    assert len(output.scheduled_new_reqs[0].page_ids) == 2


def test_a_budget_and_other_options_are_taken() -> None:
    made = Scheduler.from_runner(
        Runner(), max_num_batched_tokens=32, enable_prefix_caching=False, long_prefill_token_threshold=20
    )
    add(made, *make_requests(3, num_tokens=60))
    assert made.schedule().num_scheduled_tokens == {"0": 20, "1": 12}


def test_a_budget_of_0_is_refused_and_not_taken_for_the_default() -> None:
    with pytest.raises(ValueError, match="max_num_batched_tokens"):
        Scheduler.from_runner(Runner(), max_num_batched_tokens=0)


def test_an_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="max_num_sequences"):
        Scheduler.from_runner(Runner(), max_num_sequences=4)


def test_prefix_caching_is_on_unless_turned_off() -> None:
    for enabled, computed in ((True, 1), (False, 33)):
        made = Scheduler.from_runner(Runner(), enable_prefix_caching=enabled)
        add(made, make_request("a", [1] * 33))
        made.schedule()
        add(made, make_request("b", [1] * 33))
        assert made.schedule().num_scheduled_tokens == {"b": computed}


def test_the_package_exports_what_its_contract_names() -> None:
    names = (
        "CacheConfig CacheGroupSpec CacheGroupsConfig CachedRequestData ChunkedLocalAttentionSpec Config "
        "EngineCoreOutput EngineCoreOutputs EngineRequest EngineRequestStatus FinishReason FullAttentionSpec "
        "ModelRunnerOutput NewRequestData SamplingParams Scheduler SchedulerConfig SchedulerInterface "
        "SchedulerOutput SlidingWindowSpec SpeculativeConfig"
    )
    assert " ".join(sorted(scheduler.__all__)) == names
