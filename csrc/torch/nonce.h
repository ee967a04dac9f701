// A number that memory does not hold by chance, another one at every call.
#pragma once

#include <cstdint>

namespace mirage {

// Kernels of one stream may share memory for their workspaces, and may find there what an earlier
// one left: the nonce tells its own flags from those.
uint64_t next_nonce();

}  // namespace mirage
