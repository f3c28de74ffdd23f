"""A row while it is generated: its samples, what they gained, and how each ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from esurge_cli.prepare import PreparedRow
from esurge_cli.results.result import Result, Usage
from esurge_cli.rows.row import ErrorType, RowError
from esurge_cli.text.detokenizer import Detokenizer, TokenTexts
from esurge_cli.text.stops import StopFinder
from scheduler import EngineCoreOutput, EngineRequest, FinishReason
from scheduler.output import TokenLogprobs


@dataclass(slots=True)
class Sample:
    """One sample. `finish_reason` is set once it has ended, be it by the scheduler or by a stop string."""

    request_id: str
    detokenizer: Detokenizer
    stops: StopFinder | None
    min_tokens: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_cached_tokens: int = 0
    text: str = ""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def take(self, output: EngineCoreOutput) -> None:
        """Take what a step gave. The token that stopped the sample is none of its text."""
        self.token_ids += output.new_token_ids
        self.logprobs += output.new_logprobs or ()
        self.prompt_logprobs += output.new_prompt_logprobs or ()
        self.num_cached_tokens = output.num_cached_tokens
        self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
        is_stop = output.finish_reason is FinishReason.STOP
        self.detokenizer.append(output.new_token_ids[:-1] if is_stop else output.new_token_ids)
        if self.finish_reason is not None:
            self.text = self.detokenizer.finish()
        if self.stops is not None:
            self._look_for_stop(self.stops)

    def _look_for_stop(self, stops: StopFinder) -> None:
        has_ended = self.finish_reason is not None
        text = self.text if has_ended else self.detokenizer.settle()
        if len(self.token_ids) <= self.min_tokens and not has_ended:
            stops.skip(text)
            return
        found = stops.find(text, is_whole=has_ended)
        if found is not None:
            position, self.stop_reason = found
            self.text = text[:position]
            self.finish_reason = FinishReason.STOP


class Generation:
    """One row's samples. They have the prompt in common, and their row's results come out together."""

    def __init__(self, prepared: PreparedRow, texts: TokenTexts) -> None:
        self.prepared = prepared
        self.error: RowError | None = None
        params = prepared.params
        self.samples = [
            Sample(
                request_id=f"{prepared.row.index}-{sample_index}",
                detokenizer=Detokenizer(texts),
                stops=StopFinder(params.stop) if params.stop else None,
                min_tokens=params.min_tokens,
            )
            for sample_index in range(params.n)
        ]

    def requests(self, stop_token_ids: list[int]) -> list[EngineRequest]:
        """A request for each sample; `stop_token_ids` are the model's own."""
        return [
            EngineRequest(
                request_id=sample.request_id,
                prompt_token_ids=self.prepared.prompt_token_ids,
                sampling_params=self.prepared.params,
                eos_token_id=stop_token_ids,
                sample_index=sample_index,
            )
            for sample_index, sample in enumerate(self.samples)
        ]

    @property
    def is_done(self) -> bool:
        return self.error is not None or all(sample.finish_reason is not None for sample in self.samples)

    def fail(self, message: str) -> None:
        """The engine cannot run a sample: the row is an error, whatever its other samples have."""
        row = self.prepared.row
        self.error = RowError(row.index, row.line, row.id, ErrorType.ENGINE, message, row.data)

    def results(self) -> list[Result]:
        row = self.prepared.row
        return [
            Result(
                row=row,
                sample=sample_index,
                text=sample.text,
                finish_reason=sample.finish_reason,
                stop_reason=sample.stop_reason,
                usage=Usage(len(self.prepared.prompt_token_ids), sample.num_cached_tokens, len(sample.token_ids)),
                token_ids=sample.token_ids,
                logprobs=sample.logprobs if self.prepared.params.logprobs is not None else None,
                prompt_logprobs=sample.prompt_logprobs if self.prepared.params.prompt_logprobs is not None else None,
            )
            for sample_index, sample in enumerate(self.samples)
            if sample.finish_reason is not None
        ]
