// Stacked weights, of which each token has one of its own or none: adapters.
//
// Which one a token has is addressing, as pages of a cache are: what is computed of a token is what
// the muGraph computes, with the token's slices of the stacks. Tokens of equal adapter are gathered
// in tasks of up to eight, as many as a tensor-core instruction takes: a token begins a task if its
// rank among those of its adapter is a multiple of eight. Any order of ids will do, and the host
// knows none of them.
//
// A call is two launches. In the first, clusters make the products of x with the tokens' first
// slices, which are rows that the grid of the second does not cut: a task, some of its rows, the
// depth dealt out to the blocks and their warps. They let the second start as soon as all that came
// before has ended. So its blocks stream their weights at once; one warp of each waits for the
// first launch, and multiplies each task with its second slice.
#pragma once

#include "tile/batched_lora/consumers.cuh"
#include "tile/batched_lora/producers.cuh"
