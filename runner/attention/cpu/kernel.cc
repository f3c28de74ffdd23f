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
// Rows by vectors, of scores and of output, whose sums fit the registers: 24 of 32, 12 of 16, 8 of 16.
constexpr int kScoreRows = kWidth == 16 ? 12 : kWidth == 8 ? 6 : 4;
constexpr int kScoreVectors = 2;
constexpr int kOutRows = kWidth == 16 ? 6 : kWidth == 8 ? 3 : 2;
constexpr int kOutVectors = 4;
constexpr int kChains = 8;  // sums that a processor works on at once: each addition waits for the one before

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
  const int64_t token_floats = int64_t{p.num_kv_heads} * head_dim;
  const int start = p.query_start[sequence];
  const int computed = p.context_lens[sequence] - (p.query_start[sequence + 1] - start);
  for (int token = begin, tokens; token < end; token += tokens) {
    const int position = computed + token - start, offset = position % p.page_size;
    tokens = std::min(end - token, p.page_size - offset);  // in one page
    const int64_t page = p.page_table[int64_t{sequence} * p.pages_per_sequence + position / p.page_size];
    for (int head = 0; head < p.num_kv_heads; ++head) {
      const int64_t in_page = page * p.num_kv_heads + head;
      const float* new_keys = p.new_keys + token * token_floats + head * head_dim;
      const float* new_values = p.new_values + token * token_floats + head * head_dim;
      Page* keys = static_cast<Page*>(p.keys) + in_page * head_dim * page_stride + offset;
      Page* values = static_cast<Page*>(p.values) + (in_page * p.page_size + offset) * head_stride;
      for (int d = 0; d < head_dim; ++d)
        for (int t = 0; t < tokens; ++t) Put(keys + d * page_stride + t, new_keys[t * token_floats + d]);
      for (int t = 0; t < tokens; ++t)
        for (int d = 0; d < head_dim; ++d) Put(values + t * head_stride + d, new_values[t * token_floats + d]);
    }
  }
}

// The softmax of one tile as it stands after some blocks: out / total is the attention so far.
struct State {
  int rows, rows_per_head, head_dim, head_stride, block_stride;  // rows: key-value head, query, head of its group
  std::vector<float> queries;         // [rows, head_dim], scaled
  std::vector<float> scores;          // [rows, block_stride], then weights
  std::vector<float> out;             // [rows, head_stride]
  std::vector<float> keys, values;    // of a block, where they are not read in place
  std::vector<float> highest, total;  // [rows]
};

// scores[rows][vectors] = queries[rows][head_dim] . keys[head_dim][vectors], the sums held in registers.
template <bool kFetch, int kRows, int kVectors, typename Page>
inline void ScoreTile(const State& s, const float* queries, const Page* keys, const Page* next, int stride,
                      float* scores) {
  constexpr int kSums = kRows * kVectors >= kChains ? 1 : kRows * kVectors >= kChains / 2 ? 2 : 4;
  Vector sum[kSums][kRows][kVectors] = {};
  const auto add = [&](int d, int i) {
    Vector key[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      if (kFetch) __builtin_prefetch(next + d * stride + v * kWidth);
      key[v] = Load(keys + d * stride + v * kWidth);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[i][r][v] += queries[r * s.head_dim + d] * key[v];
  };
  int d = 0;
  for (; d + kSums <= s.head_dim; d += kSums)
#pragma GCC unroll 4
    for (int i = 0; i < kSums; ++i) add(d + i, i);
  for (; d < s.head_dim; ++d) add(d, 0);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
      for (int i = 1; i < kSums; ++i) sum[0][r][v] += sum[i][r][v];
      Store(scores + r * s.block_stride + v * kWidth, sum[0][r][v]);
    }
}

// Not inlined, or the compiler asks for the thread's address at every use.
__attribute__((noinline)) State& ThreadState() {
  static thread_local State state;
  return state;
}

