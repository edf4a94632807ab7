#!/bin/sh
# How much of a number is the protocol: one trained run, scored by several. Usage: experiments/inflation.sh RUN_DIR
# The run is one of TGN under tgn-2020, as experiments/wikipedia-tgn.toml makes it.
set -e
run=$1
score() {
    echo "== $1"
    shift
    target/release/tidemill eval "$run" --quiet "$@"
}
score "as trained"
score "tgl-2022: negatives among all nodes, batches of 600, replayed state" \
    --set eval.candidates=all_nodes --set eval.batch_size=600 --set eval.state=replayed --set eval.new_node=off
score "negatives among all nodes" --set eval.candidates=all_nodes
score "never the true destination" --set train.avoid_positive=true
score "historical negatives" --set eval.negatives=historical
score "inductive negatives" --set eval.negatives=inductive
score "one against 999, 500 events" --set eval.negatives=tgb --set eval.mrr_events=500
