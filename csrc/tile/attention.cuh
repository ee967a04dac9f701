// Attention: what one block does, as emitted kernels ask for it, and the host side of a launch.
#pragma once

#include "tile/attention_result.cuh"
#include "tile/attention_ring.cuh"
#include "tile/dependent.cuh"

namespace mirage::tile {

template <class T, int kDepth_, class Knobs>
class AttentionWork {
 public:
  static constexpr int kDepth = kDepth_, kRows = Knobs::kRows, kKeys = Knobs::kKeys;
  static constexpr int kWarps = Knobs::kWarps, kThreads = kWarps * kWarpLanes;
  using Ring = KeyRing<T, kDepth, Knobs>;
  using Meeting = AttentionMeeting<kRows, kDepth, kWarps>;
  using Space = Workspace<kRows, kDepth>;
  using Queries = TokenFrag<T, kRows, kDepth>;
  using Line = SharedLines<T, kDepth>;

  // Few rows stay in registers, more lie in shared memory for all warps.
  static constexpr bool kKeepsInShared = kRows * kDepth > 1024;
  static constexpr int kMeetingAt = Ring::kBytes;
  static constexpr int kKeptAt = (kMeetingAt + Meeting::kBytes + 127) / 128 * 128;
  static constexpr int kBytes = kKeptAt + (kKeepsInShared ? kRows * Line::kPitch : 0);
  static constexpr int kBlocks = Knobs::kBlocks;          // per multiprocessor
  static constexpr int kTogether = kDepth > 128 ? 2 : 8;  // blocks whose sums are read at once

  __device__ AttentionWork(const AttentionArgs& args, char* shared)
      : args_(args),
        shared_(shared),
        parts_((prefetch_places<kRows>(args), wait_for_previous(), let_next_start(), args)),
        ring_(args, shared),
        meeting_(shared + kMeetingAt) {
    find_part();  // its queries are asked for before copies fill the memory system's queues
    ring_.start(parts_, part_, more_);
  }

  // The next part of the block's stretch, for all its warps.
  __device__ bool next_part() {
    if (started_) find_part();
    started_ = true;
    return more_;
  }

  // The next step of keys of this warp.
  __device__ bool next_step() {
    unit_ += kWarps;
    if (unit_ >= part_.last) return false;
    slot_ = ring_.advance();
    return true;
  }

  __device__ int seq_len() const { return part_.sequence.keys; }
  __device__ int token_count() const { return part_.sequence.tokens; }

