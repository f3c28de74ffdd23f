"""`esurge generate`: prompts in, generations out."""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esurge_cli.errors import RunFailed
from esurge_cli.flags import with_flags
from esurge_cli.options import EngineOptions, InputOptions, OutputOptions, SamplingFlags
from esurge_cli.rows.row import Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from esurge_cli.display import Display
    from esurge_cli.engine import Engine
    from esurge_cli.feed import Feed
    from esurge_cli.interrupt import Interrupt
    from esurge_cli.loop import Loop
    from esurge_cli.prepare import Preparer
    from esurge_cli.results.file_writer import Rules
    from esurge_cli.results.lines import Lines
    from esurge_cli.results.target import Target
    from esurge_cli.results.writer import Writer
    from esurge_cli.rows.fields import FieldNames
    from esurge_cli.rows.source import Origin, Source
    from esurge_cli.sampling import SamplingDefaults
    from esurge_cli.text.chats import ChatOptions
    from esurge_cli.totals import Totals

EXIT_ERROR_ROWS = 3

_ROWS_PER_SEQUENCE = 4
"""Rows in flight for each sequence that runs: enough that the scheduler is never short of them."""


@with_flags
def generate(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT", show_default=False, help="Files, folders, patterns and addresses; - is standard input."
        ),
    ] = None,
    *,
    reading: InputOptions,
    output: OutputOptions,
    sampling: SamplingFlags,
    engine: EngineOptions,
) -> None:
    """Complete the prompts of files.

    A row is a JSON object with a prompt (text or token ids) or messages, and if it likes an id and sampling
    parameters of its own, by OpenAI's and vLLM's names: max_tokens, temperature, top_p, top_k, min_p, seed, stop, n.

    Exit status: 0 all rows are fine, 1 the run failed, 2 usage, 3 some rows are errors, 130 interrupted, 143 ended by
    SIGTERM.
    """
    raise typer.Exit(Job(inputs or [], reading, output, sampling, engine).run())


