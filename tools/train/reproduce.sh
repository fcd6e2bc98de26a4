#!/usr/bin/env bash
# Makes the embedded model from nothing but package registries: environment, facts, vocabulary, training,
# GGUF, figures. With --resume, goes on from the last checkpoint. Everything else is handed to train.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
root=../..
model=$root/models/signbit-mini.gguf

[ -d build/venv ] || python3 -m venv build/venv
# shellcheck disable=SC1091
. build/venv/bin/activate
pip install --quiet --requirement requirements.txt
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

if [ "${1:-}" != --resume ]; then
    python facts.py
    python tokenizer.py
fi
python train.py --out build/run "$@"
python export.py build/run/best.pt "$model"
python plot.py build/run/log.csv $root/models/training.png
python evaluate.py "$model"
