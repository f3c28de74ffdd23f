"""`esurge generate`: prompts in, generations out."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esurge_cli.flags import with_flags
from esurge_cli.options import EngineOptions, InputOptions, OutputOptions, SamplingFlags

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from esurge_cli.display import Display
    from esurge_cli.engine import Engine
    from esurge_cli.feed import Feed
    from esurge_cli.interrupt import Interrupt
    from esurge_cli.loop import Loop
    from esurge_cli.prepare import Preparer
    from esurge_cli.results.writer import Writer
    from esurge_cli.rows.fields import FieldNames
    from esurge_cli.rows.source import Source
    from esurge_cli.sampling import SamplingDefaults
    from esurge_cli.text.chats import ChatOptions

EXIT_ERROR_ROWS = 3

_ROWS_PER_SEQUENCE = 4
"""Rows in flight for each sequence that runs: enough that the scheduler is never short of them."""


@with_flags
def generate(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="INPUT", show_default=False, help="JSONL files; - is standard input."),
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

    Exit status: 0 all rows are fine, 1 the run failed, 2 usage, 3 some rows are errors, 130 interrupted.
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
    chat: ChatOptions = field(init=False)
    num_rows: int | None = None

    def run(self) -> int:
        """The exit status. What can be seen to be wrong without the model is seen before it is loaded."""
        from esurge_cli.display import make_display
        from esurge_cli.engine import load_engine

        source = self._open_source()
        self._check()
        with closing(make_display(self.output.progress)) as display:
            if self.output.dry_run:
                return self._dry_run(source, display)
            engine = load_engine(self.engine_options, display)
            return self._generate(source, engine, display)

    def _open_source(self) -> Source:
        from esurge_cli.rows.source import Source

        return Source(self.inputs, self._field_names(), self.reading.limit)

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

    def _check(self) -> None:
        from esurge_cli.engine import check_options
        from esurge_cli.results.writer import check_output

        self.chat = self._chat_options()
        self._defaults({})
        check_options(self.engine_options)
        if self.output.output is not None:
            check_output(self.output.output, self.output.overwrite)

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

    def _generate(self, source: Source, engine: Engine, display: Display) -> int:
        from esurge_cli.feed import ThreadedFeed
        from esurge_cli.interrupt import EXIT_STATUS, Interrupt
        from esurge_cli.results.writer import make_writer

        defaults = self._defaults(engine.checkpoint.generation_config)
        self._show_settings(engine, defaults, display)
        output = self.output
        writer = make_writer(output.output, output.overwrite, not output.unordered, display.paused)
        threading.Thread(target=self._count_rows, args=(source,), daemon=True).start()
        runner = engine.runner
        preparer = self._preparer(engine.tokenizer, runner.config.vocab_size, runner.max_model_len, defaults)
        with closing(ThreadedFeed(source.rows(), preparer)) as feed, Interrupt() as interrupt:
            loop = self._loop(engine, feed, writer, display, interrupt)
            start = time.monotonic()
            is_complete = False
            try:
                is_complete = loop.run()
            finally:
                writer.close(is_complete)
        self._conclude(engine, loop, time.monotonic() - start, display)
        if not is_complete:
            display.note("interrupted; the rows that were finished are written")
            return EXIT_STATUS
        return EXIT_ERROR_ROWS if loop.totals.num_failed else 0

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
        return Preparer(encoder, defaults, max_model_len, TooLong(self.reading.on_too_long))

    def _loop(self, engine: Engine, feed: Feed, writer: Writer, display: Display, interrupt: Interrupt) -> Loop:
        from esurge_cli.display import Status
        from esurge_cli.loop import Loop
        from esurge_cli.results.flat import FlatLines
        from esurge_cli.text.detokenizer import TokenTexts

        texts = TokenTexts(engine.tokenizer)
        scheduler = engine.scheduler(self.engine_options)
        lines = FlatLines(
            texts.alone,
            return_token_ids=self.output.return_token_ids,
            include_prompt=self.output.include_prompt,
            keep_fields=[name for names in self.output.keep_fields for name in names.split(",")],
            id_field=self.reading.id_field,
        )
        return Loop(
            engine.runner,
            scheduler,
            feed,
            writer,
            lines,
            texts,
            engine.stop_token_ids,
            max_rows=_ROWS_PER_SEQUENCE * engine.runner.max_num_seqs,
            is_async=self.engine_options.async_scheduling,
            is_stopping=lambda: interrupt.is_set,
            after_step=lambda totals: display.update(Status(totals, scheduler.get_stats(), self.num_rows)),
        )

    def _conclude(self, engine: Engine, loop: Loop, seconds: float, display: Display) -> None:
        from esurge_cli.summary import Summary

        settings = asdict(self.reading) | self.sampling.given() | asdict(self.engine_options)
        summary = Summary(loop.totals, engine.load_seconds, engine.compile_seconds, seconds, settings)
        display.footer(summary.lines())
        if loop.totals.num_failed:
            rows = "1 row" if loop.totals.num_failed == 1 else f"{loop.totals.num_failed:,} rows"
            display.note(f"{rows} failed; the output says why")
        if self.output.summary is not None:
            summary.write(self.output.summary)
