// The kernels, compiled once for each instruction set: ESURGE_KERNELS names the result and ESURGE_VECTOR_BYTES is the
// width of its registers.
#include "kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "../../native/vectors.h"

namespace esurge {
namespace {

constexpr float kMasked = -1e30f;
// Rows of scores, and rows by vectors of output, that fit the registers as accumulators.
constexpr int kScoreRows = kWidth == 16 ? 8 : 4;
constexpr int kOutRows = kWidth == 16 ? 4 : 2;
constexpr int kOutVectors = 4;

typedef uint16_t HalfVector __attribute__((vector_size(ESURGE_VECTOR_BYTES / 2), aligned(2), may_alias));

struct BFloat16 {
  uint16_t bits;
};

inline Vector Load(const BFloat16* p) {
  auto wide = __builtin_convertvector(*reinterpret_cast<const HalfVector*>(p), IntVector) << 16;
  return reinterpret_cast<Vector>(wide);
}

inline void Put(float* to, float x) { *to = x; }
inline void Put(BFloat16* to, float x) {  // round to nearest even, as XLA does
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  to->bits = std::isnan(x) ? 0x7FC0 : (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}

// All of a vector's floats joined by `join`, half with half.
template <typename Join>
inline float Reduce(Vector v, const Join& join) {
  float x[kWidth];
  Store(x, v);
#pragma GCC unroll 4
  for (int half = kWidth / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) x[i] = join(x[i], x[i + half]);
  return x[0];
}
inline float Sum(Vector v) {
  return Reduce(v, [](float a, float b) { return a + b; });
}
inline float Max(Vector v) {
  return Reduce(v, [](float a, float b) { return a > b ? a : b; });
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

// The softmax of one tile as it stands after some blocks: out / total is the attention so far.
struct State {
  int rows, rows_per_head, head_dim, head_stride, block_stride;  // rows: key-value head, query, head of its group
  std::vector<float> queries;         // [rows, head_dim], scaled
  std::vector<float> scores;          // [rows, block_stride], then weights
  std::vector<float> out;             // [rows, head_stride]
  std::vector<float> highest, total;  // [rows]
};

// Scores of one page's keys of a head, put `at` tokens into the block. `next` is what is read after this, and is fetched
// meanwhile where there are few rows: then memory is what the kernel waits for.
template <bool kFetch, typename Page>
void ScorePage(State& s, int head, const Page* keys, const Page* next, int page_stride, int at) {
  InSteps<kScoreRows>(head * s.rows_per_head, (head + 1) * s.rows_per_head, [&](int64_t row, auto count) {
    constexpr int kRows = decltype(count)::value;
    const float* queries = &s.queries[row * s.head_dim];
    for (int token = 0; token < page_stride; token += kWidth) {
      // few rows have several sums each, as one would have to wait for itself
      constexpr int kSums = kRows <= kScoreRows / 4 ? 4 : kRows <= kScoreRows / 2 ? 2 : 1;
      Vector sum[kRows][kSums] = {};
      const auto add = [&](int d, int i) {
        if (kFetch) __builtin_prefetch(next + d * page_stride + token);
        const Vector key = Load(keys + d * page_stride + token);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) sum[r][i] += queries[r * s.head_dim + d] * key;
      };
      int d = 0;
      for (; d + kSums <= s.head_dim; d += kSums)
#pragma GCC unroll 4
        for (int i = 0; i < kSums; ++i) add(d + i, i);
      for (; d < s.head_dim; ++d) add(d, 0);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int i = 1; i < kSums; ++i) sum[r][0] += sum[r][i];
        Store(&s.scores[(row + r) * s.block_stride + at + token], sum[r][0]);
      }
    }
  });
}

// out[rows][vectors] += weights[rows][tokens] . values[tokens][vectors], the sums held in registers.
template <bool kFetch, int kRows, int kVectors, typename Page>
inline void AddTo(float* out, int out_stride, const float* weights, int weights_stride, const Page* values,
                  const Page* next, int tokens) {
  Vector sum[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Load(out + r * out_stride + v * kWidth);
  for (int token = 0; token < tokens; ++token) {
    Vector value[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if (kFetch) __builtin_prefetch(next + token * out_stride + v * kWidth);
      value[v] = Load(values + token * out_stride + v * kWidth);
    }
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

// Add one page's values of a head by the weights that stand `at` tokens into the block; see ScorePage for `next`.
template <bool kFetch, typename Page>
void AddPage(State& s, int head, const Page* values, const Page* next, int page_size, int at) {
  InSteps<kOutRows>(head * s.rows_per_head, (head + 1) * s.rows_per_head, [&](int64_t row, auto count) {
    constexpr int kRows = decltype(count)::value;
    const float* weights = &s.scores[row * s.block_stride + at];
    float* out = &s.out[row * s.head_stride];
    int d = 0;
    for (; d + kOutVectors * kWidth <= s.head_stride; d += kOutVectors * kWidth)
      AddTo<kFetch, kRows, kOutVectors>(out + d, s.head_stride, weights, s.block_stride, values + d, next + d,
                                        page_size);
    for (; d < s.head_stride; d += kWidth)
      AddTo<kFetch, kRows, 1>(out + d, s.head_stride, weights, s.block_stride, values + d, next + d, page_size);
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

template <bool kFetch, typename Page>
void AttendTile(const Problem& p, const Tile& tile) {
  const int group = p.num_heads / p.num_kv_heads;
  const int page_stride = p.page_stride();
  const int start = p.query_start[tile.sequence];
  const int computed = p.context_lens[tile.sequence] - (p.query_start[tile.sequence + 1] - start);
  const int first_position = computed + tile.first_query - start;
  const int last_position = first_position + tile.num_queries - 1;
  const int32_t* table = p.page_table + int64_t{tile.sequence} * p.pages_per_sequence;
  const int pages_a_block = std::max(1, kBlockTokens / page_stride);

  thread_local State s;
  s.rows_per_head = tile.num_queries * group;
  s.rows = tile.num_kv_heads * s.rows_per_head;
  s.head_dim = p.head_dim;
  s.head_stride = p.head_stride();
  s.block_stride = pages_a_block * page_stride;
  s.queries.resize(s.rows * s.head_dim);
  s.scores.resize(s.rows * s.block_stride);
  s.out.assign(s.rows * s.head_stride, 0.0f);
  s.highest.assign(s.rows, kMasked);
  s.total.assign(s.rows, 0.0f);

  const auto query_of = [&](int row) { return row % s.rows_per_head / group; };
  const auto place_of = [&](int row) {
    const int64_t token = tile.first_query + query_of(row), head = tile.first_kv_head + row / s.rows_per_head;
    return (token * p.num_heads + head * group + row % group) * p.head_dim;
  };
  for (int row = 0; row < s.rows; ++row)
    for (int d = 0; d < s.head_dim; ++d) s.queries[row * s.head_dim + d] = p.queries[place_of(row) + d] * p.scale;

  const auto first_seen = [&](int position) { return int(std::max<int64_t>(0, int64_t{position} - p.window + 1)); };
  // heads of a page lie side by side, so that they are read one after another: `i` counts both
  const int heads = tile.num_kv_heads;
  const auto in_pool = [&](int i) { return int64_t{table[i / heads]} * p.num_kv_heads + tile.first_kv_head + i % heads; };
  const auto keys_of = [&](int i) { return static_cast<const Page*>(p.keys) + in_pool(i) * s.head_dim * page_stride; };
  const auto values_of = [&](int i) {
    return static_cast<const Page*>(p.values) + in_pool(i) * p.page_size * s.head_stride;
  };
  const int last_page = last_position / p.page_size;
  for (int page = first_seen(first_position) / p.page_size; page <= last_page; page += pages_a_block) {
    const int pages = std::min(pages_a_block, last_page - page + 1);
    const int first = page * heads, end = (page + pages) * heads;
    for (int i = first; i < end; ++i)
      ScorePage<kFetch>(s, i % heads, keys_of(i), i + 1 < end ? keys_of(i + 1) : values_of(first), page_stride,
                        (i / heads - page) * page_stride);
    for (int row = 0; row < s.rows; ++row) {
      float* scores = &s.scores[row * s.block_stride];
      if (p.soft_cap > 0)
        for (int t = 0; t < pages * page_stride; ++t) scores[t] = p.soft_cap * std::tanh(scores[t] / p.soft_cap);
      const int position = first_position + query_of(row);
      for (int i = 0; i < pages; ++i, scores += page_stride) {
        const int page_start = (page + i) * p.page_size;
        const int begin = std::min(first_seen(position) - page_start, page_stride);
        const int last = std::min(position - page_start, p.page_size - 1);
        for (int t = 0; t < begin; ++t) scores[t] = kMasked;
        for (int t = std::max(last + 1, 0); t < page_stride; ++t) scores[t] = kMasked;
      }
      Weigh(s, row, pages * page_stride);
    }
    for (int i = first; i < end; ++i)
      AddPage<kFetch>(s, i % heads, values_of(i),
                      i + 1 < end ? values_of(i + 1) : keys_of(std::min(end, last_page * heads)), p.page_size,
                      (i / heads - page) * page_stride);
  }
  for (int row = 0; row < s.rows; ++row)
    for (int d = 0; d < s.head_dim; ++d)
      p.out[place_of(row) + d] = s.out[row * s.head_stride + d] / s.total[row];
}

template <typename Page>
void Attend(const Problem& p, const Tile& tile) {
  const bool is_small = tile.num_queries * (p.num_heads / p.num_kv_heads) <= kScoreRows;
  is_small ? AttendTile<true, Page>(p, tile) : AttendTile<false, Page>(p, tile);
}

}  // namespace

const PageKernels& ESURGE_KERNELS() {
  static const PageKernels kernels = {{Write<float>, Attend<float>}, {Write<BFloat16>, Attend<BFloat16>}};
  return kernels;
}

}  // namespace esurge
