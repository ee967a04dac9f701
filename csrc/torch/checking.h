// Checking mode: whether calls look at the values of lengths, tables and ids, which costs a wait.
#pragma once

#include "arguments.h"

namespace mirage {

// Where values are no cost to read (the CPU), and everywhere with MIRAGE_KERNELS_CHECK=1.
bool looks_at_values(const Tensor& x);

// Whether MIRAGE_KERNELS_CHECK asked for it.
bool is_checking();

}  // namespace mirage
