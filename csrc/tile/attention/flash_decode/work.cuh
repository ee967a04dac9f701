// Attention: what one block does, as emitted kernels ask for it.
#pragma once

#include "tile/attention/flash_decode/inputs.cuh"
#include "tile/attention/flash_decode/reduction.cuh"

namespace mirage::tile {

// Of latent attention, keys have kMore elements beside those that are values, too.
template <class T, int kDepth_, class Knobs, int kMore = 0>
class FlashDecode {
 public:
  static constexpr int kDepth = kDepth_, kRows = Knobs::kRows, kKeys = Knobs::kKeys;
  static constexpr int kWarps = Knobs::kWarps, kThreads = kWarps * kWarpLanes;
  using Args = ArgsOf<Knobs>;
  using Pipeline = KeyPipeline<T, kDepth, Knobs, kMore>;
  using Reduction = WarpReduction<kRows, kDepth, kWarps, Pipeline::kStageBytes>;
  using Places = Pairs<kRows, kDepth>;
  using Cluster = ClusterReduction<kRows, kDepth>;
  using Space = Workspace<kRows, kDepth>;
  using Queries = TokenFrag<T, kRows, kDepth>;
  using Maxima = RowMaxima<kRows>;
  using Sums = RowSums<kRows>;
  using Product = ValueProduct<kDepth, kRows>;
  using Line = SharedLines<T, kDepth>;
  static constexpr int kKeyWork = kKeyWorkOf<Knobs>;
  static constexpr bool kDynamic = Pipeline::kDynamic,
                        kAsksEarly = kRows == kLineTile && kKeyWork < 2;
  using Inputs = PartitionedInputs<T, kRows, kDepth, kThreads, kAsksEarly>;
  static constexpr bool kFewRows = kRows == kLineTile;
  static constexpr bool kBeginsEarly = kFewRows && kMore == 0;  // others lack the registers
  using Layout = FlashDecodeLayout<T, kDepth, Knobs, kMore>;
  static constexpr int kBytes = Layout::kBytes;
  static constexpr int kBlocks = Knobs::kBlocks;  // per multiprocessor

  __device__ FlashDecode(const AttentionArgs& args, char* shared)
      : args_(static_cast<const Args&>(args)),
        shared_(shared),
        cluster_(shared + Layout::kClusterAt),
        pipeline_(args_, shared),
        reduction_(shared + Layout::kReductionAt) {
    find_first();
    if constexpr (kDynamic) scheduler_.open(args_);
    // Where clusters leave room for the next kernel it copies at once, and this one comes first.
    const bool waits = kBeginsEarly && leaves_room(args, kBlocks);
    waits ? pipeline_.let_next_start_then() : launch_dependents();
  }

  // The next item of the block's range, for all its warps.
  __device__ bool next_item() {
    if (started_) {
      more_ = scheduler_.next(item_);
      if (!more_) return false;
      take_item();
      inputs_.ask_for_vectors(args_);
      ask_for_queries();
      cluster_.go_on();
      fence_proxies();  // sums lay in stages that copies fill again
    }
    started_ = true;
    return more_;
  }

  // The next step of keys of this warp.
  __device__ bool next_step() {
    key_block_ += Pipeline::stride();
    if (key_block_ >= item_.last) return false;
    stage_ = pipeline_.advance(item_, key_block_);
    return true;
  }

  __device__ int seq_len() const { return item_.sequence.keys; }
  __device__ int token_count() const { return item_.sequence.tokens; }

  // Numbers of the query tokens, by row.
  __device__ RowVector<int, kRows> row_tokens() const {
    RowVector<int, kRows> tokens;
    unrolled<kRows / kTokenTile, 2>([&](int r, int j) {
      const int row = r * kTokenTile + lane_quarter() * 2 + j;
      tokens.at[r][j] = static_cast<unsigned>(item_.tile * kRows + row) / args_.G;
    });
    return tokens;
  }

  // The item's query rows; the last again in place of rows past it, which nobody asks for.
  __device__ auto queries() const {
    if constexpr (Layout::kReadsQueriesLate) {
      return query_lines<kDepth>(args_.q);
    } else {
      return queries_;
    }
  }