// Scores of rows by the keys of `stride` tokens, [head_dim, stride], put `at` tokens into the block. `first_row(token)`
// is the first that sees a token. `next` is what is read after this, and is fetched meanwhile if kFetch.
template <bool kFetch, typename Page, typename FirstRow>
void Score(State& s, const FirstRow& first_row, int end_row, const Page* keys, const Page* next, int stride, int at) {
  InSteps<kScoreVectors>(0, stride / kWidth, [&](int64_t vector, auto vectors) {
    const int64_t token = vector * kWidth;
    InSteps<kScoreRows>(first_row(token), end_row, [&](int64_t row, auto rows) {
      ScoreTile<kFetch, decltype(rows)::value, decltype(vectors)::value>(
          s, &s.queries[row * s.head_dim], keys + token, next + token, stride,
          &s.scores[row * s.block_stride + at + token]);
    });
  });
}

// out[rows][vectors] += weights[rows][tokens] . values[tokens][vectors], the sums held in registers.
template <bool kFetch, int kRows, int kVectors, typename Page>
inline void AddTo(float* out, int out_stride, const float* weights, int weights_stride, const Page* values,
                  const Page* next, int tokens) {
  Vector sum[kRows][kVectors];
#pragma GCC unroll 8
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
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vector weight = Broadcast(weights[r * weights_stride + token]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] += weight * value[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) Store(out + r * out_stride + v * kWidth, sum[r][v]);
}

// Add the values of some tokens to rows, by the weights that stand `at` tokens into the block. `end_token(row)` is how
// many of them a row sees, no fewer than the row before; see Score for `next`.
template <bool kFetch, typename Page, typename EndToken>
void Add(State& s, int first_row, int end_row, const Page* values, const Page* next, const EndToken& end_token,
         int at) {
  InSteps<kOutRows>(first_row, end_row, [&](int64_t row, auto count) {
    constexpr int kRows = decltype(count)::value;
    const int tokens = end_token(row + kRows - 1);
    const float* weights = &s.scores[row * s.block_stride + at];
    float* out = &s.out[row * s.head_stride];
    int d = 0;
    for (; d + kOutVectors * kWidth <= s.head_stride; d += kOutVectors * kWidth)
      AddTo<kFetch, kRows, kOutVectors>(out + d, s.head_stride, weights, s.block_stride, values + d, next + d, tokens);
    for (; d < s.head_stride; d += kWidth)
      AddTo<kFetch, kRows, 1>(out + d, s.head_stride, weights, s.block_stride, values + d, next + d, tokens);
  });
}

