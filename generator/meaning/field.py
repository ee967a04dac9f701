"""Random elements of Z_p x Z_q, in which two equal programs give equal results.

p is a prime just below 2^31 and q = (p - 1) / 2 is prime too, so Z_p has elements of order q.
A number is a pair: its part mod p, and its part mod q, which is what `exp` turns into an exponent
of an element of order q. What has been through exp has no part mod q (at most one exp on a path).
A `peak` is an arbitrary element, drawn anew for every row, block and step, whatever it bounds: what
does not depend on it is right for the maximum too.
A maximum is f'(f(a) + f(b) + ...), where f is a random permutation and f' its inverse. So maxima
commute and associate, and a maximum of one number is that number; nothing else holds of them that
holds of no other function, not even max(a, a) = a. What is added up for a maximum is added up as a
sum is, tile by tile.
A logarithm is known by what it is the logarithm of, a third part: log(x) + y is log(x * exp(y)),
and exp of it is x. For everything else it is a random function of that.
Functions without a law in the field (sqrt, silu, ...) are random functions: a keyed hash of their
argument, the same on both sides of a comparison. Dividing by zero has no result: it is refused.
Source: section 5 of the Mirage paper (arXiv 2405.05751); larger primes than its p = 227.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.errors import GraphError, UndefinedError
from mirage_kernels.generator.ir import Kind, ops_of_kind
from mirage_kernels.generator.meaning.arrays import Arithmetic, Part, Parts

Int = npt.NDArray[np.int64]

# The largest safe primes below 2^31: p and (p - 1) / 2 are prime (tests/meaning checks it).
SAFE_PRIMES = (2147483579, 2147483123, 2147482763, 2147481563)

LAWLESS = (
    *("sqrt", "sigmoid", "silu", "gelu", "gelu_tanh", "tanh", "relu"),
    *("abs", "softplus", "mish", "elu", "sin", "cos", "erf", "floor", "round"),
    *("inner_exp", "log1p"),
)
LAWLESS_OF_TWO = ("gt", "ge", "masked")

WHOLE_BELOW = 2.0**53  # numbers from here on are like those that are not whole
CONSTANTS_BELOW = 2.0**8  # so are constants: large whole factors would leave no bound

_ROUNDS = 4  # of a random permutation
_CHUNK = 2**15  # numbers that are permuted at once, in the cache
_WINDOW = 10  # bits of an exponent that one table of powers covers
_FEW = 8  # elements up to which Python inverts as fast as NumPy multiplies
_SMALL = 4096  # products up to which a matrix product is made by broadcasting
_LIMB = 11  # bits of one operand's pieces in a large matrix product
_DEPTH = 2**11  # products of 31 by 11 bits whose sum is exact in float64


@dataclass(frozen=True)
class Field:
    """One draw of the field: its primes, an element of order q, a key for random functions."""

    p: int
    root: int
    key: int
    exponents: bool  # whether parts mod q are carried (only programs with exp need them)
    total: bool = False  # whether 1 / 0 is 0; else dividing by zero is refused

    @property
    def q(self) -> int:
        """Order of the exponents."""
        return (self.p - 1) // 2

    @property
    def moduli(self) -> tuple[int, int]:
        """Of a number's parts."""
        return self.p, self.q

    def each(self, function: Callable[..., Int], *operands: Parts) -> Parts:
        """Apply a ring operation to both parts; the second is lost where one operand lacks it.

        That something is a logarithm is lost, too.
        """
        return tuple(
            np.asarray(function(*parts)) % modulus
            for parts, modulus in zip(zip(*operands, strict=False), self.moduli, strict=False)
        )

    def inverse(self, x: Parts) -> Parts:
        """Return 1 / x; raises UndefinedError where x is 0, unless the field is total."""
        each = list(zip(map(_ints, x), self.moduli, strict=False))
        if self.total:
            return tuple(np.where(y, inverse(np.where(y, y, 1), m), 0) for y, m in each)
        return tuple(inverse(y, m) for y, m in each)

    def exp(self, x: Parts) -> Parts:
        """Return the power of the root that the part mod q is, or what x is the logarithm of."""
        if len(x) < 2:
            raise GraphError("exp of a value that depends on another exp has no law in the field")
        return (x[2],) if len(x) == 3 else (root_to_the(_ints(x[1]), self),)

    def log(self, x: Parts) -> Parts:
        """Return the logarithm; without exponents it is a random function like others."""
        found = self.function("log", x[:1])
        return (*found, x[0]) if self.exponents else found

    def added(self, function: Callable[..., Int], a: Parts, b: Parts) -> Parts:
        """Return a + b or a - b, a logarithm where one of them is and both are exponents."""
        if 3 not in (len(a), len(b)) or 1 in (len(a), len(b)):
            return self.each(function, a, b)
        other = self.exp(b) if function is np.add else self.inverse(self.exp(b))
        return self.log(self.each(np.multiply, self.exp(a), other))

    def summed(self, x: Parts, axis: int) -> Parts:
        """Return the sum along an axis; of logarithms, the logarithm of the product."""
        if len(x) < 3:
            return self.each(partial(np.sum, axis=axis), x)
        factors = np.moveaxis(_ints(x[2]), axis, 0)
        return self.log((reduce(lambda a, b: _ints(a) * _ints(b) % self.p, factors),))

    def function(self, name: str, x: Parts) -> Parts:
        """Return a random function of a number."""
        key = _key_of(name) ^ self.key
        mixed = scramble(_ints(x[0]), key)
        return self._residues(scramble(mixed ^ _ints(x[1]), key) if len(x) == 2 else mixed, key)

    def function_of_two(self, name: str, a: Parts, b: Parts) -> Parts:
        """Return a random function of two numbers: of the sum of a random function of each."""
        both = (self.function(f"{i} {name}", x) for i, x in enumerate((a, b)))
        return self.function(name, self.each(np.add, *both))

    def _residues(self, mixed: Int, key: int) -> Parts:
        wide = (mixed, scramble(mixed, key)) if self.exponents else (mixed,)
        return tuple(part % m for part, m in zip(wide, self.moduli, strict=False))

    def maximum(self, a: Parts, b: Parts) -> Parts:
        """Return the maximum of two numbers."""
        ranks = self.each(np.add, self.permuted(a), self.permuted(b))
        return self.permuted(ranks, back=True)

    def largest(self, x: Parts, axis: int) -> Parts:
        """Return the maximum along an axis."""
        ranks = self.each(partial(np.sum, axis=axis), self.permuted(x))
        return self.permuted(ranks, back=True)

    def permuted(self, x: Parts, *, back: bool = False) -> Parts:
        """Return a random permutation of numbers, or `back` its inverse: a Feistel network.

        In each round one half is shifted by a random function of the other. The halves of a number
        are its parts; the bits of its only part, where it has one.
        """
        keys = [_key_of(f"max {i}") ^ self.key for i in range(_ROUNDS)]
        rounds = list(enumerate(keys))[:: -1 if back else 1]
        sign, flat = -1 if back else 1, [_ints(part).reshape(-1) for part in x[:2]]
        made = [np.empty_like(part) for part in flat]
        for start in range(0, len(flat[0]), _CHUNK):
            halves = [part[start : start + _CHUNK] for part in flat]
            if len(halves) == 1:
                halves = [self._permuted_bits(halves[0], rounds)]
            for i, key in rounds if len(halves) == 2 else ():
                shift = scramble(halves[1 - i % 2], key) % self.moduli[i % 2]
                halves[i % 2] = (halves[i % 2] + sign * shift) % self.moduli[i % 2]
            for whole, chunk in zip(made, halves, strict=True):
                whole[start : start + _CHUNK] = chunk
        return tuple(part.reshape(x[0].shape) for part in made)

    def _permuted_bits(self, x: Int, rounds: Sequence[tuple[int, int]]) -> Int:
        """Return numbers permuted by rounds, number and key; beyond p again."""
        bits = (self.p - 1).bit_length()
        low = (1 << bits // 2) - 1
        high = (1 << bits) - 1 - low
        for i, key in rounds:
            mine, other = (high, low) if i % 2 else (low, high)
            x = x ^ (scramble(x & other, key) & mine)
        beyond = x >= self.p
        if beyond.any():
            x[beyond] = self._permuted_bits(x[beyond], rounds)
        return x

    def arbitrary(self, x: Parts, axis: int, seed: int) -> Parts:
        """Return random elements in the shape that reducing `x` along an axis has."""
        shape = np.delete(np.asarray(x[0].shape), axis)
        places = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64).reshape(shape)
        key = (seed << 20) ^ self.key
        return self._residues(scramble(places, key), key)

    def number(self, data: Part, below: float = WHOLE_BELOW) -> Parts:
        """Embed numbers: integers as themselves, other constants as a random element each.

        So are huge ones, which float64 holds as whole numbers: 1e30 is no other's equal.
        """
        values = np.asarray(data, np.float64)
        is_whole = (np.abs(values) < below) & (values == np.round(values))
        whole = np.where(is_whole, values, 0).astype(np.int64)
        hashed = scramble(values.view(np.int64).reshape(values.shape), self.key)
        random = zip(self._residues(hashed, self.key), self.moduli, strict=False)
        return tuple(np.where(is_whole, whole % m, r) for r, m in random)


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


