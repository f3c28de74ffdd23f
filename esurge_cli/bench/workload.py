"""What is run to measure: the rows of a file, or random ones."""

from __future__ import annotations

import random

from esurge_cli.engine import Engine
from esurge_cli.options import SamplingFlags
from esurge_cli.prepare import Outcome, PreparedRow, Preparer
from esurge_cli.rows.fields import FieldNames
from esurge_cli.rows.files import Files
from esurge_cli.rows.row import Row
from esurge_cli.rows.selection import Selection
from esurge_cli.rows.source import Source
from esurge_cli.sampling import SamplingDefaults
from esurge_cli.text.chats import ChatOptions
from esurge_cli.text.prompts import PromptEncoder
from runner.errors import UserError
from scheduler import SamplingParams


def random_rows(num_prompts: int, input_len: int, output_len: int, vocab_size: int, seed: int) -> list[Outcome]:
    """Greedy rows of random tokens; each length is drawn evenly from half of the one given to one and a half times it.

    Every row generates all its tokens. The same arguments give the same rows.
    """
    source = random.Random(seed)
    rows: list[Outcome] = []
    for index in range(num_prompts):
        ids = [source.randrange(vocab_size) for _ in range(_around(source, input_len))]
        params = SamplingParams(max_tokens=_around(source, output_len), temperature=0, ignore_eos=True)
        rows.append(PreparedRow(Row(index, index + 1, None, ids), ids, params))
    return rows


def rows_of_files(
    inputs: list[str], engine: Engine, sampling: SamplingFlags, seed: int, limit: int | None
) -> list[Outcome]:
    """All rows of files, as `esurge generate` would run them. Raises UserError for flags out of range."""
    source = Source(Files(inputs, FieldNames()), FieldNames(), Selection(limit=limit))
    try:
        defaults = SamplingDefaults.of(sampling.given(), engine.checkpoint.generation_config, seed)
    except ValueError as error:
        raise UserError(str(error)) from error
    encoder = PromptEncoder(engine.tokenizer, engine.runner.config.vocab_size, ChatOptions())
    return Preparer(encoder, defaults, engine.runner.max_model_len)(list(source.rows()))


def _around(source: random.Random, length: int) -> int:
    return source.randint(max(1, length // 2), max(1, length + length // 2))
