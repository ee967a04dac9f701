// Attention: what one block does, as emitted kernels ask for it, and the host side of a launch.
#pragma once

#include "tile/attention_lines.cuh"
#include "tile/attention_result.cuh"
#include "tile/attention_ring.cuh"
#include "tile/dependent.cuh"

namespace mirage::tile {

// Of latent attention, keys have kMore elements beside those that are values, too.
template <class T, int kDepth_, class Knobs, int kMore = 0>
class AttentionWork {
 public:
  static constexpr int kDepth = kDepth_, kRows = Knobs::kRows, kKeys = Knobs::kKeys;
  static constexpr int kWarps = Knobs::kWarps, kThreads = kWarps * kWarpLanes;
  using Ring = KeyRing<T, kDepth, Knobs, kMore>;
  using Meeting = AttentionMeeting<kRows, kDepth, kWarps, Ring::kSlotBytes>;
  using Places = Quads<kRows, kDepth>;
  using Crew = CrewMeeting<kRows, kDepth>;
  using Space = Workspace<kRows, kDepth>;
  using Queries = TokenFrag<T, kRows, kDepth>;
  using Peaks = RowPeaks<kRows>;
  using Sums = RowSums<kRows>;
  using Product = ValueProduct<kDepth, kRows>;
  using Line = SharedLines<T, kDepth>;
  using MoreLine = SharedLines<T, kMore>;

  // Few rows stay in registers, more lie in shared memory for all warps.
  static constexpr bool kKeepsInShared = kRows * kDepth > 1024;
  static constexpr int kMeetingAt = Ring::kBytes;
  static constexpr int kCrewAt = (kMeetingAt + Meeting::kBytes + 15) / 16 * 16;
  static constexpr int kKeptAt = (kCrewAt + Crew::kBytes + 127) / 128 * 128;
  static constexpr int kMoreKeptAt = kKeptAt + kRows * Line::kPitch;
  static constexpr int kBytes = kKeepsInShared ? kMoreKeptAt + kRows * MoreLine::kPitch : kKeptAt;
  static constexpr int kBlocks = Knobs::kBlocks;  // per multiprocessor
  // Crews whose sums are read at once.
  static constexpr int kTogether = kDepth > 128 && kMore == 0 ? 2 : 8;

  __device__ AttentionWork(const AttentionArgs& args, char* shared)
      : args_(args),
        shared_(shared),
        crew_(shared + kCrewAt),
        ring_(args, shared),
        parts_((begin(), args)),
        meeting_(shared + kMeetingAt) {
    find_part();  // its queries are asked for before copies fill the memory system's queues
    ring_.start(parts_, part_, more_);
  }

  // The next part of the block's stretch, for all its warps.
  __device__ bool next_part() {
    if (started_) {
      find_part();
      if (more_) crew_.go_on();
    }
    started_ = true;
    return more_;
  }

