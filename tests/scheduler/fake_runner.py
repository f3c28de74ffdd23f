"""A runner without a model, which holds the scheduler to its word.

Its cache stores, in each slot of each page of each group, the token and the position that were written there. A step
writes first and then reads back, for every request, all that its last token would see; where a page holds anything
but the request's own tokens, it fails. The next token is a function of all tokens before it, as a greedy model's is.
"""

from __future__ import annotations

import random
import zlib
from array import array
from dataclasses import dataclass, field

from scheduler import (
    CacheGroupsConfig,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)

VOCABULARY = 1000


def next_token(token_ids: list[int], vocabulary: int = VOCABULARY) -> int:
    """What the model that these tests imagine says after `token_ids`."""
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
    """Runs steps in order. With `draft_length` it guesses that many tokens ahead, right with `draft_accuracy`."""

    groups: CacheGroupsConfig
    vocabulary: int = VOCABULARY
    draft_length: int = 0
    draft_accuracy: float = 0.5
    seed: int = 0
    num_computed_tokens: int = 0
    _rows: dict[str, _Row] = field(default_factory=dict)
    _slots: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._page_size = self.groups.kv_cache_groups[0].kv_cache_spec.page_size

    def run(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self._apply(output)
        drafts = output.scheduled_spec_decode_tokens
        for request_id, count in output.num_scheduled_tokens.items():
            self._write(self._rows[request_id], count, drafts.get(request_id, []))
        self.num_computed_tokens += output.total_num_scheduled_tokens
        request_ids = list(output.num_scheduled_tokens)
        sampled = [
            self._sample(self._rows[request_id], output.num_scheduled_tokens[request_id], drafts.get(request_id, []))
            for request_id in request_ids
        ]
        proposals = [
            self._propose(self._rows[request_id].tokens) if sampled[i] else []
            for i, request_id in enumerate(request_ids)
        ]
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
            assert new.req_id not in self._rows
            self._rows[new.req_id] = _Row(new, list(new.prompt_token_ids), [], 0)
            self._begin(self._rows[new.req_id], [list(table) for table in new.page_ids], new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        for i, request_id in enumerate(cached.req_ids):
            row, pages = self._rows[request_id], cached.new_page_ids[i]
            if cached.resumed_from_preemption[i]:
                row.tokens = list(cached.new_token_ids[i])
                self._begin(row, [list(table) for table in pages], cached.num_computed_tokens[i])
                continue
            assert not cached.new_token_ids[i]
            row.num_computed = cached.num_computed_tokens[i]
            for table, new_pages in zip(row.tables, pages, strict=True):
                table.extend(new_pages)

    def _begin(self, row: _Row, tables: list[list[int]], num_computed: int) -> None:
        row.tables, row.num_computed = tables, num_computed

    def _write(self, row: _Row, count: int, drafts: list[int]) -> None:
        tokens = row.tokens + drafts
        assert row.num_computed + count <= len(tokens), "more tokens than the request has"
        for position in range(row.num_computed, row.num_computed + count):
            for group, table in enumerate(row.tables):
                page = table[position // self._page_size]
                assert page != 0, "a token computed now has no page to be written to"
                self._slots[page, position % self._page_size] = (group, position, tokens[position])

    def _check(self, row: _Row, position: int, tokens: list[int]) -> None:
        """Whether what the token at `position` sees is still in the request's pages."""
        for group, table in enumerate(row.tables):
            spec = self.groups.kv_cache_groups[group].kv_cache_spec
            for seen in range(spec.first_visible_token(position), position + 1):
                slot = (table[seen // self._page_size], seen % self._page_size)
                assert self._slots.get(slot) == (group, seen, tokens[seen]), (
                    f"{row.new.req_id}: group {group}, position {seen} is overwritten"
                )

    def _sample(self, row: _Row, count: int, drafts: list[int]) -> list[int]:
        tokens = row.tokens + drafts
        end = row.num_computed + count
        self._check(row, row.num_computed, tokens)
        self._check(row, end - 1, tokens)
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

    def _propose(self, tokens: list[int]) -> list[int]:
        guess = continuation(tokens, self._random.randint(0, self.draft_length), self.vocabulary)
        return [
            token if self._random.random() < self.draft_accuracy else (token + 1) % self.vocabulary for token in guess
        ]
