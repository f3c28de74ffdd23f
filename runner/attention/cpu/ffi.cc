// The XLA custom calls "esurge_attention", which writes a step's keys and values into their pages, in place, then
// attends, and "esurge_pages", which makes the pool.
#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "../../native/instructions.h"
#include "../../native/parallel.h"
#include "kernel.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace esurge {
namespace {

constexpr int kTilesPerThread = 4;  // at least, for the threads to end at about the same time

// The kernels called `name`, or the best for ""; null where this machine has no such instructions.
const PageKernels* KernelsOf(std::string_view name) {
#ifdef ESURGE_X86
  if (HasAvx512() && (name.empty() || name == "avx512")) return &Avx512Kernels();
  if (HasAvx2() && (name.empty() || name == "avx2")) return &Avx2Kernels();
#endif
  return name.empty() || name == "baseline" ? &BaselineKernels() : nullptr;
}

// A tile reads all that its queries see: the more they are, the less is read. A query alone has all heads in its tile
// instead, to read more of a page at a time. Both only where there are tiles enough for all threads.
std::vector<Tile> TilesOf(const Problem& p, int num_threads) {
  const int num_queries = p.query_start[p.num_sequences], wanted = kTilesPerThread * num_threads;
  const int row_floats = p.num_heads / p.num_kv_heads * p.head_dim, share = num_queries * p.num_kv_heads / wanted;
  const int at_once = std::clamp(std::min(kTileFloats / row_floats, share), kMinTileQueries, kMaxTileQueries);
  const bool takes_all_heads = p.num_sequences >= wanted;
  std::vector<Tile> tiles;
  for (int s = 0; s < p.num_sequences; ++s)
    for (int q = p.query_start[s]; q < p.query_start[s + 1]; q += at_once) {
      const int queries = std::min(at_once, p.query_start[s + 1] - q);
      const int heads = takes_all_heads && queries == 1 ? p.num_kv_heads : 1;
      for (int head = 0; head < p.num_kv_heads; head += heads) tiles.push_back({s, q, queries, head, heads});
    }
  // the longest first, so that no thread ends the call alone with a long one
  std::stable_sort(tiles.begin(), tiles.end(), [&](const Tile& a, const Tile& b) {
    const auto work = [&](const Tile& t) { return int64_t{p.context_lens[t.sequence]} * t.num_queries * t.num_kv_heads; };
    return work(a) > work(b);
  });
  return tiles;
}

using Floats = ffi::Buffer<ffi::F32>;
using Ints = ffi::Buffer<ffi::S32>;

// keys_pool and values_pool are all layers' buffers, [buffers, pages, kv_heads, …]; place is {buffer, group, window}.
ffi::Error Attention(ffi::ThreadPool pool, Floats queries, Floats keys, Floats values, ffi::AnyBuffer keys_pool,
                     ffi::AnyBuffer values_pool, Ints query_start, Ints context_lens, Ints page_tables, Ints place,
                     ffi::Result<Floats> out, ffi::Result<ffi::AnyBuffer> keys_out,
                     ffi::Result<ffi::AnyBuffer> values_out, std::string_view kernels_name, int64_t page_size,
                     float scale, float soft_cap) try {
  if (keys_out->untyped_data() != keys_pool.untyped_data() || values_out->untyped_data() != values_pool.untyped_data())
    return ffi::Error::Internal("the page pool was copied");
  const bool is_float = keys_pool.element_type() == ffi::F32;
  if (!is_float && keys_pool.element_type() != ffi::BF16)
    return ffi::Error::InvalidArgument("pages must be float32 or bfloat16");
  const PageKernels* of_pages = KernelsOf(kernels_name);
  if (of_pages == nullptr) return ffi::Error::InvalidArgument("no such instructions on this machine");

  Problem p;
  p.num_sequences = context_lens.dimensions()[0];
  p.pages_per_sequence = page_tables.dimensions()[2];
  p.num_heads = queries.dimensions()[1];
  p.num_kv_heads = keys.dimensions()[1];
  p.head_dim = queries.dimensions()[2];
  p.page_size = page_size;
  p.window = place.typed_data()[2];
  p.scale = scale;
  p.soft_cap = soft_cap;
  p.query_start = query_start.typed_data();
  p.context_lens = context_lens.typed_data();
  p.page_table = page_tables.typed_data() + int64_t{place.typed_data()[1]} * p.num_sequences * p.pages_per_sequence;
  p.queries = queries.typed_data();
  p.new_keys = keys.typed_data();
  p.new_values = values.typed_data();
  const auto layer_of = [&](ffi::AnyBuffer& buffer) {
    return static_cast<char*>(buffer.untyped_data()) +
           buffer.size_bytes() / buffer.dimensions()[0] * place.typed_data()[0];
  };
  p.keys = layer_of(keys_pool);
  p.values = layer_of(values_pool);
  p.out = out->typed_data();

  const Kernels& kernels = is_float ? of_pages->of_float : of_pages->of_bfloat16;
  const std::vector<Tile> tiles = TilesOf(p, pool.num_threads());
  ParallelFor(pool, tiles.size(), [&](int64_t i) {
    const Tile& tile = tiles[i];
    if (tile.first_kv_head == 0) kernels.write(p, tile.sequence, tile.first_query, tile.first_query + tile.num_queries);
  });
  ParallelFor(pool, tiles.size(), [&](int64_t i) { kernels.attend(p, tiles[i]); });
  const int64_t used = int64_t{p.query_start[p.num_sequences]} * p.num_heads * p.head_dim;
  std::fill(p.out + used, p.out + out->element_count(), 0.0f);
  return ffi::Error::Success();
} catch (const std::bad_alloc&) {
  return OutOfMemory();
}

// Zeros that take no memory until they are written, and then huge pages: a page of the pool is read from a place of its
// own, which costs a walk of the page tables each time (a fifth of the bandwidth, on one virtual machine).
ffi::Error Pages(ffi::Result<ffi::AnyBuffer> out) {
  char* begin = static_cast<char*>(out->untyped_data());
  char* end = begin + out->size_bytes();
#ifdef __linux__
  constexpr uintptr_t kHugePage = 2 << 20;
  char* first = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(begin) + kHugePage - 1) / kHugePage * kHugePage);
  char* last = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(end) / kHugePage * kHugePage);
  if (first < last && madvise(first, last - first, MADV_DONTNEED) == 0) {
    madvise(first, last - first, MADV_HUGEPAGE);  // a wish: kernels without them say no
    std::memset(begin, 0, first - begin);
    begin = last;
  }
#endif
  std::memset(begin, 0, end - begin);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace esurge

XLA_FFI_DEFINE_HANDLER_SYMBOL(esurge_pages, esurge::Pages, ffi::Ffi::Bind().Ret<ffi::AnyBuffer>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(esurge_attention, esurge::Attention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<std::string_view>("kernels")
                                  .Attr<int64_t>("page_size")
                                  .Attr<float>("scale")
                                  .Attr<float>("soft_cap"));
