"""The question whether this build serves a call, asked before it is made."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Collection, Mapping
from numbers import Integral
from typing import SupportsIndex, TypeGuard

import torch

from mirage_kernels.dispatch import DTYPE_NAMES, kernel_table
from mirage_kernels.errors import question_sentence
from mirage_kernels.signatures import SLICES, TOKENS, Signature, signatures

# Ops that are called by another name.
_ALIASES = {"gqa_csr": "gqa", "rope_append": "qk_norm_rope_append"}
# Dims of attention that kernels leave open.
_OPEN_DIMS = frozenset({"B", "L", "Hkv", "G", "Hq"})
_QUERY_TOKENS = "T"  # of a sequence
_HEAD_SIZE_STEP = 8  # the compiled ops refuse other sizes of heads
# Kernels that no recipe makes, and the sizes that they are for.
_HAND_WRITTEN = {"qk_norm_rope_append": {"D": (64, 96, 128, 192, 256)}}
# Options of ops whose parameters are their own, by the name of the parameter.
_OWN_OPTIONS = frozenset(
    {"seq_lens", "cu_seqlens_q", "sinks", "causal", "window_left", "logits_soft_cap", "norm"}
    | {"q_bias", "k_bias", "weight_offset", "rope"}
)
_WORDS = {"activation": "silu", "norm": "rms", "rope": "neox"}  # options that choose
_WORKS = {
    "activation": ("silu", "gelu", "gelu_tanh", "relu"),
    "norm": ("rms", "layer"),
    "rope": ("neox", "interleaved"),
}
_NEVER = -1


def supports(
    op: str,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | int | None = None,
    **asked: object,
) -> bool:
    """Say whether a call runs as this library means it to run.

    That means, for every op: on a GPU kernels of this build compute all of it, and PyTorch's own
    program computes no part that a kernel is made for; on the CPU PyTorch's program computes it, at
    any size. A call that is not supported raises (static dims that no kernel covers) or runs
    PyTorch's program (more tokens than `max_tokens`, an option that no kernel takes). Without
    `device` the question is about this build, whatever GPU is here.

    `asked` are dims by their letters and options by their names in the call:
    `supports("rms_norm_linear", K=4096, N=6144, M=8, residual=True, dtype=torch.bfloat16)`,
    `supports("gqa", D=128, T=4, window_left=1023)`, `supports("lora_linear", K=4096, N=4096, R=16,
    adapter_ids=True)`. M counts the tokens of the call, T the query tokens of a sequence; an option
    is given where its value is not None, False or 0 (for `window_left`: not negative). What is left
    out is not asked, but for `causal`, which is on by default.

    Raises RuntimeError, in one sentence, for an op, a dim, an option, a word or a type that does
    not exist. Inside of torch.compile the answer is a constant, on which the graph depends, but for
    M and T, which it compares.
    """
    tokens = _count(op, TOKENS, asked.pop(TOKENS, None))
    queries = _count(op, _QUERY_TOKENS, asked.pop(_QUERY_TOKENS, None))
    several = queries is not None and bool(queries > 1)
    takes_queries = queries is not None
    plain = {name: _plain(op, name, value) for name, value in asked.items()}
    most = _most_tokens(op, dtype, device, (several, takes_queries), **plain)
    if most == _NEVER:
        return False
    return most == 0 or tokens is None or bool(tokens <= most)


def _count(op: str, name: str, given: object) -> int | torch.SymInt | None:
    if given is None:
        return None
    if not _is_integer(given) and not _is_other_integer(given):
        raise _not_an_integer(op, name, given)
    count = given if _is_integer(given) else operator.index(given)
    if count < 0:
        raise RuntimeError(question_sentence(op, f"{name} is {count}", "0 or more works"))
    return count


def _is_integer(given: object) -> TypeGuard[int | torch.SymInt]:
    return isinstance(given, int | torch.SymInt) and not isinstance(given, bool)


def _is_other_integer(given: object) -> TypeGuard[SupportsIndex]:
    """Say whether something is an integer of another package, such as NumPy's."""
    return isinstance(given, Integral) and not isinstance(given, bool)