// Turn a row's first `seen` scores of `tokens` into weights; what is masked, and the rest, weighs nothing.
void Weigh(State& s, int row, int seen, int tokens) {
  float* scores = &s.scores[row * s.block_stride];
  const int end = RoundUp(seen, kWidth);
  for (int t = seen; t < end; ++t) scores[t] = kMasked;
  for (int t = end; t < tokens; t += kWidth) Store(scores + t, Vector{});
  tokens = end;
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

// Bring a block's pages together, as floats: keys [head_dim, pages * page_stride], and values [pages * page_stride,
// head_stride]. The tokens that fill a page up to its stride have values of zero.
template <typename Page, typename KeysOf, typename ValuesOf>
void Gather(State& s, const Problem& p, int pages, const KeysOf& keys_of, const ValuesOf& values_of) {
  const int page_stride = p.page_stride(), stride = pages * page_stride;
  s.keys.resize(s.head_dim * stride);
  s.values.assign(stride * s.head_stride, 0.0f);
  for (int page = 0; page < pages; ++page) {
    const Page *keys = keys_of(page), *values = values_of(page);
    for (int d = 0; d < s.head_dim; ++d)
      for (int t = 0; t < page_stride; t += kWidth)
        Store(&s.keys[d * stride + page * page_stride + t], Load(keys + d * page_stride + t));
    for (int i = 0; i < p.page_size * s.head_stride; i += kWidth)
      Store(&s.values[page * page_stride * s.head_stride + i], Load(values + i));
  }
}

// With few rows a tile waits for memory: it reads the pages in place, and fetches what comes next meanwhile. With many
// it computes, and brings the pages together first.
template <bool kInPlace, typename Page>
void AttendTile(const Problem& p, const Tile& tile) {
  const int group = p.num_heads / p.num_kv_heads;
  const int page_stride = p.page_stride();
  const int start = p.query_start[tile.sequence];
  const int computed = p.context_lens[tile.sequence] - (p.query_start[tile.sequence + 1] - start);
  const int first_position = computed + tile.first_query - start;
  const int last_position = first_position + tile.num_queries - 1;
  const int32_t* table = p.page_table + int64_t{tile.sequence} * p.pages_per_sequence;
  const int pages_a_block = std::max(1, kBlockTokens / page_stride);

  State& s = ThreadState();
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
    const int pages = std::min(pages_a_block, last_page - page + 1), tokens = pages * page_stride;
    const int first = page * heads, end = (page + pages) * heads;
    // of the block's tokens, those that a row sees; and of the rows, the first that sees a token
    const auto end_token = [&](int row) {
      const int position = first_position + query_of(row);
      const int seen = (position / p.page_size - page) * page_stride + position % p.page_size + 1;
      return position < page * p.page_size ? 0 : std::min(seen, tokens);
    };
    const auto first_row = [&](int token) {
      const int position = (page + token / page_stride) * p.page_size + token % page_stride;
      return std::clamp(position - first_position, 0, tile.num_queries) * group;
    };
    if constexpr (kInPlace) {
      for (int i = first; i < end; ++i) {
        const int row = i % heads * s.rows_per_head;
        Score<true>(s, [&](int) { return row; }, row + s.rows_per_head, keys_of(i),
                    i + 1 < end ? keys_of(i + 1) : values_of(first), page_stride, (i / heads - page) * page_stride);
      }
    } else {
      Gather<Page>(s, p, pages, [&](int i) { return keys_of(page + i); }, [&](int i) { return values_of(page + i); });
      Score<false>(s, first_row, s.rows, s.keys.data(), s.keys.data(), tokens, 0);
    }
    for (int row = 0; row < s.rows; ++row) {
      float* scores = &s.scores[row * s.block_stride];
      const int seen = end_token(row), unseen = first_seen(first_position + query_of(row));
      if (p.soft_cap > 0)
        for (int t = 0; t < seen; ++t) scores[t] = p.soft_cap * std::tanh(scores[t] / p.soft_cap);
      for (int i = 0; i * page_stride < seen; ++i) {
        float* of_page = scores + i * page_stride;
        const int begin = std::clamp(unseen - (page + i) * p.page_size, 0, page_stride);
        std::fill(of_page, of_page + begin, kMasked);
        std::fill(of_page + p.page_size, of_page + page_stride, kMasked);
      }
      Weigh(s, row, seen, tokens);
    }
    if constexpr (kInPlace) {
      for (int i = first; i < end; ++i) {
        const int row = i % heads * s.rows_per_head, at = (i / heads - page) * page_stride;
        Add<true>(s, row, row + s.rows_per_head, values_of(i),
                  i + 1 < end ? values_of(i + 1) : keys_of(std::min(end, last_page * heads)),
                  [&](int r) { return std::min(end_token(r) - at, p.page_size); }, at);
      }
    } else {
      Add<false>(s, first_row(0), s.rows, s.values.data(), s.values.data(), end_token, 0);
    }
  }
  for (int row = 0; row < s.rows; ++row)
    for (int d = 0; d < s.head_dim; ++d)
      p.out[place_of(row) + d] = s.out[row * s.head_stride + d] / s.total[row];
}

template <typename Page>
void Attend(const Problem& p, const Tile& tile) {
  const bool has_few_rows = tile.num_queries == 1 && p.num_heads / p.num_kv_heads <= kScoreRows;
  if (has_few_rows) return AttendTile<true, Page>(p, tile);
  // pages are brought together for one key-value head at a time
  for (int head = tile.first_kv_head; head < tile.first_kv_head + tile.num_kv_heads; ++head)
    AttendTile<false, Page>(p, {tile.sequence, tile.first_query, tile.num_queries, head, 1});
}

}  // namespace

const PageKernels& ESURGE_KERNELS() {
  static const PageKernels kernels = {{Write<float>, Attend<float>}, {Write<BFloat16>, Attend<BFloat16>}};
  return kernels;
}

}  // namespace esurge
