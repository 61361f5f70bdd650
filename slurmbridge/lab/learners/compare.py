#!/usr/bin/python3
"""How well are measured slowdowns predicted by slurmbridge's model and by usual learners?

    apt install python3-sklearn; make programs
    slurmbridge/lab/learners/compare.py --profiles solo.csv --pairs measured.csv --law mps \
        [--seen 0,50,200] [--splits 10]

The files are those of `slurmbridge lab interference`. For each number of co-runs that
were seen, and each of the splits (seeds 0, 1, ...), rows of --pairs are drawn at random;
every learner gets them, and is scored on all others by the mean of |predicted - measured|.

The usual learners see both solo profiles (utilisations, memory utilisation, memory, the
logarithm of the iteration time), products and differences of the two, and who is victim
and who aggressor. ridge chooses its penalty by leave-one-out; boosting is 200 trees of
depth 3. Ridge, boosting and the model predict at least 1.
"""
import argparse
import csv
import json
import math
import subprocess
import tempfile

import numpy as np
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import RidgeCV


def read(name):
    with open(name, newline="") as f:
        return list(csv.DictReader(f))


def number(row, column):
    return float(row.get(column) or 0)


def figures(profiles, pairs):
    """Returns what the usual learners see: a row per pair."""
    apps = sorted(profiles)
    at = {a: i for i, a in enumerate(apps)}
    one = np.eye(len(apps))

    def alone(app):
        p = profiles[app]
        step = number(p, "step_ms")
        return np.array([number(p, c) / 100 for c in ("gpu_util", "mem_util", "sm_util")]
                        + [number(p, "mem_mib") / 10000, math.log(step) if step > 0 else 0])

    rows = []
    for p in pairs:
        v, a = alone(p["victim"]), alone(p["aggressor"])
        rows.append(np.concatenate([v, a, v * a, a - v, one[at[p["victim"]]], one[at[p["aggressor"]]]]))
    x = np.array(rows)
    n = x.shape[1] - 2 * len(apps)
    sd = x[:, :n].std(0)
    x[:, :n] = (x[:, :n] - x[:, :n].mean(0)) / np.where(sd > 0, sd, 1)
    return x


def model(lab, args, pairs, seen, rest):
    """Returns the report of `slurmbridge lab interference` on rest, having seen the others."""
    with tempfile.TemporaryDirectory() as folder:
        def write(name, rows):
            with open(f"{folder}/{name}", "w", newline="") as f:
                w = csv.writer(f)
                w.writerow(["victim", "aggressor", "slowdown"])
                w.writerows([pairs[i]["victim"], pairs[i]["aggressor"], pairs[i]["slowdown"]] for i in rows)
            return f"{folder}/{name}"
        command = [lab, "lab", "interference", "--json", "--law", args.law,
                   "--profiles", args.profiles, "--pairs", write("rest.csv", rest)]
        if len(seen):
            command += ["--observed", write("seen.csv", seen)]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", required=True)
    parser.add_argument("--pairs", required=True)
    parser.add_argument("--law", default="mps")
    parser.add_argument("--seen", default="0,50,200")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--lab", default="build/slurmbridge")
    args = parser.parse_args()

    profiles = {p["app"]: p for p in read(args.profiles)}
    pairs = [p for p in read(args.pairs) if p["victim"] in profiles and p["aggressor"] in profiles]
    x, y = figures(profiles, pairs), np.array([float(p["slowdown"]) for p in pairs])
    print("| seen | model | within one SD | law | ridge | boosting | constant | max(1, Σ utilisation) |")
    print("|---|---|---|---|---|---|---|---|")
    for k in (int(k) for k in args.seen.split(",")):
        out = {c: [] for c in ("model", "within", "law", "ridge", "boosting", "constant", "sum")}
        for seed in range(args.splits if k else 1):
            order = np.random.default_rng(seed).permutation(len(pairs))
            seen, rest = order[:k], order[k:]

            def off(predicted):
                return np.abs(np.maximum(1, predicted) - y[rest]).mean()
            r = model(args.lab, args, pairs, seen, rest)
            out["model"].append(r["mae"])
            out["within"].append(100 * r["within_sd"])
            out["constant"].append(r["baseline_constant"]["mae"])
            out["sum"].append(r["baseline_sum_util"]["mae"])
            out["law"].append(model(args.lab, args, pairs, [], rest)["mae"])
            if k:
                out["ridge"].append(off(RidgeCV(np.logspace(-2, 2, 9)).fit(x[seen], y[seen]).predict(x[rest])))
                trees = GradientBoostingRegressor(n_estimators=200, max_depth=3, learning_rate=0.05, subsample=0.8, random_state=seed)
                out["boosting"].append(off(trees.fit(x[seen], y[seen]).predict(x[rest])))

        def cell(name, form="{:.3f} ± {:.3f}"):
            v = out[name]
            return form.format(np.mean(v), np.std(v)) if v else "–"
        print(f"| {k} | {cell('model')} | {cell('within', '{:.0f} %')} | {cell('law')} | {cell('ridge')} | {cell('boosting')} | {cell('constant')} | {cell('sum')} |", flush=True)


if __name__ == "__main__":
    main()