@cache
def _powers(root: int, p: int) -> list[Int]:
    """Return tables of root ** i, root ** (i * 2^10), root ** (i * 2^20) mod p."""
    tables = []
    for _ in range(3):
        table = np.ones(1, np.int64)
        for _ in range(_WINDOW):
            table = np.concatenate([table, table * root % p])
            root = root * root % p
        tables.append(table)
    return tables


def root_to_the(exponent: Int, field: Field) -> Int:
    """Return the field's element of order q to the power of `exponent` < 2^30, elementwise."""
    low, middle, high = _powers(field.root, field.p)
    mask = 2**_WINDOW - 1
    result = low[exponent & mask] * middle[exponent >> _WINDOW & mask] % field.p
    return np.asarray(result * high[exponent >> 2 * _WINDOW] % field.p)


def inverse(x: Int, modulus: int) -> Int:
    """Return 1 / x mod modulus, elementwise; raise UndefinedError where x is 0.

    1 / a = b / (a b): half as many numbers are left to invert.
    """
    flat = x.reshape(-1)
    if not flat.all():
        raise UndefinedError("a value is divided by 0")
    if flat.size <= _FEW:
        return np.asarray([pow(v, -1, modulus) for v in flat.tolist()], np.int64).reshape(x.shape)
    half = flat.size // 2
    left, right, rest = flat[:half], flat[half : 2 * half], flat[2 * half :]
    both = inverse(left * right % modulus, modulus)
    made = [both * right % modulus, both * left % modulus, inverse(rest, modulus)]
    return np.concatenate(made).reshape(x.shape)


