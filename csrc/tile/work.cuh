// Work of a block before its loop, beside the first copies of weights.
#pragma once

namespace mirage::tile {

// Work before the loop: ask() issues its loads before the weights' copies, compute() runs after
// them.
struct Nothing {
  __device__ void ask() const {}
  __device__ void compute() const {}
};

// Work that no copy waits for: residual and bias asked for here, not behind the warps' sums, took
// 8 us of 690 from a step of Llama-3.2-1B, 9 of 3614 from one of Llama-3.1-8B.
template <class Work>
struct BehindCopies {
  Work work;
  __device__ void ask() const {}
  __device__ void compute() const { work(); }
};

template <class Work>
__device__ BehindCopies<Work> behind_copies(Work work) {
  return {work};
}

// Work around a loop's copies of weights: what they would delay is asked for before them, before
// the previous kernel ends where these weights are constant, and kept behind them.
template <class Ask, class Keep>
struct AroundCopies {
  bool asked;
  Ask ask_first;
  Keep keep;
  __device__ void ask() const {
    if (!asked) ask_first();
  }
  __device__ void compute() const { keep(); }
};

template <class Prefetch, class Ask, class Keep>
__device__ AroundCopies<Ask, Keep> around_copies(bool early, Prefetch prefetch, Ask ask,
                                                 Keep keep) {
  if (early) {
    ask();
  } else {
    prefetch();
  }
  return {early, ask, keep};
}

}  // namespace mirage::tile
