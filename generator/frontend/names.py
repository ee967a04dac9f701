"""Names that emitted files need for themselves: no recipe's inputs and dims may have them."""

from __future__ import annotations

import keyword

# Words of C++ (Python has a list of its own), and names that emitted files have of their own.
_CPP = """
    alignas alignof and_eq asm auto bitand bitor bool case catch char char16_t char32_t char8_t
    co_await co_return co_yield compl concept const const_cast consteval constexpr constinit
    decltype default delete do double dynamic_cast enum explicit export extern false float
    friend goto inline int long mutable namespace new noexcept not_eq nullptr operator or_eq
    private protected public register reinterpret_cast requires short signed sizeof static
    static_assert static_cast struct switch template this thread_local throw true typedef typeid
    typename union unsigned using virtual void volatile wchar_t xor xor_eq
"""
_EMITTED = """
    args block blockDim blockIdx buffer buffers call combine compute compute_statistics copy_tokens
    copy_vectors copy_weights e finish first first_k first_row first_token generated given grid
    gridDim group int32_t int64_t launch launch_after_prologue launch_cluster_split_k
    launch_producers launch_register_operand lines load load_lines maps mirage out out_tile own
    prefetch_weights producer_maps producers producing range receive receiver row_tiles rows shared
    stages statistics status step steps stream sums tag threadIdx tile tile_row tl token token_tiles
    torch triton uint32_t uint64_t warpSize with_knobs work workspace AnyM AnyRows AttentionArgs
    Block Call ClusterSplitKArgs ClusterSplitKBlock ClusterSplitKPlan Clusters Config Consumers
    Element INFINITY Knobs LaunchArgs Lines ProducerBlocks ProducerPlan Producers ProducersBlock
    ProducersPlan RegisterOperandArgs RegisterOperandBlock RegisterOperandMap RegisterOperandPlan
    Rows Shape Shared SharedMap Staging Step Steps Work
"""
TAKEN = frozenset((*keyword.kwlist, *_CPP.split(), *_EMITTED.split()))
ELEMENT = "T"  # emitted files call the storage type so; attention has dynamic dims of that name
MODULES = ("tl", "torch", "triton")  # of Triton programs, where a place along dim M is called m
