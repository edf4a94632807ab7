#!/usr/bin/env bash
# Makes the reference folders here: make.sh TGN_REFERENCE.py [PYTHON]
#
# The reference is an independent PyTorch implementation that trains TGN on a csv and saves every number. Both streams are
# drawn here, small but with what is easy to get wrong: ties, within and across batches, repeated rows, self-loops, a node
# with more events in a batch than neighbors are sampled, and nodes without history.
set -euo pipefail
reference=$(realpath "$1") python=${2:-python3}
cd "$(dirname "$0")"

"$python" - <<'PY'
import numpy as np
def write(path, header, sources, destinations, shared, seed):
    rng = np.random.default_rng(seed)
    t, rows = 5_000_000, []
    for _ in range(360):
        t += int(rng.choice([0, 0, 1, 40, 3_000, 200_000], p=[.2, .1, .2, .2, .2, .1]))
        s = int(sources * rng.random() ** 2)
        d = int(destinations * rng.random() ** 2)
        if shared and rng.random() < .05:
            d = s
        rows.append((s, d, t) if not rows or rng.random() > .05 else (*rows[-1][:2], t))
    with open(path, "w") as f:
        f.write(header + "\n" + "".join("%d,%d,%d\n" % r for r in rows))
write("bipartite.csv", "user_id,item_id,timestamp", 30, 12, False, 1)
write("shared.csv", "src,dst,timestamp", 25, 25, True, 2)
PY

small="--memory-dim 8 --time-dim 6 --embed-dim 10 --neighbors 4 --batch-size 40 --batches 6"
make() { "$python" "$reference" "$1.csv" "$2" $small "${@:3}" > /dev/null; }
make bipartite bipartite-f64 --features random:5:7 --dtype f64 --lr 1e-6
make bipartite bipartite-f64-stored --features random:5:7 --dtype f64 --lr 1e-6 --message-time stored
make bipartite bipartite-f32 --features random:5:7 --lr 0
make shared shared-f64-fixed --time-origin first --dtype f64 --fixed-time-encoder --lr 1e-2
make shared shared-f64-stored --time-origin first --dtype f64 --lr 1e-6 --message-time stored
make shared shared-f64-nodes --time-origin first --dtype f64 --lr 1e-6 --node-features random:8:3
rm -f ./*/weights_final.npz
