"""A checkpoint's tensors → the decoder's Params, one at a time and never twice in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import ml_dtypes
import numpy as np

from runner.errors import UserError
from runner.linear.interface import Linear
from runner.models.config import DecoderConfig, Shape
from runner.models.decoder import Params
from runner.progress import Progress

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}

_ALIGNMENT = 64
"""XLA on a CPU takes an array of this alignment as it is; any other it copies."""


class Tensors(Protocol):
    """The part of a Checkpoint that holds weights."""

    def tensor(self, name: str) -> np.ndarray: ...


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
    dtype: np.dtype,
    progress: Progress,
    *,
    stacked: bool,
    put: Callable[[np.ndarray], jax.Array] = jax.device_put,
) -> Params:
    """Read every tensor that the decoder needs, cast to `dtype`, and `put` it on the device as `linear` stores it.

    `stacked` makes one array of each weight for all layers. Raises UserError for a tensor that is missing or of
    another shape than the config says.
    """
    offset = config.norm_offset
    outer = _outer_weights(config)
    params: Params = {name: put(_read([outer[name]], checkpoint, linear, dtype, offset)[0]) for name in outer}
    layers = _layer_weights(config)
    loads = [(name, range(config.num_layers)) for name in layers]
    if not stacked:
        loads = [(name, range(i, i + 1)) for i in range(config.num_layers) for name in layers]
    arrays = []
    for done, (name, numbers) in enumerate(loads):
        progress("load", done, len(loads))
        weights = [
            tuple(source._replace(name=f"model.layers.{i}.{source.name}") for source in layers[name]) for i in numbers
        ]
        array = _read(weights, checkpoint, linear, dtype, offset)
        arrays.append((name, put(array if stacked else array[0])))
    progress("load", len(loads), len(loads))
    count = len(layers)
    params["layers"] = dict(arrays) if stacked else [dict(arrays[i : i + count]) for i in range(0, len(arrays), count)]
    return params


def params_shape(config: DecoderConfig, linear: Linear, dtype: np.dtype, *, stacked: bool) -> Params:
    """What `load_params` will make: shapes and dtypes without the weights, for programs to be compiled meanwhile."""

    def shape_of(weight: Weight, *leading: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*leading, *_stored_shape(weight, linear)), dtype)

    params: Params = {name: shape_of(weight) for name, weight in _outer_weights(config).items()}
    leading = (config.num_layers,) if stacked else ()
    layer = {name: shape_of(weight, *leading) for name, weight in _layer_weights(config).items()}
    params["layers"] = layer if stacked else [layer] * config.num_layers
    return params


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
    """One layer's arrays; names as transformers gives them, after `model.layers.N.`."""
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


def _stored_shape(weight: Weight, linear: Linear) -> Shape:
    rows = sum(source.shape[0] for source in weight)
    inputs = weight[0].shape[1:]
    return linear.stored_shape(rows, *inputs) if weight[0].is_matrix else (rows, *inputs)


def _read(
    weights: list[Weight], checkpoint: Tensors, linear: Linear, dtype: np.dtype, norm_offset: float
) -> np.ndarray:
    """The weights of some layers as one array [layers, …]."""
    out = _aligned_zeros((len(weights), *_stored_shape(weights[0], linear)), dtype)
    for layer, weight in zip(out, weights, strict=True):
        start = 0
        for name, shape, is_norm, is_matrix in weight:
            tensor = checkpoint.tensor(name)
            if tensor.shape != shape:
                raise UserError(f"the tensor {name} is {list(tensor.shape)}, but the config says {list(shape)}")
            if is_matrix:
                linear.store(tensor, start, layer)
            else:
                layer[start : start + shape[0]] = tensor.astype(np.float32) + norm_offset if is_norm else tensor
            start += shape[0]
    return out


def _aligned_zeros(shape: Shape, dtype: np.dtype) -> np.ndarray:
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)
