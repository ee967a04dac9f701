"""The Triton writer: the same tile programs as Triton source, the portable second backend.

Emitted programs run on the CPU under Triton's interpreter (TRITON_INTERPRET=1), so tests execute
them for real. Triton deals work out to warps itself: a statement is one line on whole tiles.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from mirage_kernels.generator.emit.cuda import FORMS, KernelSource, suffixes
from mirage_kernels.generator.emit.statements import ELEMENTWISE, dims_text, statics
from mirage_kernels.generator.emit.writer import WIDTH, Writer
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.program import Do, Layout, Statement, TileProgram

_BY_TOKEN = (Layout.TOKENS, Layout.LINE, Layout.ACCUM)  # tensors with a row per token
_STATEMENTS = {
    Do.CONTRACT: "{out} += tl.dot({0}, tl.trans({1}))",
    Do.SUM: "{out} += tl.sum({0}, axis=1)",
    Do.TOTAL: "{out} = {0}",
    Do.KEEP: "{out} = {0}.to({narrow})",
}
LEAST_DOT = 16  # extents of a Triton dot product's operands
ROWS, DEPTH = 32, 128  # of a program's tile of weights
PIECE = 1024  # elements of a token that a program of an elementwise kernel takes
_INDENT = 8  # of a formula that has lines of its own
WHOLE = "_whole"  # behind the name of a dim that lines have whole
Axes = tuple[str, ...]  # dims of a tile, in order


def emit_triton(kernel: KernelSource[TileProgram]) -> str:
    """Return the Triton program of a planned kernel, a Python module with one function to call.

    The function takes static extents from its tensors: one program serves all shapes of the form.
    """
    made, schedule = _Program(kernel.program), "a program per tile of the result, of any shape."
    made.writer.write(*kernel.header.of_form(schedule, ("Formula",)).lines("#"), "")
    made.writer.write("import torch", "import triton", "import triton.language as tl", "", "")
    made.device()
    made.writer.write("", "")
    made.host()
    return made.writer.text()


def triton_files(kernels: Sequence[KernelSource[TileProgram]]) -> dict[str, str]:
    """Return the Triton programs of all kernels of a recipe by path below the kernels folder."""
    kernels = sorted(kernels, key=lambda kernel: kernel.name)
    texts = {i: emit_triton(kernel) for i, kernel in enumerate(kernels)}
    folders = [f"{FORMS}/{kernel.program.recipe}" for kernel in kernels]
    named = suffixes(kernels, texts).items()
    return {f"{folders[i]}/triton{suffix}.py": texts[i] for i, suffix in named}


def _block(dim: str) -> str:
    return f"BLOCK_{dim}"


def _expanded(name: str, own: Sequence[str], wanted: Axes) -> str:
    """Return a value indexed so that it broadcasts to the axes `wanted`: `root[None, :]`."""
    # Broadcasting puts axes in front.
    if not own or tuple(own) == (wanted[-len(own) :] if name.isidentifier() else wanted):
        return name
    return f"{name}[{', '.join(':' if dim in own else 'None' for dim in wanted)}]"


class _Program:
    """A tile program on its way to Triton source."""

    def __init__(self, program: TileProgram) -> None:
        self.program, self.roles, self.writer = program, program.roles, Writer(unit="    ")
        roles, self.narrow = program.roles, f"{program.inputs[0].name}_ptr.dtype.element_ty"
        self.whole = roles.depth + WHOLE if program.lines else ""
        staged = (s for stage in program.stages for s in stage.statements)
        after = (*program.fetches, *staged, *program.products, *program.epilogue)
        self.lines, self.loop = self.without_kept(program.lines), self.without_kept(program.loop)
        # Stages and the epilogue may share some values.
        once = {s.out: s for s in self.without_kept(after) if s.args != (s.out,)}
        self.after = list(once.values())
        statements = (*self.lines, *self.loop, *self.after)
        self.axes = {s.out: self.axes_of(s) for s in reversed(statements)}
        self.stored = {s.out for s in (*self.lines, *self.loop) if s.dtype is not DType.FP32}
        given = [s for s in (*program.loads, *program.lines) if s.do is Do.LOAD]
        given += [s for s in program.epilogue if s.do is Do.READ]
        by_token = {s.args[0] for s in given if s.layout in _BY_TOKEN}
        self.strided = [o.name for o in program.inputs if o.name in by_token]
        # Tile sizes: powers of two, no smaller than a dot needs.
        self.sizes: dict[str, int | str] = {roles.tokens: 1}
        if program.loop:
            self.sizes = {roles.rows: ROWS, roles.tokens: LEAST_DOT, roles.depth: DEPTH}
        for dim in roles.inner:
            self.sizes[dim] = f"max(triton.next_power_of_2({dim}), {LEAST_DOT})"
        if self.whole:
            size = f"triton.next_power_of_2({roles.depth})"
            self.sizes[self.whole] = f"min({size}, {PIECE})" if program.parted else size
        extents = [d for d in (roles.rows, roles.depth, *roles.inner) if d]
        self.constants = [*extents, *map(_block, self.sizes)]
        cut = (roles.rows, roles.tokens, self.whole if program.parted else "")
        self.grid = [d for d in cut if d]

    def without_kept(self, statements: Iterable[Statement]) -> list[Statement]:
        """Return statements but those that keep or read a token's number, which is at hand."""
        kept = {k.out for k in self.program.statistics}
        names = ((s, {s.out, *(s.args[:1] if s.do is Do.READ else ())}) for s in statements)
        return [s for s, own in names if not own & kept]

    def axes_of(self, s: Statement) -> Axes:
        """Return the dims of a statement's tile."""
        roles, inner = self.roles, self.roles.inner_of(s.type)
        words = {"rows": roles.rows, "tokens": roles.tokens, "depth": roles.depth}
        words |= {"inner": inner.name if inner else "", "whole depth": self.whole}
        return tuple(words[w] for w in s.layout.value.split(" x ") if w != "scalar")

    # The kernel.

    def device(self) -> None:
        """Write the kernel."""
        program, writer = self.program, self.writer
        tensors = [f"{o.name}_ptr" for o in (*program.inputs, *program.results)]
        strides = [f"{name}_stride" for name in self.strided]
        arguments = [*tensors, self.roles.tokens, *strides, *program.scalars]
        arguments += [f"{name}: tl.constexpr" for name in self.constants]
        writer.line("@triton.jit")
        writer.call(f"def _{program.recipe}(", arguments, "):")
        writer.depth += 1
        for axis, dim in enumerate(self.grid):
            # int64: a number of rows times a stride may be too large for int32.
            first = f"tl.program_id({axis}).to(tl.int64) * {_block(dim)}"
            writer.line(f"{dim.lower()} = {first} + tl.arange(0, {_block(dim)})")
        for dim in (*self.roles.inner, self.whole):
            if dim and dim not in self.grid:
                writer.line(f"{dim.lower()} = tl.arange(0, {_block(dim)})")
        self.statements(self.lines)
        if program.loop:
            self.write_loop()
            self.statements(self.after)
        writer.depth -= 1

    def write_loop(self) -> None:
        for s in self.program.accumulators:
            axes = self.axes_of(s)
            shape = ", ".join(map(_block, axes)) + ("," if len(axes) == 1 else "")
            self.writer.line(f"{s.out} = tl.zeros(({shape}), tl.float32)")
        d, block = self.roles.depth.lower(), _block(self.roles.depth)
        with self.writer.block(f"for {d}0 in range(0, {self.roles.depth}, {block}):", ""):
            self.writer.line(f"{d} = {d}0 + tl.arange(0, {block})")
            self.statements(self.loop)

    def statements(self, statements: Sequence[Statement]) -> None:
        """Write statements, each with the dims of its result."""
        for s in statements:
            dims = f"  # {dims_text(s.type.names if s in self.lines else self.axes_of(s))}"
            if s.do in (Do.LOAD, Do.READ, Do.FETCH):
                self.fitted(f"{s.out} = tl.load(", self.load(s), f"){dims}")
            elif s.do is Do.STORE:
                if s in self.loop:  # all programs of these tokens compute it: one stores it
                    step = f"{self.roles.depth.lower()} // {_block(self.roles.depth)}"
                    self.writer.line(f"mine = {step} % tl.num_programs(0) == tl.program_id(0)")
                self.fitted("tl.store(", self.store(s), f"){dims}")
            else:
                *before, last = self.computed(s)
                last += dims if len(last + dims) <= self.writer.room else ""
                for line in (*before, last):
                    self.assignment(line)

    def fitted(self, opening: str, arguments: Sequence[str], closing: str) -> None:
        """Write a call in one line, in three, or with an argument per line, as ruff does."""
        inside, writer = ", ".join(arguments), self.writer
        if len(opening + inside + closing) <= writer.room:
            writer.line(opening + inside + closing)
        elif len(writer.unit + inside) <= writer.room:
            with writer.block(opening, closing):
                writer.line(inside)
        else:
            writer.call(opening, arguments, closing)

    def assignment(self, line: str) -> None:
        """Write an assignment; a long one is broken in its call, or in parentheses, as by ruff."""
        left, _, right = line.partition("= ")
        name, _, arguments = right.partition("(")
        made = ast.parse(right, mode="eval").body
        if len(line) <= self.writer.room:
            self.writer.line(line)
        elif isinstance(made, ast.Call) and ast.unparse(made.func) == name:
            self.fitted(f"{left}= {name}(", arguments[:-1].split(", "), ")")
        else:
            self.fitted(f"{left}= (", right.split(", "), ")")

    # Statements.

    def load(self, s: Statement) -> list[str]:
        """Return where a tile of an input lies, and its mask."""
        axes, operand = self.axes_of(s), s.args[0]
        fast = axes[0] if s.layout is Layout.ACCUM else axes[-1]
        stride = f"{operand}_stride" if s.layout in _BY_TOKEN else fast
        place, limits = [f"{operand}_ptr"], []
        for dim in axes:
            index = _expanded(dim.lower(), (dim,), axes)
            place.append(f"{index} * {stride}" if dim != fast else index)
            limit = f"{index} < {dim.removesuffix(WHOLE)}"
            limits.append(f"({limit})" if len(axes) > 1 else limit)
        return [" + ".join(place), f"mask={' & '.join(limits)}", "other=0.0"]

    def store(self, s: Statement) -> list[str]:
        """Return where a tile of a result goes, its value, and the mask."""
        axes, tokens, shared = self.axes_of(s), self.roles.tokens, s in self.loop
        fast = next(dim for dim in axes if dim != tokens)
        size = fast.removesuffix(WHOLE)
        row, token = (_expanded(dim.lower(), (dim,), axes) for dim in (fast, tokens))
        inside = [f"({row} < {size})", f"({token} < {tokens})"]
        if shared:  # a step's tile, by the program that has the step
            inside = [*inside[::-1], _expanded("mine", (fast,), axes)]
        name = s.args[1] if shared or s in self.lines else self.program.output.name
        value = s.args[0] if shared else f"{s.args[0]}.to({name}_ptr.dtype.element_ty)"
        return [f"{name}_ptr + {token} * {size} + {row}", value, f"mask={' & '.join(inside)}"]

    def computed(self, s: Statement) -> list[str]:
        """Return the lines of a statement that computes."""
        if s.do is Do.MAP:
            return self.map(s)
        text = "{out} = tl.dot({0}, {1})" if s in self.program.products else _STATEMENTS[s.do]
        if s.do is Do.SUM and s in self.lines:
            own = self.axes[s.args[0]]
            inside = _expanded(self.whole.lower(), (self.whole,), own)
            terms = f"tl.where({inside} < {self.roles.depth}, {self.wide(s.args[0])}, 0.0)"
            text = f"{{out}} = tl.sum({terms}, axis={len(own) - 1})"
        return [text.format(*s.args, out=s.out, narrow=self.narrow)]

    def map(self, s: Statement) -> list[str]:
        """Return an elementwise op's lines: computed in fp32, rounded once if stored narrow."""
        if s.op not in ELEMENTWISE:
            raise PlanError(f"the Triton vocabulary has no op {s.op!r} yet")
        text, axes, args = ELEMENTWISE[s.op], self.axes_of(s), []
        for name in s.args:
            value = self.program.literals.get(name, self.wide(name))
            args.append(_expanded(value, self.axes.get(name, ()), axes))
        made, before = text.format(*args), []
        if len(args) == 1 and s.args[0] in self.stored and len(made) > WIDTH - _INDENT:
            # Converted once, under a short name, so that the formula fits a line.
            before, made = [f"wide = {args[0]}"], text.format("wide")
        if s.dtype is DType.FP32:
            return [*before, f"{s.out} = {made}"]
        return [*before, f"{s.out}_wide = {made}", f"{s.out} = {s.out}_wide.to({self.narrow})"]

    def wide(self, name: str) -> str:
        return f"{name}.to(tl.float32)" if name in self.stored else name

    # What callers see.

    def host(self) -> None:
        """Write the function that allocates the results and launches the kernel."""
        program, writer, tokens = self.program, self.writer, self.roles.tokens
        inputs, results = [o.name for o in program.inputs], [o.name for o in program.results]
        arguments = [f"{name}: torch.Tensor" for name in inputs]
        arguments += [f"{s}: float" for s in program.scalars]
        returned = ", ".join(["torch.Tensor"] * len(results))
        returned = f"tuple[{returned}]" if program.also else returned
        writer.call(f"def {program.recipe}(", arguments, f") -> {returned}:")
        writer.depth += 1
        made = " and ".join(f"{o.name} {dims_text(o.type.names)}" for o in program.results)
        first = self.strided[0]
        writer.write(f'"""Return {made}."""', f"{tokens} = {first}.shape[0]")
        for dim in statics(program):
            operand = next(o for o in program.inputs if dim in o.type.names)
            writer.line(f"{dim} = {operand.name}.shape[{operand.type.names.index(dim)}]")
        writer.write(*(f"{_block(dim)} = {size}" for dim, size in self.sizes.items()))
        kind = f"dtype={first}.dtype, device={first}.device"
        for o in program.results:
            writer.line(f"{o.name} = torch.empty({', '.join(o.type.names)}, {kind})")
        cut = (f"triton.cdiv({dim.removesuffix(WHOLE)}, {_block(dim)})" for dim in self.grid)
        writer.line(f"grid = ({', '.join(cut)}{',' if len(self.grid) == 1 else ''})")
        strides = [f"{name}.stride(0)" for name in self.strided]
        passed = [*inputs, *results, tokens, *strides, *program.scalars, *self.constants]
        writer.call(f"_{program.recipe}[grid](", passed, ")")
        writer.line(f"return {', '.join(results)}")
        writer.depth -= 1
