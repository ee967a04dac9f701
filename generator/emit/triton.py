"""The Triton writer: the same tile programs as Triton source, the portable second backend.

Emitted programs run on the CPU under Triton's interpreter (TRITON_INTERPRET=1), so tests execute
them for real. Triton deals work out to warps itself: a statement is one line on whole tiles.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from mirage_kernels.generator.emit.names import dims_text, statics
from mirage_kernels.generator.emit.part import KernelSource
from mirage_kernels.generator.emit.writer import WIDTH, Writer
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.program import Do, Layout, Operand, Statement, TileProgram

_LETTERS = {  # the order of a tile's axes
    Layout.ROWS: "rd",
    Layout.TOKENS: "td",
    Layout.DEPTH: "d",
    Layout.ACCUM: "rt",
    Layout.TOKEN_SUMS: "t",
    Layout.ROW_SUMS: "r",
    Layout.SCALAR: "",
    Layout.INNER: "id",
    Layout.INNER_ACCUM: "it",
    Layout.FACTORS: "ri",
    Layout.LINE: "tw",
    Layout.LINE_VECTOR: "w",
}
Axes = tuple[str, ...]  # dims of a tile, in order
_ELEMENTWISE = {
    "neg": "-{0}",
    "exp": "tl.exp({0})",
    "log": "tl.log({0})",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "tl.rsqrt({0})",
    "square": "{0} * {0}",
    "sigmoid": "tl.sigmoid({0})",
    "silu": "{0} * tl.sigmoid({0})",
    "gelu": "0.5 * {0} * (1 + tl.erf({0} * 0.7071067811865476))",
    "gelu_tanh": "{0} * tl.sigmoid({0} * (1.59576912 + 0.0713548163 * {0} * {0}))",
    "tanh": "2 * tl.sigmoid(2 * {0}) - 1",
    "relu": "tl.maximum({0}, 0)",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "max": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
}
LEAST_DOT = 16  # extents of a Triton dot product's operands
ROWS, DEPTH = 32, 128  # of a program's tile of weights
PIECE = 1024  # elements of a token that a program of an elementwise kernel takes
_INDENT = 8  # of a formula that has lines of its own
WHOLE = "_whole"  # behind the name of a dim that lines have whole


def block_sizes(program: TileProgram) -> dict[str, str]:
    """Return the tile sizes of the Triton program: powers of two, no smaller than a dot needs."""
    roles = program.roles
    sizes = {roles.tokens: "1"}
    if program.loop:
        sizes = {roles.rows: str(ROWS), roles.tokens: str(LEAST_DOT), roles.depth: str(DEPTH)}
    sizes |= {dim: f"max(triton.next_power_of_2({dim}), {LEAST_DOT})" for dim in roles.inner}
    whole = f"triton.next_power_of_2({roles.depth})"
    whole = f"min({whole}, {PIECE})" if program.parted else whole
    return sizes | ({roles.depth + WHOLE: whole} if program.lines else {})


def emit_triton(kernel: KernelSource[TileProgram]) -> str:
    """Return the Triton program of a planned kernel, a Python module with one function to call.

    The function takes static extents from its tensors: one program serves all shapes of the form.
    """
    writer, schedule = Writer(unit="    "), "a program per tile of the result, of any shape."
    kernel.header.of_form(schedule, ("Formula",)).write(writer, "#")
    for line in ("", "import torch", "import triton", "import triton.language as tl", "", ""):
        writer.line(line)
    _device(writer, kernel)
    writer.line()
    writer.line()
    _host(writer, kernel)
    return writer.text()


def _block(dim: str) -> str:
    return f"BLOCK_{dim}"


def _axes(s: Statement, program: TileProgram) -> Axes:
    """Return the dims of a statement's tile."""
    roles, inner = program.roles, program.roles.inner_of(s.type)
    words = {"r": roles.rows, "t": roles.tokens, "d": roles.depth}
    words |= {"i": inner.name if inner else "", "w": roles.depth + WHOLE}
    return tuple(words[c] for c in _LETTERS[s.layout])


