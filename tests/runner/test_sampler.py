"""The sampler against the definitions, in float64 NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner import sampler
from runner.sampler import SamplingBatch

sample = jax.jit(sampler.sample)
keep_mask = jax.jit(sampler.keep_mask)


def batch_of(rows: int, *, position=None, **columns) -> SamplingBatch:
    """Greedy rows unless said otherwise; a scalar is every row's."""
    defaults = {
        "temperature": np.zeros(rows, np.float32),
        "top_p": np.ones(rows, np.float32),
        "top_k": np.zeros(rows, np.int32),
        "min_p": np.zeros(rows, np.float32),
        "seed": np.zeros((rows, 2), np.uint32),
        "sample_index": np.zeros(rows, np.int32),
        "position": np.arange(rows, dtype=np.int32) if position is None else position,
        "wants_logprobs": np.zeros(rows, bool),
    }
    for name, value in columns.items():
        defaults[name] = np.broadcast_to(np.asarray(value, defaults[name].dtype), defaults[name].shape)
    return SamplingBatch(**defaults)


def expected_mask(logits, top_k, top_p, min_p):
    """min-p, then top-k, then top-p over what top-k left; ties at a threshold are kept."""
    p = np.exp(logits.astype(np.float64) - logits.max())
    keep = p >= min_p * p.max()
    if top_k:
        kept = np.sort(p[keep])[::-1]
        keep &= p >= kept[min(top_k, len(kept)) - 1]
    if top_p < 1:
        kept = np.sort(p[keep])[::-1]
        reached = np.cumsum(kept) / kept.sum() >= top_p
        keep &= p >= kept[np.argmax(reached)]
    return keep


logit_rows = st.lists(
    st.sampled_from([-30.0, -2.5, -1.0, -0.5, 0.0, 0.25, 1.0, 3.0, 3.5]), min_size=2, max_size=40
).map(lambda row: np.array(row, np.float32))


@settings(max_examples=150, deadline=None)
@given(
    logit_rows,
    st.integers(0, 45),
    st.sampled_from([0.13, 0.37, 0.61, 0.83, 0.97, 1.0]),
    st.sampled_from([0.0, 0.05, 0.3, 1.0]),
)
def test_the_kept_set_is_the_definition(row, top_k, top_p, min_p):
    padded = np.full((1, 40), -np.inf, np.float32)
    padded[0, : len(row)] = row
    mask = np.asarray(keep_mask(jnp.asarray(padded), batch_of(1, top_k=top_k, top_p=top_p, min_p=min_p)))
    np.testing.assert_array_equal(mask[0, : len(row)], expected_mask(row, top_k, top_p, min_p))
    assert not mask[0, len(row) :].any()


def test_top_k_one_keeps_the_likeliest_only():
    mask = keep_mask(jnp.array([[0.1, 2.0, 1.9]]), batch_of(1, top_k=1))
    assert np.asarray(mask).tolist() == [[False, True, False]]


def test_greedy_takes_the_first_of_the_likeliest():
    tokens = sample(jnp.array([[0.0, 5.0, 5.0], [1.0, 0.0, 0.5]]), batch_of(2)).token_id
    assert np.asarray(tokens).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.7, 0, 1.0, 0.0),
        (1.5, 5, 1.0, 0.0),
        (1.0, 0, 0.8, 0.0),
        (1.3, 0, 1.0, 0.1),
        (1.0, 9, 0.9, 0.02),
    ],
)
def test_twenty_thousand_draws_follow_the_distribution(temperature, top_k, top_p, min_p):
    rng = np.random.default_rng(3)
    logits = rng.normal(scale=2, size=300).astype(np.float32)
    scaled = logits.astype(np.float64) / temperature
    p = np.exp(scaled - scaled.max()) * expected_mask(scaled, top_k, top_p, min_p)
    p /= p.sum()

    draws = 20_000
    batch = batch_of(draws, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=[[0, 11]] * draws)
    tokens = np.asarray(sample(jnp.broadcast_to(logits, (draws, 300)), batch).token_id)
    counts = np.bincount(tokens, minlength=300)
    assert (counts[p == 0] == 0).all()
    common = p * draws >= 5
    expected = np.append(p[common], p[~common].sum()) * draws
    observed = np.append(counts[common], counts[~common].sum())
    used = expected > 0
    chi_square = ((observed - expected)[used] ** 2 / expected[used]).sum()
    degrees = used.sum() - 1
    # Wilson-Hilferty: the cube root is nearly normal; 4.5 standard deviations
    deviation = ((chi_square / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / np.sqrt(2 / (9 * degrees))
    assert deviation < 4.5


def test_a_draw_depends_on_seed_sample_and_position_and_not_on_the_batch():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(6, 500)).astype(np.float32))
    columns = {
        "temperature": np.array([1, 0, 0.8, 1.2, 1, 1], np.float32),
        "seed": np.array([[1, 2], [0, 0], [3, 4], [5, 6], [1, 2], [1, 2]], np.uint32),
        "sample_index": np.array([0, 0, 0, 1, 1, 0], np.int32),
    }
    position = np.array([7, 8, 9, 10, 7, 8], np.int32)
    together = np.asarray(sample(logits, batch_of(6, position=position, **columns)).token_id)
    for i in range(6):
        alone = sample(
            logits[i : i + 1],
            batch_of(1, position=position[i : i + 1], **{name: value[i : i + 1] for name, value in columns.items()}),
        )
        assert alone.token_id[0] == together[i]


def test_seed_sample_index_and_position_each_change_the_draws():
    logits = jnp.zeros((400, 1000))
    position = np.arange(400, dtype=np.int32)

    def draw(seed, sample_index, start):
        batch = batch_of(
            400, temperature=1.0, seed=[seed] * 400, sample_index=[sample_index] * 400, position=position + start
        )
        return np.asarray(sample(logits, batch).token_id)

    reference = draw((0, 1), 0, 0)
    for other in (draw((0, 2), 0, 0), draw((1, 1), 0, 0), draw((0, 1), 1, 0), draw((0, 1), 0, 1000)):
        assert np.mean(other == reference) < 0.02


def test_log_probabilities_are_of_the_raw_distribution_with_rank_and_alternatives():
    logits = np.random.default_rng(5).normal(scale=3, size=(3, 60)).astype(np.float32)
    batch = batch_of(3, temperature=[0.0, 2.0, 1.0], top_k=[0, 3, 0], wants_logprobs=[True, True, False])
    sampled = jax.device_get(sample(jnp.asarray(logits), batch))
    exact = logits.astype(np.float64)
    exact = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    for row in range(3):
        token = sampled.token_id[row]
        assert sampled.logprob[row] == pytest.approx(exact[row, token], abs=1e-5)
        assert sampled.rank[row] == 1 + (exact[row] > exact[row, token]).sum()
        np.testing.assert_array_equal(sampled.top_token_id[row], np.argsort(-exact[row])[:20])
        np.testing.assert_allclose(sampled.top_logprob[row], np.sort(exact[row])[::-1][:20], atol=1e-5)


def test_a_vocabulary_smaller_than_the_alternatives_is_padded():
    batch = batch_of(1, wants_logprobs=True)
    sampled = jax.device_get(sample(jnp.array([[0.0, 1.0, 2.0]]), batch))
    assert sampled.top_token_id[0, :3].tolist() == [2, 1, 0]
    assert np.isneginf(sampled.top_logprob[0, 3:]).all()
