// The kernels, compiled once for each instruction set: ESURGE_KERNELS names the result and ESURGE_VECTOR_BYTES is the
// width of its registers. Vectors are the compiler's own, so that the same lines serve AVX-512, AVX2, SSE2 and NEON.
#include "kernel.h"

#include <algorithm>
#include <type_traits>

namespace esurge::linear {
namespace {

constexpr int kWidth = ESURGE_VECTOR_BYTES / 4;
constexpr int kVectors = kPanel / kWidth;  // of a panel
// Rows and panels whose sums fit the registers: 24 of 32, 12 of 16, 8 of 16.
constexpr int kRows = kWidth == 16 ? 8 : kWidth == 8 ? 6 : 2;
constexpr int kPanels = kWidth == 16 ? 3 : 1;
constexpr int64_t kBlockInputs = 384;  // a panel's share of the first-level cache, 24 KiB
constexpr int64_t kAheadInputs = 32;   // prefetched, 2 KiB ahead: the hardware alone keeps too few lines on their way
constexpr int64_t kBlockRows = 256;    // with kBlockInputs of each: a share of the second-level cache, 384 KiB

typedef float Vector __attribute__((vector_size(ESURGE_VECTOR_BYTES), aligned(4), may_alias));

inline Vector Load(const float* p) { return *reinterpret_cast<const Vector*>(p); }
inline void Store(float* p, Vector v) { *reinterpret_cast<Vector*>(p) = v; }

// out[Rows][Panels] (+)= x[Rows][inputs] . panels[Panels][inputs], the sums held in registers. `add` goes on from the
// sums of the inputs before; `panel_size` is the distance from one panel to the next.
template <int Rows, int Panels>
void Tile(const float* x, int64_t x_stride, const float* panels, int64_t panel_size, int64_t inputs, bool add,
          float* out, int64_t out_stride) {
  Vector sum[Rows][Panels * kVectors] = {};
  if (add) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < Panels * kVectors; ++v) sum[r][v] = Load(out + r * out_stride + v * kWidth);
  }
  for (int64_t k = 0; k < inputs; ++k) {
#pragma GCC unroll 16
    for (int i = 0; i < Panels; ++i) __builtin_prefetch(panels + i * panel_size + (k + kAheadInputs) * kPanel);
    Vector weight[Panels * kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < Panels * kVectors; ++v)
      weight[v] = Load(panels + v / kVectors * panel_size + k * kPanel + v % kVectors * kWidth);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < Panels * kVectors; ++v) sum[r][v] += weight[v] * x[r * x_stride + k];
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < Panels * kVectors; ++v) Store(out + r * out_stride + v * kWidth, sum[r][v]);
}

// Call f(at, Count) over [at, end), at most `Most` at a time; Count is a compile-time constant.
template <int Most, typename F>
inline void InSteps(int64_t at, int64_t end, const F& f) {
  for (; at + Most <= end; at += Most) f(at, std::integral_constant<int, Most>{});
  if constexpr (Most > 1) {
    if (at < end) InSteps<Most - 1>(at, end, f);
  }
}

// The last panel where it is not full: its outputs by way of a tile of their own.
void MultiplyRagged(const Problem& p, const Part& part, int64_t panel) {
  const int64_t panel_size = p.inputs * kPanel, columns = p.outputs - panel * kPanel;
  InSteps<kRows>(part.row, part.row_end, [&](int64_t row, auto rows) {
    constexpr int Rows = decltype(rows)::value;
    float tile[Rows * kPanel];
    Tile<Rows, 1>(p.x + row * p.inputs, p.inputs, p.panels + panel * panel_size, panel_size, p.inputs, false, tile,
                  kPanel);
    for (int r = 0; r < Rows; ++r)
      std::copy_n(tile + r * kPanel, columns, p.out + (row + r) * p.outputs + panel * kPanel);
  });
}

void Multiply(const Problem& p, const Part& part) {
  const int64_t panel_size = p.inputs * kPanel, full_panels = p.outputs / kPanel;
  // few rows use a panel once: then it need not stay in a cache, and is best read in one go
  const int64_t block = part.row_end - part.row <= kRows ? p.inputs : kBlockInputs;
  InSteps<kPanels>(part.panel, std::min(part.panel_end, full_panels), [&](int64_t panel, auto panels) {
    for (int64_t input = 0; input < p.inputs; input += block)
      InSteps<kRows>(part.row, part.row_end, [&](int64_t row, auto rows) {
        Tile<decltype(rows)::value, decltype(panels)::value>(
            p.x + row * p.inputs + input, p.inputs, p.panels + panel * panel_size + input * kPanel, panel_size,
            std::min(block, p.inputs - input), input > 0, p.out + row * p.outputs + panel * kPanel, p.outputs);
      });
  });
  if (part.panel_end > full_panels) MultiplyRagged(p, part, full_panels);
}

}  // namespace

const Kernels& ESURGE_KERNELS() {
  static const Kernels kernels = {kBlockRows / kRows * kRows, kPanels, Multiply};
  return kernels;
}

}  // namespace esurge::linear
