// out = x . transpose(weight) on a CPU: what one call computes, and the kernels for each instruction set.
//
// The weight [outputs, inputs] is stored as panels [ceil(outputs / kPanel), inputs, kPanel]: a panel holds kPanel
// outputs, one input after another, so that it is read from its first byte to its last. What is beyond the last output
// is never read back.
#pragma once

#include <cstdint>

namespace esurge::linear {

constexpr int kPanel = 16;

struct Problem {
  int64_t rows, inputs, outputs;
  const float* x;  // [rows, inputs]
  const float* panels;
  float* out;  // [rows, outputs]

  int64_t num_panels() const { return (outputs + kPanel - 1) / kPanel; }
};

// A part of `out`: the rows [row, row_end) of the panels [panel, panel_end).
struct Part {
  int64_t row, row_end, panel, panel_end;
};

// What one instruction set offers. `Multiply` takes any part, and is fastest on `rows` by `panels`.
// An output is the same whatever part it is in: its products are always added in the order of the inputs.
struct Kernels {
  int64_t rows, panels;
  void (*multiply)(const Problem&, const Part&);
};

const Kernels& BaselineKernels();
#ifdef ESURGE_X86
const Kernels& Avx2Kernels();
const Kernels& Avx512Kernels();
#endif

}  // namespace esurge::linear