  // An input of dims [D], or the item's line of one by heads of the cache; zeros if it is absent.
  __device__ Lazy<LineSource<T, kDepth>> vector(int index) const {
    return {{vector_line<T>(args_, index, item_.head)}};
  }

  // The lines of an input by query heads, one for each query row; zeros if it is absent.
  __device__ Lazy<RowLinesSource<T, kRows, kDepth>> row_vectors(int index) const {
    Lazy<RowLinesSource<T, kRows, kDepth>> found;
    unrolled<kRows / kLineTile>([&](int i) {
      const int row = min(i * kLineTile + lane_line(), rows_ - 1);
      const QueryPlace at = item_.template place<kRows>(args_, row);
      found.source.at[i] = vector_line<T>(args_, index, at.head);
    });
    return found;
  }

  // Rows, and what goes with them, partitioned over the block's threads.
  __device__ auto partitioned_queries() const { return inputs_.queries(); }
  __device__ auto partitioned_vector(int index) const { return inputs_.vector(args_, index); }
  __device__ auto partitioned_row_vectors(int index) const {
    return inputs_.row_vectors(args_, index);
  }

  // What else the query rows have.
  __device__ auto more_queries() const { return query_lines<kMore>(args_.more_q); }

  // Keeps the N-side operand of all scores of the item.
  template <class Lines>
  __device__ void hold_resident(const Lines& rows) {
    if constexpr (Layout::kResidentInShared) {
      store_resident<Line>(shared_ + Layout::kResidentAt, rows);
    } else {
      resident_ = read(rows);
    }
  }

  __device__ void hold_resident(const typename Inputs::Tile& rows) {
    Inputs::template publish<Line>(shared_ + Layout::kResidentAt, rows);
    __syncthreads();
    if constexpr (!Layout::kResidentInShared) {
      resident_ = ResidentRows<T, kRows, kDepth>{shared_ + Layout::kResidentAt}.all();
    }
  }

  // The step's keys, in registers or read from shared memory at each use.
  __device__ auto keys() const {
    constexpr int kStraight = kFewRows ? kDepth / kChunkDepth : 2;
    if constexpr (Layout::kReadsLate) {
      return Lazy<SharedSource<T, kKeys, kDepth, kStraight>>{{stage_}};
    } else {
      return loaded_keys<T, kKeys, kDepth>(stage_);
    }
  }

  // What else the step's keys have.
  __device__ Lazy<SharedSource<T, kKeys, kMore>> more_keys() const {
    return {{stage_ + Pipeline::kTileBytes}};
  }

  // The online-softmax step: the running maximum rises to the largest of the scores that the mask
  // shows, sum and product become relative to it, and add exp(score - maximum) of these keys, the
  // product times their values.
  template <class S, class Mask>
  __device__ void online_softmax(const S& scores, const Mask& mask, Maxima& maximum, Sums& sum,
                                 Product& product) const {
    rescale(maximum, where<float>(mask, scores, -INFINITY), sum, product);
    const auto weights = where<float>(mask, exp<float>(sub<float>(scores, maximum)), 0.0f);
    sum_over_keys(sum, weights);  // before they are rounded: their logarithm is the result's lse
    contract_values(product, values(), packed<T>(weights));
  }

  __device__ ValueTile<T, kKeys, kDepth> values() const {
    return {kMore > 0 ? stage_ : stage_ + Pipeline::kTileBytes};
  }

  __device__ KeyVector<int, kKeys> key_positions() const {
    KeyVector<int, kKeys> positions;
    const int first = (item_.sequence.skipped + key_block_) * kBlockKeys +
                      KeyBlockLines<T, kDepth>::token(lane_line());
    unrolled<kKeys / kRowTile, 2>(
        [&](int k, int i) { positions.at[k][i] = first + k * kRowTile + i * kLineTile; });
    return positions;
  }

  template <class Lines>
  __device__ auto scores(const Lines& keys) const {
    if constexpr (Layout::kResidentInShared) {
      return scores_of(keys, ResidentRows<T, kRows, kDepth>{shared_ + Layout::kResidentAt});
    } else {
      return scores_of(keys, resident_);
    }
  }

