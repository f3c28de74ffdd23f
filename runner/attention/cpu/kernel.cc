// The kernels, compiled once for each instruction set: ESURGE_KERNELS names the result and ESURGE_VECTOR_BYTES is the
// width of its registers. Vectors are the compiler's own, so that the same lines serve AVX-512, AVX2, SSE2 and NEON.
#include "kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

namespace esurge {
namespace {

constexpr int kWidth = ESURGE_VECTOR_BYTES / 4;
constexpr float kMasked = -1e30f;
// Rows of scores, and rows by vectors of output, that fit the registers as accumulators.
constexpr int kScoreRows = kWidth == 16 ? 8 : 4;
constexpr int kOutRows = kWidth == 16 ? 4 : 2;
constexpr int kOutVectors = 4;

typedef float Vector __attribute__((vector_size(ESURGE_VECTOR_BYTES), aligned(4), may_alias));
typedef int32_t IntVector __attribute__((vector_size(ESURGE_VECTOR_BYTES), aligned(4), may_alias));
typedef uint16_t HalfVector __attribute__((vector_size(ESURGE_VECTOR_BYTES / 2), aligned(2), may_alias));

struct BFloat16 {
  uint16_t bits;
};

inline Vector Load(const float* p) { return *reinterpret_cast<const Vector*>(p); }
inline Vector Load(const BFloat16* p) {
  auto wide = __builtin_convertvector(*reinterpret_cast<const HalfVector*>(p), IntVector) << 16;
  return reinterpret_cast<Vector>(wide);
}
inline void Store(float* p, Vector v) { *reinterpret_cast<Vector*>(p) = v; }
inline Vector Broadcast(float x) { return Vector{} + x; }

inline void Put(float* to, float x) { *to = x; }
inline void Put(BFloat16* to, float x) {  // round to nearest even, as XLA does
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  to->bits = std::isnan(x) ? 0x7FC0 : (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}

// e^x for x <= 0, to 2 units in the last place: 2^n * e^r with |r| <= ln(2) / 2 (the Cephes library's polynomial).
inline Vector Exp(Vector x) {
  const Vector lowest = Broadcast(-87.0f);
  x = x < lowest ? lowest : x;
  const Vector round = Broadcast(12582912.0f);  // 1.5 * 2^23: adding it leaves the integer in the low bits
  Vector shifted = x * 1.44269504f + round;
  Vector n = shifted - round;
  Vector r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Vector p = Broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  IntVector exponent = reinterpret_cast<IntVector>(shifted) << 23;
  return reinterpret_cast<Vector>(reinterpret_cast<IntVector>(p) + exponent);
}

inline float Sum(Vector v) {
  float total = 0;
  for (int i = 0; i < kWidth; ++i) total += v[i];
  return total;
}
inline float Max(Vector v) {
  float highest = v[0];
  for (int i = 1; i < kWidth; ++i) highest = std::max(highest, v[i]);
  return highest;
}

template <typename Page>
void Write(const Problem& p, int sequence, int begin, int end) {
  const int head_dim = p.head_dim, page_stride = p.page_stride(), head_stride = p.head_stride();
  const int start = p.query_start[sequence];
  const int computed = p.context_lens[sequence] - (p.query_start[sequence + 1] - start);
  for (int token = begin; token < end; ++token) {
    const int position = computed + token - start;
    const int64_t page = p.page_table[int64_t{sequence} * p.pages_per_sequence + position / p.page_size];
    const int offset = position % p.page_size;
    for (int head = 0; head < p.num_kv_heads; ++head) {
      const int64_t in_page = page * p.num_kv_heads + head;
      const int64_t source = (int64_t{token} * p.num_kv_heads + head) * head_dim;
      Page* key = static_cast<Page*>(p.keys) + in_page * head_dim * page_stride + offset;
      Page* value = static_cast<Page*>(p.values) + (in_page * p.page_size + offset) * head_stride;
      for (int d = 0; d < head_dim; ++d) Put(key + d * page_stride, p.new_keys[source + d]);
      for (int d = 0; d < head_dim; ++d) Put(value + d, p.new_values[source + d]);
    }
  }
}

// Call f(row, Rows) over all rows, at most `Most` at a time; Rows is a compile-time constant.
template <int Most, typename F>
inline void InRows(int rows, const F& f, int row = 0) {
  for (; row + Most <= rows; row += Most) f(row, std::integral_constant<int, Most>{});
  if constexpr (Most > 1) {
    if (row < rows) InRows<Most - 1>(rows, f, row);
  }
}

// The softmax of one tile as it stands after some blocks: out / total is the attention so far.
struct State {
  int rows, head_dim, head_stride, block_stride;
  std::vector<float> queries;         // [rows, head_dim], scaled
  std::vector<float> scores;          // [rows, block_stride], then weights
  std::vector<float> out;             // [rows, head_stride]
  std::vector<float> highest, total;  // [rows]
};

// Scores of one page's keys, put `at` tokens into the block.
template <typename Page>
void ScorePage(State& s, const Page* keys, int page_stride, int at) {
  InRows<kScoreRows>(s.rows, [&](int row, auto count) {
    constexpr int kRows = decltype(count)::value;
    const float* queries = &s.queries[row * s.head_dim];
    for (int token = 0; token < page_stride; token += kWidth) {
      Vector sum[kRows] = {};
      for (int d = 0; d < s.head_dim; ++d) {
        const Vector key = Load(keys + d * page_stride + token);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) sum[r] += queries[r * s.head_dim + d] * key;
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) Store(&s.scores[(row + r) * s.block_stride + at + token], sum[r]);
    }
  });
}

// out[rows][vectors] += weights[rows][tokens] . values[tokens][vectors], the sums held in registers.
template <int kRows, int kVectors, typename Page>
inline void AddTo(float* out, int out_stride, const float* weights, int weights_stride, const Page* values, int tokens) {
  Vector sum[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Load(out + r * out_stride + v * kWidth);
  for (int token = 0; token < tokens; ++token) {
    Vector value[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) value[v] = Load(values + token * out_stride + v * kWidth);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vector weight = Broadcast(weights[r * weights_stride + token]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] += weight * value[v];
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) Store(out + r * out_stride + v * kWidth, sum[r][v]);
}

// Add one page's values by the weights that stand `at` tokens into the block.
template <typename Page>
void AddPage(State& s, const Page* values, int page_size, int at) {
  InRows<kOutRows>(s.rows, [&](int row, auto count) {
    constexpr int kRows = decltype(count)::value;
    const float* weights = &s.scores[row * s.block_stride + at];
    float* out = &s.out[row * s.head_stride];
    int d = 0;
    for (; d + kOutVectors * kWidth <= s.head_stride; d += kOutVectors * kWidth)
      AddTo<kRows, kOutVectors>(out + d, s.head_stride, weights, s.block_stride, values + d, page_size);
    for (; d < s.head_stride; d += kWidth)
      AddTo<kRows, 1>(out + d, s.head_stride, weights, s.block_stride, values + d, page_size);
  });
}

// Turn a row's first `tokens` scores into weights; what is masked weighs nothing.
void Weigh(State& s, int row, int tokens) {
  float* scores = &s.scores[row * s.block_stride];
  Vector high = Broadcast(s.highest[row]);
  for (int t = 0; t < tokens; t += kWidth) {
    const Vector score = Load(scores + t);
    high = score > high ? score : high;
  }
  const float highest = Max(high);
  if (highest > s.highest[row]) {
    const float shrink = std::exp(s.highest[row] - highest);
    s.highest[row] = highest;
    s.total[row] *= shrink;
    for (int d = 0; d < s.head_stride; ++d) s.out[row * s.head_stride + d] *= shrink;
  }
  Vector sum = {};
  for (int t = 0; t < tokens; t += kWidth) {
    const Vector score = Load(scores + t);
    const Vector weight = score > Broadcast(kMasked) ? Exp(score - highest) : Vector{};
    sum += weight;
    Store(scores + t, weight);
  }
  s.total[row] += Sum(sum);
}

template <typename Page>
void Attend(const Problem& p, const Tile& tile) {
  const int group = p.num_heads / p.num_kv_heads;
  const int page_stride = p.page_stride();
  const int start = p.query_start[tile.sequence];
  const int computed = p.context_lens[tile.sequence] - (p.query_start[tile.sequence + 1] - start);
  const int first_position = computed + tile.first_query - start;
  const int last_position = first_position + tile.num_queries - 1;
  const int32_t* table = p.page_table + int64_t{tile.sequence} * p.pages_per_sequence;
  const int pages_a_block = std::max(1, kBlockTokens / page_stride);

  thread_local State s;
  s.rows = tile.num_queries * group;
  s.head_dim = p.head_dim;
  s.head_stride = p.head_stride();
  s.block_stride = pages_a_block * page_stride;
  s.queries.resize(s.rows * s.head_dim);
  s.scores.resize(s.rows * s.block_stride);
  s.out.assign(s.rows * s.head_stride, 0.0f);
  s.highest.assign(s.rows, kMasked);
  s.total.assign(s.rows, 0.0f);

  const auto place_of = [&](int row) {
    const int64_t token = tile.first_query + row / group;
    return (token * p.num_heads + tile.kv_head * group + row % group) * p.head_dim;
  };
  for (int row = 0; row < s.rows; ++row)
    for (int d = 0; d < s.head_dim; ++d) s.queries[row * s.head_dim + d] = p.queries[place_of(row) + d] * p.scale;

  const auto first_seen = [&](int position) { return int(std::max<int64_t>(0, int64_t{position} - p.window + 1)); };
  const int last_page = last_position / p.page_size;
  for (int page = first_seen(first_position) / p.page_size; page <= last_page; page += pages_a_block) {
    const int pages = std::min(pages_a_block, last_page - page + 1);
    const auto in_pool = [&](int i) { return int64_t{table[page + i]} * p.num_kv_heads + tile.kv_head; };
    for (int i = 0; i < pages; ++i)
      ScorePage(s, static_cast<const Page*>(p.keys) + in_pool(i) * s.head_dim * page_stride, page_stride,
                i * page_stride);
    for (int row = 0; row < s.rows; ++row) {
      float* scores = &s.scores[row * s.block_stride];
      if (p.soft_cap > 0)
        for (int t = 0; t < pages * page_stride; ++t) scores[t] = p.soft_cap * std::tanh(scores[t] / p.soft_cap);
      const int position = first_position + row / group;
      for (int i = 0; i < pages; ++i, scores += page_stride) {
        const int page_start = (page + i) * p.page_size;
        const int first = std::min(first_seen(position) - page_start, page_stride);
        const int last = std::min(position - page_start, p.page_size - 1);
        for (int t = 0; t < first; ++t) scores[t] = kMasked;
        for (int t = std::max(last + 1, 0); t < page_stride; ++t) scores[t] = kMasked;
      }
      Weigh(s, row, pages * page_stride);
    }
    for (int i = 0; i < pages; ++i)
      AddPage(s, static_cast<const Page*>(p.values) + in_pool(i) * p.page_size * s.head_stride, p.page_size,
              i * page_stride);
  }
  for (int row = 0; row < s.rows; ++row)
    for (int d = 0; d < s.head_dim; ++d)
      p.out[place_of(row) + d] = s.out[row * s.head_stride + d] / s.total[row];
}

}  // namespace

const PageKernels& ESURGE_KERNELS() {
  static const PageKernels kernels = {{Write<float>, Attend<float>}, {Write<BFloat16>, Attend<BFloat16>}};
  return kernels;
}

}  // namespace esurge