@dataclass(slots=True)
class Job:
    """One run of the command. `num_rows` are those of the input, once they are counted."""

    inputs: list[str]
    reading: InputOptions
    output: OutputOptions
    sampling: SamplingFlags
    engine_options: EngineOptions
    names: FieldNames = field(init=False)
    chat: ChatOptions = field(init=False)
    num_rows: int | None = None

    def run(self) -> int:
        """The exit status. What can be seen to be wrong without the model is seen before it is loaded."""
        from esurge_cli.display import make_display
        from esurge_cli.engine import load_engine

        source = self._open_source()
        target = self._check()
        with closing(make_display(self.output.progress)) as display:
            if self.output.dry_run:
                return self._dry_run(source, display)
            engine = load_engine(self.engine_options, display)
            return self._generate(source, target, engine, display)

    def _open_source(self) -> Source:
        from esurge_cli.rows.selection import Selection
        from esurge_cli.rows.source import Source

        reading = self.reading
        names = self.names = self._field_names()
        selection = Selection(reading.skip, reading.sample, reading.limit, self.engine_options.seed)
        return Source(self._open_origin(names), names, selection)

    def _field_names(self) -> FieldNames:
        from esurge_cli.rows.fields import FieldNames
        from esurge_cli.text.templates import PromptTemplate
        from runner.errors import UserError

        reading = self.reading
        if reading.prompt_template is None:
            return FieldNames(reading.prompt_field, reading.messages_field, reading.id_field)
        if reading.prompt_field or reading.messages_field:
            raise UserError("--prompt-template names its fields itself; leave out --prompt-field and --messages-field")
        return FieldNames(id=reading.id_field, template=PromptTemplate.of_flag(reading.prompt_template))

    def _open_origin(self, names: FieldNames) -> Origin:
        from esurge_cli.rows.dataset import HubDataset
        from esurge_cli.rows.files import Files
        from esurge_cli.rows.kinds import InputKind
        from runner.errors import UserError

        reading = self.reading
        if reading.dataset is None:
            kind = None if reading.input_format == "auto" else InputKind(reading.input_format)
            return Files(self.inputs, names, kind, reading.max_line_bytes)
        if self.inputs:
            raise UserError("INPUT and --dataset are two inputs; name one of them")
        return HubDataset(reading.dataset, reading.dataset_config, reading.split, names)

    def _check(self) -> Target:
        from esurge_cli.engine import check_options
        from esurge_cli.results.target import Format, Target
        from runner.errors import UserError

        self.chat = self._chat_options()
        self._defaults({})
        check_options(self.engine_options)
        target = Target.of(self.output)
        if target.format is Format.TEXT and not {"logprobs", "prompt_logprobs"}.isdisjoint(self.sampling.given()):
            raise UserError("log-probabilities have no place in text output; see --output-format jsonl")
        return target

    def _chat_options(self) -> ChatOptions:
        from esurge_cli.text.chats import ChatOptions, check_template_kwargs, read_chat_template
        from runner.errors import UserError

        reading = self.reading
        try:
            check_template_kwargs(reading.chat_template_kwargs)
        except ValueError as error:
            raise UserError(f"--chat-template-kwargs: {error}") from error
        return ChatOptions(
            wrap=reading.chat or reading.system_prompt is not None,
            system=reading.system_prompt,
            template=None if reading.chat_template is None else read_chat_template(reading.chat_template),
            template_kwargs=reading.chat_template_kwargs,
        )

    def _defaults(self, generation_config: dict[str, Any]) -> SamplingDefaults:
        from esurge_cli.sampling import SamplingDefaults
        from runner.errors import UserError

        try:
            return SamplingDefaults.of(self.sampling.given(), generation_config, self.engine_options.seed)
        except ValueError as error:
            raise UserError(str(error)) from error

    def _generate(self, source: Source, target: Target, engine: Engine, display: Display) -> int:
        from esurge_cli.feed import ThreadedFeed
        from esurge_cli.interrupt import Interrupt

        defaults = self._defaults(engine.checkpoint.generation_config)
        self._show_settings(engine, defaults, display)
        target = target.for_input(lambda: source.kind, self.output)
        lines = self._lines(engine, target)
        rules = self._rules(engine, defaults, target, lines)
        for change in target.changed_settings(rules.settings):
            display.note(f"{change}: rows that were generated before will be generated again")
        writer = target.writer(rules, display.paused)
        threading.Thread(target=self._count_rows, args=(source,), daemon=True).start()
        rows = (admitted for row in source.rows(display.note) if (admitted := writer.admit(row)) is not None)
        runner = engine.runner
        preparer = self._preparer(engine.tokenizer, runner.config.vocab_size, runner.max_model_len, defaults)
        with closing(ThreadedFeed(rows, preparer)) as feed, Interrupt() as interrupt:
            loop = self._loop(engine, feed, writer, lines, display, interrupt)
            run = Run(loop, writer)
            run.go()
        self._conclude(engine, run, target, display)
        if run.failure is not None:
            raise run.failure
        if not run.is_complete:
            return interrupt.exit_status
        return EXIT_ERROR_ROWS if loop.totals.has_failed_rows else 0

    def _dry_run(self, source: Source, display: Display) -> int:
        from esurge_cli.display import results_console
        from esurge_cli.dry_run import read_rate, take_census
        from esurge_cli.dry_run_report import print_report
        from esurge_cli.engine import load_tokenizer, plan
        from esurge_cli.feed import ThreadedFeed

        rate = None if self.output.summary is None else read_rate(self.output.summary)
        checkpoint, config, engine_plan = plan(self.engine_options, display)
        tokenizer = load_tokenizer(self.engine_options, checkpoint, display)
        defaults = self._defaults(checkpoint.generation_config)
        preparer = self._preparer(tokenizer, config.vocab_size, engine_plan.max_model_len, defaults)
        display.header([f"{checkpoint.name}  context {engine_plan.max_model_len:,}", defaults.describe()])
        with closing(ThreadedFeed(source.rows(), preparer)) as feed:
            census = take_census(feed, engine_plan.max_num_seqs, display)
        display.close()
        print_report(results_console(), census, engine_plan, self.engine_options.model, rate)
        return EXIT_ERROR_ROWS if census.num_bad else 0

    def _show_settings(self, engine: Engine, defaults: SamplingDefaults, display: Display) -> None:
        from esurge_cli.sampling import ignored_of_model

        display.header([*engine.describe(self.engine_options), defaults.describe()])
        for parameter in ignored_of_model(engine.checkpoint.generation_config):
            display.note(f"the model's generation_config.json asks for {parameter}, which is not supported yet")

    def _count_rows(self, source: Source) -> None:
        self.num_rows = source.count()

    def _preparer(
        self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, max_model_len: int, defaults: SamplingDefaults
    ) -> Preparer:
        from esurge_cli.prepare import Preparer, TooLong
        from esurge_cli.text.prompts import PromptEncoder

        encoder = PromptEncoder(tokenizer, vocab_size, self.chat)
        is_ahead = self.engine_options.async_scheduling
        return Preparer(encoder, defaults, max_model_len, TooLong(self.reading.on_too_long), is_ahead)

    def _lines(self, engine: Engine, target: Target) -> Lines:
        from esurge_cli.results.flat import FlatLines
        from esurge_cli.results.openai import OpenAILines
        from esurge_cli.results.target import Format
        from esurge_cli.results.text import TextLines
        from esurge_cli.text.detokenizer import TokenTexts

        if target.format is Format.TEXT:
            return TextLines()
        token_text = TokenTexts(engine.tokenizer).alone
        if target.format is Format.OPENAI:
            return OpenAILines(engine.checkpoint.name, token_text)
        return FlatLines(
            token_text,
            return_token_ids=self.output.return_token_ids,
            include_prompt=self.output.include_prompt,
            keep_fields=[name for names in self.output.keep_fields for name in names.split(",")],
            id_field=self.reading.id_field,
        )

    def _rules(self, engine: Engine, defaults: SamplingDefaults, target: Target, lines: Lines) -> Rules:
        from esurge_cli.results.file_writer import Rules
        from esurge_cli.results.fingerprint import Fingerprints

        settings = {
            **engine.identity(self.engine_options),
            **self._prompt_settings(),
            **defaults.values,
            "seed": defaults.seed,
            **self.output.of_lines(),
            "output_format": target.format,
        }
        return Rules(
            lines,
            settings,
            Fingerprints(settings, defaults),
            num_lines=lambda row: lines.num_lines(defaults.num_samples(row.sampling)) if isinstance(row, Row) else 1,
            ordered=not self.output.unordered,
            overwrite=self.output.overwrite,
            resume=self.output.resume,
            retry=self.output.retry or frozenset(),
            is_part=self.reading.is_part,
        )

    def _prompt_settings(self) -> dict[str, Any]:
        """All that a row's prompt depends on besides the row and the model, by name, as JSON values."""
        template = self.names.template
        return {
            **self.reading.of_prompts(),
            "prompt_template": None if template is None else template.source,
            "chat_template": self.chat.template,
            "chat_template_kwargs": self.chat.template_kwargs,
        }

    def _loop(
        self, engine: Engine, feed: Feed, writer: Writer, lines: Lines, display: Display, interrupt: Interrupt
    ) -> Loop:
        from esurge_cli.display import Status
        from esurge_cli.loop import Loop
        from esurge_cli.text.detokenizer import TokenTexts

        scheduler = engine.scheduler(self.engine_options)
        max_errors = self.output.max_errors

        def after_step(totals: Totals) -> None:
            totals.kept = writer.kept
            display.update(Status(totals, scheduler.get_stats(), self.num_rows))
            if max_errors is not None:
                max_errors.check(totals)

        return Loop(
            engine.runner,
            scheduler,
            feed,
            writer,
            lines,
            TokenTexts(engine.tokenizer),
            engine.stop_token_ids,
            max_rows=_ROWS_PER_SEQUENCE * engine.runner.max_num_seqs,
            is_async=self.engine_options.async_scheduling,
            is_taking=interrupt.is_taking,
            is_stopping=interrupt.is_stopping,
            after_step=after_step,
        )

    def _conclude(self, engine: Engine, run: Run, target: Target, display: Display) -> None:
        from esurge_cli.summary import Summary

        totals = run.loop.totals
        settings = asdict(self.reading) | self.sampling.given() | asdict(self.engine_options)
        resume = None if run.is_complete or target.is_pipe else resume_command(sys.argv)
        summary = Summary(totals, engine.load_seconds, engine.compile_seconds, run.seconds, settings, resume)
        display.footer(summary.lines())
        if totals.num_failed:
            rows = "1 row" if totals.num_failed == 1 else f"{totals.num_failed:,} rows"
            display.note(f"{rows} failed; the output says why")
        if run.writer.num_changed:
            display.note(f"{run.writer.num_changed:,} rows or their settings have changed; they were generated again")
        if run.writer.num_dropped:
            display.note(f"{run.writer.num_dropped:,} rows of before are not in the input any more; they were dropped")
        if not run.is_complete and run.failure is None:
            display.note("interrupted; the rows that were finished are written")
        if resume is not None:
            display.note(f"to go on: {resume}")
        if self.output.summary is not None:
            summary.write(self.output.summary)


@dataclass(slots=True)
class Run:
    """The loop from its beginning to its end, whichever way it ends. `failure` is what has ended it, if anything."""

    loop: Loop
    writer: Writer
    is_complete: bool = False
    failure: RunFailed | None = None
    seconds: float = 0.0

    def go(self) -> None:
        start = time.monotonic()
        try:
            try:
                self.is_complete = self.loop.run()
            finally:
                self.loop.totals.kept = self.writer.kept
                self.writer.close(self.is_complete)
        except RunFailed as failure:
            self.failure = self.failure or failure
            self.is_complete = False
        self.seconds = time.monotonic() - start


def resume_command(arguments: Sequence[str]) -> str:
    """What goes on where the command of these `arguments` has stopped."""
    rest = [argument for argument in arguments[1:] if argument not in ("--overwrite", "--resume")]
    return shlex.join(["esurge", *rest, "--resume"])
