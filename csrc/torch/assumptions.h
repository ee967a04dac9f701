// What kernels may assume of a call, as the caller said.
#pragma once

namespace mirage {

// Weights are not written by the kernel just before an op in its stream. Holds for the process,
// false at first; see mirage_kernels.constant_weights.
void set_constant_weights(bool constant);

// Nor are keys and values of earlier tokens, page tables and lengths; see
// mirage_kernels.constant_history.
void set_constant_history(bool constant);
bool constant_history();

// Around calls of this thread with weights that were just computed.
void set_fresh_weights(bool fresh);

// Whether a call of this thread may rely on it.
bool constant_weights();

}  // namespace mirage
