"""Hugging Face folders as transformers writes them, and broken in every way that a user meets."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from checkpoints import byte_tokenizer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma3Config, Gemma3ForConditionalGeneration

from runner.errors import UserError
from runner.weights.checkpoint import open_checkpoint


@pytest.fixture
def folder(tiny_checkpoint):
    return tiny_checkpoint("llama", tokenizer=True)


def edit_json(file: Path, **changes: object) -> None:
    """Set keys of a JSON file; None takes one out."""
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def refuses(folder: Path, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "gemma3_text"])
def test_tensors_are_transformers_own(tiny_checkpoint, model_type, dtype):
    folder = tiny_checkpoint(model_type, dtype=dtype)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).state_dict()
    checkpoint = open_checkpoint(folder)
    assert set(reference) - set(checkpoint.names()) <= {"lm_head.weight"}
    expected_dtype = {torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: ml_dtypes.bfloat16}[dtype]
    for name in checkpoint.names():
        tensor = checkpoint.tensor(name)
        assert tensor.dtype == expected_dtype
        np.testing.assert_array_equal(tensor.astype(np.float32), reference[name].float().numpy(), err_msg=name)


def test_tensors_are_views_of_the_file(folder):
    tensor = open_checkpoint(folder).tensor("model.embed_tokens.weight")
    assert type(tensor) is np.ndarray and not tensor.flags.owndata and not tensor.flags.writeable


def test_config_and_generation_config_are_as_written(folder):
    edit_json(folder / "generation_config.json", temperature=0.7, eos_token_id=[2, 5])
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.name, checkpoint.path) == (folder.name, folder)
    assert checkpoint.config.model_type == "llama" and checkpoint.config.num_hidden_layers == 3
    assert checkpoint.generation_config["temperature"] == 0.7
    (folder / "generation_config.json").unlink()
    assert open_checkpoint(folder).generation_config == {}


def test_stop_tokens_are_all_that_anyone_names(folder):
    tokenizer = open_checkpoint(folder).load_tokenizer()
    edit_json(folder / "config.json", eos_token_id=[7, 8])
    edit_json(folder / "generation_config.json", eos_token_id=9)
    assert open_checkpoint(folder).stop_token_ids(tokenizer) == {tokenizer.eos_token_id, 7, 8, 9}
    edit_json(folder / "generation_config.json", eos_token_id=[9, 2])
    edit_json(folder / "config.json", eos_token_id=None)
    assert open_checkpoint(folder).stop_token_ids(tokenizer) >= {tokenizer.eos_token_id, 9, 2}


def test_the_tokenizer_is_the_folders_own(folder):
    tokenizer = open_checkpoint(folder).load_tokenizer()
    assert tokenizer("héllo").input_ids == byte_tokenizer()("héllo").input_ids
    assert tokenizer.chat_template == byte_tokenizer().chat_template


def test_a_folder_without_a_tokenizer_says_so(tiny_checkpoint):
    with pytest.raises(UserError, match="has no tokenizer"):
        open_checkpoint(tiny_checkpoint("llama")).load_tokenizer()


def test_a_broken_tokenizer_is_one_line(folder):
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"the tokenizer of .* cannot be read") as caught:
        open_checkpoint(folder).load_tokenizer()
    assert "\n" not in str(caught.value)


def test_shards_are_found_by_the_index_alone(tiny_checkpoint):
    whole = open_checkpoint(tiny_checkpoint("llama"))
    folder = tiny_checkpoint("llama", max_shard_size="50KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    (folder / "model-stray.safetensors").write_bytes(b"not one of them")
    (folder / "consolidated.safetensors").write_bytes(b"nor this")
    sharded = open_checkpoint(folder)
    assert set(sharded.names()) == set(whole.names())
    for name in whole.names():
        np.testing.assert_array_equal(sharded.tensor(name), whole.tensor(name))


def test_a_missing_shard_is_named(tiny_checkpoint):
    folder = tiny_checkpoint("llama", max_shard_size="50KB")
    shard = min(folder.glob("model-*.safetensors"))
    shard.unlink()
    refuses(folder, f"{shard.name} is missing")


def test_a_tensor_that_its_shard_lacks_is_named(tiny_checkpoint):
    folder = tiny_checkpoint("llama", max_shard_size="50KB")
    shard = min(folder.glob("model-*.safetensors"))
    tensors = load_file(shard)
    gone = tensors.popitem()[0]
    save_file(tensors, shard)
    refuses(folder, f"{shard.name} has no tensor {gone}")


def test_a_tensor_that_is_not_there_is_named(folder):
    with pytest.raises(UserError, match=r"has no tensor model.layers.3.mlp.up_proj.weight"):
        open_checkpoint(folder).tensor("model.layers.3.mlp.up_proj.weight")


def test_files_cut_short_or_of_another_kind(folder):
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    refuses(folder, rf"cut short: it has {len(whole) - 1:,} bytes of {len(whole):,}")
    for head in (b"", b"\x01", whole[:100], b"version https://git-lfs.github.com/spec/v1\n" * 3):
        file.write_bytes(head)
        refuses(folder, "model.safetensors is (cut short|damaged)")
    for header in (b"[]", b"{}x", b'{"a": {"dtype": "F32"}}', b'{"a": 1}'):
        file.write_bytes(len(header).to_bytes(8, "little") + header)
        refuses(folder, "model.safetensors is damaged")


def test_types_that_cannot_be_read_are_named(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"model.norm.weight of .* is F8_E4M3; only F32, F16, BF16"):
        open_checkpoint(folder).tensor("model.norm.weight")


def test_weights_of_other_kinds_only(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refuses(folder, r"PyTorch weights \(.bin\) only")
    (folder / "pytorch_model.bin").unlink()
    refuses(folder, r"neither model.safetensors nor model.safetensors.index.json")


def test_a_config_that_is_missing_or_broken(folder):
    config = folder / "config.json"
    whole = config.read_text()
    for text, message in [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "is not a JSON object"),
        ("{}", "names no model_type"),
        ('{"model_type": "llama", "hidden_size": "many"}', "config.json cannot be read"),
    ]:
        config.write_text(text)
        refuses(folder, message)
    config.write_text(whole)
    config.unlink()
    refuses(folder, r"config.json is missing")


def test_models_that_need_code_of_their_own_or_are_unknown(folder):
    edit_json(folder / "config.json", model_type="frobnicator")
    refuses(folder, "'frobnicator', which transformers does not know")
    edit_json(folder / "config.json", auto_map={"AutoConfig": "configuration.Config"})
    (folder / "configuration.py").write_text("raise SystemExit('this must never run')")
    refuses(folder, "needs Python code of its own")
    # A model that transformers knows is read with transformers' own code, whatever else the folder brings.
    edit_json(folder / "config.json", model_type="llama")
    assert open_checkpoint(folder).config.model_type == "llama"


def test_quantized_weights_are_refused_by_name(folder):
    edit_json(folder / "config.json", quantization_config={"quant_method": "awq", "bits": 4})
    refuses(folder, "is quantized by awq")


def test_the_language_model_of_a_multimodal_one(tiny_checkpoint, tmp_path):
    text = tiny_checkpoint("gemma3_text")
    expected = open_checkpoint(text)
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = Gemma3Config(text_config=expected.config.to_dict(), vision_config=vision, mm_tokens_per_image=4)
    model = Gemma3ForConditionalGeneration(config)
    model.model.language_model.load_state_dict(
        {name.removeprefix("model."): torch.tensor(expected.tensor(name)) for name in expected.names()}
    )
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config.model_type == "gemma3_text"
    assert checkpoint.config.layer_types == expected.config.layer_types
    for name in expected.names():
        np.testing.assert_array_equal(checkpoint.tensor(name), expected.tensor(name))


def test_a_file_that_is_neither_folder_nor_gguf(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"")
    refuses(tmp_path / "model.onnx", r"model.onnx is neither a folder nor a .gguf file")