def _constants(program: TileProgram) -> list[str]:
    """Return the compile-time constants: static extents, then the tile sizes."""
    roles = program.roles
    whole = [roles.depth + WHOLE] if program.lines else []
    if not program.loop:
        return [roles.depth, *(_block(d) for d in (roles.tokens, *whole))]
    extents = [roles.rows, roles.depth, *roles.inner]
    cut = (roles.rows, roles.tokens, roles.depth, *roles.inner, *whole)
    return extents + [_block(d) for d in cut]


def _device(writer: Writer, kernel: KernelSource[TileProgram]) -> None:
    program = kernel.program
    statics = [f"{n}: tl.constexpr" for n in _constants(program)]
    tensors = [f"{o.name}_ptr" for o in (*program.inputs, *program.results)]
    strides = [f"{o.name}_stride" for o in _strided(program)]
    writer.line("@triton.jit")
    arguments = [*tensors, program.roles.tokens, *strides, *program.scalars, *statics]
    writer.call(f"def _{program.recipe}(", arguments, "):")
    writer.depth += 1
    _body(writer, program)
    writer.depth -= 1


def _body(writer: Writer, program: TileProgram) -> None:
    roles = program.roles
    cut = (roles.rows, roles.tokens) if roles.rows else (roles.tokens,)
    whole = (roles.depth + WHOLE,) if program.lines else ()
    cut, whole = ((*cut, *whole), ()) if program.parted else (cut, whole)
    for axis, dim in enumerate(cut):
        block = _block(dim)
        # int64: a number of rows times a stride may be too large for int32.
        first = f"tl.program_id({axis}).to(tl.int64) * {block}"
        writer.line(f"{dim.lower()} = {first} + tl.arange(0, {block})")
    for dim in (*roles.inner, *whole):
        writer.line(f"{dim.lower()} = tl.arange(0, {_block(dim)})")
    for s in program.lines:
        _statement(writer, s, program)
    if not program.loop:
        return
    for s in program.accumulators:
        axes = _axes(s, program)
        shape = ", ".join(_block(dim) for dim in axes)
        comma = "," if len(axes) == 1 else ""
        writer.line(f"{s.out} = tl.zeros(({shape}{comma}), tl.float32)")
    d, block = roles.depth.lower(), _block(roles.depth)
    with writer.block(f"for {d}0 in range(0, {roles.depth}, {block}):", ""):
        writer.line(f"{d} = {d}0 + tl.arange(0, {block})")
        for s in program.loop:
            _statement(writer, s, program)
    for s in _after(program):
        _statement(writer, s, program)


def _after(program: TileProgram) -> list[Statement]:
    """Return what follows the loop, each value once: stages and the epilogue may share some."""
    staged = [s for stage in program.stages for s in stage.statements]
    every = [*program.fetches, *staged, *program.products, *program.epilogue]
    once = {s.out: s for s in every if s.args != (s.out,) and not _is_kept(s, program)}
    return list(once.values())


def _is_kept(s: Statement, program: TileProgram) -> bool:
    """Say whether a statement keeps or reads a token's number, which is at hand here."""
    kept = {k.out for k in program.statistics}
    return s.out in kept or (s.do is Do.READ and s.args[0] in kept)


def _statement(writer: Writer, s: Statement, program: TileProgram) -> None:
    if _is_kept(s, program):
        return
    dims = f"  # {dims_text(s.type.names if s in program.lines else _axes(s, program))}"
    if s.do in (Do.LOAD, Do.READ, Do.FETCH):
        _fitted(writer, f"{s.out} = tl.load(", _load(s, program), f"){dims}")
    elif s.do is Do.STORE:
        if s in program.loop:  # all programs of these tokens compute it: one stores it
            step = f"{program.roles.depth.lower()} // {_block(program.roles.depth)}"
            writer.line(f"mine = {step} % tl.num_programs(0) == tl.program_id(0)")
        _fitted(writer, "tl.store(", _store(s, program), f"){dims}")
    else:
        lines = _LINES[s.do](s, program)
        if len(lines[-1] + dims) <= writer.room:
            lines[-1] += dims
        for line in lines:
            _assignment(writer, line)


def _fitted(writer: Writer, opening: str, arguments: Sequence[str], closing: str) -> None:
    """Write a call in one line, in three, or with an argument per line, as ruff does."""
    inside = ", ".join(arguments)
    if len(opening + inside + closing) <= writer.room:
        writer.line(opening + inside + closing)
    elif len(writer.unit + inside) <= writer.room:
        with writer.block(opening, closing):
            writer.line(inside)
    else:
        writer.call(opening, arguments, closing)


