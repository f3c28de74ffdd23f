"""Two real models against transformers: the same greedy tokens however they are scheduled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reference import Reference, generate
from transformers import AutoTokenizer

from runner import eSurgeRunner
from scheduler import SamplingParams

pytestmark = pytest.mark.slow

GREEDY = SamplingParams(temperature=0, max_tokens=64, logprobs=2, ignore_eos=True)
LENGTHS = [5, 9, 17, 31, 32, 48, 64, 77, 100, 150, 210, 300, 512, 600, 850, 1200]
MAX_MODEL_LEN = 1280


class Model:
    """A checkpoint, its reference, and 16 prompts of 5 to 1,200 tokens: plain text, and chats where it knows them."""

    def __init__(self, folder):
        self.folder = folder
        self.reference = Reference(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        text = " ".join(Path("/usr/share/common-licenses/GPL-3").read_text().split())
        ids = tokenizer(text, add_special_tokens=False).input_ids
        starts = np.random.default_rng(2).integers(0, len(ids) - 1300, len(LENGTHS))
        bos = [tokenizer.bos_token_id] if tokenizer("a").input_ids[0] == tokenizer.bos_token_id else []
        self.prompts = [(bos + ids[start:])[:length] for start, length in zip(starts, LENGTHS, strict=True)]
        if tokenizer.chat_template:
            for i in range(1, len(LENGTHS), 2):
                content = tokenizer.decode(self.prompts[i])
                messages = [{"role": "user", "content": f"Say in one sentence what this means: {content}"}]
                chat = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
                self.prompts[i] = chat[-(MAX_MODEL_LEN - 64) :]

    def runner(self, **options):
        return eSurgeRunner.from_pretrained(self.folder, dtype="float32", max_model_len=MAX_MODEL_LEN, **options)

    def check(self, prompts, run):
        compared = [self.reference.check_greedy(*pair) for pair in zip(prompts, run.results, strict=True)]
        assert sum(compared) > 0.75 * len(prompts) * GREEDY.max_tokens, compared


@pytest.fixture(scope="module", params=["smollm2_folder", "gemma3_folder"])
def model(request):
    return Model(request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def roomy(model):
    return model.runner(max_num_seqs=16, max_num_batched_tokens=1024)


def test_alone(model, roomy):
    prompts = model.prompts[1::6]
    model.check(prompts, generate(roomy, prompts, GREEDY, together=False, max_num_batched_tokens=1024))


def test_in_a_batch_of_16_without_prefix_caching(model, roomy):
    run = generate(roomy, model.prompts, GREEDY, max_num_batched_tokens=1024, enable_prefix_caching=False)
    model.check(model.prompts, run)


def test_with_a_budget_of_64_tokens(model, roomy):
    prompts = model.prompts[1::2]
    model.check(prompts, generate(roomy, prompts, GREEDY, max_num_batched_tokens=64))


def test_from_the_prefix_cache(model, roomy):
    """The same prompts again: all but the last page of each come from the cache."""
    prompts = model.prompts[8:13]
    run = generate(roomy, [prompt for prompt in prompts for _ in range(2)], GREEDY, max_num_batched_tokens=1024)
    model.check([prompt for prompt in prompts for _ in range(2)], run)
    for prompt, again in zip(prompts, run.results[1::2], strict=True):
        assert again.num_cached_tokens >= len(prompt) - 17


def test_in_a_pool_so_small_that_requests_are_preempted(model):
    options = {"max_num_seqs": 16, "max_num_batched_tokens": 256}
    groups = model.runner(num_pages=2000, **options).cache_groups.kv_cache_groups
    num_pages = 1 + sum(group.kv_cache_spec.max_pages(MAX_MODEL_LEN, 256) for group in groups)
    runner = model.runner(num_pages=num_pages, **options)
    run = generate(runner, model.prompts, GREEDY, max_num_batched_tokens=256)
    model.check(model.prompts, run)
    assert run.num_preemptions > 0


FEATURES = {
    "async": {"async_scheduling": True},
    "offline": {"policy": "offline"},
    "priority with a threshold": {"policy": "priority", "long_prefill_token_threshold": 100},
    "drafts": {"num_speculative_tokens": 4},
}


@pytest.mark.parametrize("options", FEATURES.values(), ids=FEATURES.keys())
def test_with_every_feature_of_the_scheduler(model, options):
    prompts = model.prompts[:11]
    num_drafts = options.get("num_speculative_tokens", 0)
    runner = model.runner(max_num_seqs=16, max_num_batched_tokens=256, num_speculative_tokens=num_drafts)
    run = generate(runner, prompts, GREEDY, max_num_batched_tokens=256, **options)
    model.check(prompts, run)
    assert (run.num_drafts > 0) == (num_drafts > 0)


def test_after_warm_up_no_step_compiles(model, roomy):
    roomy.warm_up(256)
    before = roomy.num_compilations
    generate(roomy, model.prompts[:6], GREEDY, max_num_batched_tokens=256)
    assert roomy.num_compilations == before