  // Numbers of the query tokens, by row.
  __device__ RowVector<int, kRows> row_tokens() const {
    RowVector<int, kRows> tokens;
#pragma unroll
    for (int r = 0; r < kRows / kTokenTile; ++r) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = r * kTokenTile + lane_quarter() * 2 + j;
        tokens.at[r][j] = static_cast<unsigned>(part_.tile * kRows + row) / args_.G;
      }
    }
    return tokens;
  }

  // The part's query rows; zeros in place of rows past the last.
  __device__ const Queries& queries() const { return queries_; }

  // An input of dims [D], the same for all lines; zeros if it is absent.
  __device__ DepthFrag<T, kDepth> vector(int index) const {
    DepthFrag<T, kDepth> found{};
    const auto* at = static_cast<const Octet<T>*>(args_.vectors[index]);
    if (at == nullptr) return found;
#pragma unroll
    for (int c = 0; c < kDepth / kChunkDepth; ++c) {
      found.at[0][c] = at[c * kChunkOctets + lane_quarter()];
    }
    return found;
  }

  // Keeps the N-side operand of all scores of the part.
  __device__ void keep(const Queries& rows) {
    if constexpr (kKeepsInShared) {
#pragma unroll
      for (int i = 0; i < kRows / kLineTile; ++i) {
        if (i % kWarps != warp_index()) continue;
#pragma unroll
        for (int c = 0; c < kDepth / kChunkDepth; ++c) {
          const int at =
              Line::offset(i * kLineTile + lane_line(), c * kChunkOctets + lane_quarter());
          *reinterpret_cast<Octet<T>*>(shared_ + kKeptAt + at) = rows.at[i][c];
        }
      }
      __syncthreads();
    } else {
      kept_ = rows;
    }
  }

  __device__ RowFrag<T, kKeys, kDepth> keys() const {
    RowFrag<T, kKeys, kDepth> tile;
#pragma unroll
    for (int i = 0; i < kKeys / kLineTile; ++i) {
#pragma unroll
      for (int c = 0; c < kDepth / kChunkDepth; ++c) {
        const int at = Line::offset(i * kLineTile + lane_line(), c * kChunkOctets + lane_quarter());
        tile.at[i][c] = *reinterpret_cast<const Octet<T>*>(slot_ + at);
      }
    }
    return tile;
  }

  __device__ ValueTile<T, kKeys, kDepth> values() const { return {slot_ + Ring::kTileBytes}; }

  __device__ KeyVector<int, kKeys> key_positions() const {
    KeyVector<int, kKeys> positions;
    const int first = (part_.sequence.skipped + unit_) * kUnitKeys + lane_line();
#pragma unroll
    for (int k = 0; k < kKeys / kRowTile; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) positions.at[k][i] = first + k * kRowTile + i * kLineTile;
    }
    return positions;
  }

  __device__ auto scores(const RowFrag<T, kKeys, kDepth>& keys) const {
    if constexpr (kKeepsInShared) {
      return scores_of(keys, KeptRows<T, kRows, kDepth>{shared_ + kKeptAt});
    } else {
      return scores_of(keys, kept_);
    }
  }

  // After::of(rows, element, sum, product) for every element of the part's segment, once, by the
  // block that finishes it.
  template <class After>
  __device__ void combine(const RowPeaks<kRows>& peak, const RowSums<kRows>& sum,
                          ValueProduct<kDepth, kRows>& product) {
    meeting_.meet(peak, sum, product);
    part_.first == 0 ? finish<After>(product) : contribute(product);
    __syncthreads();  // the next part meets in the same memory
  }

 private:
  __device__ void find_part() {
    more_ = parts_.next(part_);
    if (!more_) return;
    unit_ = Ring::first_unit(part_) - kWarps;
    rows_ = part_.template rows<kRows>(args_);
#pragma unroll
    for (int i = 0; i < kRows / kLineTile; ++i) {
      const int row = i * kLineTile + lane_line();
      const QueryPlace at = part_.template place<kRows>(args_, min(row, rows_ - 1));
      const T* line =
          static_cast<const T*>(args_.q.at) + at.token * args_.q.token + at.head * args_.q.head;
#pragma unroll
      for (int c = 0; c < kDepth / kChunkDepth; ++c) {
        const auto octet =
            reinterpret_cast<const Octet<T>*>(line)[c * kChunkOctets + lane_quarter()];
        queries_.at[i][c] = row < rows_ ? octet : Octet<T>{};
      }
    }
  }

  __device__ Space space() const {
    return {static_cast<char*>(args_.workspace), static_cast<int>(gridDim.x)};
  }

  __device__ void contribute(const ValueProduct<kDepth, kRows>& product) {
    const int block = blockIdx.x;
    for (int row = threadIdx.x; row < rows_; row += kThreads) {
      const float2 own = meeting_.own(row);
      *space().sums(block, row) = make_float4(own.x, own.y, 0.0f, 0.0f);
    }
    meeting_.for_each(product, rows_, [&](RowElement e, auto add_up) {
      float values[4];
      add_up(values);
      *space().values(block, e) = make_float4(values[0], values[1], values[2], values[3]);
    });
    __syncthreads();
    if (threadIdx.x == 0) announce(space().nonce(block), args_.nonce);
  }

  template <class After>
  __device__ void finish(const ValueProduct<kDepth, kRows>& product) {
    const int first = blockIdx.x + 1;
    int last = blockIdx.x;
    if (part_.last < part_.sequence.units) {
      last = parts_.block_before(part_.position + part_.sequence.units);
      for (int i = first + threadIdx.x; i <= last; i += kThreads) {
        await(space().nonce(i), args_.nonce);
      }
      __syncthreads();
    }
    const ResultRows<T, kRows> results(args_, part_);
    meeting_.for_each(product, rows_, [&](RowElement e, auto add_up) {
      const float2 own = meeting_.own(e.row);
      Total total{own.x, own.y};
      add_up(total.values);
      add_left<kTogether>(total, space(), first, last, e);
      results.template take<After>(e, total);
    });
  }

  const AttentionArgs& args_;
  char* shared_;
  Parts<kRows> parts_;
  Ring ring_;
  Meeting meeting_;
  Part part_{};
  int unit_ = 0, rows_ = 0;
  bool more_ = false, started_ = false;
  const char* slot_ = nullptr;
  Queries queries_, kept_;
};

template <class Work>
int64_t attention_workspace(const AttentionArgs& args) {
  return blocks_of<Work>(args) * Work::Space::kBlockBytes;
}

template <class Work>
cudaError_t launch_attention(void (*kernel)(AttentionArgs), const AttentionArgs& args,
                             cudaStream_t stream) {
  if (most_units<Work::kRows>(args) > kMostUnits) return cudaErrorInvalidValue;
  const int blocks = blocks_of<Work>(args);
  if (blocks == 0) return cudaSuccess;
  return launch(kernel, {blocks, 1, Work::kThreads, Work::kBytes}, args, stream);
}

}  // namespace mirage::tile