def _assignment(writer: Writer, line: str) -> None:
    """Write an assignment; if it is too long, as ruff breaks it: in the call, or in parentheses."""
    if len(line) <= writer.room:
        return writer.line(line)
    left, _, right = line.partition("= ")
    name, _, arguments = right.partition("(")
    made = ast.parse(right, mode="eval").body
    if isinstance(made, ast.Call) and ast.unparse(made.func) == name:
        return _fitted(writer, f"{left}= {name}(", arguments[:-1].split(", "), ")")
    return _fitted(writer, f"{left}= (", right.split(", "), ")")


_BY_TOKEN = (Layout.TOKENS, Layout.LINE, Layout.ACCUM)  # tensors with a row per token


def _strided(program: TileProgram) -> list[Operand]:
    given = [s for s in (*program.loads, *program.lines) if s.do is Do.LOAD]
    given += [s for s in program.epilogue if s.do is Do.READ]
    names = {s.args[0] for s in given if s.layout in _BY_TOKEN}
    return [o for o in program.inputs if o.name in names]


def _expanded(name: str, own: Sequence[str], wanted: Axes) -> str:
    """Return a value indexed so that it broadcasts to the axes `wanted`: `root[None, :]`."""
    # Broadcasting puts axes in front.
    if not own or tuple(own) == (wanted[-len(own) :] if name.isidentifier() else wanted):
        return name
    return f"{name}[{', '.join(':' if dim in own else 'None' for dim in wanted)}]"


def _axes_of(name: str, program: TileProgram) -> Axes:
    statements = (*program.lines, *program.loop, *_after(program))
    return next((_axes(s, program) for s in statements if s.out == name), ())


def _is_stored(name: str, program: TileProgram) -> bool:
    statements = (*program.lines, *program.loop)
    return any(s.out == name and s.dtype is not DType.FP32 for s in statements)


def _load(s: Statement, program: TileProgram) -> list[str]:
    axes = _axes(s, program)
    operand = s.args[0]
    fast = axes[0] if s.layout is Layout.ACCUM else axes[-1]
    stride = f"{operand}_stride" if s.layout in _BY_TOKEN else fast
    place = [f"{operand}_ptr"]
    limits = []
    for dim in axes:
        index = _expanded(dim.lower(), (dim,), axes)
        place.append(f"{index} * {stride}" if dim != fast else index)
        limit = f"{index} < {dim.removesuffix(WHOLE)}"
        limits.append(f"({limit})" if len(axes) > 1 else limit)
    return [" + ".join(place), f"mask={' & '.join(limits)}", "other=0.0"]


def _map(s: Statement, program: TileProgram) -> list[str]:
    """Return an elementwise op's lines: computed in fp32, rounded once if stored narrow."""
    if s.op not in _ELEMENTWISE:
        raise PlanError(f"the Triton vocabulary has no op {s.op!r} yet")
    args = []
    for name in s.args:
        wide = f"{name}.to(tl.float32)" if _is_stored(name, program) else name
        text = program.literals.get(name, wide)
        args.append(_expanded(text, _axes_of(name, program), _axes(s, program)))
    made, before = _ELEMENTWISE[s.op].format(*args), []
    if len(s.args) == 1 and _is_stored(s.args[0], program) and len(made) > WIDTH - _INDENT:
        # Converted once, under a short name, so that the formula fits a line.
        before, made = [f"wide = {args[0]}"], _ELEMENTWISE[s.op].format("wide")
    if s.dtype is DType.FP32:
        return [*before, f"{s.out} = {made}"]
    return [*before, f"{s.out}_wide = {made}", f"{s.out} = {s.out}_wide.to({_narrow(program)})"]


def _narrow(program: TileProgram) -> str:
    return f"{program.inputs[0].name}_ptr.dtype.element_ty"


def _contract(s: Statement, program: TileProgram) -> list[str]:
    if s in program.products:
        return [f"{s.out} = tl.dot({s.args[0]}, {s.args[1]})"]
    return [f"{s.out} += tl.dot({s.args[0]}, tl.trans({s.args[1]}))"]


