// The product on AMX, Intel's matrix unit, which multiplies bfloat16 and adds up in float32.
//
// A float32 is the sum of three bfloat16 (8 + 8 + 8 bits of its 24), so that three products with a bfloat16 weight add
// up to the one in float32; denormals count as zero. Where x may be rounded there is one part alone.
#include <immintrin.h>

#include <algorithm>

#include "../../native/scratch.h"
#include "../../native/vectors.h"
#include "epilogue.h"
#include "kernel.h"

namespace esurge::linear {
namespace {

// A tile is 16 rows of 64 bytes: of x, rows by kPairedInputs inputs; of the weight, pairs of inputs by kPanel outputs.
constexpr int kRows = 16;
constexpr int64_t kTileBytes = 1024, kTileFloats = kTileBytes / 4;
constexpr int64_t kBlockTiles = 8;              // of a panel: with those of another, a share of the first-level cache
constexpr int64_t kPreparedBytes = 768 << 10;   // of the part's rows: a share of the second-level cache
constexpr int64_t kAheadTiles = 2;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
  constexpr TileConfig() {
    for (int i = 0; i < 8; ++i) row_bytes[i] = 64, rows[i] = 16;
  }
};
constexpr TileConfig kConfig;

template <int kParts>
int64_t Prepared(const Problem& p) { return p.inputs / kPairedInputs * kParts * kTileBytes; }

template <int kParts>
int64_t BlockRows(const Problem& p) {
  return std::clamp<int64_t>(kPreparedBytes / Prepared<kParts>(p) / 2 * 2, 2, 16) * kRows;
}

inline __mmask16 IsFinite(__m512 x) {
  return _mm512_cmp_ps_mask(_mm512_sub_ps(x, x), _mm512_setzero_ps(), _CMP_EQ_OQ);
}

// The high halves of floats, as the bfloat16 that they are.
inline __m512i HighHalves(__m512i low, __m512i high) {
  const __m256i half_low = _mm512_cvtepi32_epi16(_mm512_srli_epi32(low, 16));
  const __m256i half_high = _mm512_cvtepi32_epi16(_mm512_srli_epi32(high, 16));
  return _mm512_inserti64x4(_mm512_castsi256_si512(half_low), half_high, 1);
}

// To nearest even; a NaN, which a carry could make an infinity or a number, is kept.
inline __m512i Rounded(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_mask_add_epi32(bits, _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), bits,
                               _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
}

// x in tiles: [rows / 16, inputs / 32, parts, 16, 32], rows beyond the last zero.
template <int kParts>
void Prepare(const Problem& p, int64_t first, int64_t end) {
  const int64_t num_tiles = p.inputs / kPairedInputs;
  for (int64_t row = first; row < end; ++row) {
    char* to = static_cast<char*>(p.prepared) + row / kRows * Prepared<kParts>(p) + row % kRows * 64;
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      __m512 low = _mm512_setzero_ps(), high = low;
      if (row < p.rows) {
        const float* x = p.x + row * p.inputs + tile * kPairedInputs;
        low = _mm512_loadu_ps(x);
        high = _mm512_loadu_ps(x + 16);
      }
      if constexpr (kParts == 1) {
        _mm512_store_si512(to, HighHalves(Rounded(low), Rounded(high)));
        to += kTileBytes;
        continue;
      }
      for (int part = 0; part < kParts; ++part, to += kTileBytes) {
        // cut off, not rounded, so that what is left has the bits that follow; of an infinity or a NaN nothing is left
        const __m512i mask = _mm512_set1_epi32(int32_t(0xFFFF0000));
        const __m512i cut_low = _mm512_and_si512(_mm512_castps_si512(low), mask);
        const __m512i cut_high = _mm512_and_si512(_mm512_castps_si512(high), mask);
        _mm512_store_si512(to, HighHalves(cut_low, cut_high));
        low = _mm512_maskz_sub_ps(IsFinite(low), low, _mm512_castsi512_ps(cut_low));
        high = _mm512_maskz_sub_ps(IsFinite(high), high, _mm512_castsi512_ps(cut_high));
      }
    }
  }
}

// sums[RowTiles * 16][2 panels] (+)= x . panels over `num_tiles` tiles of inputs.
template <int kParts, int RowTiles>
void Tiles(const char* x, int64_t x_stride, const char* first, const char* second, int64_t num_tiles, bool add,
           float* sums, int64_t stride) {
  const int64_t bytes = stride * 4;
  float* below = sums + kRows * stride;
  if (add) {
    _tile_loadd(0, sums, bytes);
    _tile_loadd(1, sums + kPanel, bytes);
    if constexpr (RowTiles == 2) {
      _tile_loadd(2, below, bytes);
      _tile_loadd(3, below + kPanel, bytes);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t tile = 0; tile < num_tiles; ++tile, first += kTileBytes, second += kTileBytes) {
    for (int64_t line = 0; line < kTileBytes; line += 64) {
      _mm_prefetch(first + kAheadTiles * kTileBytes + line, _MM_HINT_T0);
      _mm_prefetch(second + kAheadTiles * kTileBytes + line, _MM_HINT_T0);
    }
    _tile_loadd(6, first, 64);
    _tile_loadd(7, second, 64);
#pragma GCC unroll 3
    for (int part = 0; part < kParts; ++part, x += kTileBytes) {
      _tile_loadd(4, x, 64);
      if constexpr (RowTiles == 2) _tile_loadd(5, x + x_stride, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (RowTiles == 2) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
  _tile_stored(0, sums, bytes);
  _tile_stored(1, sums + kPanel, bytes);
  if constexpr (RowTiles == 2) {
    _tile_stored(2, below, bytes);
    _tile_stored(3, below + kPanel, bytes);
  }
}

template <int kParts>
void Multiply(const Problem& p, const Part& part) {
  static thread_local Scratch scratch;
  const int64_t num_panels = NumPanels(p, part), stride = (num_panels + 1) / 2 * 2 * kPanel;
  const int64_t row_tiles = (part.row_end - part.row + kRows - 1) / kRows, tiles = p.inputs / kPairedInputs;
  float* sums = scratch.Of(row_tiles * kRows * stride);
  const auto panel_at = [&](int64_t i) {
    return static_cast<const char*>(p.panels) + PanelAt(p, part, std::min(i, num_panels - 1)) * tiles * kTileBytes;
  };
  _tile_loadconfig(&kConfig);
  for (int64_t at = 0; at < num_panels; at += 2)
    for (int64_t tile = 0; tile < tiles; tile += kBlockTiles)
      InSteps<2>(0, row_tiles, [&](int64_t row_tile, auto count) {
        const char* x = static_cast<const char*>(p.prepared) + (part.row / kRows + row_tile) * Prepared<kParts>(p) +
                        tile * kParts * kTileBytes;
        Tiles<kParts, decltype(count)::value>(
            x, Prepared<kParts>(p), panel_at(at) + tile * kTileBytes, panel_at(at + 1) + tile * kTileBytes,
            std::min(kBlockTiles, tiles - tile), tile > 0, sums + row_tile * kRows * stride + at * kPanel, stride);
      });
  _tile_release();
  Write(p, part, sums, stride);
}

}  // namespace

const Kernels& AmxKernels(bool rounds) {
  static const Kernels exact = {2, BlockRows<3>, Prepared<3>, Prepare<3>, Multiply<3>};
  static const Kernels rounding = {2, BlockRows<1>, Prepared<1>, Prepare<1>, Multiply<1>};
  return rounds ? rounding : exact;
}

}  // namespace esurge::linear
