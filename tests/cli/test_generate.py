"""`esurge generate` from its arguments to its exit status, with an engine that echoes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_engine import EchoRunner, install, make_engine, process
from typer.testing import CliRunner, Result

from esurge_cli.app import app, main
from esurge_cli.errors import RunFailed
from runner.errors import UserError

Rows = list[dict[str, Any]]


class Command:
    """`command(*arguments)` runs esurge generate in-process; `files` are made in its folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        self.use()

    def use(self, runner: EchoRunner | None = None, **options: Any) -> None:
        self.engine = install(self.monkeypatch, make_engine(runner, **options))

    def file(self, name: str, *rows: dict[str, Any] | str) -> str:
        path = self.folder / name
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return str(path)

    def __call__(self, *arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, ["generate", "--progress", "none", *arguments], input=stdin)

    def rows(self, *arguments: str, status: int = 0) -> Rows:
        result = self(*arguments)
        assert result.exit_code == status, (result.output, result.exception)
        return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(tmp_path, monkeypatch)


def prompts(*texts: str, **fields: Any) -> Rows:
    return [{"id": f"q{i}", "prompt": text} | fields for i, text in enumerate(texts)]


def test_prompts_in_generations_out_in_order(command: Command) -> None:
    rows = command.rows(command.file("in.jsonl", *prompts("a long one", "b", "cc")))
    assert [(row["id"], row["index"], row["text"]) for row in rows] == [
        ("q0", 0, "a long one"),
        ("q1", 1, "b"),
        ("q2", 2, "cc"),
    ]


def test_a_file_is_written(command: Command) -> None:
    out = command.folder / "out.jsonl"
    assert command.rows(command.file("in.jsonl", *prompts("long long", "b")), "-o", str(out)) == []
    assert [json.loads(line)["text"] for line in out.read_text().splitlines()] == ["long long", "b"]


def test_an_existing_file_is_refused_before_the_model_is_loaded(command: Command) -> None:
    command.monkeypatch.setattr("esurge_cli.engine.load_engine", lambda *_: pytest.fail("it was loaded"))
    out = command.folder / "out.jsonl"
    out.write_text("precious")
    result = command(command.file("in.jsonl"), "-o", str(out))
    assert isinstance(result.exception, UserError)
    assert out.read_text() == "precious"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nowhere.jsonl"],
        [],
        ["-", "--temperature", "-1"],
        ["-", "--max-tokens", "4", "--min-tokens", "5"],
        ["-", "--logprobs", "21"],
        ["-", "--max-num-seqs", "0"],
        ["-", "--prompt-template", "{{ a"],
        ["-", "--prompt-template", "@nowhere"],
        ["-", "--prompt-template", "{{ a }}", "--prompt-field", "a"],
        ["-", "--chat-template", "nowhere"],
        ["-", "--chat-template-kwargs", "{"],
        ["-", "--chat-template-kwargs", '{"tokenize": true}'],
        ["-", "--long-prefill-token-threshold", "8", "--no-enable-chunked-prefill"],
        ["-", "--async-scheduling", "--num-speculative-tokens", "3"],
        ["-", "--output-format", "text", "--logprobs", "0"],
        ["-", "--output-format", "text", "--keep-fields", "all"],
    ],
)
def test_what_is_wrong_is_said_before_the_model_is_loaded(command: Command, arguments: list[str]) -> None:
    command.monkeypatch.setattr("esurge_cli.engine.load_engine", lambda *_: pytest.fail("it was loaded"))
    assert isinstance(command(*arguments).exception, UserError)


@pytest.mark.parametrize("flag", ["--lora", "--ray", "--tensor-parallel-size"])
def test_flags_of_what_does_not_exist_are_refused_by_name(command: Command, flag: str) -> None:
    result = command(command.file("in.jsonl"), flag)
    assert result.exit_code == 2
    assert f"No such option: {flag}" in result.output


def test_bad_rows_are_error_rows_and_the_status_is_3(command: Command) -> None:
    good = {"prompt": "a"}
    path = command.file("in.jsonl", good, "{broken", "", {"prompt": "b", "top_p": 2}, {"messages": 1}, good)
    rows = command.rows(path, status=3)
    assert [row["error"] and (row["error"]["type"], row["error"]["line"]) for row in rows] == [
        None,
        ("invalid_json", 2),
        ("invalid_parameter", 4),
        ("invalid_row", 5),
        None,
    ]
    assert "3 rows failed" in command(path).stderr


