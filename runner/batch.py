"""The host's picture of the running requests, and the arrays that a step sends to the device.

A request owns one row from its first step until it finishes or is preempted. All arrays are NumPy; a step is
gathered from them with a few vectorised look-ups, whatever the number of requests.
"""

from __future__ import annotations

import hashlib
from typing import Generic, NamedTuple

import numpy as np

from runner.adjusting import Adjuster
from runner.attention.interface import Array, RaggedBatch
from runner.processors import Adjustments
from runner.sampler import SamplingBatch, refuse_unsupported
from scheduler import CachedRequestData, NewRequestData, SchedulerOutput
from scheduler.output import PageIds


class StepTokens(NamedTuple, Generic[Array]):
    """A step's tokens, padded.

    ids int32 [T]; previous int32 [T]: which sample of the step before a token is, where that is still on the device
    (-1: none, `ids` has it); the batch they form; sampled int32 [R]: the tokens after which one is sampled.
    """

    ids: Array
    previous: Array
    ragged: RaggedBatch[Array]
    sampled: Array


class Scored(NamedTuple):
    """Tokens of prompts to be scored, those of one request after those of another.

    `counts` [requests]: how many are of each; `num_logprobs`: the alternatives that it asks for. `places` int32
    [tokens]: the step's token before each; `token_ids` int32 [tokens]: which it is.
    """

    counts: np.ndarray
    num_logprobs: list[int]
    places: np.ndarray
    token_ids: np.ndarray


class Step(NamedTuple):
    """A step's requests, in the order of the device's sequences, and their rows here.

    `num_samples` [requests] tells how many tokens each samples: none while in prefill, else one after its last known
    token and one after each of its `drafts`. The samples lie back to back in that order. `num_logprobs` are the
    alternatives that each asked for; `lives` tells whether a row is still the same request's. `adjustments` are of the
    samples' logits, None where nothing is done to any; `scored` are tokens of prompts to be scored, None where none is.
    """

    req_ids: list[str]
    rows: np.ndarray
    num_samples: np.ndarray
    drafts: list[list[int]]
    lives: np.ndarray
    num_logprobs: list[int | None]
    tokens: StepTokens[np.ndarray]
    sampling: SamplingBatch[np.ndarray]
    adjustments: Adjustments[np.ndarray] | None
    scored: Scored | None


