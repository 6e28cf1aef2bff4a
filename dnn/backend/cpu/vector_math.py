"""exp, expm1, tanh, sigmoid and log as arithmetic without branches, which becomes vector code.

PyPI's Numba has no SVML, so `math.exp` in a loop is a call for each element: four times slower than
these. Every function is a polynomial or a ratio of them; a selection keeps NaN and infinity.
Constants have the type of the argument, or Numba would compute in float64.

References
----------
.. [1] Moshier, Methods and Programs for Mathematical Functions, 1989, and his Cephes library:
   reductions and coefficients.
.. [2] Eigen's ``generic_tanh_float``: a rational minimax approximation of degrees 9 and 8, whose
   own error is 2.2e-8.
"""

# Parameters have no types here: Numba infers them.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

import math

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from dnn.backend.cpu.cache import FLAGS

__all__ = [
    "exp_f4",
    "exp_f8",
    "expm1_f4",
    "expm1_f8",
    "log_f4",
    "log_f8",
    "sigmoid_f4",
    "sigmoid_f8",
    "tanh_f4",
    "tanh_f8",
]

f4, i4, f8, i8 = np.float32, np.int32, np.float64, np.int64

F4_ZERO, F4_HALF, F4_ONE = f4(0), f4(0.5), f4(1)
F8_ZERO, F8_ONE, F8_TWO = f8(0), f8(1), f8(2)

# Adding 1.5 * 2^23 (2^52) leaves a number rounded to an integer in the lowest bits.
F4_ROUND, F4_ROUND_BITS = f4(12582912), i4(0x4B400000)
F8_ROUND, F8_ROUND_BITS = f8(6755399441055744), i8(0x4338000000000000)

# Below the first exp is 0, above the second infinite.
F4_LOWEST, F4_HIGHEST = f4(-104), f4(89)
F8_LOWEST, F8_HIGHEST = f8(-746), f8(710)
# The product of the first, a power of two, and any exp that is not 0 is a normal number; up to the
# second, an argument, the product is finite, and the logistic function is 1 long before.
F4_SCALE, F4_SCALED_HIGHEST = f4(2.0**25), f4(70)
F8_SCALE, F8_SCALED_HIGHEST = f8(2.0**54), f8(670)

F4_LOG2E, F8_LOG2E = f4(1.44269504088896341), f8(1.44269504088896341)
# ln 2 in two parts; n times the first is exact.
F4_LN2_HIGH, F4_LN2_LOW = f4(0.693359375), f4(-2.12194440e-4)
F8_LN2_HIGH, F8_LN2_LOW = f8(6.93145751953125e-1), f8(1.42860682030941723212e-6)

F4_EXP = tuple(
    f4(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
              5.0000001201e-1)
)  # fmt: skip
F8_EXP = tuple(f8(1 / math.factorial(k)) for k in range(13, 1, -1))

F4_TANH_P = tuple(f4(c) for c in (1.394553628e-8, 2.102733560e-5, 3.520756727e-3, 1.340216100e-1))
F4_TANH_Q = tuple(f4(c) for c in (8.015776984e-7, 3.326951409e-4, 2.597254514e-2, 4.673548340e-1))
F4_TANH_HIGHEST = f4(8.66)  # beyond, tanh is 1
F8_SMALL = f8(0.625)
F8_TANH_P = tuple(
    f8(c)
    for c in (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3)
)
F8_TANH_Q = tuple(
    f8(c) for c in (1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3)
)

F4_LOG = tuple(
    f4(c)
    for c in (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1,
              1.4249322787e-1, -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1,
              3.3333331174e-1)
)  # fmt: skip
F4_SMALLEST_NORMAL, F4_2_23, F4_23 = f4(2.0**-126), f4(2.0**23), f4(23)
F4_SQRT_HALF = f4(math.sqrt(0.5))
F4_INFINITY, F4_NAN = f4(np.inf), f4(np.nan)


@intrinsic
def bits_of(context, x):
    """Return the bits of a float as an integer of its size."""
    return _bitcast(x, types.int32 if x == types.float32 else types.int64)


@intrinsic
def float_of(context, bits):
    """Return the float that has the bits of an integer of its size."""
    return _bitcast(bits, types.float32 if bits == types.int32 else types.float64)


