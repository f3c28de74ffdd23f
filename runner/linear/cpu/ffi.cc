// The XLA custom call "esurge_linear": a matrix product with a weight that is stored in panels.
#include <algorithm>
#include <string_view>

#include "../../native/instructions.h"
#include "../../native/parallel.h"
#include "kernel.h"

namespace ffi = xla::ffi;

namespace esurge::linear {
namespace {

// The kernels called `name`, or the best for ""; null where this machine has no such instructions.
const Kernels* KernelsOf(std::string_view name) {
#ifdef ESURGE_X86
  if (HasAvx512() && (name.empty() || name == "avx512")) return &Avx512Kernels();
  if (HasAvx2() && (name.empty() || name == "avx2")) return &Avx2Kernels();
#endif
  return name.empty() || name == "baseline" ? &BaselineKernels() : nullptr;
}

using Floats = ffi::Buffer<ffi::F32>;

ffi::Error Linear(ffi::ThreadPool pool, Floats x, Floats panels, ffi::Result<Floats> out, std::string_view name) {
  const Kernels* kernels = KernelsOf(name);
  if (kernels == nullptr) return ffi::Error::InvalidArgument("no such instructions on this machine");
  const auto x_shape = x.dimensions(), panels_shape = panels.dimensions(), out_shape = out->dimensions();
  if (x_shape.size() != 2 || panels_shape.size() != 3 || out_shape.size() != 2)
    return ffi::Error::InvalidArgument("expected [rows, inputs], [panels, inputs, columns] and [rows, outputs]");
  const Problem p = {x_shape[0], x_shape[1], out_shape[1], x.typed_data(), panels.typed_data(), out->typed_data()};
  if (panels_shape[0] != p.num_panels() || panels_shape[1] != p.inputs || panels_shape[2] != kPanel ||
      out_shape[0] != p.rows)
    return ffi::Error::InvalidArgument("the panels are of another shape than the product");

  // block by block of rows, which stay in the cache while every panel passes by
  const int64_t row_blocks = (p.rows + kernels->rows - 1) / kernels->rows;
  const int64_t panel_blocks = (p.num_panels() + kernels->panels - 1) / kernels->panels;
  ParallelFor(pool, row_blocks * panel_blocks, [&](int64_t i) {
    const int64_t row = i / panel_blocks * kernels->rows, panel = i % panel_blocks * kernels->panels;
    kernels->multiply(p, {row, std::min(row + kernels->rows, p.rows), panel,
                          std::min(panel + kernels->panels, p.num_panels())});
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace esurge::linear

XLA_FFI_DEFINE_HANDLER_SYMBOL(esurge_linear, esurge::linear::Linear,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<std::string_view>("kernels"));
