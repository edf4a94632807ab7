#!/usr/bin/env python3
"""Epoch seconds of the pipeline beside the serial run, stage by stage: issue-sized figures for experiments/README.md.

    experiments/pipeline.py speed CONFIG.toml [--set KEY=VALUE]... [--runs 5]     serial, pipelined, pipelined without cache in turn
    experiments/pipeline.py staleness CONFIG.toml [--set KEY=VALUE]... [--seeds 3]

Runs target/release/tidemill (or $TIDEMILL). Runs alternate, so that a slow minute of the machine meets all kinds; medians are
printed. Speed means nothing on a machine that does something else."""

import argparse
import json
import os
import statistics
import subprocess
import tempfile

TIDEMILL = os.environ.get("TIDEMILL", "target/release/tidemill")
STAGES = ["event", "state", "gradient", "sync"]


def run(config, settings, out):
    command = [TIDEMILL, "train", config, "--quiet", "--out", out, "--trace", out + ".trace.json"]
    for setting in settings:
        command += ["--set", setting]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(out, "summary.json")) as file:
        summary = json.load(file)
    with open(out + ".trace.json") as file:
        spans = [span for span in json.load(file)["traceEvents"] if span["ph"] == "X" and span["cat"] != "wait"]
    os.remove(out + ".trace.json")
    return summary, spans


def passes(spans):
    """Spans by pass: a stage's spans in order of time, cut where the event stage starts anew at batch 0."""
    starts = sorted(s["ts"] for s in spans if s["tid"] == 0 and s["args"]["batch"] == 0)
    starts = [t for i, t in enumerate(starts) if i == 0 or t - starts[i - 1] > 1e3]
    bounds = list(zip(starts, starts[1:] + [float("inf")]))
    return [[s for s in spans if a <= s["ts"] < b] for a, b in bounds]


def overlap(spans):
    """Share of batches whose gradient stage runs while stage 1 or 2 works on a later batch."""
    early = [s for s in spans if s["tid"] < 2]
    shown = total = 0
    for batch in sorted({s["args"]["batch"] for s in spans if s["tid"] == 2})[:-1]:
        own = [(s["ts"], s["ts"] + s["dur"]) for s in spans if s["tid"] == 2 and s["args"]["batch"] == batch]
        later = [s for s in early if s["args"]["batch"] > batch]
        total += 1
        shown += any(s["ts"] < b and a < s["ts"] + s["dur"] for a, b in own for s in later)
    return shown / max(total, 1)


def speed(args):
    kinds = {
        "serial": ["pipeline.serial=true"],
        "pipelined": ["pipeline.serial=false"],
        "pipelined, cache off": ["pipeline.serial=false", "sampler.cache=false"],
    }
    base = ["train.epochs=2", "train.patience=0", "train.checkpoint_every=0"] + args.set
    seconds, busy, hashes, share = {}, {}, set(), None
    with tempfile.TemporaryDirectory() as folder:
        for i in range(args.runs):
            for kind, settings in kinds.items():
                summary, spans = run(args.config, base + settings, f"{folder}/{kind}-{i}")
                hashes.add(summary["state_hash"])
                seconds.setdefault(kind, []).append(summary["epochs"][-1]["seconds"])
                second = [p for p in passes(spans) if any(s["tid"] == 3 for s in p)][-1]
                for stage, name in enumerate(STAGES):
                    time = sum(s["dur"] for s in second if s["tid"] == stage) / 1e6
                    busy.setdefault((kind, name), []).append(time)
                if kind == "pipelined, cache off" and share is None:
                    share = overlap(second)
    median = statistics.median
    print(f"| second epoch, median of {args.runs} | seconds | of serial | " + " | ".join(f"{n}, s" for n in STAGES) + " |")
    print("|---|---|---|" + "---|" * len(STAGES))
    for kind in kinds:
        cells = " | ".join(f"{median(busy[kind, name]):.3f}" for name in STAGES)
        relative = median(seconds[kind]) / median(seconds["serial"])
        print(f"| {kind} | {median(seconds[kind]):.2f} | {relative:.2f} | {cells} |")
    with_cache, without = (median(busy[kind, "event"]) for kind in ("pipelined", "pipelined, cache off"))
    print(f"\nevent stage with the cache: {with_cache / without:.2f} of that without")
    print(f"batches whose gradient stage overlaps stage 1 or 2 of a later one (cache off): {100 * share:.1f} %")
    print(f"state hashes: {'all equal' if len(hashes) == 1 else hashes}")


def staleness(args):
    print("| s | val AP | test AP | events/s | staleness of state | of parameters | hazard, state / gradient, s |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for s in args.staleness:
            runs = []
            for seed in range(args.seeds):
                settings = args.set + [f"pipeline.staleness={s}", f"seed={seed}"]
                runs.append(run(args.config, settings, f"{folder}/{s}-{seed}")[0])
            mean = lambda values: f"{statistics.mean(values):.4f} ± {statistics.pstdev(values):.4f}"
            hazard = [statistics.mean(next(x for x in r["stages"] if x["name"] == n)["hazard_s"] for r in runs) for n in ("state", "gradient")]
            rate = statistics.mean(r["train_events_per_s"] for r in runs)
            summed = lambda kind: [sum(column) for column in zip(*(r["staleness"][kind] + [0] * 9 for r in runs))][: s + 2]
            print(
                f"| {s} | {mean([r['val']['ap'] for r in runs])} | {mean([r['test']['ap'] for r in runs])} | {rate:.0f} "
                f"| {summed('state')} | {summed('parameters')} | {hazard[0]:.2f} / {hazard[1]:.2f} |",
                flush=True,
            )


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("what", choices=["speed", "staleness"])
parser.add_argument("config")
parser.add_argument("--set", action="append", default=[])
parser.add_argument("--runs", type=int, default=5)
parser.add_argument("--seeds", type=int, default=3)
parser.add_argument("--staleness", type=lambda text: [int(s) for s in text.split(",")], default=[0, 1, 2, 4])
arguments = parser.parse_args()
{"speed": speed, "staleness": staleness}[arguments.what](arguments)
