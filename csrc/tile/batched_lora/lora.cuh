// Batched LoRA: stacked weights (adapters), of which each token selects one or none.
//
// The selection is addressing, like pages of a cache: the muGraph gives the mathematics of one
// token with its slices of the stacks. Tokens with the same adapter form groups of up to eight, as
// many as a tensor-core instruction takes; a token begins a group if its rank among the tokens of
// its adapter is a multiple of eight. Ids may come in any order, and the host does not read them.
//
// A call is two launches. In the first, clusters compute the products of x with the tokens' first
// slices (rows that the second grid does not cut): a cluster takes a group and some rows and splits
// the depth over its blocks and their warps. The first launch triggers the second as soon as
// everything before it has ended. The second's blocks stream their weights at once; one warp of
// each waits for the first launch and multiplies each group with its second slice.
#pragma once

#include "tile/batched_lora/consumers.cuh"
#include "tile/batched_lora/producers.cuh"
#include "variants.h"

MIRAGE_KNOB(Slices)
