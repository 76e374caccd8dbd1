#!/usr/bin/env bash
# From data files to a better model, on a CPU and without a network once the model is fetched:
# look at the data, see which tokens are trained, learn from demonstrations, then from preferences,
# and measure on episodes that were held out.
set -euo pipefail
cd "$(dirname "$0")"
runs=../runs/demo

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '\033[2m$ bough %s\033[0m\n' "$*"; bough "$@"; }

say "1. What is in the data?"
run data stats household.jsonl
run data show household-pairs.jsonl --index 1

say "2. Which tokens would be trained, and how many have to be computed?"
run doctor household.jsonl --model smollm2 --samples 1

say "3. Learn from demonstrations (SFT), then from preferences (DPO)."
run sft --train-file household.jsonl --model smollm2 --output-dir $runs/sft --overwrite \
    --num-epochs 2 --learning-rate 5e-4 --batch-size 2 --max-length 1024
run dpo --train-file household-pairs.jsonl --model $runs/sft/final --output-dir $runs/dpo --overwrite \
    --num-epochs 1 --learning-rate 1e-4 --batch-size 4

say "4. Held-out episodes: before, after SFT, after DPO."
for model in smollm2 $runs/sft/final $runs/dpo/final; do
    run eval --model $model --eval-file household-held-out.jsonl
    run eval --model $model --eval-file household-pairs-held-out.jsonl
done