def _sum(s: Statement, program: TileProgram) -> list[str]:
    if s not in program.lines:
        return [f"{s.out} += tl.sum({s.args[0]}, axis=1)"]
    depth = program.roles.depth
    inside = _expanded((depth + WHOLE).lower(), (depth + WHOLE,), _axes_of(s.args[0], program))
    wide = f"{s.args[0]}.to(tl.float32)" if _is_stored(s.args[0], program) else s.args[0]
    terms = f"tl.where({inside} < {depth}, {wide}, 0.0)"
    return [f"{s.out} = tl.sum({terms}, axis={len(_axes_of(s.args[0], program)) - 1})"]


def _store(s: Statement, program: TileProgram) -> list[str]:
    """Return where a tile of a result goes, its value, and the mask."""
    roles, lines, shared = program.roles, s in program.lines, s in program.loop
    axes: Axes = (roles.tokens, roles.depth + WHOLE) if lines else (roles.rows, roles.tokens)
    fast, size = (axes[1], roles.depth) if lines else (roles.rows, roles.rows)
    if shared:
        axes, fast, size = _axes(s, program), roles.depth, roles.depth
    row, token = (_expanded(dim.lower(), (dim,), axes) for dim in (fast, roles.tokens))
    place = f"{{}}_ptr + {token} * {size} + {row}"
    inside = [f"({row} < {size})", f"({token} < {roles.tokens})"]
    if shared:  # a step's tile, by the program that has the step
        mine = _expanded("mine", (roles.depth,), axes)
        return [place.format(s.args[1]), s.args[0], f"mask={' & '.join([*inside[::-1], mine])}"]
    name = s.args[1] if lines else program.output.name
    value = f"{s.args[0]}.to({name}_ptr.dtype.element_ty)"
    return [place.format(name), value, f"mask={' & '.join(inside)}"]


_LINES: dict[Do, Callable[[Statement, TileProgram], list[str]]] = {
    Do.MAP: _map,
    Do.CONTRACT: _contract,
    Do.SUM: _sum,
    Do.TOTAL: lambda s, program: [f"{s.out} = {s.args[0]}"],
    Do.KEEP: lambda s, program: [f"{s.out} = {s.args[0]}.to({_narrow(program)})"],
}


def _host(writer: Writer, kernel: KernelSource[TileProgram]) -> None:
    program, roles = kernel.program, kernel.program.roles
    first = _strided(program)[0].name
    typed = [f"{o.name}: torch.Tensor" for o in program.inputs]
    arguments = [*typed, *(f"{s}: float" for s in program.scalars)]
    returned = ", ".join(["torch.Tensor"] * len(program.results))
    returned = f"tuple[{returned}]" if program.also else returned
    writer.call(f"def {program.recipe}(", arguments, f") -> {returned}:")
    writer.depth += 1
    made = " and ".join(f"{o.name} {dims_text(o.type.names)}" for o in program.results)
    writer.line(f'"""Return {made}."""')
    writer.line(f"{roles.tokens} = {first}.shape[0]")
    for dim in statics(program):
        operand = next(o for o in program.inputs if dim in o.type.names)
        writer.line(f"{dim} = {operand.name}.shape[{operand.type.names.index(dim)}]")
    for dim, size in block_sizes(program).items():
        writer.line(f"{_block(dim)} = {size}")
    for o in program.results:
        shape = ", ".join(o.type.names)
        writer.line(f"{o.name} = torch.empty({shape}, dtype={first}.dtype, device={first}.device)")
    cut = [(d, _block(d)) for d in (roles.rows, roles.tokens) if d]
    cut += [(roles.depth, _block(roles.depth + WHOLE))] if program.parted else []
    grid = ", ".join(f"triton.cdiv({dim}, {block})" for dim, block in cut)
    writer.line(f"grid = ({grid}{',' if len(cut) == 1 else ''})")
    results = [o.name for o in program.results]
    passed = [*(o.name for o in program.inputs), *results, roles.tokens]
    passed += [f"{o.name}.stride(0)" for o in _strided(program)] + list(program.scalars)
    passed += _constants(program)
    writer.call(f"_{program.recipe}[grid](", passed, ")")
    writer.line(f"return {', '.join(results)}")
    writer.depth -= 1
