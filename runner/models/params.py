"""A checkpoint's tensors → the decoder's Params, one at a time and never twice in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from runner.errors import UserError
from runner.linear.interface import Linear
from runner.models.config import DecoderConfig, Shape
from runner.models.decoder import Params
from runner.progress import Progress

_ALIGNMENT = 64
"""XLA on a CPU takes an array of this alignment as it is; any other it copies."""


class Tensors(Protocol):
    """The part of a Checkpoint that holds weights."""

    def tensor(self, name: str) -> np.ndarray: ...

    def dtype(self, name: str) -> np.dtype: ...


class Source(NamedTuple):
    """A tensor of the checkpoint and the shape that the config promises; `is_matrix`: products are taken with it."""

    name: str
    shape: Shape
    is_norm: bool = False
    is_matrix: bool = False


Weight = tuple[Source, ...]
"""One array of the decoder: its sources, stacked along their first dimension."""


def load_params(
    config: DecoderConfig,
    checkpoint: Tensors,
    linear: Linear,
    progress: Progress,
    put: Callable[[np.ndarray], jax.Array] = jax.device_put,
) -> Params:
    """Read every tensor that the decoder needs, as `linear` wants it, and `put` it on the device.

    Raises UserError for a tensor that is missing or of another shape than the config says.
    """
    weights = _weights(config)
    total, done = sum(map(len, weights.leaves())), 0

    def load(layers: list[Weight]) -> jax.Array:
        nonlocal done
        shape, stored_dtype = _stored(layers, checkpoint, linear)
        out = _aligned_zeros(shape, stored_dtype)
        for layer, weight in zip(out, layers, strict=True):
            progress("load", done, total)
            _read(weight, checkpoint, linear, config.norm_offset, layer)
            done += 1
        return put(out)

    params = weights.to_params(load)
    progress("load", total, total)
    return params


def params_shape(config: DecoderConfig, checkpoint: Tensors, linear: Linear) -> Params:
    """What `load_params` will make: shapes and dtypes without the weights, for programs to be compiled meanwhile."""
    return _weights(config).to_params(lambda layers: jax.ShapeDtypeStruct(*_stored(layers, checkpoint, linear)))


class _Weights(NamedTuple):
    """The decoder's arrays by name: one weight each, and one for each layer."""

    outer: dict[str, Weight]
    layers: dict[str, list[Weight]]

    def leaves(self) -> list[list[Weight]]:
        return [*([weight] for weight in self.outer.values()), *self.layers.values()]

    def to_params(self, array_of: Callable[[list[Weight]], Any]) -> Params:
        params: Params = {name: array_of([weight]) for name, weight in self.outer.items()}
        return params | {"layers": {name: array_of(weights) for name, weights in self.layers.items()}}


def _weights(config: DecoderConfig) -> _Weights:
    """Names as transformers gives them."""
    layers = {
        name: [
            tuple(source._replace(name=f"model.layers.{i}.{source.name}") for source in weight)
            for i in range(config.num_layers)
        ]
        for name, weight in _layer_weights(config).items()
    }
    return _Weights(_outer_weights(config), layers)


def _outer_weights(config: DecoderConfig) -> dict[str, Weight]:
    matrix = (config.vocab_size, config.hidden_size)
    weights: dict[str, Weight] = {
        "embedding": (Source("model.embed_tokens.weight", matrix, is_matrix=config.tie_word_embeddings),),
        "final_norm": (Source("model.norm.weight", (config.hidden_size,), is_norm=True),),
    }
    if not config.tie_word_embeddings:
        weights["head"] = (Source("lm_head.weight", matrix, is_matrix=True),)
    return weights


def _layer_weights(config: DecoderConfig) -> dict[str, Weight]:
    """One layer's arrays; names are those after `model.layers.N.`."""
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * head, config.num_kv_heads * head

    def norm(name: str, size: int = hidden) -> Weight:
        return (Source(f"{name}.weight", (size,), is_norm=True),)

    def linear(inputs: int, bias: bool, **outputs: int) -> tuple[Weight, Weight | None]:
        names = {name.replace("__", "."): size for name, size in outputs.items()}
        matrix = tuple(Source(f"{name}.weight", (size, inputs), is_matrix=True) for name, size in names.items())
        vector = tuple(Source(f"{name}.bias", (size,)) for name, size in names.items())
        return matrix, vector if bias else None

    linears = {
        "qkv": linear(
            hidden, config.qkv_bias, self_attn__q_proj=queries, self_attn__k_proj=keys, self_attn__v_proj=keys
        ),
        "out": linear(queries, config.output_bias, self_attn__o_proj=hidden),
        "gate_up": linear(hidden, config.mlp_bias, mlp__gate_proj=inner, mlp__up_proj=inner),
        "down": linear(inner, config.mlp_bias, mlp__down_proj=hidden),
    }
    weights: dict[str, Weight] = {"attention_norm": norm("input_layernorm")}
    for name, (matrix, bias) in linears.items():
        weights[name] = matrix
        if bias is not None:
            weights[f"{name}_bias"] = bias
    if config.qk_norm:
        weights["query_norm"] = norm("self_attn.q_norm", head)
        weights["key_norm"] = norm("self_attn.k_norm", head)
    if config.sandwich_norms:
        weights["post_attention_norm"] = norm("post_attention_layernorm")
        weights["mlp_norm"] = norm("pre_feedforward_layernorm")
        weights["post_mlp_norm"] = norm("post_feedforward_layernorm")
    else:
        weights["mlp_norm"] = norm("post_attention_layernorm")
    return weights


def _stored(layers: list[Weight], checkpoint: Tensors, linear: Linear) -> tuple[Shape, np.dtype]:
    """The shape, [layers, …], and the dtype of the array for these weights."""
    rows = sum(source.shape[0] for source in layers[0])
    shape: Shape = (rows, *layers[0][0].shape[1:])
    dtype = linear.dtype
    if layers[0][0].is_matrix:
        held = np.result_type(*(checkpoint.dtype(source.name) for weight in layers for source in weight))
        shape, dtype = linear.stored(shape[0], shape[1], held)
    return (len(layers), *shape), dtype


def _read(weight: Weight, checkpoint: Tensors, linear: Linear, norm_offset: float, out: np.ndarray) -> None:
    start = 0
    for name, shape, is_norm, is_matrix in weight:
        tensor = checkpoint.tensor(name)
        if tensor.shape != shape:
            raise UserError(f"the tensor {name} is {list(tensor.shape)}, but the config says {list(shape)}")
        if is_matrix:
            linear.store(tensor, start, out)
        else:
            out[start : start + shape[0]] = tensor.astype(np.float32) + norm_offset if is_norm else tensor
        start += shape[0]


def _aligned_zeros(shape: Shape, dtype: np.dtype) -> np.ndarray:
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)