def _bitcast(source, target):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(target))

    return target(source), generate


@njit(**FLAGS)
def _reduced_f4(x, highest):
    """Return q, and a float with n in its lowest bits, of ``e^x = 2^n (1 + q)``; x is clipped."""
    x = F4_LOWEST if x < F4_LOWEST else x
    x = highest if x > highest else x
    rounded = x * F4_LOG2E + F4_ROUND
    n = rounded - F4_ROUND
    r = x - n * F4_LN2_HIGH
    r = r - n * F4_LN2_LOW
    p = F4_EXP[0]
    p = p * r + F4_EXP[1]
    p = p * r + F4_EXP[2]
    p = p * r + F4_EXP[3]
    p = p * r + F4_EXP[4]
    p = p * r + F4_EXP[5]
    return p * (r * r) + r, rounded


@njit(**FLAGS)
def _halves_f4(rounded):
    """Return two numbers whose sum is n: 2^n is a product of what a float can hold."""
    n = i4(bits_of(rounded) - F4_ROUND_BITS)
    half = i4(n >> i4(1))
    return half, i4(n - half)


@njit(**FLAGS)
def _power_f4(n):
    """``2^n`` in float32, of an integer in -126 .. 127."""
    return float_of(i4(i4(n + i4(127)) << i4(23)))


@njit(**FLAGS)
def exp_f4(x):
    """``e^x`` in float32."""
    q, rounded = _reduced_f4(x, F4_HIGHEST)
    half, rest = _halves_f4(rounded)
    return (q + F4_ONE) * _power_f4(half) * _power_f4(rest)


@njit(**FLAGS)
def expm1_f4(x):
    """``e^x - 1`` in float32, as ``2^n q + (2^n - 1)``."""
    q, rounded = _reduced_f4(x, F4_HIGHEST)
    half, rest = _halves_f4(rounded)
    first = _power_f4(half)
    return (q * first + (first - _power_f4(i4(-rest)))) * _power_f4(rest)


@njit(**FLAGS)
def sigmoid_f4(x):
    """``1 / (1 + e^-x)`` in float32, as ``s e^x / (s + s e^x)``.

    The scale s keeps each number but the quotient from being subnormal, so that small values are
    as exact as all others, and 2^n is put into the exponent by one addition.
    """
    q, rounded = _reduced_f4(x, F4_SCALED_HIGHEST)
    # The bits of the constant in `rounded` are shifted out.
    scaled = q * F4_SCALE + F4_SCALE
    scaled = float_of(i4(bits_of(scaled) + i4(bits_of(rounded) << i4(23))))
    y = scaled / (F4_SCALE + scaled)
    return y if x == x else x


@njit(**FLAGS)
def _reduced_f8(x, highest):
    """Return q, and a float with n in its lowest bits, of ``e^x = 2^n (1 + q)``; x is clipped."""
    x = F8_LOWEST if x < F8_LOWEST else x
    x = highest if x > highest else x
    rounded = x * F8_LOG2E + F8_ROUND
    n = rounded - F8_ROUND
    r = x - n * F8_LN2_HIGH
    r = r - n * F8_LN2_LOW
    p = F8_EXP[0]
    p = p * r + F8_EXP[1]
    p = p * r + F8_EXP[2]
    p = p * r + F8_EXP[3]
    p = p * r + F8_EXP[4]
    p = p * r + F8_EXP[5]
    p = p * r + F8_EXP[6]
    p = p * r + F8_EXP[7]
    p = p * r + F8_EXP[8]
    p = p * r + F8_EXP[9]
    p = p * r + F8_EXP[10]
    p = p * r + F8_EXP[11]
    return p * (r * r) + r, rounded


@njit(**FLAGS)
def _halves_f8(rounded):
    """Return two numbers whose sum is n, as `_halves_f4`."""
    n = bits_of(rounded) - F8_ROUND_BITS
    half = n >> i8(1)
    return half, n - half


@njit(**FLAGS)
def _power_f8(n):
    """``2^n`` in float64, of an integer in -1022 .. 1023."""
    return float_of((n + i8(1023)) << i8(52))