def test_bad_rows_alone_are_too_many_as_well(command: Command) -> None:
    result = command(command.file("in.jsonl", "{broken"), "--max-errors", "0")
    assert isinstance(result.exception, RunFailed)
    assert "1 of 1 rows have failed" in str(result.exception)


def test_an_empty_file_gives_no_rows_and_is_fine(command: Command) -> None:
    out = command.folder / "out.jsonl"
    assert command.rows(command.file("in.jsonl"), "-o", str(out)) == []
    assert out.read_bytes() == b""


def test_limit(command: Command) -> None:
    assert len(command.rows(command.file("in.jsonl", *prompts("a", "b", "c")), "--limit", "2")) == 2
    assert command.rows(command.file("in.jsonl", *prompts("a")), "--limit", "0") == []


def test_several_files(command: Command) -> None:
    files = [command.file("1.jsonl", {"prompt": "a"}), command.file("2.jsonl", {"prompt": "b"})]
    assert [row["text"] for row in command.rows(*files)] == ["a", "b"]


def test_a_rows_own_parameters_win_over_flags_and_those_over_the_models(command: Command) -> None:
    command.use(generation_config={"max_new_tokens": 1, "temperature": 0})
    path = command.file("in.jsonl", {"prompt": "abcdef"}, {"prompt": "abcdef", "max_tokens": 3})
    assert [row["text"] for row in command.rows(path)] == ["a", "abc"]
    assert [row["text"] for row in command.rows(path, "--max-tokens", "2")] == ["ab", "abc"]


def test_stop_flags(command: Command) -> None:
    path = command.file("in.jsonl", {"prompt": "a.b,c"}, {"prompt": "a.b,c", "stop": []})
    rows = command.rows(path, "--stop", ",", "--stop", "b")
    assert [(row["text"], row["stop_reason"]) for row in rows] == [("a.", "b"), ("a.b,c", None)]


def test_chats(command: Command) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    path = command.file("in.jsonl", chat, {"prompt": "Hi"})
    assert [row["text"] for row in command.rows(path)] == ["user: Hi\nassistant:", "Hi"]
    assert [row["text"] for row in command.rows(path, "--chat")] == ["user: Hi\nassistant:"] * 2
    system = "system: S\nuser: Hi\nassistant:"
    assert [row["text"] for row in command.rows(path, "--system-prompt", "S")] == [system] * 2


def test_a_prompt_template(command: Command) -> None:
    path = command.file("in.jsonl", {"q": "Hi"}, {"prompt": "no q"})
    good, bad = command.rows(path, "--prompt-template", "Q: {{ q }}", "--include-prompt", status=3)
    assert (good["text"], good["prompt"]) == ("Q: Hi", "Q: Hi")
    assert bad["error"]["message"] == "the prompt template fails: 'q' is undefined"


def test_a_chat_template_and_its_arguments(command: Command) -> None:
    template = command.file("chat.jinja", "{{ messages[0].content }} {{ a }}{{ b }}")
    path = command.file("in.jsonl", {"prompt": "Hi", "chat_template_kwargs": {"b": 2}})
    summary = command.folder / "summary.json"
    flags = ["--chat", "--chat-template", template, "--chat-template-kwargs", '{"a": 1, "b": 1}']
    (row,) = command.rows(path, *flags, "--summary", str(summary))
    assert row["text"] == "Hi 12"
    assert json.loads(summary.read_text())["settings"]["chat_template_kwargs"] == {"a": 1, "b": 1}


def test_a_prefilled_answer_is_none_of_the_text(command: Command) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]
    (row,) = command.rows(command.file("in.jsonl", {"messages": messages}))
    assert row["text"] == "user: Hi\nassistant: Well"  # which is what this engine says, and nothing before it
    assert row["usage"]["prompt_tokens"] == 1 + len(row["text"])