def matmul_mod(a: Int, b: Int, modulus: int) -> Int:
    """Return a @ b mod modulus exactly; both are residues below 2^31."""
    if a.size * b.shape[-1] <= _SMALL:
        products = a[..., :, :, None] * b[..., None, :, :] % modulus
        return np.asarray(products.sum(-2) % modulus)
    if a.size > b.size:
        turned = matmul_mod(b.swapaxes(-1, -2), a.swapaxes(-1, -2), modulus)
        return np.asarray(turned.swapaxes(-1, -2))
    # In float64: `a` in limbs of 11 bits and pieces of the depth, so that sums stay exact.
    *batch, rows, depth = a.shape
    limbs = np.empty((*batch, 3 * rows, depth))
    limbs[..., :rows, :] = a >> 2 * _LIMB
    limbs[..., rows : 2 * rows, :] = a >> _LIMB & 2**_LIMB - 1
    limbs[..., 2 * rows :, :] = a & 2**_LIMB - 1
    total = np.zeros((), np.int64)
    for i in range(0, depth, _DEPTH):
        sums = limbs[..., i : i + _DEPTH] @ b[..., i : i + _DEPTH, :].astype(np.float64)
        whole = sums.astype(np.int64)
        high, middle, low = (whole[..., n * rows : (n + 1) * rows, :] for n in range(3))
        upper = (high % modulus << _LIMB) + middle  # below 2^54, as sums are below 2^53
        total = (total + (upper % modulus << _LIMB) + low) % modulus
    return np.asarray(total)


def scramble(x: Int, key: int) -> Int:
    """Return a keyed pseudo-random function of `x`, 62 bits (the finaliser of splitmix64)."""
    mixed = x.astype(np.uint64)
    with np.errstate(over="ignore"):
        mixed += np.uint64(key)
        for bits, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed ^= mixed >> np.uint64(bits)
            mixed *= np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
    return np.asarray(mixed >> np.uint64(2), np.int64)


@cache
def _key_of(name: str) -> int:
    """Return a key for each function, such that none is another one at a shifted argument."""
    return int(scramble(np.asarray(int.from_bytes(name.encode()[:6], "little")), 0))


def field_arithmetic(field: Field) -> Arithmetic:
    """Return the arithmetic of one draw."""
    each = field.each
    elementwise: dict[str, Callable[..., Parts]] = {
        "neg": lambda x: field.added(np.subtract, field.number(np.asarray(0)), x),
        "square": partial(each, np.square),
        "add": partial(field.added, np.add),
        "sub": partial(field.added, np.subtract),
        "mul": partial(each, np.multiply),
        "div": lambda a, b: each(np.multiply, a, field.inverse(b)),
        "exp": field.exp,
        "log": field.log,
        "rsqrt": lambda x: field.inverse(field.function("sqrt", x)),
        "max": field.maximum,
        **{name: partial(field.function, name) for name in LAWLESS},
        **{name: partial(field.function_of_two, name) for name in LAWLESS_OF_TWO},
    }
    assert set(elementwise) | {"less", "both", "where"} == set(ops_of_kind(Kind.ELEMENTWISE))

    def matmul(a: Parts, b: Parts) -> Parts:
        parts = zip(a, b, field.moduli, strict=False)
        return tuple(matmul_mod(_ints(x), _ints(y), m) for x, y, m in parts)

    return Arithmetic(
        "field",
        elementwise,
        field.summed,
        field.largest,
        matmul,
        number=field.number,
        peak=field.arbitrary,
        higher=lambda before, now: now,
        decay=lambda old, new: field.exp(each(np.subtract, old, new)),
        constant=lambda data: field.number(data, CONSTANTS_BELOW),
    )
