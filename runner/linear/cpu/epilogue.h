// What is done with the sums of a part before they become its outputs.
#pragma once

#include <algorithm>

#include "../../native/vectors.h"
#include "kernel.h"

namespace esurge::linear {
namespace {

// The panels of the weight that a part needs: its own, and with a gate those of the second half behind them.
inline int64_t NumPanels(const Problem& p, const Part& part) {
  return (part.panel_end - part.panel) * (p.is_gated() ? 2 : 1);
}
inline int64_t PanelAt(const Problem& p, const Part& part, int64_t i) {
  const int64_t own = part.panel_end - part.panel;
  return part.panel + (i < own ? i : p.num_panels() + i - own);
}

template <Activation activation>
inline Vector Apply(Vector x) {
  // tanh(y) is 2 * sigmoid(2 * y) - 1, which makes of GELU's approximation (arXiv:1606.08415) x * sigmoid(2 * y)
  const Vector z = activation == Activation::kSilu ? x : x * (1.5957691216f + 0.0713548162f * x * x);
  return x / (1.0f + Exp(-z));
}

template <Activation activation>
void WriteGated(const Problem& p, const Part& part, const float* sums, int64_t stride) {
  const int64_t columns = (part.panel_end - part.panel) * kPanel;
  for (int64_t row = part.row; row < part.row_end; ++row, sums += stride) {
    float* out = p.out + row * p.outputs + part.panel * kPanel;
    for (int64_t c = 0; c < columns; c += kWidth)
      Store(out + c, Apply<activation>(Load(sums + c)) * Load(sums + columns + c));
  }
}

// `sums` are those of NumPanels(p, part) panels, `stride` floats from one row to the next.
inline void Write(const Problem& p, const Part& part, const float* sums, int64_t stride) {
  if (p.activation == Activation::kSilu) return WriteGated<Activation::kSilu>(p, part, sums, stride);
  if (p.activation == Activation::kGeluTanh) return WriteGated<Activation::kGeluTanh>(p, part, sums, stride);
  const int64_t first = part.panel * kPanel, columns = std::min(part.panel_end * kPanel, p.outputs) - first;
  for (int64_t row = part.row; row < part.row_end; ++row, sums += stride)
    std::copy_n(sums, columns, p.out + row * p.outputs + first);
}

}  // namespace
}  // namespace esurge::linear
