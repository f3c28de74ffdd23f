// Vectors of ESURGE_VECTOR_BYTES, the compiler's own, so that the same lines serve AVX-512, AVX2, SSE2 and NEON.
//
// All is in an anonymous namespace: a file that is compiled once for each instruction set must not share its functions.
#pragma once

#include <cstdint>
#include <type_traits>

namespace esurge {
namespace {

constexpr int kWidth = ESURGE_VECTOR_BYTES / 4;

typedef float Vector __attribute__((vector_size(ESURGE_VECTOR_BYTES), aligned(4), may_alias));
typedef int32_t IntVector __attribute__((vector_size(ESURGE_VECTOR_BYTES), aligned(4), may_alias));

inline Vector Load(const float* p) { return *reinterpret_cast<const Vector*>(p); }
inline void Store(float* p, Vector v) { *reinterpret_cast<Vector*>(p) = v; }
inline Vector Broadcast(float x) { return x - Vector{}; }  // of which nothing is left to compute, unlike x + 0

// e^x to 2 units in the last place, of x within [-87, 88] or else of the nearer end: 2^n * e^r with |r| <= ln(2) / 2
// (the Cephes library's polynomial).
inline Vector Exp(Vector x) {
  const Vector lowest = Broadcast(-87.0f), highest = Broadcast(88.0f);
  x = x < lowest ? lowest : x;
  x = x > highest ? highest : x;
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

// Call f(at, Count) over [at, end), at most `Most` at a time; Count is a compile-time constant.
template <int Most, typename F>
inline void InSteps(int64_t at, int64_t end, const F& f) {
  for (; at + Most <= end; at += Most) f(at, std::integral_constant<int, Most>{});
  if constexpr (Most > 1) {
    if (at < end) InSteps<Most - 1>(at, end, f);
  }
}

}  // namespace
}  // namespace esurge
