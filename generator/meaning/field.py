"""Random elements of Z_p x Z_q, in which two equal programs give equal results.

p is a prime just below 2^31 and q = (p - 1) / 2 is prime too, so Z_p has elements of order q.
A number is a pair: its part mod p, and its part mod q, which is what `exp` turns into an exponent
of an element of order q. What has been through exp has no part mod q (at most one exp on a path).
Functions without a law in the field (sqrt, silu, ...) are random functions: a keyed hash of their
argument, the same on both sides of a comparison.
Source: section 5 of the Mirage paper (arXiv 2405.05751); larger primes than its p = 227.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.ir import Kind, ops_of_kind
from mirage_kernels.generator.meaning.arrays import Arithmetic, Part, Parts

Int = npt.NDArray[np.int64]

# The largest safe primes below 2^31: p and (p - 1) / 2 are prime (tests/meaning checks it).
SAFE_PRIMES = (2147483579, 2147483123, 2147482763, 2147481563)

_LAWLESS = ("log", "sqrt", "rsqrt", "sigmoid", "silu", "gelu", "tanh", "relu")


@dataclass(frozen=True)
class Field:
    """One draw of the field: its primes, an element of order q, a key for random functions."""

    p: int
    root: int
    key: int
    exponents: bool  # whether parts mod q are carried (only programs with exp need them)

    @property
    def q(self) -> int:
        """Order of the exponents."""
        return (self.p - 1) // 2


def draw_field(seed: int, *, exponents: bool) -> Field:
    """Return the field that `seed` chooses."""
    rng = np.random.default_rng((seed, 1))
    p = SAFE_PRIMES[seed % len(SAFE_PRIMES)]
    root = pow(int(rng.integers(2, p - 1)), 2, p)  # squares have order q
    return Field(p, root, int(rng.integers(1, 2**62)), exponents)


def random_parts(field: Field, shape: tuple[int, ...], rng: np.random.Generator) -> Parts:
    """Return uniform elements of the field."""
    first = rng.integers(0, field.p, shape, dtype=np.int64)
    return (first, rng.integers(0, field.q, shape, dtype=np.int64)) if field.exponents else (first,)


def _ints(part: Part) -> Int:
    return np.asarray(part, np.int64)


def power(base: Int, exponent: Int | int, modulus: int) -> Int:
    """Return base ** exponent mod modulus, elementwise."""
    base, left = np.broadcast_arrays(base % modulus, np.asarray(exponent, np.int64))
    result = np.ones_like(base)
    left = left.copy()
    while left.any():
        result = np.where(left & 1, result * base % modulus, result)
        base = base * base % modulus
        left >>= 1
    return result


def matmul_mod(a: Int, b: Int, modulus: int) -> Int:
    """Return a @ b mod modulus exactly, in float64: 16-bit limbs, sums below 2^53."""
    a1, a0 = (a >> 16).astype(np.float64), (a & 0xFFFF).astype(np.float64)
    b1, b0 = (b >> 16).astype(np.float64), (b & 0xFFFF).astype(np.float64)
    high = (a1 @ b1).astype(np.int64) % modulus
    middle = (a1 @ b0 + a0 @ b1).astype(np.int64) % modulus
    low = (a0 @ b0).astype(np.int64) % modulus
    return (high * (2**32 % modulus) % modulus + middle * 2**16 + low) % modulus


def scramble(x: Int, key: int) -> Int:
    """Return a keyed pseudo-random function of `x`, 62 bits (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = x.astype(np.uint64) + np.uint64(key)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(2), np.int64)


def _moduli(field: Field) -> tuple[int, ...]:
    return (field.p, field.q)


def _each(field: Field, function: Callable[..., Int], *operands: Parts) -> Parts:
    """Apply a ring operation to both parts; the second is lost where one operand lacks it."""
    return tuple(
        np.asarray(function(*parts)) % modulus
        for parts, modulus in zip(zip(*operands, strict=False), _moduli(field), strict=False)
    )


def _divide(field: Field, a: Parts, b: Parts) -> Parts:
    return tuple(
        _ints(x) * power(_ints(y), m - 2, m) % m
        for x, y, m in zip(a, b, _moduli(field), strict=False)
    )


def _exp(field: Field, x: Parts) -> Parts:
    if len(x) < 2:
        raise GraphError("exp of a value that depends on another exp has no law in the field")
    return (power(np.asarray(field.root, np.int64), _ints(x[1]), field.p),)


def _random_function(field: Field, name: str, x: Parts) -> Parts:
    key = int.from_bytes(name.encode()[:6], "little") ^ field.key
    mixed = scramble(_ints(x[0]), key)
    if len(x) == 2:
        mixed = scramble(mixed ^ _ints(x[1]), key)
    wide = (mixed, scramble(mixed, key)) if field.exponents else (mixed,)
    return tuple(part % m for part, m in zip(wide, _moduli(field), strict=False))


def _number(field: Field, data: Part) -> Parts:
    """Embed numbers: integers as themselves, other constants as a random element each."""
    values = np.asarray(data, np.float64)
    whole = np.where(values == np.round(values), values, 0).astype(np.int64)
    hashed = scramble(values.view(np.int64).reshape(values.shape), field.key)
    chosen = np.where(values == np.round(values), whole, hashed)
    moduli = _moduli(field) if field.exponents else _moduli(field)[:1]
    return tuple(chosen % m for m in moduli)


def field_arithmetic(field: Field) -> Arithmetic:
    """Return the arithmetic of one draw."""
    each = partial(_each, field)
    elementwise: dict[str, Callable[..., Parts]] = {
        "neg": partial(each, np.negative),
        "square": partial(each, np.square),
        "add": partial(each, np.add),
        "sub": partial(each, np.subtract),
        "mul": partial(each, np.multiply),
        "div": partial(_divide, field),
        "exp": partial(_exp, field),
    }
    elementwise |= {name: partial(_random_function, field, name) for name in _LAWLESS}
    assert set(elementwise) | {"less", "both", "where"} == set(ops_of_kind(Kind.ELEMENTWISE))

    def total(x: Parts, axis: int) -> Parts:
        return each(partial(np.sum, axis=axis), x)

    def matmul(a: Parts, b: Parts) -> Parts:
        return tuple(
            matmul_mod(_ints(x), _ints(y), m) for x, y, m in zip(a, b, _moduli(field), strict=False)
        )

    return Arithmetic("field", elementwise, total, matmul, partial(_number, field))
