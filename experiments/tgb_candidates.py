#!/usr/bin/env python3
"""Turns the Temporal Graph Benchmark's evaluation sets of a link dataset into one npz file that tidemill reads.

    python experiments/tgb_candidates.py EDGES.csv OUT.npz VAL_NS.pkl [TEST_NS.pkl]
    tidemill train experiments/wikipedia-tgb.toml --set data.path=EDGES.csv --set eval.candidates=OUT.npz

The benchmark's archive of `tgbl-wiki-v2` holds all three: `tgbl-wiki_edgelist_v2.csv`, `tgbl-wiki_val_ns_v2.pkl`,
`tgbl-wiki_test_ns_v2.pkl`. A pickle maps (source, destination, time) to an array of negative destinations, in the benchmark's
numbering: sources as they are in the file, destinations after the largest source. EDGES.csv has source, destination and time in
its first three columns, under a header. Needs numpy.

What is written, one entry for each key: `source`, `destination` (numbers of nodes by ascending id, sources before destinations,
as tidemill numbers them), `time` (seconds), and `offset` into `negative`. tidemill refuses a file that lacks an event's set.
"""
import csv
import gzip
import pickle
import sys

import numpy as np


def edges(path):
    """Sources and destinations, each its own id space."""
    with (gzip.open(path, "rt") if path.endswith(".gz") else open(path)) as file:
        rows = csv.reader(file)
        next(rows)
        return np.array([(int(float(row[0])), int(float(row[1]))) for row in rows if row], dtype=np.int64).T


def numbering(path):
    """A function from the benchmark's numbers to tidemill's."""
    source, destination = edges(path)
    shift = source.max() + 1
    sources, destinations = np.unique(source), np.unique(destination) + shift
    known = np.concatenate([sources, destinations])

    def renumber(nodes):
        nodes = np.asarray(nodes, dtype=np.int64)
        at = np.searchsorted(known, nodes)
        strange = nodes[(at == len(known)) | (known[np.minimum(at, len(known) - 1)] != nodes)]
        if len(strange):
            sys.exit(f"node {strange[0]} of the sets has no event in {path}: they are not of the same data")
        return at

    return renumber


def main(edge_file, out, *set_files):
    renumber, keys, sets = numbering(edge_file), [], []
    for path in set_files:
        with open(path, "rb") as file:
            for key, negatives in pickle.load(file).items():
                keys.append(key)
                sets.append(renumber(negatives))
    source, destination, time = zip(*keys)
    np.savez_compressed(
        out, source=renumber(source), destination=renumber(destination), time=np.array(time, dtype=np.float64),
        offset=np.concatenate([[0], np.cumsum([len(s) for s in sets])]).astype(np.int64),
        negative=np.concatenate(sets).astype(np.int32))
    print(f"{out}: {len(keys)} sets of {min(map(len, sets))} to {max(map(len, sets))} candidates")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
