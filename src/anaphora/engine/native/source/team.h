// A team of threads that walks through the phases of a step together.
#pragma once

#include <atomic>
#include <sched.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Shares out the items of one phase after another: whoever is free takes the next item, so that a thread which the
// machine holds up costs the others little. Every thread calls `phase` the same number of times, in the same order.
class Team {
 public:
  explicit Team(int num_threads) : num_threads_(num_threads) {}

  template <typename Work>
  void phase(int num_items, const Work& work) {
    std::atomic<int>& next = next_[turn() & 1];
    for (int item = next.fetch_add(1); item < num_items; item = next.fetch_add(1)) work(item);
    meet(next);
  }

 private:
  static constexpr int kPausesBeforeYield = 2000;

  int turn() const { return turn_.load(std::memory_order_acquire); }

  // Wait until all are here. The last one opens the next phase; the counter of the phase after it starts at zero.
  void meet(std::atomic<int>& finished) {
    const int turn_before = turn();
    if (num_here_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
      num_here_.store(0, std::memory_order_relaxed);
      finished.store(0, std::memory_order_relaxed);
      turn_.store(turn_before + 1, std::memory_order_release);
      return;
    }
    for (int pauses = 0; turn() == turn_before; ++pauses) {
      if (pauses < kPausesBeforeYield) {
        relax();
      } else {
        sched_yield();
      }
    }
  }

  const int num_threads_;
  alignas(64) std::atomic<int> next_[2] = {};
  alignas(64) std::atomic<int> num_here_{0};
  alignas(64) std::atomic<int> turn_{0};
};
