"""From the flags of the output to what writes it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from esurge_cli.options import OutputOptions
from esurge_cli.results.encodings import Encoding, encoding_of
from esurge_cli.results.file_writer import FileWriter, Rules, check_file
from esurge_cli.results.journal import changed_settings
from esurge_cli.results.parquet import Parquet
from esurge_cli.results.publish import Paths
from esurge_cli.results.shards import ShardWriter, check_folder
from esurge_cli.results.writer import Paused, PipeWriter, Writer
from esurge_cli.rows.kinds import InputKind
from runner.errors import UserError

_ROWS_IN_SHARD = 100_000


class Format(StrEnum):
    """What the output holds."""

    JSONL = "jsonl"
    OPENAI = "openai"
    PARQUET = "parquet"
    TEXT = "text"


_SUFFIXES = {Format.JSONL: ".jsonl", Format.OPENAI: ".jsonl", Format.PARQUET: ".parquet", Format.TEXT: ".txt"}


@dataclass(frozen=True, slots=True)
class Target:
    """Where results go: `path` is None for standard output; `rows_in_shard` is None for all but a folder of shards.

    The format is not settled while it `follows_input`.
    """

    path: Path | None
    format: Format
    rows_in_shard: int | None
    overwrite: bool
    resume: bool
    follows_input: bool = False

    @classmethod
    def of(cls, options: OutputOptions) -> Target:
        """Raises UserError for flags that do not go together, and for an output that is to be left alone."""
        if options.overwrite and options.resume:
            raise UserError("--overwrite and --resume do not go together: one begins anew, the other goes on")
        if options.retry and not options.resume:
            raise UserError("--retry needs --resume")
        if options.output in (None, "-"):
            if options.resume or options.shard_rows:
                raise UserError("--resume and --shard-rows need an output (-o)")
            path, rows = None, None
        else:
            path = Path(options.output).expanduser()
            is_folder = options.shard_rows is not None or options.output.endswith("/") or path.is_dir()
            rows = (options.shard_rows or _ROWS_IN_SHARD) if is_folder else None
        output_format, follows_input = _format(options, path)
        _check_fields(options, output_format)
        target = cls(path, output_format, rows, options.overwrite, options.resume, follows_input)
        target._check()
        return target

    def for_input(self, kind: Callable[[], InputKind], options: OutputOptions) -> Target:
        """OpenAI's requests are answered as OpenAI does, unless something else was asked for.

        The kind is asked for only where that matters, since it may have to be waited for. Raises UserError for options
        that such an answer has no place for.
        """
        if not self.follows_input or kind() is not InputKind.OPENAI:
            return self
        _check_fields(options, Format.OPENAI)
        return replace(self, format=Format.OPENAI)

    @property
    def is_pipe(self) -> bool:
        return self.path is None or (self.path.exists() and not self.path.is_file() and self.rows_in_shard is None)

    def _check(self) -> None:
        if self.path is None or self.is_pipe:
            if self.format is Format.PARQUET:
                raise UserError("Parquet cannot be written to a pipe; name a file (-o)")
        elif self.rows_in_shard is not None:
            check_folder(self.path, self)
        else:
            check_file(self._paths(self.path), self)

    def changed_settings(self, settings: Mapping[str, Any]) -> list[str]:
        """What is not as it was when the rows that are there were made, for people."""
        if self.path is None or not self.resume or self.is_pipe:
            return []
        if self.rows_in_shard is None:
            return changed_settings(self._paths(self.path).journal, settings)
        journals = sorted(self.path.glob(".part-*.journal")) if self.path.is_dir() else []
        return changed_settings(journals[0], settings) if journals else []

    def writer(self, rules: Rules, paused: Paused) -> Writer:
        """Within `paused` nobody else writes to the terminal. Raises UserError, RunFailed."""
        if self.path is None:
            paused = paused if sys.stdout.isatty() else contextlib.nullcontext
            return PipeWriter(sys.stdout.buffer, rules.ordered, paused)
        if self.is_pipe:
            return PipeWriter(self.path.open("wb"), rules.ordered)
        if self.rows_in_shard is None:
            return FileWriter(self._paths(self.path), rules)
        return ShardWriter(self.path, _SUFFIXES[self.format], self._encoding(self.path), self.rows_in_shard, rules)

    def _paths(self, path: Path) -> Paths:
        return Paths(path.resolve() if path.is_symlink() else path, self._encoding(path))  # a link stays one

    def _encoding(self, path: Path) -> Encoding:
        return Parquet() if self.format is Format.PARQUET else encoding_of(path)


def _format(options: OutputOptions, path: Path | None) -> tuple[Format, bool]:
    """As asked, or by the name; whether it is left to the input."""
    if options.output_format != "auto":
        return Format(options.output_format), False
    suffixes = path.suffixes if path is not None else []
    if ".parquet" in suffixes[-1:]:
        return Format.PARQUET, False
    if ".txt" in suffixes[-2:]:
        return Format.TEXT, False
    return Format.JSONL, True


def _check_fields(options: OutputOptions, output_format: Format) -> None:
    """Raises UserError for fields that the format has no place for."""
    if output_format not in (Format.OPENAI, Format.TEXT):
        return
    for name in ("return_token_ids", "include_prompt", "keep_fields"):
        if getattr(options, name):
            raise UserError(
                f"--{name.replace('_', '-')} has no place in {output_format} output; see --output-format jsonl"
            )
