"""Flags from the command line, the environment and a file, and the numbers in them."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from esurge_cli.flags import Flag, arguments_of, with_flags
from esurge_cli.options import COUNT, REAL, TOKENS, choice
from esurge_cli.sizes import parse_bytes, parse_count, parse_memory, show_bytes, show_time
from runner.errors import UserError


@dataclass(frozen=True, slots=True)
class Options:
    """Of the test."""

    budget: Annotated[int | None, Flag("Tokens.", TOKENS, ("--tokens", "-t"))] = None
    share: Annotated[float, Flag("A share.", REAL)] = 0.5
    kind: Annotated[str, Flag("One of two.", choice("a", "b"))] = "a"
    stop: Annotated[list[str], Flag("Repeated.")] = ()  # type: ignore[assignment]
    caching: Annotated[bool, Flag("A switch.")] = True


def call(*arguments: str, swept: bool = False, **environment: str) -> Any:
    """What a command with these flags gets; UserErrors are raised."""
    got: list[Any] = []

    def one(*, options: Options) -> None:
        got.append(options)

    def many(*, options: list[Options]) -> None:
        got.append(options)

    one.__annotations__ = {"options": Options}
    many.__annotations__ = {"options": list[Options]}
    app = typer.Typer(rich_markup_mode=None)
    app.command()(with_flags(many if swept else one))
    result = CliRunner().invoke(app, list(arguments), env=environment)
    if isinstance(result.exception, UserError):
        raise result.exception
    return got[0] if got else (result.exit_code, result.output)


def test_defaults_are_the_fields_own() -> None:
    assert call() == Options()


def test_each_flag_is_read_by_its_kind() -> None:
    options = call("--budget", "2k", "--share", "0.25", "--kind", "b", "--stop", "x y", "--stop", ",", "--no-caching")
    assert options == Options(2000, 0.25, "b", ["x y", ","], False)


@pytest.mark.parametrize(
    "options",
    [Options(stop=[]), Options(1, 0.25, "b", ["x y", "-z", ",", "it's"], False), Options(2048, 1e-9, stop=["=1"])],
)
def test_a_groups_command_line_gives_it_back(options: Options) -> None:
    assert call(*arguments_of(options), ESURGE_SHARE="0.75", ESURGE_CACHING="false") == replace(
        options, stop=options.stop or ()
    )


@pytest.mark.parametrize("name", ["--tokens", "-t", "--budget"])
def test_a_flag_may_have_more_names(name: str) -> None:
    assert call(name, "7").budget == 7


def test_an_unknown_flag_is_refused_by_name_with_status_2() -> None:
    status, output = call("--tensor-parallel-size", "2")
    assert status == 2
    assert "--tensor-parallel-size" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "many"], "--budget many: it must be a number"),
        (["--kind", "c"], "--kind c: it must be one of a, b"),
        (["--share", "x"], "--share x: it must be a number"),
        (["--budget", "-1"], "--budget -1"),
    ],
)
def test_what_cannot_be_read_is_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call(*arguments)


def test_every_flag_is_an_environment_variable_too() -> None:
    options = call(ESURGE_BUDGET="1K", ESURGE_SHARE="1", ESURGE_KIND="b", ESURGE_STOP="the end", ESURGE_CACHING="false")
    assert options == Options(1024, 1.0, "b", ["the end"], False)


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    config = write(tmp_path / "c.toml", "budget = 1\nshare = 0.1\nkind = 'b'\n")
    options = call("--config", config, "--budget", "3", ESURGE_BUDGET="2", ESURGE_SHARE="0.2")
    assert options == Options(3, 0.2, "b")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.toml", "tokens = '2k'\nshare = 1\nstop = ['a b', 'c']\ncaching = false\n"),
        ("c.yaml", "tokens: 2k\nshare: 1\nstop: [a b, c]\ncaching: false\n"),
        ("c.yml", "tokens: 2000\nshare: 1.0\nstop: [a b, c]\ncaching: false\n"),
    ],
)
def test_a_config_file_names_flags_as_the_command_line_does(tmp_path: Path, name: str, text: str) -> None:
    expected = Options(2000, 1.0, "a", ["a b", "c"], False)
    assert call("--config", write(tmp_path / name, text)) == expected
    assert call(ESURGE_CONFIG=write(tmp_path / name, text)) == expected


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.toml", "max-speed = 1\n", "no flag --max-speed"),
        ("c.toml", "config = 'x'\n", "no flag --config"),
        ("c.toml", "[budget]\nx = 1\n", "budget must be a value"),
        ("c.toml", "budget = \n", "c.toml cannot be read"),
        ("c.yaml", "[1, 2]", "holds no names"),
        ("c.json", "{}", "is named .toml, .yaml or .yml"),
        ("c.toml", "budget = 'x'\n", "--budget x"),
    ],
)
def test_a_bad_config_file_is_one_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call("--config", write(tmp_path / name, text))


def test_a_missing_config_file_is_one_line() -> None:
    with pytest.raises(UserError, match=r"nowhere\.toml cannot be read: No such file"):
        call("--config", "nowhere.toml")


def test_swept_flags_are_lists_with_commas_and_give_every_combination() -> None:
    options = call("--tokens", "1,2", "--kind", "b", "--caching", "--no-caching", swept=True)
    assert options == [
        Options(1, 0.5, "b", caching=True),
        Options(1, 0.5, "b", caching=False),
        Options(2, 0.5, "b", caching=True),
        Options(2, 0.5, "b", caching=False),
    ]


def test_swept_flags_have_the_same_defaults() -> None:
    assert call(swept=True) == [Options()]


@pytest.mark.parametrize(
    ("text", "number"),
    [("512", 512), ("2k", 2000), ("2K", 2048), ("1m", 1_000_000), ("1M", 1 << 20), ("1.5k", 1500), ("1_000", 1000)],
)
def test_counts(text: str, number: int) -> None:
    assert parse_count(text) == number


@pytest.mark.parametrize("text", ["", "k", "-1", "1.5", "2g", "1e3", "0x10", "1 2"])
def test_no_counts(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 << 30),
        ("512MB", 512_000_000),
        ("512 mb", 512_000_000),
        ("1.5GiB", 3 << 29),
        ("1000000", 1_000_000),
        ("0.6", 0.6),
        (".5", 0.5),
        ("1", 1.0),
    ],
)
def test_memory(text: str, size: float) -> None:
    assert parse_memory(text) == size
    assert isinstance(parse_memory(text), float) == (size <= 1)


@pytest.mark.parametrize("text", ["4GB/s", "60%", "-1GiB", "GiB", "4Gib0"])
def test_no_memory(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_memory(text)


def test_bytes_are_no_share() -> None:
    assert [parse_bytes(text) for text in ("4MiB", "1000", "1")] == [4 << 20, 1000, 1]
    for text in ("0", "0.5", "x"):
        with pytest.raises(ValueError, match=r".+"):
            parse_bytes(text)


def test_shown_numbers() -> None:
    assert [show_bytes(n) for n in (0, 1023, 1536, 5 << 30, 1 << 50)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5 GiB",
        "1024 TiB",
    ]
    assert [show_time(s) for s in (0, 59.6, 75, 4000)] == ["0:00", "1:00", "1:15", "1:06:40"]


def test_counts_are_for_people() -> None:
    assert COUNT.metavar == "N"


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    heavy = {"jax", "numpy", "transformers", "datasets", "torch", "orjson"}
    code = (
        "import sys\nsys.argv = ['esurge', 'generate', '--help']\n"
        "from esurge_cli.app import main\n"
        f"try: main()\nfinally: print(sorted({heavy} & set(sys.modules)), file=sys.stderr)"
    )
    assert min(timed_help(code) for _ in range(3)) < 0.5


def timed_help(code: str) -> float:
    """Seconds of computation, which other processes do not change much."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr == "[]\n"
    assert "--max-num-batched-tokens, --max-batched-tokens" in result.stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)