  // The next step of keys of this warp.
  __device__ bool next_step() {
    unit_ += Ring::stride();
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

  // The part's query rows; the last again in place of rows past it, which nobody asks for.
  __device__ const Queries& queries() const { return queries_; }

  // An input of dims [D], or the part's line of one by heads of the cache; zeros if it is absent.
  __device__ Unread<LineSource<T, kDepth>> vector(int index) const {
    return {{head_line(index, part_.head)}};
  }

  // The lines of an input by query heads, one for each query row; zeros if it is absent.
  __device__ Unread<RowLinesSource<T, kRows, kDepth>> row_vectors(int index) const {
    Unread<RowLinesSource<T, kRows, kDepth>> found;
#pragma unroll
    for (int i = 0; i < kRows / kLineTile; ++i) {
      const int row = min(i * kLineTile + lane_line(), rows_ - 1);
      found.source.at[i] = head_line(index, part_.template place<kRows>(args_, row).head);
    }
    return found;
  }

  // The part's query rows again, read at each use.
  __device__ auto unread_queries() const { return query_lines<kDepth>(args_.q); }

  // What else the query rows have.
  __device__ auto more_queries() const { return query_lines<kMore>(args_.more_q); }

  // Keeps the N-side operand of all scores of the part.
  template <class Lines>
  __device__ void keep(const Lines& rows) {
    if constexpr (kKeepsInShared) {
      keep_lines<Line>(shared_ + kKeptAt, rows);
    } else {
      kept_ = read(rows);
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

  // The same, read from shared memory at each use.
  __device__ Unread<SharedSource<T, kKeys, kDepth>> unread_keys() const { return {{slot_}}; }

  // What else the step's keys have.
  __device__ Unread<SharedSource<T, kKeys, kMore>> more_keys() const {
    return {{slot_ + Ring::kTileBytes}};
  }

  __device__ ValueTile<T, kKeys, kDepth> values() const {
    return {kMore > 0 ? slot_ : slot_ + Ring::kTileBytes};
  }

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

  template <class Lines>
  __device__ auto scores(const Lines& keys) const {
    if constexpr (kKeepsInShared) {
      return scores_of(keys, KeptRows<T, kRows, kDepth>{shared_ + kKeptAt});
    } else {
      return scores_of(keys, kept_);
    }
  }

  // Of what queries and keys have beside.
  template <class Lines>
  __device__ void keep_more(const Lines& rows) {
    keep_lines<MoreLine>(shared_ + kMoreKeptAt, rows);
  }

  template <class Lines>
  __device__ auto more_scores(const Lines& keys) const {
    return scores_of(keys, KeptRows<T, kRows, kMore>{shared_ + kMoreKeptAt});
  }

  // After::of(rows, element, sum, product) for every element of the part's segment, once, by the
  // crew that finishes it.
  template <class After>
  __device__ void combine(const RowPeaks<kRows>& peak, const RowSums<kRows>& sum,
                          ValueProduct<kDepth, kRows>& product) {
    const Places places(rows_);
    const int quads = places.count();
    meeting_.leave(peak, sum, product, ring_.free_slot());
    if (!crew_.alone()) crew_.begin(quads);
    __syncthreads();
    const bool finishes = part_.first == 0;
    const int own = cluster_index(), last = finishes ? last_crew() : own;
    if (crew_.alone()) {
      if (last > own) await_crews(last);
      for (int quad = threadIdx.x; quad < quads; quad += kThreads) {
        Total total = meeting_.total(places, quad);
        settle<After>(places, quad, total, last);
      }
    } else {
      for (int quad = threadIdx.x; quad < quads; quad += kThreads) {
        crew_.push(quad, meeting_.total(places, quad));
      }
      if (last > own) await_crews(last);
      crew_.end();
      const int count = crew_.count(quads);
      for (int place = threadIdx.x; place < count; place += kThreads) {
        Total total;
        total.peak[0] = total.peak[1] = RowPeaks<kRows>::kLowest;
        add_left<kTogether>(total, crew_.sent(place), 0, crew_.size() - 1);
        settle<After>(places, crew_.quad(place), total, last);
      }
    }
    __syncthreads();  // the next part meets in the same memory
    if (!finishes && threadIdx.x == 0) announce(space().nonce(own), args_.nonce);
  }

 private:
  // What needs not wait for the kernel before comes before it.
  __device__ void begin() {
    if (args_.seq_lens != nullptr) prefetch_lengths();
    ring_.guess();
    wait_for_previous();
    let_next_start();
    ring_.look_up_guess();
  }

  __device__ void prefetch_lengths() const {
    constexpr int kLineNumbers = 32;  // 128 bytes
    const int first = threadIdx.x * kLineNumbers;
    if (first < args_.B) prefetch(args_.seq_lens + first);
  }

  __device__ void find_part() {
    more_ = parts_.next(part_);
    if (!more_) return;
    unit_ = Ring::first_unit(part_) - Ring::stride();
    rows_ = part_.template rows<kRows>(args_);
#pragma unroll
    for (int i = 0; i < kRows / kLineTile; ++i) {
      const int row = i * kLineTile + lane_line();
      const T* line = query_line(args_.q, row);
#pragma unroll
      for (int c = 0; c < kDepth / kChunkDepth; ++c) {
        reinterpret_cast<uint4&>(queries_.at[i][c]) =
            reinterpret_cast<const uint4*>(line)[c * kChunkOctets + lane_quarter()];
      }
    }
  }

  __device__ const T* query_line(const mirage::Lines& lines, int row) const {
    const QueryPlace at = part_.template place<kRows>(args_, min(row, rows_ - 1));
    return static_cast<const T*>(lines.at) + at.token * lines.token + at.head * lines.head;
  }

  template <int kLong>
  __device__ auto query_lines(const mirage::Lines& lines) const {
    Unread<RowLinesSource<T, kRows, kLong>> found;
#pragma unroll
    for (int i = 0; i < kRows / kLineTile; ++i) {
      const int row = i * kLineTile + lane_line();
      const auto* line = reinterpret_cast<const Octet<T>*>(query_line(lines, row));
      found.source.at[i] = row < rows_ ? line : nullptr;
    }
    return found;
  }

  // Rows to shared memory, dealt out to the warps.
  template <class SharedLine, class Lines>
  __device__ void keep_lines(char* to, const Lines& rows) {
#pragma unroll
    for (int i = 0; i < kRows / kLineTile; ++i) {
      if (i % kWarps != warp_index()) continue;
      for_each_chunk(rows, [&](int c, const auto& chunk) {
        const int at =
            SharedLine::offset(i * kLineTile + lane_line(), c * kChunkOctets + lane_quarter());
        *reinterpret_cast<Octet<T>*>(to + at) = chunk.at[i][0];
      });
    }
    __syncthreads();
  }

  __device__ const Octet<T>* head_line(int index, int64_t head) const {
    const auto* first = static_cast<const T*>(args_.vectors[index]);
    if (first == nullptr) return nullptr;
    return reinterpret_cast<const Octet<T>*>(first + head * args_.vector_heads[index]);
  }

  __device__ Space space() const {
    return {static_cast<char*>(args_.workspace), static_cast<int>(gridDim.x), crew_.rank(),
            crew_.size()};
  }

  // With all that this crew has of a quad.
  template <class After>
  __device__ void settle(Places places, int quad, Total& total, int last) const {
    const int own = cluster_index(), place = crew_.place(quad);
    if (part_.first == 0) {
      if (last > own) add_left<kTogether>(total, LeftByCrews<Space>{space(), place}, own + 1, last);
      const ResultRows<T, kRows> results(args_, part_);
      results.template take<After>(places.element(quad), total, rows_);
    } else {
      float4* const left = space().quad(own, place);
      left[0] = total.values();
      left[1] = total.rows();
    }
  }

  // The last of the crews that have the rest of the segment.
  __device__ int last_crew() const {
    if (part_.last >= part_.sequence.units) return cluster_index();
    return parts_.crew_before(part_.position + part_.sequence.units);
  }

  // Returns when all up to `last` have left what they have.
  __device__ void await_crews(int last) const {
    for (int i = cluster_index() + 1 + threadIdx.x; i <= last; i += kThreads) {
      await(space().nonce(i), args_.nonce);
    }
    __syncthreads();
  }

  const AttentionArgs& args_;
  char* shared_;
  Crew crew_;
  Ring ring_;
  Parts<kRows> parts_;
  Meeting meeting_;
  Part part_{};
  int unit_ = 0, rows_ = 0;
  bool more_ = false, started_ = false;
  const char* slot_ = nullptr;
  Queries queries_, kept_;
};

template <class Work>
int64_t attention_workspace(const AttentionArgs& args) {
  return crowd_of<Work>(args).blocks * Work::Space::kBlockBytes;
}

// Crews must all run at once, or one could wait for another that waits for its place.
inline cudaError_t launch_crews(void (*kernel)(AttentionArgs), Grid grid, AttentionArgs args,
                                cudaStream_t stream) {
  if (grid.cluster > 1) {
    args.crews = divisor(grid.row_tiles / grid.cluster);
    const Launch<AttentionArgs> call(kernel, grid, stream);
    int resident = 0;
    cudaError_t status = call.allow();
    if (status == cudaSuccess) status = call.resident(resident);
    if (status != cudaSuccess) return status;
    if (resident >= static_cast<int>(args.crews.value)) return call.start(args);
    grid.cluster = 1;
  }
  args.crews = divisor(grid.row_tiles);
  return launch(kernel, grid, args, stream);
}

template <class Work>
cudaError_t launch_attention(void (*kernel)(AttentionArgs), const AttentionArgs& args,
                             cudaStream_t stream) {
  if (most_units<Work::kRows>(args) > kMostUnits) return cudaErrorInvalidValue;
  const Crowd crowd = crowd_of<Work>(args);
  if (crowd.blocks == 0) return cudaSuccess;
  return launch_crews(kernel, {crowd.blocks, 1, Work::kThreads, Work::kBytes, crowd.crew},
                      with_divisors<Work::kRows>(args), stream);
}

}  // namespace mirage::tile
