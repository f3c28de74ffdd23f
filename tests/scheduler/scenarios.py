"""Short ways to say what a scenario is."""

from __future__ import annotations

from typing import Any

from scheduler import (
    CacheConfig,
    CacheGroupsConfig,
    CacheGroupSpec,
    Config,
    EngineCoreOutput,
    EngineRequest,
    FullAttentionSpec,
    ModelRunnerOutput,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    SchedulerOutput,
    SpeculativeConfig,
)
from scheduler.cache.specs import KVCacheSpec

EOS = 50256


def full(page_size: int = 16) -> FullAttentionSpec:
    return FullAttentionSpec(page_size, 1, 64, "float32")


def make_scheduler(
    *specs: KVCacheSpec,
    max_num_seqs: int = 16,
    budget: int = 8192,
    max_model_len: int = 8192,
    num_pages: int = 10_000,
    page_size: int = 16,
    caching: bool = True,
    num_drafts: int | None = None,
    include_finished_set: bool = False,
    **limits: Any,
) -> Scheduler:
    """A scheduler over the given groups, one of full attention if none are; `limits` are SchedulerConfig's."""
    config = Config(
        SchedulerConfig(max_num_seqs, budget, max_model_len, **limits),
        CacheConfig(num_pages, page_size, caching),
        None if num_drafts is None else SpeculativeConfig(num_drafts),
    )
    groups = [CacheGroupSpec(spec) for spec in specs or [full(page_size)]]
    return Scheduler(config, CacheGroupsConfig(num_pages, groups), include_finished_set)


def make_requests(count: int, num_tokens: int = 10, first: int = 0, **params: Any) -> list[EngineRequest]:
    """Requests "0", "1", …; request i's prompt is token i, `num_tokens` times over."""
    params = {"max_tokens": 16} | params
    return [
        EngineRequest(str(i), [i] * num_tokens, SamplingParams(**params), eos_token_id=EOS)
        for i in range(first, first + count)
    ]


def make_request(request_id: str, prompt: list[int], max_tokens: int = 16, **fields: Any) -> EngineRequest:
    return EngineRequest(request_id, prompt, SamplingParams(max_tokens=max_tokens), eos_token_id=EOS, **fields)


def add(scheduler: Scheduler, *requests: EngineRequest) -> None:
    for request in requests:
        scheduler.add_request(request)


def sampled(
    output: SchedulerOutput, tokens: dict[str, list[int]], drafts: dict[str, list[int]] | None = None
) -> ModelRunnerOutput:
    """What a runner answers to a step: `tokens` by request, none for the others."""
    ids = list(output.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
        sampled_token_ids=[tokens.get(request_id, []) for request_id in ids],
        spec_token_ids=None if drafts is None else [drafts.get(request_id, []) for request_id in ids],
    )


def update(
    scheduler: Scheduler,
    output: SchedulerOutput,
    tokens: dict[str, list[int]],
    drafts: dict[str, list[int]] | None = None,
) -> dict[str, EngineCoreOutput]:
    """Update with what the step sampled; the outputs of all clients by request."""
    by_client = scheduler.update_from_output(output, sampled(output, tokens, drafts))
    return {update.request_id: update for outputs in by_client.values() for update in outputs.outputs}


def step(scheduler: Scheduler, token: int = 7) -> SchedulerOutput:
    """Schedule a step and let every request whose prompt is done sample `token`."""
    output = scheduler.schedule()
    computed = dict(
        zip(output.scheduled_cached_reqs.req_ids, output.scheduled_cached_reqs.num_computed_tokens, strict=True)
    )
    computed |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    done = {
        request_id: [token]
        for request_id, count in output.num_scheduled_tokens.items()
        if computed[request_id] + count == scheduler._requests[request_id].num_tokens
    }
    update(scheduler, output, done)
    return output


def new_ids(output: SchedulerOutput) -> list[str]:
    return [new.req_id for new in output.scheduled_new_reqs]


def page_ids(output: SchedulerOutput, request_id: str) -> tuple[list[int], ...]:
    """The pages that a step gave to a request."""
    for new in output.scheduled_new_reqs:
        if new.req_id == request_id:
            return new.page_ids
    cached = output.scheduled_cached_reqs
    return cached.new_page_ids[cached.req_ids.index(request_id)]
