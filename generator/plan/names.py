"""Names of recipes that emitted kernels would confuse with their own."""

from __future__ import annotations

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.plan.program import TileProgram

# What the text of a kernel (emit/) calls something where a recipe's dims and inputs stand by their
# names, and what C++ reserves but Python does not.
TYPES = "T Block Element Knobs Lines Shared SharedMap Staging Step Steps"
VALUES = (
    "args block box_row boxes compute compute_statistics copy_tokens copy_vectors copy_weights e "
    "find_weights finish first first_k first_row first_token given grid load_lines out_tile "
    "receiver row_tiles shared stamp statistics status steps stream sums token token_tiles"
)
MODULES = ("tl", "torch", "triton")  # of Triton programs
WORDS = (
    "auto bool case catch char const default delete do double enum explicit export extern float "
    "friend goto inline int long mutable namespace new operator private protected public register "
    "short signed sizeof static struct switch template this throw true false typedef typename "
    "union unsigned using virtual void volatile"
)
TAKEN = frozenset(f"{TYPES} {VALUES} {WORDS}".split()) | set(MODULES)


def with_names_of_its_own(program: TileProgram) -> TileProgram:
    """Return the program; raises PlanError for a dim or input with a name that is taken.

    In Triton programs the places along a dim are called like it, in small letters.
    """
    dims, inputs = list(program.extents), [o.name for o in program.inputs]
    places = {d.lower() for d in dims}
    taken = [n for n in (*dims, *inputs, *program.scalars) if n in TAKEN]
    taken += [d for d in dims if d.lower() in MODULES]
    taken += [s for s in program.scalars if s in places]
    if not taken:
        return program
    what = "dim" if taken[0] in dims else "input"
    raise PlanError(
        f"{program.recipe}: emitted kernels have a {taken[0]} of their own",
        f"call the {what} {taken[0]} something else",
    )