def _plain(op: str, name: str, value: object) -> object:
    """Return what torch.compile can keep as a constant; an open dim's size is not looked at."""
    if name in _OPEN_DIMS or name == SLICES:
        return 1
    if isinstance(value, torch.Tensor):
        if name[:1].isupper():  # a dim, not an option
            raise _not_an_integer(op, name, value)
        return True
    if _is_integer(value) or _is_other_integer(value):
        return operator.index(value)  # while tracing it may be a symbol
    return value


def _most_tokens(
    op: str,
    dtype: torch.dtype | str | None,
    device: torch.device | str | int | None,
    queries: tuple[bool, bool],
    **asked: object,
) -> int:
    """Return up to how many tokens a call is supported: 0 for any number, -1 for none."""
    forms = _forms(op)
    form = _form(forms, asked)
    several, takes_queries = queries
    if takes_queries and form.has_named_dims:
        _refuse_name(op, forms, _QUERY_TOKENS)
    _check_names(op, forms, asked)
    sizes = {name: _size(op, name, asked[name]) for name in sorted(form.static_dims & {*asked})}
    half = _dtype(op, dtype)
    place = _place(op, device)
    recipes = _recipes(form, asked, several=several)
    if not form.has_named_dims and any(size % _HEAD_SIZE_STEP for size in sizes.values()):
        return _NEVER
    if place is not None and place.type == "cpu":
        return 0
    if place is not None and not _runs_on(place):
        return _NEVER
    return _most_of_kernels(recipes, half, sizes)


# What torch.compiler.assume_constant_result does, which loads torch._dynamo: two seconds at import.
vars(_most_tokens)["_dynamo_marked_constant"] = True


def _forms(op: str) -> tuple[Signature, ...]:
    """Return the overloads of an op."""
    name = _ALIASES.get(op, op) if isinstance(op, str) else op
    found = tuple(s for s in signatures() if s.op == name)
    if found:
        return found
    known = sorted({s.op for s in signatures()} | {*_ALIASES})
    raise RuntimeError(question_sentence("", f"op is {op!r}", _nearest(op, known)))


def _form(forms: tuple[Signature, ...], asked: Mapping[str, object]) -> Signature:
    """Return the overload that takes the options; how weights lie asks for no other kernel."""
    given = {name for name, value in asked.items() if _is_given(name, value)}
    unpacked = [s for s in forms if not s.overload.startswith("packed")]
    for form in unpacked:
        if not given & ({"residual", "adapter_ids"} - {p.name for p in form.parameters}):
            return form
    return unpacked[0]


def _is_given(name: str, value: object) -> bool:
    if name == "window_left":
        return isinstance(value, int) and value >= 0
    return value is not None and value is not False and value != 0


def _options(forms: tuple[Signature, ...]) -> set[str]:
    """Return the names of what calls of an op may leave out."""
    first = {p.name for p in forms[0].parameters}
    if not forms[0].has_named_dims:
        return {*_OWN_OPTIONS} & first
    schema = getattr(torch.ops.mirage_kernels, forms[0].op).default._schema
    optional = {a.name for a in schema.arguments if a.has_default_value() and not a.kwarg_only}
    more = {p.name for form in forms for p in form.parameters} - first - {"gate_up_weight"}
    return optional | more | (first & {*_WORDS})


def _dims(forms: tuple[Signature, ...]) -> set[str]:
    letters = {letter for form in forms for letter in form.static_dims} | {TOKENS}
    if not forms[0].has_named_dims:
        return letters | _OPEN_DIMS | {_QUERY_TOKENS}
    return letters | {a.letter for form in forms for p in form.parameters for a in p.axes}


def _check_names(op: str, forms: tuple[Signature, ...], asked: Mapping[str, object]) -> None:
    for name in asked:
        if name not in _dims(forms) | _options(forms):
            _refuse_name(op, forms, name)
    for name in _WORDS.keys() & asked.keys():
        if asked[name] not in _WORKS[name]:
            works = _nearest(asked[name], _WORKS[name])
            raise RuntimeError(question_sentence(op, f"{name} is {asked[name]!r}", works))


