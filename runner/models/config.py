"""What the one decoder needs to know of a model: plain numbers, nothing of any framework."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scheduler import FullAttentionSpec, SlidingWindowSpec
from scheduler.cache.specs import KVCacheSpec

Shape = tuple[int, ...]


class RopeType(StrEnum):
    """How the rotary frequencies are scaled for contexts longer than the model was first trained on."""

    DEFAULT = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding (RoFormer, arXiv:2104.09864) of the whole head, rotated by halves.

    `factor` stretches the wavelengths; the rest are Llama 3's and YaRN's (arXiv:2309.00071) own parameters.
    """

    theta: float
    rope_type: RopeType = RopeType.DEFAULT
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


class Activation(StrEnum):
    """The gate's non-linearity."""

    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    RELU = "relu"


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What may differ from one layer to the next. `window` None sees everything before it."""

    rope: RopeConfig
    window: int | None = None


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder-only transformer: grouped-query attention and a gated MLP, each between a norm and a residual sum.

    `attention_scale` multiplies the scores, `embedding_scale` the embedded tokens. `norm_offset` is added to the RMS
    norms' stored weights. `sandwich_norms` puts a second norm after attention and after the MLP, before the sum.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    layers: tuple[LayerConfig, ...]
    norm_eps: float
    activation: Activation
    attention_scale: float
    tie_word_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sandwich_norms: bool = False
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def layer_cache_specs(self, page_size: int, dtype: str) -> dict[str, KVCacheSpec]:
        """What each layer ("layers.0", …) keeps of a sequence, in model order."""
        return {f"layers.{i}": self._cache_spec(layer, page_size, dtype) for i, layer in enumerate(self.layers)}

    def _cache_spec(self, layer: LayerConfig, page_size: int, dtype: str) -> KVCacheSpec:
        if layer.window is None:
            return FullAttentionSpec(page_size, self.num_kv_heads, self.head_dim, dtype)
        return SlidingWindowSpec(page_size, self.num_kv_heads, self.head_dim, dtype, layer.window)

    def flops_per_token(self) -> int:
        """Floating-point operations of the matrices for one token, the head included, attention not."""
        attention = self.head_dim * self.hidden_size * 2 * (self.num_heads + self.num_kv_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size
        return 2 * (self.num_layers * (attention + mlp) + self.hidden_size * self.vocab_size)
