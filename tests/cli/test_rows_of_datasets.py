"""Rows of datasets: folders of data files and of `save_to_disk`, and what is said of those that are not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from esurge_cli.rows.dataset import HubDataset
from esurge_cli.rows.fields import FieldNames
from esurge_cli.rows.kinds import InputKind
from esurge_cli.rows.row import Chat, Row
from esurge_cli.rows.source import Source
from runner.errors import UserError


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in ("datasets.config.HF_HUB_OFFLINE", "huggingface_hub.constants.HF_HUB_OFFLINE"):
        monkeypatch.setattr(flag, True)


def source_of(name: str | Path, split: str = "train", config: str | None = None, **names: str) -> Source:
    fields = FieldNames(**names)
    return Source(HubDataset(str(name), config, split, fields), fields)


def prompts_of(name: str | Path, split: str = "train", **names: str) -> list[Any]:
    rows = list(source_of(name, split, **names).rows())
    assert all(isinstance(row, Row) for row in rows)
    return [row.prompt for row in rows]  # type: ignore[union-attr]


def write_jsonl(path: Path, *prompts: str) -> None:
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))


def test_a_folder_of_data_files_has_its_splits(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", "a", "b")
    write_jsonl(tmp_path / "test.jsonl", "c")
    assert prompts_of(tmp_path) == ["a", "b"]
    assert prompts_of(tmp_path, "test") == ["c"]
    source = source_of(tmp_path)
    assert (source.kind, source.count()) == (InputKind.DATASET, None)
    assert [(row.index, row.line) for row in source.rows()] == [(0, 1), (1, 2)]


def test_folders_of_save_to_disk(tmp_path: Path) -> None:
    train = datasets.Dataset.from_dict({"messages": [[{"role": "user", "content": "Hi"}]]})
    train.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": train, "dev": train}).save_to_disk(tmp_path / "splits")
    chat = Chat([{"role": "user", "content": "Hi"}])
    assert prompts_of(tmp_path / "one") == prompts_of(tmp_path / "splits", "dev") == [chat]
    with pytest.raises(UserError, match="has no split test; it has train, dev"):
        source_of(tmp_path / "splits", "test")


def test_a_field_that_is_no_column_lists_the_columns(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("question,answer\na,b\n")
    assert prompts_of(tmp_path, prompt="question") == ["a"]
    with pytest.raises(UserError, match=r"no column query \(--prompt-field\); its columns are question, answer"):
        source_of(tmp_path, prompt="query")
    with pytest.raises(UserError, match="no column prompt or messages"):
        source_of(tmp_path)


def test_what_is_not_there_is_one_line(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", "a")
    for name, split in ((tmp_path, "dev"), (tmp_path / "nowhere", "train"), ("nobody/nothing", "train")):
        with pytest.raises(UserError, match=rf"the dataset {name} ") as caught:
            source_of(name, split)
        assert "\n" not in str(caught.value)
        print(caught.value)
    with pytest.raises(UserError, match=r"train\.jsonl is a file, which is read as INPUT"):
        source_of(tmp_path / "train.jsonl")
