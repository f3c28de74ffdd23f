"""Each family against transformers, on a tiny random checkpoint: tokens and log-probabilities, however they are run."""

from __future__ import annotations

import numpy as np
import pytest
from reference import Reference, generate

from runner import eSurgeRunner
from runner.attention.xla import XlaAttention
from scheduler import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=24, logprobs=3, ignore_eos=True)

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}

FAMILIES = {
    "llama": ("llama", {}),
    "llama with biases and tied embeddings": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama with heads of odd sizes": (
        "llama",
        {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 24},
    ),
    "llama with linear rope": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    ),
    "llama with llama3 rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama with yarn rope": ("llama", {"rope_parameters": YARN_ROPE}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral with a window": ("mistral", {"sliding_window": 32}),
    "qwen2": ("qwen2", {}),
    "qwen2 with windows from layer 1 on": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 48, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "gemma3_text": ("gemma3_text", {}),
    "gemma3_text with a capped head": ("gemma3_text", {"final_logit_softcapping": 60.0, "num_key_value_heads": 1}),
    "gemma2 with soft caps": (
        "gemma2",
        {
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "sliding_window": 32,
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 60.0,
        },
    ),
}


@pytest.fixture(scope="module", params=FAMILIES.values(), ids=FAMILIES.keys())
def folder(request, tiny_checkpoint):
    model_type, options = request.param
    return tiny_checkpoint(model_type, **options)


@pytest.fixture(scope="module")
def reference(folder):
    return Reference(folder)


def prompts_of(*lengths):
    rng = np.random.default_rng(1)
    return [rng.integers(3, 320, length).tolist() for length in lengths]


def check(runner, reference, prompts, **options):
    run = generate(runner, prompts, GREEDY, **options)
    compared = sum(reference.check_greedy(*pair) for pair in zip(prompts, run.results, strict=True))
    assert compared > 0.8 * len(prompts) * GREEDY.max_tokens
    return run


def test_tokens_and_log_probabilities_are_those_of_transformers(folder, reference):
    """Past every window, in chunks of 40 tokens, with and without a prefix cache."""
    runner = eSurgeRunner.from_pretrained(folder, max_num_seqs=8, max_num_batched_tokens=64, num_pages=220)
    prompts = prompts_of(5, 150, 33, 97)
    check(runner, reference, prompts, max_num_batched_tokens=40)
    check(runner, reference, prompts, max_num_batched_tokens=64, enable_prefix_caching=False)


def test_preempted_requests_give_the_same_tokens(folder, reference):
    """Eight prompts that fit the pool together, until they grow."""
    options = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 128, "page_size": 4}
    groups = eSurgeRunner.from_pretrained(folder, num_pages=200, **options).cache_groups.kv_cache_groups
    num_pages = 1 + sum(group.kv_cache_spec.max_pages(128, 64) for group in groups)
    runner = eSurgeRunner.from_pretrained(folder, num_pages=num_pages, **options)
    prompts = prompts_of(6, 9, 12, 7, 16, 11, 8, 10)
    run = check(runner, reference, prompts, max_num_batched_tokens=64)
    assert run.num_preemptions > 0


@pytest.mark.parametrize("family", ["llama", "gemma2 with soft caps"])
def test_the_xla_path_gives_the_same_tokens(family, tiny_checkpoint, monkeypatch):
    model_type, options = FAMILIES[family]
    folder = tiny_checkpoint(model_type, **options)
    reference = Reference(folder)
    monkeypatch.setattr("runner.runner.best_attention", lambda cache_dtype: XlaAttention())
    runner = eSurgeRunner.from_pretrained(folder, max_num_seqs=8, max_num_batched_tokens=64, num_pages=220)
    check(runner, reference, prompts_of(5, 97, 33), max_num_batched_tokens=64)
