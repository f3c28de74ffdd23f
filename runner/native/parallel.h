// Work shared out over XLA's own threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <thread>

#include "xla/ffi/api/ffi.h"

namespace esurge {

// Run work(0 .. count) on XLA's threads and this one. Nobody waits for a thread that has not begun, so that a busy
// pool, or one whose only thread is this, cannot block the call. Throws std::bad_alloc, once all have ended, where work
// did; it may throw nothing else.
template <typename Work>
void ParallelFor(xla::ffi::ThreadPool& pool, int64_t count, const Work& work) {
  struct Shared {
    std::atomic<int64_t> next{0}, done{0};
    std::atomic<bool> lacks_memory{false};
  };
  auto shared = std::make_shared<Shared>();
  auto run = [shared, count, &work]() noexcept {
    for (int64_t i; (i = shared->next.fetch_add(1)) < count; shared->done.fetch_add(1, std::memory_order_release)) {
      try {
        work(i);
      } catch (const std::bad_alloc&) {
        shared->lacks_memory = true;
      }
    }
  };
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), count) - 1;
  try {
    for (int64_t i = 0; i < helpers; ++i) pool.Schedule(decltype(run)(run));
  } catch (const std::bad_alloc&) {  // then fewer help
  }
  run();
  while (shared->done.load(std::memory_order_acquire) < count) std::this_thread::yield();
  if (shared->lacks_memory) throw std::bad_alloc();
}

// What a handler returns where memory is not to be had; of an exception XLA would not say of which kind it is.
inline xla::ffi::Error OutOfMemory() { return {xla::ffi::ErrorCode::kResourceExhausted, "out of memory"}; }

}  // namespace esurge
