"""The Triton writer: the same tile programs as Triton source, the portable second backend.

Emitted programs run on the CPU under Triton's interpreter (TRITON_INTERPRET=1), so tests execute
them for real. Triton deals work out to warps itself: a statement is one line on whole tiles.
"""

from __future__ import annotations

from collections.abc import Callable

from mirage_kernels.generator.emit.cuda import Kernel, dims_text
from mirage_kernels.generator.emit.writer import WIDTH, Writer
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.program import Do, Layout, Operand, Roles, Statement, TileProgram

_LETTERS = {  # the order of a tile's axes
    Layout.ROWS: "rd",
    Layout.TOKENS: "td",
    Layout.DEPTH: "d",
    Layout.ACCUM: "rt",
    Layout.TOKEN_SUMS: "t",
    Layout.ROW_SUMS: "r",
    Layout.SCALAR: "",
}
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
    "tanh": "2 * tl.sigmoid(2 * {0}) - 1",
    "relu": "tl.maximum({0}, 0)",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "max": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
}
LEAST_DOT = 16  # extents of a Triton dot product's operands


def block_sizes(kernel: Kernel) -> dict[str, int]:
    """Return the tile sizes of the Triton program: powers of two, no smaller than a dot needs."""
    smallest = kernel.variants[0].knobs
    rows = 1 << (smallest.rows.bit_length() - 1)
    return {"rows": max(rows, LEAST_DOT), "tokens": LEAST_DOT, "depth": 128}


def emit_triton(kernel: Kernel) -> str:
    """Return the Triton program of a planned kernel, a Python module with one function to call."""
    writer = Writer(unit="    ")
    kernel.header.write(writer, "#")
    for line in ("", "import torch", "import triton", "import triton.language as tl", ""):
        writer.line(line)
    roles, sizes = kernel.program.roles, block_sizes(kernel)
    for dim in {d.name: d for o in kernel.program.inputs for d in o.type.dims}.values():
        if not dim.dynamic:
            writer.line(f"{dim.name} = {dim.size}")
    for name, dim_name in _block_names(roles.rows, roles.tokens, roles.depth).items():
        writer.line(f"{dim_name} = {sizes[name]}")
    writer.line()
    writer.line()
    _device(writer, kernel)
    writer.line()
    writer.line()
    _host(writer, kernel)
    return writer.text()


def _block_names(rows: str, tokens: str, depth: str) -> dict[str, str]:
    return {"rows": f"BLOCK_{rows}", "tokens": f"BLOCK_{tokens}", "depth": f"BLOCK_{depth}"}


def _index(program: TileProgram, letter: str) -> str:
    return _word(program.roles, letter).lower()


def _device(writer: Writer, kernel: Kernel) -> None:
    program, roles = kernel.program, kernel.program.roles
    blocks = _block_names(roles.rows, roles.tokens, roles.depth)
    statics = [f"{n}: tl.constexpr" for n in (roles.rows, roles.depth, *blocks.values())]
    tensors = [f"{o.name}_ptr" for o in (*program.inputs, program.output)]
    strides = [f"{o.name}_stride" for o in _strided(program)]
    writer.line("@triton.jit")
    arguments = [*tensors, roles.tokens, *strides, *program.scalars, *statics]
    writer.call(f"def _{program.recipe}(", arguments, "):")
    writer.depth += 1
    _body(writer, kernel)
    writer.depth -= 1


def _body(writer: Writer, kernel: Kernel) -> None:
    program, roles = kernel.program, kernel.program.roles
    blocks = _block_names(roles.rows, roles.tokens, roles.depth)
    for axis, letter in enumerate("rt"):
        index, block = _index(program, letter), blocks[("rows", "tokens")[axis]]
        writer.line(f"{index} = tl.program_id({axis}) * {block} + tl.arange(0, {block})")
    for s in program.accumulators:
        shape = ", ".join(_block_of(program, c) for c in _LETTERS[s.layout])
        comma = "," if len(_LETTERS[s.layout]) == 1 else ""
        writer.line(f"{s.out} = tl.zeros(({shape}{comma}), tl.float32)")
    d = _index(program, "d")
    with writer.block(f"for {d}0 in range(0, {roles.depth}, {blocks['depth']}):", ""):
        writer.line(f"{d} = {d}0 + tl.arange(0, {blocks['depth']})")
        for s in program.loop:
            _statement(writer, s, program)
    for s in program.epilogue:
        _statement(writer, s, program)


def _statement(writer: Writer, s: Statement, program: TileProgram) -> None:
    dims = f"  # {dims_text(_names(s, program))}"
    if s.do in (Do.LOAD, Do.READ):
        writer.call(f"{s.out} = tl.load(", _load(s, program), f"){dims}")
    elif s.do is Do.STORE:
        writer.call("tl.store(", _store(s, program), f"){dims}")
    else:
        *before, last = _LINES[s.do](s, program)
        for line in before:
            _assignment(writer, line)
        writer.line(last + dims)


def _assignment(writer: Writer, line: str) -> None:
    """Write an assignment, in parentheses on a line of its own if it is too long."""
    if len(writer.unit) * writer.depth + len(line) <= WIDTH:
        writer.line(line)
        return
    left, _, right = line.partition(" = ")
    with writer.block(f"{left} = (", ")"):
        writer.line(right)


