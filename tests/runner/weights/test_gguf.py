"""GGUF files against transformers' own conversion, which needs torch: same config, same tensors, bit for bit."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_files import write_gguf
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from runner.errors import UserError
from runner.weights.checkpoint import Checkpoint, open_checkpoint
from runner.weights.gguf_config import load_generation_config
from runner.weights.gguf_file import GGUFFile

FAMILIES = ["llama", "qwen2", "qwen3", "gemma2", "gemma3_text"]

NOT_DEQUANTIZED = {Kind.Q8_1, Kind.Q8_K, Kind.Q1_0, Kind.I8, Kind.I16, Kind.I32, Kind.I64, Kind.F64}


@pytest.fixture
def tiny_gguf(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """`tiny_gguf(model_type, config fields, **write_gguf's options)`."""

    def write(model_type: str, config: dict[str, object] | None = None, **options: object) -> Path:
        return write_gguf(tmp_path / "tiny.gguf", tiny_checkpoint(model_type, **(config or {})), **options)

    return write


def transformers_model(file: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)


def assert_same_config(ours: PretrainedConfig, theirs: PretrainedConfig) -> None:
    """All that transformers' config says, but for where it comes from."""
    provenance = {
        "_model_name_or_path",
        "_name_or_path",
        "architectures",
        "dtype",
        "quantization_config",
        "transformers_version",
        "unk_token_id",
    }
    expected = {key: value for key, value in theirs.to_dict().items() if key not in provenance}
    actual = ours.to_dict()
    assert {key: actual.get(key) for key in expected} == expected


def assert_same_tensors(checkpoint: Checkpoint, reference: torch.nn.Module) -> None:
    expected = {
        name: tensor.numpy()
        for name, tensor in reference.state_dict().items()
        if not (name == "lm_head.weight" and reference.config.tie_word_embeddings)
    }
    assert set(checkpoint.names()) == set(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(checkpoint.tensor(name).astype(np.float32), tensor, err_msg=name)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("model_type", "tied"),
    [(family, tied) for family in FAMILIES for tied in (True, False) if tied or family != "gemma2"],  # always tied
)
def test_a_family_is_what_transformers_makes_of_it(tiny_gguf, model_type, kind, tied):
    # Six layers, for Gemma 3's sixth is its first full one. Transformers reads no head_dim of a Qwen 3, and knows one
    # scale of a Gemma's scores alone.
    sizes = {"num_hidden_layers": 6, "tie_word_embeddings": tied}
    if model_type == "qwen3":
        sizes["head_dim"] = 128
    if model_type.startswith("gemma"):
        sizes |= {"head_dim": 256, "layer_types": None, "query_pre_attn_scalar": 256}
    file = tiny_gguf(model_type, sizes, kind=kind)
    checkpoint, reference = open_checkpoint(file), transformers_model(file)
    assert checkpoint.config.tie_word_embeddings is tied
    assert_same_config(checkpoint.config, reference.config)
    assert_same_tensors(checkpoint, reference)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_family_is_what_it_was_before_conversion(tiny_checkpoint, tmp_path, model_type):
    folder = tiny_checkpoint(model_type)
    original, converted = open_checkpoint(folder), open_checkpoint(write_gguf(tmp_path / "tiny.gguf", folder))
    assert sorted(converted.names()) == sorted(original.names())
    for name in original.names():
        # Gemma's norms, of a size of about 1, lose their last bit on the way to one more and back.
        np.testing.assert_allclose(converted.tensor(name), original.tensor(name), rtol=0, atol=2.5e-7, err_msg=name)


def test_llama_biases_are_found_and_put_in_order(tiny_gguf, tiny_checkpoint, tmp_path):
    folder = tiny_checkpoint("llama", attention_bias=True, mlp_bias=True)
    original, converted = open_checkpoint(folder), open_checkpoint(write_gguf(tmp_path / "tiny.gguf", folder))
    assert converted.config.attention_bias and converted.config.mlp_bias
    for name in original.names():
        np.testing.assert_array_equal(converted.tensor(name), original.tensor(name), err_msg=name)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # random bytes are infinite in places
