// Memory that a thread keeps from call to call.
//
// In an anonymous namespace for the reason that vectors.h gives.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace esurge {
namespace {

// Room for floats, aligned to a cache line; meant to be thread_local.
class Scratch {
 public:
  // Room for `count` floats of any value; what was there may be lost.
  float* Of(int64_t count) {
    if (count > size_) {
      memory_.reset();
      size_ = 0;
      const int64_t size = (count + 15) / 16 * 16;
      memory_.reset(static_cast<float*>(std::aligned_alloc(64, size * sizeof(float))));
      if (!memory_) throw std::bad_alloc();
      size_ = size;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float[], Free> memory_;
  int64_t size_ = 0;
};

}  // namespace
}  // namespace esurge