@njit(**FLAGS)
def exp_f8(x):
    """``e^x`` in float64."""
    q, rounded = _reduced_f8(x, F8_HIGHEST)
    half, rest = _halves_f8(rounded)
    return (q + F8_ONE) * _power_f8(half) * _power_f8(rest)


@njit(**FLAGS)
def expm1_f8(x):
    """``e^x - 1`` in float64, as `expm1_f4`."""
    q, rounded = _reduced_f8(x, F8_HIGHEST)
    half, rest = _halves_f8(rounded)
    first = _power_f8(half)
    return (q * first + (first - _power_f8(-rest))) * _power_f8(rest)


@njit(**FLAGS)
def sigmoid_f8(x):
    """``1 / (1 + e^-x)`` in float64, as `sigmoid_f4`."""
    q, rounded = _reduced_f8(x, F8_SCALED_HIGHEST)
    scaled = q * F8_SCALE + F8_SCALE
    scaled = float_of(bits_of(scaled) + (bits_of(rounded) << i8(52)))
    y = scaled / (F8_SCALE + scaled)
    return y if x == x else x


@njit(**FLAGS)
def tanh_f4(x):
    """``tanh x`` in float32, as ``x P(x^2) / Q(x^2)`` [2]_.

    The relative error is at most 3.23e-7, at 8.19: of every float32 above 2^-20 that was tried.
    """
    y = -F4_TANH_HIGHEST if x < -F4_TANH_HIGHEST else x
    y = F4_TANH_HIGHEST if y > F4_TANH_HIGHEST else y
    z = y * y
    p = F4_TANH_P[0]
    p = p * z + F4_TANH_P[1]
    p = p * z + F4_TANH_P[2]
    p = p * z + F4_TANH_P[3]
    p = p * z + F4_ONE
    q = F4_TANH_Q[0]
    q = q * z + F4_TANH_Q[1]
    q = q * z + F4_TANH_Q[2]
    q = q * z + F4_TANH_Q[3]
    q = q * z + F4_ONE
    ratio = y * p / q
    ratio = F4_ONE if ratio > F4_ONE else ratio  # rounding may carry it past 1
    return -F4_ONE if ratio < -F4_ONE else ratio


@njit(**FLAGS)
def tanh_f8(x):
    """``tanh x`` in float64."""
    size = abs(x)
    large = F8_ONE - F8_TWO / (exp_f8(size + size) + F8_ONE)
    large = -large if x < F8_ZERO else large
    z = x * x
    p = (F8_TANH_P[0] * z + F8_TANH_P[1]) * z + F8_TANH_P[2]
    q = ((z + F8_TANH_Q[0]) * z + F8_TANH_Q[1]) * z + F8_TANH_Q[2]
    small = p / q * z * x + x
    return small if size < F8_SMALL else large


@njit(**FLAGS)
def log_f4(x):
    """``ln x`` in float32."""
    subnormal = x < F4_SMALLEST_NORMAL
    normal = x * F4_2_23 if subnormal else x
    bits = bits_of(normal)
    # The exponent for which the mantissa m is in 0.5 .. 1.
    e = f4(i4((bits >> i4(23)) & i4(0xFF)) - i4(126))
    m = float_of(i4((bits & i4(0x007FFFFF)) | i4(0x3F000000)))
    low = m < F4_SQRT_HALF
    e = e - F4_ONE if low else e
    m = m + m - F4_ONE if low else m - F4_ONE
    e = e - F4_23 if subnormal else e
    z = m * m
    p = F4_LOG[0]
    p = p * m + F4_LOG[1]
    p = p * m + F4_LOG[2]
    p = p * m + F4_LOG[3]
    p = p * m + F4_LOG[4]
    p = p * m + F4_LOG[5]
    p = p * m + F4_LOG[6]
    p = p * m + F4_LOG[7]
    p = p * m + F4_LOG[8]
    y = p * m * z + e * F4_LN2_LOW - F4_HALF * z
    y = m + y + e * F4_LN2_HIGH
    y = y if x < F4_INFINITY else x  # infinity and NaN stay
    y = -F4_INFINITY if x == F4_ZERO else y
    return F4_NAN if x < F4_ZERO else y


@njit(**FLAGS)
def log_f8(x):
    """``ln x`` in float64."""
    return math.log(x)
