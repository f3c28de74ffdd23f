"""How many tokens of a request fit in a step, and which requests can never run."""

from __future__ import annotations

from scheduler.cache.manager import CacheManager
from scheduler.config import Config
from scheduler.request import EngineRequest


class Limits:
    """What the configuration and the pool allow one request.

    `max_drafts` is the most drafts to verify in a step (None: as many as the runner proposes), `max_num_tokens` the
    length that no request exceeds. Raises ValueError for drafts that could not be taken back.
    """

    def __init__(self, config: Config, cache: CacheManager) -> None:
        self._config = config.scheduler_config
        self._cache = cache
        self._max_chunk = self._config.max_chunk
        self.max_drafts = _max_drafts(config, cache)
        # A request's last token is never computed: the pool need not have room for it.
        longest = self._cache.longest_request(self._config.max_model_len) + 1
        self.max_num_tokens = min(self._config.max_model_len, longest)

    def next_chunk(self, request: EngineRequest, budget: int) -> int:
        """The running request's tokens in this step: none while all that it has are computed or on their way."""
        computed = request.num_computed_tokens
        num_tokens = request.num_tokens + request.num_placeholders - computed
        if request.draft_token_ids:
            num_tokens += len(request.draft_token_ids)
        if num_tokens > 1:
            num_tokens = min(num_tokens, budget, self._max_chunk, self._cache.largest_chunk(computed))
        # A request's last token need not be computed, nor can drafts come after it.
        left = request.max_num_tokens - 1 - computed
        return num_tokens if num_tokens < left else left

    def first_chunk(self, request: EngineRequest, num_hit_tokens: int, budget: int) -> int:
        """The waiting request's tokens in this step: none where it must wait for a larger budget.

        Where prompts are not to be divided, one that was preempted still is, if with its output it has outgrown the
        budget of a whole step.
        """
        num_tokens = request.num_tokens - num_hit_tokens
        num_tokens = min(num_tokens, self._max_chunk, self._cache.largest_chunk(num_hit_tokens))
        if num_tokens > budget and not self._config.chunked_prefill_enabled:
            return 0
        return min(num_tokens, budget)

    def why_never(self, request: EngineRequest) -> str | None:
        """Why a new request can never run; None where it can."""
        length, limit = request.num_prompt_tokens, self.max_num_tokens
        if length == 0:
            return "the prompt has no tokens"
        if length >= limit:
            what = "the model's length" if limit == self._config.max_model_len else "all that the cache holds"
            return f"the prompt of {length} tokens leaves no room to generate: {what} is {limit} tokens"
        if not self._config.chunked_prefill_enabled:
            limit = min(self._config.max_num_batched_tokens, self._cache.largest_chunk(0))
            if length > limit:
                return f"the prompt of {length} tokens is over the {limit} of a step, and chunked prefill is off"
        return None


def _max_drafts(config: Config, cache: CacheManager) -> int | None:
    asked = None if config.speculative_config is None else config.speculative_config.num_speculative_tokens
    if config.scheduler_config.async_scheduling:
        reason = "async scheduling: they continue tokens that are not known yet"
    elif not cache.can_roll_back:
        reason = "recurrent layers: their state cannot be taken back"
    else:
        return asked
    if asked:
        raise ValueError(f"draft tokens do not go with {reason}")
    return 0