def test_fields(command: Command) -> None:
    path = command.file("in.jsonl", {"key": 5, "question": "Hi", "topic": "x"})
    (row,) = command.rows(path, "--prompt-field", "question", "--id-field", "key", "--keep-fields", "topic,question")
    assert (row["id"], row["text"], row["topic"], row["question"]) == (5, "Hi", "x", "Hi")


def test_too_long_prompts(command: Command) -> None:
    path = command.file("in.jsonl", {"prompt": "0123456789", "max_tokens": 2}, {"prompt": "a"})
    error, good = command.rows(path, "--max-model-len", "8", status=3)
    assert (error["error"]["type"], good["text"]) == ("prompt_too_long", "a")
    assert len(command.rows(path, "--max-model-len", "8", "--on-too-long", "skip")) == 1
    cut, _ = command.rows(path, "--max-model-len", "8", "--on-too-long", "truncate-left")
    assert cut["text"] == "45"


def test_extra_fields(command: Command) -> None:
    path = command.file("in.jsonl", {"prompt": "ab"})
    (row,) = command.rows(path, "--return-token-ids", "--include-prompt", "--logprobs", "1")
    assert row["prompt"] == "ab"
    assert [entry["token"] for entry in row["logprobs"]] == ["a", "b", "<eos>"]
    assert [entry["token_id"] for entry in row["logprobs"]] == row["token_ids"]


def test_tokens_that_the_model_does_not_have_are_faults(command: Command) -> None:
    asked = ({"stop_token_ids": [260]}, {"allowed_token_ids": [5, -1]}, {"logit_bias": {"260": 1}})
    path = command.file("in.jsonl", *({"prompt": "a"} | one for one in asked), {"prompt": "a", "bad_words": ["bc"]})
    rows = command.rows(path, status=3)
    assert [row["error"] and row["error"]["message"] for row in rows] == [
        "stop_token_ids: the token id 260 is not one of the model's 260",
        "allowed_token_ids: the token id -1 is not one of the model's 260",
        "logit_bias: the token id 260 is not one of the model's 260",
        None,
    ]
    rows = command.rows(path, "--async-scheduling", status=3)
    assert "bad_words of several tokens" in rows[3]["error"]["message"]


def test_samples_and_seeds(command: Command) -> None:
    """The same row gives the same text whatever runs beside it; `--seed` changes the rows without their own."""
    command.use(EchoRunner(is_random=True))
    path = command.file("in.jsonl", *prompts("a", "b", n=3, max_tokens=2), {"prompt": "c", "seed": 3, "max_tokens": 2})
    texts = [row["text"] for row in command.rows(path)]
    assert len(texts) == 7
    assert [row["sample"] for row in command.rows(path)] == [0, 1, 2, 0, 1, 2, 0]
    command.use(EchoRunner(is_random=True, max_num_seqs=1))
    assert [row["text"] for row in command.rows(path)] == texts
    command.use(EchoRunner(is_random=True))
    others = [row["text"] for row in command.rows(path, "--seed", "1")]
    assert others[:6] != texts[:6]
    assert others[6] == texts[6] == "DE"


def test_a_summary(command: Command) -> None:
    path = command.file("in.jsonl", {"prompt": "abcd", "max_tokens": 2}, {"prompt": "b"}, "{")
    summary = command.folder / "summary.json"
    command.rows(path, "--summary", str(summary), "--temperature", "0", status=3)
    values = json.loads(summary.read_text())
    assert values["rows"] == {
        "ok": 2,
        "failed": 1,
        "skipped": 0,
        "kept": 0,
        "kept_failed": 0,
        "cut_by_length": 1,
        "failed_by_reason": {"invalid_json": 1},
    }
    assert values["tokens"] == {"prompt": 5, "cached": 0, "output": 4}
    assert (values["seconds"]["load"], values["seconds"]["compile"]) == (1.0, 2.0)
    assert (values["settings"]["temperature"], values["settings"]["page_size"]) == (0.0, 16)


def test_the_environment_and_a_config_file(command: Command) -> None:
    path = command.file("in.jsonl", {"prompt": "abcdef"})
    config = command.file("c.toml", 'max-tokens = 2\nprogress = "none"')
    assert [row["text"] for row in command.rows(path, "--config", config)] == ["ab"]
    command.monkeypatch.setenv("ESURGE_MAX_TOKENS", "3")
    assert [row["text"] for row in command.rows(path, "--config", config)] == ["abc"]


