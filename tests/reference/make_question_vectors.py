"""Vectors for scripts/questions: tests/vectors/questions.json.gz. Needs NumPy.

Runs of two rungs and of the study of caches, and the answers by the rule of docs/results/questions.md. A rung's words are
by numpy.polyfit and the delta method with Student's t, not by drawing runs anew; Holm's method is by its adjusted p: the
largest, up to a question's place in their order, of p times how many are left. Scores are shifted so that each comparison
has the p that is wanted of it, and none is near a limit.

    python make_question_vectors.py [--check]
"""
import numpy as np
from kept import keep

EFFECT = 0.01
T = np.linspace(0, 400, 4_000_001)


def tail(t, freedom):
    """P(T > t) by summing up the density on a fine grid."""
    density = (1 + T * T / freedom) ** (-(freedom + 1) / 2)
    grown = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    upper = 0.5 - 0.5 * np.interp(abs(t), T, grown) / grown[-1]
    return float(upper if t >= 0 else 1 - upper)


def fit(runs):
    x, y = np.log([r[0] for r in runs]), np.array([r[1] for r in runs])
    middle = x.mean()
    c = np.polyfit(x - middle, y, 2)
    u = -c[1] / (2 * c[0])
    design = np.vander(x - middle, 3)
    inside = c[0] > 0 and x.min() - middle < u < x.max() - middle
    return np.polyval(c, u), design, y - design @ c, np.array([u * u, u, 1]), inside


def compare(variant, baseline):
    """Difference, its standard error, degrees of freedom, and whether both minima are between the rates."""
    a, b = fit(variant), fit(baseline)
    rest = np.concatenate([a[2], b[2]])
    seeds = np.array([r[2] for r in variant + baseline])
    for seed in set(seeds):
        rest[seeds == seed] -= rest[seeds == seed].mean()
    freedom = len(rest) - 6 - (len(set(seeds)) - 1)
    spread = rest @ rest / freedom
    error = np.sqrt(sum(spread * g @ np.linalg.inv(d.T @ d) @ g for _, d, _, g, _ in (a, b)))
    return a[0] - b[0], error, freedom, (a[4], b[4])


def judge(variant, baseline):
    """(word, p) on one rung."""
    difference, error, freedom, inside = compare(variant, baseline)
    beyond = 2 * tail((abs(difference) - EFFECT) / error, freedom)
    within = tail((EFFECT - abs(difference)) / error, freedom)
    if beyond < 0.05:
        word = "helps" if difference < 0 else "hurts"
        return (word if inside[word == "helps"] else "undecided"), beyond
    if within < 0.05:
        return ("equivalent" if all(inside) else "undecided"), within
    return "undecided", 1.0


def answer(names, rungs, questions):
    found = []
    for variant, baseline in questions:
        judged = [judge(r[variant], r[baseline]) for r in rungs]
        same = len({w for w, _ in judged}) == 1 and judged[0][0] != "undecided"
        found.append([judged[0][0] if same else "undecided", max(p for _, p in judged) if same else 1.0])
    order = sorted(range(len(found)), key=lambda i: found[i][1])
    adjusted = 0.0
    for place, i in enumerate(order):
        adjusted = max(adjusted, found[i][1] * (len(found) - place))
        if adjusted > 0.05:
            found[i][0] = "undecided"
    return [{"variant": v, "baseline": b, "answer": w, "p": p, "differences": [float(compare(r[v], r[b])[0]) for r in rungs],
             "errors": [float(compare(r[v], r[b])[1]) for r in rungs], "name": n}
            for n, (v, b), (w, p) in zip(names, questions, found)]


def make():
    rng = np.random.default_rng(5)
    rates = [1e-3, 2e-3, 4e-3]

    def runs(least, place, noise=0.001, seeds=(1, 2)):
        return [[r, round(least + 0.05 * np.log(r / place) ** 2 + rng.normal(0, noise), 9), s] for r in rates for s in seeds]

    def moved(variant, baseline, to):
        """The variant with its minimum so far from the baseline's; `to` of the standard error."""
        difference, error, _, _ = compare(variant, baseline)
        return [[r, round(y + to(error) - difference, 9), s] for r, y, s in variant]

    def rung(least, all_flops):
        v = {"dot": runs(least, 1.9e-3), "mla": runs(least + 0.02, 2.2e-3), "gqa": runs(least + 0.01, 2e-3)}
        # p of 2.5% by itself: t of 5 degrees of freedom is 3.163 there.
        to = {"w2": ("dot", lambda e: -0.05), "all": ("mla", lambda e: 0.002), "all-flops": ("mla", lambda e: all_flops),
              "wsffn": ("dot", lambda e: -EFFECT - 3.163 * e), "mla-recip": ("gqa", lambda e: 0.04)}
        for name, (baseline, where) in to.items():
            v[name] = moved(runs(3, 2.1e-3), v[baseline], where)
        return v

    rungs = [rung(3.6, -0.03), rung(3.2, 0.03)]
    cache = {name: runs(3.6 + d, 2e-3, 0.0005, (11, 12)) for name, d in
             {"dot": 0, "gqa": 0.01, "mla": 0.02, "mla-gate": 0.03, "mla-recip": 0.005, "mla-w2": 0.04, "mla-cross": 0.015}.items()}
    names = ["helps on both", "equivalent on both", "helps, then hurts", "lost by Holm", "chosen on other seeds, hurts"]
    questions = [("w2", "dot"), ("all", "mla"), ("all-flops", "mla"), ("wsffn", "dot"), ("mla-recip", "gqa")]
    main_case = {"rungs": rungs, "answers": answer(names, rungs, questions)}
    # The baseline of the first and fourth falls to its highest rate on the second rung, where w2 has helped.
    steep = dict(rungs[1])
    steep["dot"] = runs(3.2, 9e-3)
    steep["w2"] = moved(rungs[1]["w2"], steep["dot"], lambda e: -0.3)
    edge = [rungs[0], steep]
    edge_answers = answer(["edge"] + names[1:], edge, questions)
    words = [[a["answer"] for a in c] for c in (main_case["answers"], edge_answers)]
    assert words[0] == ["helps", "equivalent", "undecided", "undecided", "hurts"], words
    assert words[1][0] == "undecided", words
    assert all(judge(r["wsffn"], r["dot"])[0] == "helps" for r in rungs)
    return {"effect": EFFECT, "cache": cache, "cases": [main_case, {"rungs": edge, "answers": edge_answers}],
            "chosen": ["mla-recip", "gqa"]}


keep("questions", make())
