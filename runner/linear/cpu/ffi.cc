// The XLA custom call "esurge_linear": a matrix product with a weight that is stored in panels.
#include <algorithm>
#include <string_view>

#include "../../native/instructions.h"
#include "../../native/parallel.h"
#include "../../native/scratch.h"
#include "kernel.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace esurge::linear {
namespace {

// The kernels called `name`, or the best for ""; null where this machine has no such instructions. `rounds` lets x be
// rounded to bfloat16 where that is faster.
const Kernels* KernelsOf(std::string_view name, bool is_float, [[maybe_unused]] bool rounds) {
#ifdef ESURGE_AMX
  if (!is_float && HasAmx() && (name.empty() || name == "amx")) return &AmxKernels(rounds);
#endif
  const auto of = [&](const PanelKernels& kernels) { return is_float ? &kernels.of_float : &kernels.of_bfloat16; };
#ifdef ESURGE_X86
  if (HasAvx512() && (name.empty() || name == "avx512")) return of(Avx512Kernels());
  if (HasAvx2() && (name.empty() || name == "avx2")) return of(Avx2Kernels());
#endif
  return name.empty() || name == "baseline" ? of(BaselineKernels()) : nullptr;
}

constexpr int64_t CeilDiv(int64_t n, int64_t by) { return (n + by - 1) / by; }

constexpr int64_t kPartsPerThread = 4;  // at least, for the threads to end at about the same time
constexpr int64_t kPanelsOfPart = 12;   // at most, for the sums to stay in the cache

// As many panels as leave `parts`: the more there are, the longer are the runs of outputs that are written.
int64_t PanelsOfPart(const Problem& p, const Kernels& kernels, int64_t parts) {
  const int64_t most = kPanelsOfPart / (p.is_gated() ? 2 : 1), share = p.num_panels() / std::max<int64_t>(parts, 1);
  return std::max<int64_t>(std::min(most, share) / kernels.panels, 1) * kernels.panels;
}

using Floats = ffi::Buffer<ffi::F32>;
using Ints = ffi::Buffer<ffi::S32>;

// panels are all layers', [layers, …]; activation is an Activation.
ffi::Error Linear(ffi::ThreadPool pool, Floats x, ffi::AnyBuffer panels, Ints layer, ffi::Result<Floats> out,
                  std::string_view kernels_name, int64_t activation, bool rounds) try {
  const auto x_shape = x.dimensions(), stored_shape = panels.dimensions(), out_shape = out->dimensions();
  if (x_shape.size() != 2 || stored_shape.size() != 4 || out_shape.size() != 2)
    return ffi::Error::InvalidArgument("expected [rows, inputs], [layers, panels, …, columns] and [rows, outputs]");
  const bool is_float = panels.element_type() == ffi::F32;
  if (!is_float && panels.element_type() != ffi::U32)
    return ffi::Error::InvalidArgument("panels must be float32 or pairs of bfloat16");
  Problem p = {};
  p.rows = x_shape[0];
  p.inputs = x_shape[1];
  p.outputs = out_shape[1];
  p.x = x.typed_data();
  p.panels = static_cast<const char*>(panels.untyped_data()) +
             panels.size_bytes() / stored_shape[0] * layer.typed_data()[0];
  p.out = out->typed_data();
  p.activation = static_cast<Activation>(activation);
  const int64_t num_panels = p.num_panels() * (p.is_gated() ? 2 : 1);
  if (stored_shape[1] != num_panels || stored_shape[2] * (is_float ? 1 : 2) != p.inputs || stored_shape[3] != kPanel ||
      out_shape[0] != p.rows || (p.is_gated() && p.outputs % kPanel) || (!is_float && p.inputs % kPairedInputs))
    return ffi::Error::InvalidArgument("the panels are of another shape than the product");
  const Kernels* kernels = KernelsOf(kernels_name, is_float, rounds);
  if (kernels == nullptr) return ffi::Error::InvalidArgument("no such instructions on this machine");

  static thread_local Scratch prepared;
  if (kernels->prepare != nullptr) {
    const int64_t blocks = CeilDiv(p.rows, kPreparedRows);
    p.prepared = prepared.Of(blocks * kernels->prepared_bytes(p) / sizeof(float));
    ParallelFor(pool, blocks, [&](int64_t i) { kernels->prepare(p, i * kPreparedRows, (i + 1) * kPreparedRows); });
  }
  // block by block of rows, which stay in the cache while every panel passes by
  const int64_t rows = kernels->rows(p), row_blocks = CeilDiv(p.rows, rows);
  const int64_t at_once = PanelsOfPart(p, *kernels, pool.num_threads() * kPartsPerThread / row_blocks);
  const int64_t panel_blocks = CeilDiv(p.num_panels(), at_once);
  ParallelFor(pool, row_blocks * panel_blocks, [&](int64_t i) {
    const int64_t row = i / panel_blocks * rows, panel = i % panel_blocks * at_once;
    kernels->multiply(p, {row, std::min(row + rows, p.rows), panel, std::min(panel + at_once, p.num_panels())});
  });
  return ffi::Error::Success();
} catch (const std::bad_alloc&) {
  return OutOfMemory();
}

}  // namespace
}  // namespace esurge::linear

XLA_FFI_DEFINE_HANDLER_SYMBOL(esurge_linear, esurge::linear::Linear,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<std::string_view>("kernels")
                                  .Attr<int64_t>("activation")
                                  .Attr<bool>("rounds"));
