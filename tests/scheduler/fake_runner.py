"""A runner without a model, which holds the scheduler to its word.

Its cache stores, in each slot of each page, the group, position and token that were written there. A step writes
first and then reads back, for every request, all that its first and its last token see; where a page holds anything
but the request's own tokens, it fails. The next token is a function of all tokens before it, as a greedy model's is.
"""

from __future__ import annotations

import random
import zlib
from array import array
from dataclasses import dataclass, field

from scheduler import CacheGroupsConfig, ModelRunnerOutput, NewRequestData, SchedulerOutput
from scheduler.cache.specs import RecurrentStateSpec

VOCABULARY = 1000


def next_token(token_ids: list[int], vocabulary: int = VOCABULARY) -> int:
    """What the imagined model says after `token_ids`."""
    return zlib.crc32(array("q", token_ids).tobytes()) % vocabulary


def continuation(prompt: list[int], count: int, vocabulary: int = VOCABULARY) -> list[int]:
    """What it says in `count` greedy steps."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, vocabulary))
    return tokens[len(prompt) :]


@dataclass
class _Row:
    """What the runner knows of a request: `tokens` it was given or sampled, `tables` a list of pages a group."""

    new: NewRequestData
    tokens: list[int]
    tables: list[list[int]]
    num_computed: int


@dataclass
class FakeRunner:
    """Runs steps in order. With `draft_length` it guesses up to that many tokens, each right with `draft_accuracy`."""

    groups: CacheGroupsConfig
    page_size: int
    vocabulary: int = VOCABULARY
    draft_length: int = 0
    draft_accuracy: float = 0.5
    seed: int = 0
    num_computed_tokens: int = 0
    _rows: dict[str, _Row] = field(default_factory=dict)
    _slots: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    _states: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def run(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self._apply(output)
        self.num_computed_tokens += output.total_num_scheduled_tokens
        drafts = {id_: output.scheduled_spec_decode_tokens.get(id_, []) for id_ in output.num_scheduled_tokens}
        self._write(output.num_scheduled_tokens, drafts)
        sampled = [
            self._sample(self._rows[request_id], count, drafts[request_id])
            for request_id, count in output.num_scheduled_tokens.items()
        ]
        request_ids = list(output.num_scheduled_tokens)
        rows = [self._rows[request_id] for request_id in request_ids]
        proposals = [self._propose(row.tokens) if tokens else [] for row, tokens in zip(rows, sampled, strict=True)]
        return ModelRunnerOutput(
            req_ids=request_ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(request_ids)},
            sampled_token_ids=sampled,
            spec_token_ids=proposals if self.draft_length else None,
        )

    def _apply(self, output: SchedulerOutput) -> None:
        for request_id in output.finished_req_ids:
            self._rows.pop(request_id, None)
        for new in output.scheduled_new_reqs:
            assert new.req_id not in self._rows, "a new request that is known already"
            tables = [list(table) for table in new.page_ids]
            self._rows[new.req_id] = _Row(new, list(new.prompt_token_ids), tables, new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        for i, request_id in enumerate(cached.req_ids):
            row, page_ids = self._rows[request_id], cached.new_page_ids[i]
            row.num_computed = cached.num_computed_tokens[i]
            if cached.resumed_from_preemption[i]:
                row.tokens = list(cached.new_token_ids[i])
                row.tables = [[] for _ in row.tables]
            for table, new_pages in zip(row.tables, page_ids, strict=True):
                table.extend(new_pages)

    def _write(self, num_scheduled_tokens: dict[str, int], drafts: dict[str, list[int]]) -> None:
        writer_of: dict[int, str] = {}
        for request_id, count in num_scheduled_tokens.items():
            row = self._rows[request_id]
            tokens = row.tokens + drafts[request_id]
            positions = range(row.num_computed, row.num_computed + count)
            assert positions.stop <= len(tokens), "more tokens than the request has"
            for group, table in enumerate(row.tables):
                if isinstance(self.groups.kv_cache_groups[group].kv_cache_spec, RecurrentStateSpec):
                    self._fold(group, table, tokens, positions)
                    continue
                for position in positions:
                    page = table[position // self.page_size]
                    assert page != 0, "a token computed now has no page to be written to"
                    assert writer_of.setdefault(page, request_id) == request_id, "a page with two writers"
                    self._slots[page, position % self.page_size] = (group, position, tokens[position])

    def _fold(self, group: int, table: list[int], tokens: list[int], positions: range) -> None:
        (slot,) = table
        assert slot > 0
        state = [] if positions.start == 0 else self._states[group, slot]
        assert state == tokens[: positions.start], "a state that is not the request's own"
        self._states[group, slot] = state + tokens[positions.start : positions.stop]

    def _sample(self, row: _Row, count: int, drafts: list[int]) -> list[int]:
        tokens = row.tokens + drafts
        end = row.num_computed + count
        self._check_seen(row, row.num_computed, tokens)
        self._check_seen(row, end - 1, tokens)
        if end < len(row.tokens):
            return []
        sampled = []
        for draft in [*drafts, None]:
            token = next_token(row.tokens, self.vocabulary)
            sampled.append(token)
            row.tokens.append(token)
            if token != draft:
                break
        return sampled

    def _check_seen(self, row: _Row, position: int, tokens: list[int]) -> None:
        for group, table in enumerate(row.tables):
            spec = self.groups.kv_cache_groups[group].kv_cache_spec
            if isinstance(spec, RecurrentStateSpec):
                continue
            for seen in range(spec.first_visible_token(position), position + 1):
                written = self._slots.get((table[seen // self.page_size], seen % self.page_size))
                assert written == (group, seen, tokens[seen]), (
                    f"{row.new.req_id}: group {group} has {written} where position {seen} should be"
                )

    def _propose(self, tokens: list[int]) -> list[int]:
        guess = continuation(tokens, self._random.randint(0, self.draft_length), self.vocabulary)
        return [
            token if self._random.random() < self.draft_accuracy else (token + 1) % self.vocabulary for token in guess
        ]