def _names(s: Statement, program: TileProgram) -> list[str]:
    return [_word(program.roles, c) for c in _LETTERS[s.layout]]


def _block_of(program: TileProgram, letter: str) -> str:
    roles = program.roles
    names = _block_names(roles.rows, roles.tokens, roles.depth)
    return names[{"r": "rows", "t": "tokens", "d": "depth"}[letter]]


def _strided(program: TileProgram) -> list[Operand]:
    names = {s.args[0] for s in program.loads if s.layout is Layout.TOKENS}
    return [o for o in program.inputs if o.name in names]


def _expanded(name: str, own: str, wanted: str) -> str:
    """Return a value indexed so that it broadcasts to the axes `wanted`: `root[None, :]`."""
    if own == wanted or not own:
        return name
    return f"{name}[{', '.join(':' if c in own else 'None' for c in wanted)}]"


def _letters_of(name: str, program: TileProgram) -> str:
    statements = (*program.loop, *program.epilogue)
    return next((_LETTERS[s.layout] for s in statements if s.out == name), "")


def _is_stored(name: str, program: TileProgram) -> bool:
    return any(s.out == name and s.dtype is not DType.FP32 for s in program.loop)


def _load(s: Statement, program: TileProgram) -> list[str]:
    letters = _LETTERS[s.layout]
    operand = s.args[0]
    stride = f"{operand}_stride" if s.layout is Layout.TOKENS else program.roles.depth
    place = [f"{operand}_ptr"]
    limits = []
    for letter in letters:
        index = _expanded(_index(program, letter), letter, letters)
        place.append(f"{index} * {stride}" if letter != letters[-1] else index)
        limit = f"{index} < {_word(program.roles, letter)}"
        limits.append(f"({limit})" if len(letters) > 1 else limit)
    return [" + ".join(place), f"mask={' & '.join(limits)}", "other=0.0"]


def _map(s: Statement, program: TileProgram) -> list[str]:
    """Return an elementwise op's lines: computed in fp32, rounded once if stored narrow."""
    if s.op not in _ELEMENTWISE:
        raise PlanError(f"the Triton vocabulary has no op {s.op!r} yet")
    args = []
    for name in s.args:
        wide = f"{name}.to(tl.float32)" if _is_stored(name, program) else name
        text = program.literals.get(name, wide)
        args.append(_expanded(text, _letters_of(name, program), _LETTERS[s.layout]))
    made = _ELEMENTWISE[s.op].format(*args)
    if s.dtype is DType.FP32:
        return [f"{s.out} = {made}"]
    narrow = f"{program.inputs[0].name}_ptr.dtype.element_ty"
    return [f"{s.out}_wide = {made}", f"{s.out} = {s.out}_wide.to({narrow})"]


def _contract(s: Statement, program: TileProgram) -> list[str]:
    return [f"{s.out} += tl.dot({s.args[0]}, tl.trans({s.args[1]}))"]


def _sum(s: Statement, program: TileProgram) -> list[str]:
    return [f"{s.out} += tl.sum({s.args[0]}, axis=1)"]


def _total(s: Statement, program: TileProgram) -> list[str]:
    return [f"{s.out} = {s.args[0]}"]


def _store(s: Statement, program: TileProgram) -> list[str]:
    roles = program.roles
    row, token = (_expanded(_index(program, c), c, "rt") for c in "rt")
    name = program.output.name
    return [
        f"{name}_ptr + {token} * {roles.rows} + {row}",
        f"{s.args[0]}.to({name}_ptr.dtype.element_ty)",
        f"mask=({row} < {roles.rows}) & ({token} < {roles.tokens})",
    ]


_LINES: dict[Do, Callable[[Statement, TileProgram], list[str]]] = {
    Do.MAP: _map,
    Do.CONTRACT: _contract,
    Do.SUM: _sum,
    Do.TOTAL: _total,
}


def _host(writer: Writer, kernel: Kernel) -> None:
    program, roles = kernel.program, kernel.program.roles
    (first,) = (s.args[0] for s in program.loads if s.layout is Layout.TOKENS)
    typed = [f"{o.name}: torch.Tensor" for o in program.inputs]
    arguments = [*typed, *(f"{s}: float" for s in program.scalars)]
    writer.call(f"def {program.recipe}(", arguments, ") -> torch.Tensor:")
    writer.depth += 1
    writer.line(f'"""Return {program.output.name} {dims_text(program.output.type.names)}."""')
    writer.line(f"{roles.tokens} = {first}.shape[0]")
    shape = ", ".join(program.output.type.names)
    writer.line(f"out = torch.empty({shape}, dtype={first}.dtype, device={first}.device)")
    grid = ", ".join(f"triton.cdiv({_word(roles, c)}, {_block_of(program, c)})" for c in "rt")
    writer.line(f"grid = ({grid})")
    passed = [o.name for o in program.inputs] + ["out", roles.tokens]
    passed += [f"{o.name}.stride(0)" for o in _strided(program)] + list(program.scalars)
    passed += [roles.rows, roles.depth]
    passed += _block_names(roles.rows, roles.tokens, roles.depth).values()
    writer.call(f"_{program.recipe}[grid](", passed, ")")
    writer.line("return out")
    writer.depth -= 1


def _word(roles: Roles, letter: str) -> str:
    return {"r": roles.rows, "t": roles.tokens, "d": roles.depth}[letter]