def _refuse_name(op: str, forms: tuple[Signature, ...], name: str) -> None:
    works = _nearest(name, [*sorted(_dims(forms)), *sorted(_options(forms))])
    raise RuntimeError(question_sentence(op, f"it has no dim and no option {name!r}", works))


def _nearest(given: object, known: Collection[str]) -> str:
    """Say which of the known names is nearest, and what they are."""
    names = ", ".join(known)
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(given).lower(), lowered, n=1)
    return f"{lowered[near[0]]!r} is the nearest of {names}" if near else f"one of {names} works"


def _size(op: str, name: str, size: object) -> int:
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    raise _not_an_integer(op, name, size)


def _not_an_integer(op: str, name: str, given: object) -> RuntimeError:
    what = "a tensor" if isinstance(given, torch.Tensor) else repr(given)
    return RuntimeError(question_sentence(op, f"{name} is {what}", "an integer works"))


def _dtype(op: str, dtype: object) -> str | None:
    known = isinstance(dtype, torch.dtype | str) and dtype in DTYPE_NAMES
    if dtype is None or known:
        return DTYPE_NAMES.get(dtype)
    works = "torch.float16 and torch.bfloat16 work, or their names"
    raise RuntimeError(question_sentence(op, f"dtype is {dtype!r}", works))


def _place(op: str, device: torch.device | str | int | None) -> torch.device | None:
    """Return a device; None where none is meant."""
    try:
        given = ("cuda", device) if isinstance(device, int) else (device,)
        return None if device is None else torch.device(*given)
    except (RuntimeError, TypeError):
        works = "a torch.device works, its name, or the number of a GPU"
        raise RuntimeError(question_sentence(op, f"device is {device!r}", works)) from None


def _recipes(form: Signature, asked: Mapping[str, object], *, several: bool) -> tuple[str, ...]:
    """Return the recipes whose kernels serve such calls."""
    given = {name: _is_given(name, asked.get(name)) for name in _OWN_OPTIONS}
    takes_norm = any(parameter.name == "norm" for parameter in form.parameters)
    norm = str(asked.get("norm", "rms")) if takes_norm else ""
    if form.op in _HAND_WRITTEN:
        return (form.op,)
    if not form.has_named_dims:
        causal = _is_given("causal", asked.get("causal", True))
        mask = (causal, given["window_left"], given["logits_soft_cap"], given["weight_offset"])
        found = torch.ops.mirage_kernels._attention_recipe(form.op, norm, several, *mask)
        return (found,) if found else ()
    word = str(asked.get("activation", "silu"))
    recipe: str = torch.ops.mirage_kernels._recipe_of(form.op, word)
    ending = f"_{form.overload}" if form.overload else ""
    if form.only_own:
        return (recipe + ending,)
    return (recipe + ending, recipe, f"{recipe}_full")  # the last has the options as inputs


def _most_of_kernels(recipes: tuple[str, ...], dtype: str | None, sizes: Mapping[str, int]) -> int:
    by_hand = [_HAND_WRITTEN[recipe] for recipe in recipes if recipe in _HAND_WRITTEN]
    if by_hand:
        fits = all(size in by_hand[0][name] for name, size in sizes.items())
        return 0 if fits else _NEVER
    most = [
        entry.max_tokens
        for entry in kernel_table()
        if entry.recipe in recipes
        and dtype in (None, entry.dtype)
        and sizes.items() <= entry.dims.items()
    ]
    return 0 if 0 in most else max(most, default=_NEVER)


def _runs_on(device: torch.device) -> bool:
    if device.type != "cuda" or (device.index or 0) >= torch.cuda.device_count():
        return False
    major, minor = torch.cuda.get_device_capability(device)
    complaint: str = torch.ops.mirage_kernels._architecture_complaint(major, minor, "")
    return not complaint
