// out = x . transpose(weight) on a CPU: what one call computes, and the kernels for each instruction set.
//
// The weight [outputs, inputs] is stored as panels of kPanel outputs, each read from its first byte to its last:
//   float      [ceil(outputs / kPanel), inputs, kPanel]
//   BFloat16s  [ceil(outputs / kPanel), inputs / 2, kPanel], an element being two inputs of an output, the first in its
//              low half; of a checkpoint in bfloat16 no bit is lost. inputs is a multiple of kPairedInputs.
// What is beyond the last output is never read back.
#pragma once

#include <cstdint>

namespace esurge::linear {

constexpr int kPanel = 16;
constexpr int kPairedInputs = 32;

using BFloat16s = uint32_t;

// What becomes of the product. A gate's weight has twice the outputs: out = activation(first half) * second half.
enum class Activation { kNone, kSilu, kGeluTanh };

struct Problem {
  int64_t rows, inputs, outputs;  // outputs of `out`, a multiple of kPanel with an activation
  const float* x;                 // [rows, inputs]
  const void* panels;             // float or BFloat16s
  float* out;                     // [rows, outputs]
  Activation activation;
  void* prepared;  // what Kernels::prepare makes of x

  bool is_gated() const { return activation != Activation::kNone; }
  int64_t num_panels() const { return (outputs + kPanel - 1) / kPanel; }
};

// A part of `out`: the rows [row, row_end) of the panels [panel, panel_end).
struct Part {
  int64_t row, row_end, panel, panel_end;
};

// What one instruction set offers for one kind of panels. An output is the same whatever part it is in: its products
// are always added in the same order.
struct Kernels {
  int64_t panels;                                              // that `multiply` takes at once
  int64_t (*rows)(const Problem&);                             // of the part on which it is fastest
  int64_t (*prepared_bytes)(const Problem&);                   // for each kPreparedRows rows; null: there is no `prepare`
  void (*prepare)(const Problem&, int64_t row, int64_t row_end);  // called with multiples of kPreparedRows rows
  void (*multiply)(const Problem&, const Part&);
};

constexpr int64_t kPreparedRows = 16;

struct PanelKernels {
  Kernels of_float, of_bfloat16;
};

const PanelKernels& BaselineKernels();
#ifdef ESURGE_X86
const PanelKernels& Avx2Kernels();
const PanelKernels& Avx512Kernels();
#endif
#ifdef ESURGE_AMX
const Kernels& AmxKernels(bool rounds);  // of BFloat16s; `rounds` x to bfloat16 as well
#endif

}  // namespace esurge::linear