  // Of what queries and keys have beside.
  template <class Lines>
  __device__ void hold_more_resident(const Lines& rows) {
    store_resident<SharedLines<T, kMore>>(shared_ + Layout::kMoreResidentAt, rows);
  }

  template <class Lines>
  __device__ auto more_scores(const Lines& keys) const {
    return scores_of(keys, ResidentRows<T, kRows, kMore>{shared_ + Layout::kMoreResidentAt});
  }

  // After::of(rows, element, sum, product) for every element of the item's work tile, once, by the
  // cluster that finishes it.
  template <class After>
  __device__ void combine(const RowMaxima<kRows>& maximum, const RowSums<kRows>& sum,
                          ValueProduct<kDepth, kRows>& product) {
    const Places places(rows_);
    int count = places.count();
    reduction_.publish(maximum, sum, product, pipeline_.free_stage());
    if (!cluster_.alone()) cluster_.begin(count);
    __syncthreads();
    if (!cluster_.alone()) {
      send_totals(places);
      count = cluster_.count(count);
    }
    finish<After>(places, count);
    __syncthreads();  // the next item meets in the same memory
    if (item_.first > 0 && threadIdx.x == 0) announce(space().nonce(cluster_index()), args_.nonce);
  }

 private:
  // Finds the first item while the kernel before still runs, from lengths and pages that it may
  // write: they are read again when it has ended. What was looked up then says what is copied
  // first; meanwhile both are compared, and if one has changed, all begins anew.
  __device__ void find_first() {
    bool waits = kBeginsEarly && !args_.constant_history && args_.first_tokens == nullptr;
    if (!waits && !args_.constant_history) {
      if (has_lengths(args_)) prefetch(args_.seq_lens + min(lane(), args_.B - 1));
      grid_dependency_wait();
    }
#pragma unroll 1
    while (true) {
      const Lengths lengths(args_);
      scheduler_ = pipeline_.items(lengths);
      more_ = scheduler_.next(item_);
      pipeline_.aim(scheduler_, item_, more_);
      take_item();
      const bool asks_late = !args_.constant_weights;
      if (!asks_late && more_) inputs_.ask_for_vectors(args_);
      if (waits) {
        if (more_ && warp_index() == 0) pipeline_.prefetch_queries();
        if (kKeyWork > 0 && more_ && warp_index() == 1) inputs_.prefetch_vectors(args_);
        pipeline_.arm();
        grid_dependency_wait();
      }
      // Behind copies these would wait in the memory system's queues.
      if (!args_.constant_history) ask_for_inputs(asks_late);
      // Asked for before the copies, looked at after them.
      const Lengths now = lengths.again(args_, waits);
      const int pages = pipeline_.pages(), found = pipeline_.look_again(waits);
      pipeline_.fill(more_ && key_block_ + Pipeline::stride() < item_.last);
      if (args_.constant_history) {
        grid_dependency_wait();
        ask_for_inputs(asks_late);
      }
      if (!waits || (now.are(lengths, args_) && __all_sync(~0u, pages == pipeline_.bounded(found))))
        return;
      waits = false;
      pipeline_.drop();
    }
  }

  // Where the item begins.
  __device__ void take_item() {
    if (!more_) return;
    key_block_ = Pipeline::first_key_block(item_) - Pipeline::stride();
    rows_ = item_.template rows<kRows>(args_);
    if constexpr (kFewRows) query_lines_ = query_line(args_.q, lane_line());
    inputs_.aim(args_, item_, rows_);
  }

  __device__ void ask_for_inputs(bool vectors) {
    if (!more_) return;
    if (vectors) inputs_.ask_for_vectors(args_);
    ask_for_queries();
  }

  __device__ void ask_for_queries() {
    inputs_.ask_for_queries();
    unrolled<kRows / kLineTile>([&](int i) {
      const T* line = kFewRows ? query_lines_ : query_line(args_.q, i * kLineTile + lane_line());
      unrolled<kDepth / kChunkDepth>([&](int c) {
        reinterpret_cast<uint4&>(queries_.at[i][c]) =
            reinterpret_cast<const uint4*>(line)[c * kChunkVectors + lane_quarter()];
      });
    });
  }

