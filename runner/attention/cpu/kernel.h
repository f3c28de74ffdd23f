// Attention over pages on a CPU: what one call computes, and the kernels for each instruction set.
//
// A layer's pages, in elements of float or bfloat16:
//   keys   [pages, kv_heads, head_dim, page_stride]   transposed inside a page: one vector holds a dimension of many tokens
//   values [pages, kv_heads, page_size, head_stride]
// page_stride and head_stride are page_size and head_dim rounded up to kLane elements.
#pragma once

#include <cstdint>

namespace esurge {

constexpr int kLane = 16;
constexpr int kMinTileQueries = 16, kMaxTileQueries = 64;  // of one sequence that a tile takes
constexpr int kTileFloats = 12 << 10;                      // of its queries, for them to stay in the cache
constexpr int kBlockTokens = 64;  // tokens whose scores are held at a time

constexpr int RoundUp(int n, int to) { return (n + to - 1) / to * to; }

struct Problem {
  int num_sequences, pages_per_sequence;
  int num_heads, num_kv_heads, head_dim, page_size;
  int window;
  float scale, soft_cap;        // soft_cap 0: none
  const int32_t* query_start;   // [num_sequences + 1]
  const int32_t* context_lens;  // [num_sequences]
  const int32_t* page_table;    // [num_sequences, pages_per_sequence]
  const float* queries;         // [tokens, num_heads, head_dim]
  const float* new_keys;        // [tokens, num_kv_heads, head_dim]
  const float* new_values;
  void* keys;
  void* values;
  float* out;  // [tokens, num_heads, head_dim]

  int page_stride() const { return RoundUp(page_size, kLane); }
  int head_stride() const { return RoundUp(head_dim, kLane); }
};

// Up to kMaxTileQueries queries of one sequence, with the heads of some key-value heads.
struct Tile {
  int sequence, first_query, num_queries, first_kv_head, num_kv_heads;
};

// What one instruction set offers; `Write` stores the new keys and values of tokens [begin, end) of one sequence.
struct Kernels {
  void (*write)(const Problem&, int sequence, int begin, int end);
  void (*attend)(const Problem&, const Tile&);
};

struct PageKernels {
  Kernels of_float, of_bfloat16;
};

const PageKernels& BaselineKernels();
#ifdef ESURGE_X86
const PageKernels& Avx2Kernels();
const PageKernels& Avx512Kernels();
#endif

}  // namespace esurge
