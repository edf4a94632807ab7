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

# The family, whose references lie beside TGN's: every key in which public codes differ, in some run.
cd family
beside=$(dirname "$reference")
make() {
    local small="--time-dim 6 --neighbors 3 --batch-size 24 --batches 4 --features random:3:7 --dtype f64"
    [ "$1" = shared ] && small+=" --time-origin first"
    "$python" "$beside/$2" "../$1.csv" "$3" $small "${@:4}" > /dev/null
}
row="family_ref.py" wide="--memory-dim 8 --lr 1e-6"
make bipartite $row jodie $wide --model jodie
make shared $row jodie-ratio $wide --model jodie --gap ratio --message peer --row-norm layer --no-mail update --last-mail roles
make shared $row jodie-stored $wide --model jodie --gap all --message-time stored --last-mail roles
make bipartite $row jodie-gru $wide --model jodie --gap none --updater gru --row-norm l2 --node-features random:8:3
make bipartite $row dyrep $wide --model dyrep
make shared $row dyrep-attention $wide --model dyrep --score attention --updater gru --node-features random:8:3 --same-batch hidden
make shared $row dyrep-stored $wide --model dyrep --message-time stored --last-mail roles --message peer
make bipartite $row apan $wide --model apan --slots 3 --time-origin first
make shared $row apan-attended $wide --model apan --slots 4 --deliver neighbors --empty-slots attended --last-mail roles
make shared $row apan-last $wide --model apan --slots 2 --mail-combine last --attention scaled --position --same-batch hidden
make bipartite $row apan-sum $wide --model apan --slots 4 --mail sum --features random:8:7 --fixed-time-encoder --position --empty-slots attended
deep="tgat_ref.py" wide="--embed-dim 8 --node-features random:6:3 --lr 1e-6 --batch-size 20 --batches 2"
make bipartite $deep tgat $wide
make shared $deep tgat-padding $wide --preset tgat --time-dim 7 --fixed-time-encoder
make bipartite $deep tgat-recent $wide --preset dyglib-2023 --time-dim 6 --hop-time root --projection-bias
make shared $deep tgat-oldest $wide --sampling oldest --latest dropped --norm off --merge previous --same-batch hidden --node-features zeros:6
rm -f ./*/weights_final.npz
"$python" - <<'PY'  # what the test reads, compressed
import glob
import numpy as np
unread = ("/attn", "/weight", "/own_attn", "/own_state", "/nbr_state", "/z", "/h", "/gap", "_prob")
for path in glob.glob("*/*.npz"):
    with np.load(path) as arrays:
        kept = {name: arrays[name] for name in arrays.files if not name.endswith(unread)}
    np.savez_compressed(path, **kept)
PY
