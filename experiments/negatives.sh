#!/bin/sh
# One row a model and seed: AP of random, historical and inductive negatives, all events and those with a new node.
# Usage: experiments/negatives.sh CONFIG.toml OUT_DIR "MODEL..." "SEED..." [train arguments]
# as in: experiments/negatives.sh experiments/wikipedia-dyglib.toml runs/negatives "tgn" "0 1" --set train.epochs=10
set -e
config=$1 out=$2 models=$3 seeds=$4
shift 4
mkdir -p "$out"
for model in $models; do
    for seed in $seeds; do
        run=$out/$model-$seed
        if [ ! -f "$run/summary.json" ]; then
            target/release/tidemill train "$config" --quiet --out "$run" --set model.name="$model" --set seed="$seed" "$@"
        fi
        for kind in random historical inductive; do
            echo "== $model, seed $seed, $kind"
            target/release/tidemill eval "$run" --quiet --set eval.negatives=$kind
        done
    done
done
