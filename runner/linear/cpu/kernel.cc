// The kernels, compiled once for each instruction set: ESURGE_KERNELS names the result and ESURGE_VECTOR_BYTES is the
// width of its registers.
#include "kernel.h"

#include <algorithm>

#include "../../native/scratch.h"
#include "../../native/vectors.h"
#include "epilogue.h"

namespace esurge::linear {
namespace {

constexpr int kVectors = kPanel / kWidth;  // of a panel
// Rows and panels whose sums fit the registers: 24 of 32, 12 of 16, 8 of 16.
constexpr int kRows = kWidth == 16 ? 8 : kWidth == 8 ? 6 : 2;
constexpr int kPanels = kWidth == 16 ? 3 : 1;
constexpr int64_t kBlockInputs = 384 / kPanels;  // the panels' share of the first-level cache, 24 KiB
constexpr int64_t kAheadInputs = 32;             // prefetched: the hardware alone keeps too few lines on their way
constexpr int64_t kBlockRows = 256 / kRows * kRows;

// sums[Rows][Panels] (+)= x[Rows][inputs] . panels[Panels][inputs], held in registers. `add` goes on from the sums of
// the inputs before; `panel_size` is the distance from one panel to the next.
template <int Rows, int Panels>
void Tile(const float* x, int64_t x_stride, const float* panels, int64_t panel_size, int64_t inputs, bool add,
          float* sums, int64_t sums_stride) {
  Vector sum[Rows][Panels * kVectors] = {};
  if (add) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < Panels * kVectors; ++v) sum[r][v] = Load(sums + r * sums_stride + v * kWidth);
  }
  for (int64_t k = 0; k < inputs; ++k) {
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
    for (int v = 0; v < Panels * kVectors; ++v) Store(sums + r * sums_stride + v * kWidth, sum[r][v]);
}

// Inputs of a panel as floats in the first-level cache: [inputs, kPanel].
inline void Fetch(const float* panel, int64_t inputs, float* to) {
  for (int64_t i = 0; i < inputs * kPanel; i += kPanel) {
    __builtin_prefetch(panel + i + kAheadInputs * kPanel);
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) Store(to + i + v * kWidth, Load(panel + i + v * kWidth));
  }
}
inline void Fetch(const BFloat16s* panel, int64_t inputs, float* to) {
  for (int64_t i = 0; i < inputs / 2 * kPanel; i += kPanel) {
    __builtin_prefetch(panel + i + kAheadInputs * kPanel);
#pragma GCC unroll 16
    for (int v = 0; v < kPanel; v += kWidth) {
      const IntVector pair = *reinterpret_cast<const IntVector*>(panel + i + v);
      Store(to + 2 * i + v, reinterpret_cast<Vector>(pair << 16));
      Store(to + 2 * i + kPanel + v, reinterpret_cast<Vector>(pair & int32_t(0xFFFF0000)));
    }
  }
}

template <typename Element>
void Multiply(const Problem& p, const Part& part) {
  static thread_local Scratch sums_scratch, panels_scratch;
  const int64_t num_panels = NumPanels(p, part), stride = num_panels * kPanel;
  float* sums = sums_scratch.Of((part.row_end - part.row) * stride);
  float* fetched = panels_scratch.Of(kPanels * kBlockInputs * kPanel);
  const int64_t panel_size = p.inputs * kPanel * int64_t{sizeof(Element)} / (std::is_same_v<Element, float> ? 4 : 8);
  const Element* stored = static_cast<const Element*>(p.panels);
  InSteps<kPanels>(0, num_panels, [&](int64_t at, auto panels) {
    for (int64_t input = 0; input < p.inputs; input += kBlockInputs) {
      const int64_t inputs = std::min(kBlockInputs, p.inputs - input);
      for (int i = 0; i < panels; ++i)
        Fetch(stored + PanelAt(p, part, at + i) * panel_size + input * panel_size / p.inputs, inputs,
              fetched + i * kBlockInputs * kPanel);
      InSteps<kRows>(part.row, part.row_end, [&](int64_t row, auto rows) {
        Tile<decltype(rows)::value, decltype(panels)::value>(
            p.x + row * p.inputs + input, p.inputs, fetched, kBlockInputs * kPanel, inputs, input > 0,
            sums + (row - part.row) * stride + at * kPanel, stride);
      });
    }
  });
  Write(p, part, sums, stride);
}

int64_t BlockRows(const Problem&) { return kBlockRows; }

}  // namespace

const PanelKernels& ESURGE_KERNELS() {
  static const PanelKernels kernels = {{kPanels, BlockRows, nullptr, nullptr, Multiply<float>},
                                       {kPanels, BlockRows, nullptr, nullptr, Multiply<BFloat16s>}};
  return kernels;
}

}  // namespace esurge::linear
