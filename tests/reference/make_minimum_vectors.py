"""Vectors for src/study/minimum.c: tests/vectors/minimum.json.gz. Needs NumPy.

The minima are those of numpy.polyfit. The interval of their difference is by the delta method: the gradient of a
parabola's minimum by its coefficients is (u², u, 1) at the minimum's place u, their covariance is that of least squares,
and the quantile is Student's t. The program draws its runs anew and fits again instead.

    python make_minimum_vectors.py [--check]
"""
import numpy as np
from kept import keep


def t_quantile(p, freedom):
    """By summing up the density on a fine grid."""
    t = np.linspace(0, 200, 2_000_001)
    density = (1 + t * t / freedom) ** (-(freedom + 1) / 2)
    grown = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return float(np.interp((2 * p - 1) * grown[-1], grown, t))


def in_window(runs):
    rates = sorted({r for r, _, _ in runs})
    means = {r: np.mean([y for q, y, _ in runs if q == r]) for r in rates}
    best = min(rates, key=means.get)
    return [run for run in runs if abs(np.log(run[0] / best)) <= np.log(2.001)]


def fit(runs):
    """Place, height, design, residuals, the minimum's gradient."""
    x = np.log([r for r, _, _ in runs])
    y = np.array([score for _, score, _ in runs])
    middle = x.mean()
    c = np.polyfit(x - middle, y, 2)
    u = -c[1] / (2 * c[0])
    assert c[0] > 0 and x.min() - middle < u < x.max() - middle
    design = np.vander(x - middle, 3)
    return np.exp(u + middle), np.polyval(c, u), design, y - design @ c, np.array([u * u, u, 1])


def case(name, variant, baseline, effect, shared):
    sides = [in_window(variant), in_window(baseline)]
    fits = [fit(s) for s in sides]
    rest = np.concatenate([f[3] for f in fits])
    seeds = np.array([s for side in sides for _, _, s in side])
    freedom = len(rest) - 6
    if shared:
        for seed in set(seeds):
            rest[seeds == seed] -= rest[seeds == seed].mean()
        freedom -= len(set(seeds)) - 1
    spread = (rest @ rest) / freedom
    variance = sum(spread * g @ np.linalg.inv(d.T @ d) @ g for _, _, d, _, g in fits)
    difference = fits[0][1] - fits[1][1]
    half = t_quantile(0.975, freedom) * np.sqrt(variance)
    inner = t_quantile(0.95, freedom) * np.sqrt(variance)
    verdict = "undecided"
    if abs(difference) - half > effect:
        verdict = "helps" if difference < 0 else "hurts"
    elif abs(difference) + inner < effect:
        verdict = "equivalent"
    return {"name": name, "variant": variant, "baseline": baseline, "effect": effect,
            "minima": [[float(f[0]), float(f[1])] for f in fits], "difference": float(difference),
            "low": float(difference - half), "high": float(difference + half), "verdict": verdict}


def make():
    rng = np.random.default_rng(11)

    def runs(rates, seeds, least, place, bend, noise, shift):
        return [[r, round(least + bend * np.log(r / place) ** 2 + shift[s] + rng.normal(0, noise), 6), s + 1]
                for r in rates for s in range(seeds)]

    three = [1e-3, 2e-3, 4e-3]
    five = [5e-4, 1e-3, 2e-3, 4e-3, 8e-3]
    none = [0.0] * 8
    shift = [0.03, -0.05, 0.02, 0.04]
    wide = runs([1e-4, 2e-4] + five + [1.6e-2, 3.2e-2], 4, 3.5, 2e-3, 0.06, 0.004, none)
    for run in wide:  # far from the minimum it is no parabola
        run[1] = round(run[1] + (0.5 if run[0] > 1e-2 else 0.0), 6)
    lost = runs(five, 4, 3.5, 2e-3, 0.06, 0.004, none)
    del lost[3]
    return {"cases": [
        case("three rates, two seeds", runs(three, 2, 3.45, 1.8e-3, 0.08, 0.003, none),
             runs(three, 2, 3.5, 2.4e-3, 0.08, 0.003, none), 0.01, True),
        case("five rates, four seeds", runs(five, 4, 3.52, 1.5e-3, 0.06, 0.004, none),
             runs(five, 4, 3.5, 2.5e-3, 0.06, 0.004, none), 0.01, True),
        case("seeds that move everything", runs(five, 4, 3.5, 1.5e-3, 0.06, 0.004, shift),
             runs(five, 4, 3.5, 2.5e-3, 0.06, 0.004, shift), 0.01, True),
        case("too little to tell", runs(three, 2, 3.5, 2e-3, 0.8, 0.02, none),
             runs(three, 2, 3.5, 2e-3, 0.8, 0.02, none), 0.01, True),
        case("rates far from the best", wide, runs(five, 4, 3.49, 2.2e-3, 0.06, 0.004, none), 0.02, True),
        case("a run that is missing", lost, runs(five, 4, 3.5, 2e-3, 0.06, 0.004, none), 0.02, False),
    ]}


keep("minimum", make())
