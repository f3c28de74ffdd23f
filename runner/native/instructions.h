// What this machine can run of the instruction sets that the kernels are compiled for: the flags of hatch_build.py.
#pragma once

#ifdef ESURGE_X86
namespace esurge {

inline bool HasAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

inline bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace esurge
#endif