def test_what_the_model_asks_for_and_is_not_supported_is_said(command: Command) -> None:
    command.use(generation_config={"best_of": 2})
    result = command(command.file("in.jsonl", {"prompt": "a"}))
    assert result.exit_code == 0
    assert "best_of 2, which is not supported yet" in result.stderr


def test_stdout_has_only_results_and_stderr_the_rest(command: Command) -> None:
    path = command.file("in.jsonl", {"prompt": "abc"}, "{")
    result = CliRunner().invoke(app, ["generate", path, "--progress", "plain"])
    assert [json.loads(line)["index"] for line in result.stdout.splitlines()] == [0, 1]
    for expected in ("Loading: done", "echo  float32  context 64", "temperature 1.0  max_tokens 512", "1 failed"):
        assert expected in result.stderr


def test_a_user_error_is_one_line_and_status_2(
    command: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["esurge", "generate", "nowhere.jsonl"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    assert capsys.readouterr().err == "esurge: nowhere.jsonl does not exist\n"


# As a process of its own: pipes and signals


def test_standard_input_is_read_and_a_row_is_out_before_the_next_comes() -> None:
    with process("-") as esurge:
        esurge.stdin.write('{"prompt": "one"}\n')
        esurge.stdin.flush()
        assert json.loads(esurge.stdout.readline())["text"] == "one"
        output, _ = esurge.communicate('{"prompt": "two"}\n', timeout=60)
        assert json.loads(output)["text"] == "two"
        assert esurge.returncode == 0


def test_a_closed_pipe_ends_it_quietly(command: Command) -> None:
    path = command.file("in.jsonl", *prompts(*["some text"] * 400))
    with process(path, "--progress", "none") as esurge:
        assert json.loads(esurge.stdout.readline())["index"] == 0
        esurge.stdout.close()
        assert esurge.stderr.read() == ""
        assert esurge.wait(60) == 0


def test_ctrl_c_keeps_what_is_finished_and_gives_130(command: Command) -> None:
    path = command.file("in.jsonl", {"prompt": "short"}, *prompts(*["x" * 30] * 200))
    out = command.folder / "out.jsonl"
    with process(path, "-o", str(out), pause=0.02) as esurge:
        wait_for_lines(out, 1)
        esurge.send_signal(signal.SIGINT)
        errors = esurge.stderr.read()
        assert esurge.wait(60) == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows[0]["text"] == "short"
    assert all(row["finish_reason"] == "stop" for row in rows)
    assert len(rows) < 201


def test_ctrl_c_while_waiting_for_input() -> None:
    with process("-") as esurge:
        esurge.stdin.write('{"prompt": "one"}\n')
        esurge.stdin.flush()
        esurge.stdout.readline()
        esurge.send_signal(signal.SIGINT)
        assert esurge.wait(60) == 130
        assert "Traceback" not in esurge.stderr.read()


def test_ctrl_c_twice_ends_it_at_once(command: Command) -> None:
    path = command.file("in.jsonl", *prompts(*["x" * 30] * 20))
    with process(path, pause=60) as esurge:
        while "temperature" not in esurge.stderr.readline():
            pass  # the header comes before the first step
        time.sleep(1.0)
        for _ in range(2):
            esurge.send_signal(signal.SIGINT)
            time.sleep(0.2)
        assert esurge.wait(10) == 130


def test_memory_does_not_grow_with_the_input(command: Command) -> None:
    """Endless rows: after 4,000 the process has grown by less than a megabyte for the next 16,000."""
    code = 'import sys\nwhile True: sys.stdout.write(\'{"prompt": "ab", "max_tokens": 1}\\n\' * 100)'
    with (
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as writer,
        process("-", "--progress", "none", stdin=writer.stdout) as esurge,
    ):
        sizes = []
        for count in (4_000, 16_000):
            for _ in range(count):
                assert esurge.stdout.readline()
            sizes.append(resident_bytes(esurge.pid))
        esurge.kill()
        writer.kill()
    assert sizes[1] - sizes[0] < 1 << 20


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def wait_for_lines(path: Path, count: int) -> None:
    for _ in range(3000):
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.01)
    raise AssertionError("no lines came")
