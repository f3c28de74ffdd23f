// Work shared out over XLA's own threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "xla/ffi/api/ffi.h"

namespace esurge {

// Run work(0 .. count) on XLA's threads and this one. Nobody waits for a thread that has not begun, so that a busy
// pool, or one whose only thread is this, cannot block the call.
template <typename Work>
void ParallelFor(xla::ffi::ThreadPool& pool, int64_t count, const Work& work) {
  struct Shared {
    std::atomic<int64_t> next{0}, done{0};
  };
  auto shared = std::make_shared<Shared>();
  auto run = [shared, count, &work] {
    for (int64_t i; (i = shared->next.fetch_add(1)) < count; shared->done.fetch_add(1, std::memory_order_release))
      work(i);
  };
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), count) - 1;
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule(decltype(run)(run));
  run();
  while (shared->done.load(std::memory_order_acquire) < count) std::this_thread::yield();
}

}  // namespace esurge