class Batch:
    """The rows. Only this class changes them."""

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_model_len: int,
        num_groups: int,
        page_size: int,
        vocab_size: int,
        default_seed: int,
    ) -> None:
        self.adjuster = Adjuster(max_num_seqs, vocab_size)
        self._default_seed = default_seed
        self._requests: dict[str, NewRequestData] = {}
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(max_num_seqs))[::-1]
        self._token_ids = np.zeros((max_num_seqs, max_model_len + 1), np.int32)
        self._num_tokens = np.zeros(max_num_seqs, np.int32)
        self._num_computed = np.zeros(max_num_seqs, np.int32)
        # of steps whose tokens are not known yet: how many this row samples, and which sample of the latest is its own
        self._num_in_flight = np.zeros(max_num_seqs, np.int32)
        self._latest_sample = np.zeros(max_num_seqs, np.int32)
        self._lives = np.zeros(max_num_seqs, np.int64)
        self._page_table = np.zeros((num_groups, max_num_seqs, -(-max_model_len // page_size)), np.int32)
        self._num_pages = np.zeros((num_groups, max_num_seqs), np.int32)
        self._sampling = SamplingBatch(
            temperature=np.zeros(max_num_seqs, np.float32),
            top_p=np.ones(max_num_seqs, np.float32),
            top_k=np.zeros(max_num_seqs, np.int32),
            min_p=np.zeros(max_num_seqs, np.float32),
            seed=np.zeros((max_num_seqs, 2), np.uint32),
            sample_index=np.zeros(max_num_seqs, np.int32),
            position=np.zeros(max_num_seqs, np.int32),
            wants_logprobs=np.zeros(max_num_seqs, bool),
        )

    def apply(self, output: SchedulerOutput) -> None:
        """Drop, add and extend rows as the scheduler decided."""
        for req_id in output.finished_req_ids:
            self._vacate(req_id)
            self._requests.pop(req_id, None)
        for req_id in output.preempted_req_ids:
            self._vacate(req_id)
        for new in output.scheduled_new_reqs:
            refuse_unsupported(new.sampling_params)
            self._vacate(new.req_id)  # an earlier scheduler's of the same name
            self._requests[new.req_id] = new
            self._occupy(new, new.prompt_token_ids, new.page_ids, new.num_computed_tokens)
        self._extend(output.scheduled_cached_reqs)

    def step(self, output: SchedulerOutput, num_tokens: int, num_seqs: int, num_samples: int) -> Step:
        """Gather the scheduled tokens, padded to `num_tokens` of `num_seqs` sequences and to `num_samples` samples."""
        req_ids = list(output.num_scheduled_tokens)
        rows = np.fromiter((self._row_of[req_id] for req_id in req_ids), np.int32, len(req_ids))
        lengths = np.fromiter(output.num_scheduled_tokens.values(), np.int32, len(req_ids))
        drafts = [output.scheduled_spec_decode_tokens.get(req_id, []) for req_id in req_ids]
        computed, known = self._num_computed[rows], self._num_tokens[rows]
        for row, its_drafts, end in zip(rows, drafts, known, strict=True):
            if its_drafts:
                self._token_ids[row, end : end + len(its_drafts)] = its_drafts
        context = computed + lengths
        in_flight = self._num_in_flight[rows]

        query_start = np.full(num_seqs + 1, lengths.sum(), np.int32)
        query_start[0] = 0
        query_start[1 : len(rows) + 1] = np.cumsum(lengths)
        position = np.arange(query_start[-1]) + np.repeat(computed - query_start[: len(rows)], lengths)
        token_ids = self._token_ids[np.repeat(rows, lengths), position]

        is_in_flight = np.repeat(in_flight > 0, lengths) & (position == np.repeat(known, lengths))
        previous = np.where(is_in_flight, np.repeat(self._latest_sample[rows], lengths), -1).astype(np.int32)

        known = known + in_flight
        samples = np.maximum(context - known + 1, 0)
        sampled = np.flatnonzero(position >= np.repeat(known, lengths) - 1)
        self._latest_sample[rows] = np.cumsum(samples) - 1
        self._num_in_flight[rows] += samples > 0
        page_tables = np.zeros((len(self._page_table), num_seqs, self._page_table.shape[2]), np.int32)
        page_tables[:, : len(rows)] = self._page_table[:, rows]
        ragged = RaggedBatch(query_start, _padded(context, num_seqs), page_tables)
        tokens = StepTokens(
            _padded(token_ids, num_tokens),
            _padded(previous, num_tokens, -1),
            ragged,
            _padded(sampled.astype(np.int32), num_samples),
        )

        sampling = SamplingBatch(*(_padded(array[np.repeat(rows, samples)], num_samples) for array in self._sampling))
        sampling.position[: len(sampled)] = position[sampled] + 1
        num_logprobs = [self._requests[req_id].sampling_params.logprobs for req_id in req_ids]
        adjustments = self.adjuster.gather(
            np.repeat(rows, samples), position[sampled] + 1, num_samples, self._token_ids, self._num_tokens
        )
        scored = self._scored(req_ids, rows, lengths, position)
        lives = self._lives[rows]
        return Step(req_ids, rows, samples, drafts, lives, num_logprobs, tokens, sampling, adjustments, scored)

    def _scored(self, req_ids: list[str], rows: np.ndarray, lengths: np.ndarray, position: np.ndarray) -> Scored | None:
        """The prompt tokens that follow the positions computed, of the requests that ask for them."""
        requests = [self._requests[req_id] for req_id in req_ids]
        if all(request.sampling_params.prompt_logprobs is None for request in requests):
            return None
        wishes = [request.sampling_params.prompt_logprobs for request in requests]
        num_prompt = np.array(
            [0 if k is None else len(request.prompt_token_ids) for k, request in zip(wishes, requests, strict=True)]
        )
        is_scored = position + 1 < np.repeat(num_prompt, lengths)
        owners = np.repeat(np.arange(len(rows)), lengths)[is_scored]
        places = np.flatnonzero(is_scored).astype(np.int32)
        token_ids = self._token_ids[rows[owners], position[is_scored] + 1]
        return Scored(np.bincount(owners, minlength=len(rows)), [k or 0 for k in wishes], places, token_ids)

    def empty_inputs(
        self, num_tokens: int, num_seqs: int, num_samples: int
    ) -> tuple[StepTokens[np.ndarray], SamplingBatch[np.ndarray]]:
        """Inputs of the right shapes, to trace programs with."""
        num_groups, _, pages = self._page_table.shape
        ragged = RaggedBatch(
            np.zeros(num_seqs + 1, np.int32),
            np.zeros(num_seqs, np.int32),
            np.zeros((num_groups, num_seqs, pages), np.int32),
        )
        sampling = SamplingBatch(*(_padded(array[:0], num_samples) for array in self._sampling))
        ids = np.zeros(num_tokens, np.int32)
        return StepTokens(ids, ids - 1, ragged, np.zeros(num_samples, np.int32)), sampling

    def append(self, step: Step, accepted: list[list[int]]) -> None:
        """Note the tokens that each of the step's requests gained, where it still has its row."""
        is_same = (self._lives[step.rows] == step.lives).tolist()
        for row, same, token_ids in zip(step.rows.tolist(), is_same, accepted, strict=True):
            if same and token_ids:
                start = self._num_tokens[row]
                self._token_ids[row, start : start + len(token_ids)] = token_ids
                self._num_tokens[row] += len(token_ids)
                self._num_in_flight[row] -= 1

    def is_adjusting(self, req_id: str) -> bool:
        return self.adjuster.is_adjusting(self._row_of[req_id])

    def token_ids_of(self, req_id: str) -> np.ndarray:
        """All tokens known of a request, int32; a view."""
        row = self._row_of[req_id]
        return self._token_ids[row, : self._num_tokens[row]]

    def _extend(self, cached: CachedRequestData) -> None:
        for i, req_id in enumerate(cached.req_ids):
            pages, computed = cached.new_page_ids[i], cached.num_computed_tokens[i]
            if cached.resumed_from_preemption[i]:
                self._occupy(self._requests[req_id], cached.new_token_ids[i], pages, computed)
            else:
                row = self._row_of[req_id]
                self._num_computed[row] = computed
                self._append_pages(row, pages)

    def _occupy(self, request: NewRequestData, token_ids: list[int], page_ids: PageIds, num_computed: int) -> None:
        row = self._row_of[request.req_id] = self._free_rows.pop()
        self._token_ids[row, : len(token_ids)] = token_ids
        self._num_tokens[row] = len(token_ids)
        self._num_computed[row] = num_computed
        self._num_in_flight[row] = 0
        self._lives[row] += 1
        self._num_pages[:, row] = 0
        self._append_pages(row, page_ids)

        params, sampling = request.sampling_params, self._sampling
        sampling.temperature[row] = params.temperature
        sampling.top_p[row] = params.top_p
        sampling.top_k[row] = max(params.top_k, 0)
        sampling.min_p[row] = params.min_p
        sampling.seed[row] = self._seed_words(request)
        sampling.sample_index[row] = request.sample_index
        sampling.wants_logprobs[row] = params.logprobs is not None
        self.adjuster.begin(row, request, self._token_ids[row, : len(token_ids)])

    def _append_pages(self, row: int, page_ids: PageIds) -> None:
        for group, pages in enumerate(page_ids):
            if pages:
                start = self._num_pages[group, row]
                self._page_table[group, row, start : start + len(pages)] = pages
                self._num_pages[group, row] = start + len(pages)

    def _vacate(self, req_id: str) -> None:
        row = self._row_of.pop(req_id, None)
        if row is not None:
            self._lives[row] += 1
            self._free_rows.append(row)

    def _seed_words(self, request: NewRequestData) -> tuple[int, int]:
        """The request's seed as two words; one without a seed gets its own from its id and the runner's seed."""
        seed = request.sampling_params.seed
        if seed is None:
            text = f"{self._default_seed}/{request.req_id}".encode()
            seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())
        return seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF


def _padded(array: np.ndarray, length: int, filler: int = 0) -> np.ndarray:
    """A copy, filled up after its end."""
    out = np.full((length, *array.shape[1:]), filler, array.dtype)
    out[: len(array)] = array
    return out
