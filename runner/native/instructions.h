// What this machine can run of the instruction sets that the kernels are compiled for: the flags of hatch_build.py.
#pragma once

#ifdef ESURGE_X86

#ifdef ESURGE_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace esurge {

inline bool HasAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

inline bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#ifdef ESURGE_AMX
// Asks Linux for the tiles as well, which a process may not use unasked; it grants them from version 5.16 on.
inline bool HasAmx() {
  static const bool has = [] {
    constexpr unsigned kBFloat16 = 1 << 22, kTile = 1 << 24;  // leaf 7, edx (Intel's manual, volume 2, CPUID)
    constexpr int kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl's (Linux, x86/xstate)
    unsigned eax, ebx, ecx, edx;
    return HasAvx512() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & kBFloat16) && (edx & kTile) &&
           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
}
#endif

}  // namespace esurge
#endif