@pytest.mark.parametrize("kind", sorted(set(Kind) - NOT_DEQUANTIZED), ids=lambda kind: kind.name)
def test_every_type_that_gguf_dequantizes(tiny_gguf, kind):
    # Rows enough for two chunks, and random bytes, for gguf can only write some of the types.
    rows, columns = 2500, 512
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 256, (rows, columns // block * size), np.uint8)
    file = tiny_gguf(
        "llama",
        {"vocab_size": rows, "hidden_size": columns, "num_hidden_layers": 1},
        packed={"token_embd.weight": (raw, kind)},
    )
    tensor = open_checkpoint(file).tensor("model.embed_tokens.weight")
    assert tensor.shape == (rows, columns)
    np.testing.assert_array_equal(tensor.astype(np.float32), gguf.dequantize(raw, kind))


@pytest.mark.parametrize("kind", [Kind.Q1_0, Kind.I32], ids=lambda kind: kind.name)
def test_other_types_are_refused_by_name(tiny_gguf, kind):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.zeros((320, 128 // block * size), np.uint8)
    file = tiny_gguf("llama", {"hidden_size": 128}, packed={"token_embd.weight": (raw, kind)})
    with pytest.raises(UserError, match=rf"model.embed_tokens.weight .* {kind.name}"):
        open_checkpoint(file).tensor("model.embed_tokens.weight")


def test_plain_floats_are_views_of_the_file(tiny_gguf):
    tensor = open_checkpoint(tiny_gguf("qwen3", kind=Kind.F16)).tensor("model.layers.0.mlp.up_proj.weight")
    assert tensor.dtype == np.float16 and not tensor.flags.owndata and not tensor.flags.writeable


def test_dequantizing_takes_little_more_memory_than_the_result(tiny_gguf):
    rows, columns = 40_000, 512
    file = tiny_gguf("llama", {"vocab_size": rows, "hidden_size": columns, "num_hidden_layers": 1}, kind=Kind.Q8_0)
    checkpoint = open_checkpoint(file)
    tracemalloc.start()
    size = checkpoint.tensor("model.embed_tokens.weight").nbytes
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size == rows * columns * 4
    assert peak < size + 8 * 4 * 4 * 2**20  # eight threads at most, each with some copies of its 4 MiB


def test_what_the_file_says_of_sampling_and_of_ends(tiny_gguf):
    assert open_checkpoint(tiny_gguf("llama")).generation_config == {"eos_token_id": [2]}
    keys = {
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 20,
        "general.sampling.min_p": 0.25,
        "tokenizer.ggml.eot_token_id": 5,
        # The template ends turns with a token that is not named otherwise, and does not use one that is there too.
        "tokenizer.ggml.tokens": ["<pad>", "<bos>", "<eos>", "<|im_end|>", "<end_of_turn>", "<eot>"],
        "tokenizer.chat_template": "{{ messages[0].content }}<end_of_turn>",
    }
    assert load_generation_config(GGUFFile(Path("model.gguf"), keys, {})) == {
        "temperature": 0.5,
        "top_k": 20,
        "min_p": 0.25,
        "eos_token_id": [4, 5],
    }


def test_llama3_rope_is_read_from_its_divisors(tiny_gguf):
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    sizes = {"head_dim": 64, "rope_parameters": rope, "max_position_embeddings": 131072}
    divisors = _divisors(sizes)
    config = open_checkpoint(tiny_gguf("llama", sizes, packed={"rope_freqs.weight": (divisors, Kind.F32)})).config
    assert config.rope_parameters == rope
    scaled = rope | {"factor": 8.0, "low_freq_factor": 2.0}
    divisors = _divisors(sizes | {"rope_parameters": scaled})
    with pytest.raises(UserError, match=r"rope_freqs.weight"):
        open_checkpoint(tiny_gguf("llama", sizes, packed={"rope_freqs.weight": (divisors, Kind.F32)}))


def _divisors(sizes: dict[str, object]) -> np.ndarray:
    """By what transformers' llama3 rope divides each frequency of the plain one."""
    from checkpoints import tiny_config

    config = tiny_config("llama", **sizes)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device=torch.device("cpu"))
    plain = 500000.0 ** -(torch.arange(0, 64, 2) / 64)
    return (plain / scaled).numpy().astype(np.float32)


def test_linear_and_yarn_ropes(tiny_gguf):
    linear = {"rope__scaling__type": "linear", "rope__scaling__factor": 8.0}
    config = open_checkpoint(tiny_gguf("gemma3_text", {"layer_types": None}, **linear)).config
    assert config.rope_parameters["full_attention"] == {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
    assert config.rope_parameters["sliding_attention"] == {"rope_type": "default", "rope_theta": 1e4}

    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 128}
    config = open_checkpoint(tiny_gguf("qwen2", **yarn)).config
    assert config.rope_parameters == {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    }


def test_gemma3_without_a_window_sees_everything(tiny_gguf):
    config = open_checkpoint(tiny_gguf("gemma3_text", attention__sliding_window=None)).config
    assert config.layer_types == ["full_attention"] * 4


@pytest.mark.parametrize(("model_type", "layers"), [("gemma2", 46), ("gemma3_text", 62)])
def test_the_largest_gemmas_scale_their_scores_by_width_per_head(tiny_gguf, model_type, layers):
    """Gemma 2 27B by 4608 / 32 = 144, and Gemma 3 27B by 5376 / 32 = 168, where both have a head_dim of 128."""
    sizes = {"num_hidden_layers": layers, "layer_types": None, "hidden_size": 32, "intermediate_size": 32}
    config = open_checkpoint(tiny_gguf(model_type, sizes | {"head_dim": 16})).config
    assert config.query_pre_attn_scalar == 8  # 32 / 4


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"expert_count": 8}, "mixture of experts"),
        ({"block_count": None}, "no llama.block_count"),
        ({"rope__dimension_count": 8}, "rotates only a part"),
        ({"attention__head_count_kv": [2, 4, 2]}, "differ in attention.head_count_kv"),
        ({"attention__key_length": 16, "attention__value_length": 8}, "different lengths"),
        ({"rope__scaling__type": "longrope"}, "'longrope'"),
        ({"rope__scaling__type": "linear"}, "no llama.rope.scaling.factor"),
        ({"attention__head_count": 3, "attention__key_length": 16}, "describes no possible llama"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tiny_gguf, metadata, message):
    with pytest.raises(UserError, match=message):
        open_checkpoint(tiny_gguf("llama", **metadata))


def test_a_tensor_without_a_use_is_refused(tiny_gguf):
    norm = np.ones(16, np.float32)
    with pytest.raises(UserError, match=r"blk.0.attn_q_norm.weight"):
        open_checkpoint(tiny_gguf("llama", packed={"blk.0.attn_q_norm.weight": (norm, Kind.F32)}))


def test_an_unknown_architecture_is_told_which_are_known(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "falcon.gguf", "falcon")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match=r"'falcon'.*llama, qwen2, qwen3, gemma2, gemma3"):
        open_checkpoint(tmp_path / "falcon.gguf")


def test_a_missing_tensor_is_named(tiny_gguf):
    with pytest.raises(UserError, match=r"tiny.gguf has no tensor model.layers.9.mlp.up_proj.weight"):
        open_checkpoint(tiny_gguf("llama")).tensor("model.layers.9.mlp.up_proj.weight")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2_gguf", "gemma3_gguf"])
def test_real_models_are_what_transformers_makes_of_them(request, model):
    file = request.getfixturevalue(model)
    checkpoint, reference = open_checkpoint(file), transformers_model(file)
    assert_same_config(checkpoint.config, reference.config)
    assert_same_tensors(checkpoint, reference)
