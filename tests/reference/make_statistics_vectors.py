"""Vectors for src/study/statistics.c: tests/vectors/statistics.json.gz. Needs nothing but Python.

Student's t with a whole number n of degrees of freedom has a distribution in closed form, a finite
sum in theta = atan(t / sqrt(n)); here it is summed in 50 digits and inverted by halving. The program uses the
incomplete beta function instead. Means and deviations are exact fractions until the last root.

    python make_statistics_vectors.py [--check]
"""
import math
import random
from decimal import Decimal, getcontext
from fractions import Fraction

from kept import keep

getcontext().prec = 50


def arctangent(x):
    """For x >= 0: halved until the series is short."""
    doubled = 0
    while x > Decimal("0.05"):
        x = x / (1 + (1 + x * x).sqrt())
        doubled += 1
    total, term, k = Decimal(0), x, 0
    while abs(term) > Decimal(10) ** -60:
        total += term / (2 * k + 1) if k % 2 == 0 else -term / (2 * k + 1)
        term *= x * x
        k += 1
    return total * 2 ** doubled


PI = 4 * arctangent(Decimal(1))


def within(t, n):
    """P(|T| <= t) for t >= 0."""
    t = Decimal(t)
    cosine = (1 / (1 + t * t / n)).sqrt()
    sine = t / Decimal(n).sqrt() * cosine
    if n % 2:
        total, term = Decimal(0), cosine
        for k in range(1, (n - 1) // 2 + 1):
            total += term
            term *= cosine * cosine * 2 * k / (2 * k + 1)
        return 2 / PI * (arctangent(t / Decimal(n).sqrt()) + sine * total)
    total, term = Decimal(0), Decimal(1)
    for k in range(1, n // 2 + 1):
        total += term
        term *= cosine * cosine * (2 * k - 1) / (2 * k)
    return sine * total


def quantile(p, n):
    """The t >= 0 with P(T <= t) = p >= 1/2; p is taken as the double that it is."""
    inside = 2 * Decimal(p) - 1
    low, high = Decimal(0), Decimal(1)
    while within(high, n) < inside:
        high *= 2
    for _ in range(120):
        middle = (low + high) / 2
        if within(middle, n) < inside:
            low = middle
        else:
            high = middle
    return float(low)


def root(x):
    return float((Decimal(x.numerator) / Decimal(x.denominator)).sqrt())


def paired(name, step, baseline, higher):
    n = len(step)
    a, b = [Fraction(x) for x in step], [Fraction(x) for x in baseline]
    d = [x - y for x, y in zip(a, b)]
    mean = sum(d) / n
    sd = root(sum((x - mean) ** 2 for x in d) / (n - 1))
    half = quantile(0.975, n - 1) * sd / math.sqrt(n)
    low, high = float(mean) - half, float(mean) + half
    verdict = "no difference shown"
    if low > 0 or high < 0:
        verdict = "better" if (low > 0) == higher else "worse"
    return {"name": name, "step": step, "baseline": baseline, "higher_is_better": higher,
            "mean": float(mean), "sd": sd, "low": low, "high": high,
            "percent": 100 * float(mean / abs(sum(b) / n)), "verdict": verdict}


def make():
    random.seed(5)
    table = [[p, n, quantile(p, n)] for n in (1, 2, 3, 4, 5, 7, 10, 19, 30, 61, 100)
             for p in (0.6, 0.9, 0.975, 0.995, 0.9995)]
    seeds = lambda n, at, by: [round(random.gauss(at, by), 6) for _ in range(n)]
    base = seeds(5, 2.6, 0.05)
    pairs = [
        paired("lower loss", [round(x - 0.05 + random.gauss(0, 0.004), 6) for x in base], base, False),
        paired("higher loss", [round(x + 0.05 + random.gauss(0, 0.004), 6) for x in base], base, False),
        paired("noise", [round(x + random.gauss(0, 0.02), 6) for x in base], base, False),
        paired("higher metric", [0.81, 0.83, 0.84], [0.71, 0.735, 0.729], True),
        paired("lower metric", [0.61, 0.63, 0.62], [0.71, 0.735, 0.729], True),
        paired("two pairs", [1.5, 1.25], [1.0, 1.125], False),
        paired("a shift that hides in the spread of seeds", [1.01, 2.01, 3.012, 4.011],
               [1.0, 2.0, 3.0, 4.0], False),
        paired("the same numbers", [2.5, 2.25, 2.75], [2.5, 2.25, 2.75], False),
    ]
    return {"t_quantile": table, "paired": pairs}


keep("statistics", make())