  __device__ const T* query_line(const mirage::Lines& lines, int row) const {
    const QueryPlace at = item_.template place<kRows>(args_, min(row, rows_ - 1));
    return tile::query_line<T>(lines, at);
  }

  template <int kLong>
  __device__ auto query_lines(const mirage::Lines& lines) const {
    Lazy<RowLinesSource<T, kRows, kLong>> found;
    unrolled<kRows / kLineTile>([&](int i) {
      const int row = i * kLineTile + lane_line();
      const auto* line = reinterpret_cast<const Vec16<T>*>(query_line(lines, row));
      found.source.at[i] = row < rows_ ? line : nullptr;
    });
    return found;
  }

  // Rows to shared memory, partitioned over the warps.
  template <class SharedLine, class Lines>
  __device__ void store_resident(char* to, const Lines& rows) {
    unrolled<kRows / kLineTile>([&](int i) {
      if (i % kWarps != warp_index()) return;
      for_each_chunk(rows, [&](int c, const auto& chunk) {
        const int at =
            SharedLine::offset(i * kLineTile + lane_line(), c * kChunkVectors + lane_quarter());
        *reinterpret_cast<Vec16<T>*>(to + at) = chunk.at[i][0];
      });
    });
    __syncthreads();
  }

  __device__ Space space() const {
    return {static_cast<char*>(args_.workspace), static_cast<int>(gridDim.x), cluster_.rank(),
            cluster_.size()};
  }

  // Every block's totals to the blocks of the cluster that finish them.
  __device__ void send_totals(Places places) {
#pragma unroll 1
    for (int pair = threadIdx.x; pair < places.count(); pair += kThreads) {
      cluster_.send(pair, reduction_.total(places, pair));
    }
  }

  // With all that this cluster has: `count` pairs of this block, each by one thread.
  template <class After>
  __device__ void finish(Places places, int count) {
    const int cluster = cluster_index(), last = item_.first == 0 ? last_cluster() : cluster;
    const int shift = cluster_.shift();
    const int row = places.row(cluster_.pair(threadIdx.x >> shift));  // of all pairs of a thread
    const ResultRow<T> result(args_, item_.template place<kRows>(args_, min(row, rows_ - 1)));
    if (!cluster_.alone()) cluster_.end();
    const bool alone = kDynamic && last == cluster && item_.first == 0;
    if (alone) return reduction_.template finish<After>(places, result, row < rows_);
    if (last > cluster) await_clusters(last);
    for (int first = 0; first < count << shift; first += kThreads) {
      if (first + warp_index() * kWarpLanes >= count << shift) continue;
      const int turn = (first + static_cast<int>(threadIdx.x)) >> shift;
      const int place = min(turn, count - 1);
      const int pair = cluster_.pair(place);
      Total<2> total = cluster_.alone() ? reduction_.total(places, pair) : cluster_.total(place);
      if (last > cluster) {
        add_left<Layout::kTogether, false>(total, cluster + 1, last, [&](int from) {
          return unpacked(__ldcg(space().pair(from, place)));
        });
      }
      if (turn >= count) continue;
      if (item_.first > 0) {
        *space().pair(cluster, place) = packed(total);
      } else if (row < rows_) {
        result.template take<After>({row, places.depth(pair)}, total);
      }
    }
  }

  // The last of the clusters that have the rest of the work tile.
  __device__ int last_cluster() const {
    if (item_.last >= item_.sequence.key_blocks) return cluster_index();
    return scheduler_.cluster_before(item_.position + item_.sequence.key_blocks);
  }

  // Returns when all up to `last` have left what they have.
  __device__ void await_clusters(int last) const {
    for (int i = cluster_index() + 1 + threadIdx.x; i <= last; i += kThreads) {
      await(space().nonce(i), args_.nonce);
    }
    __syncthreads();
  }

  const Args& args_;
  char* shared_;
  Cluster cluster_;
  Pipeline pipeline_;
  typename Pipeline::Range scheduler_;
  Reduction reduction_;
  WorkItem item_{};
  int key_block_ = 0, rows_ = 0;
  bool more_ = false, started_ = false;
  const char* stage_ = nullptr;
  Queries queries_, resident_;
  Inputs inputs_;
  const T* query_lines_ = nullptr;
};

}  // namespace mirage::tile
