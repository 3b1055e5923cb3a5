#!/bin/bash
# Records train.py on a GPU in every way that stepscope reads, each into a folder of its own:
#     bash tests/data/together/record.sh FOLDER
# Needs torch with CUDA, ncu, triton and jax. Takes three or four minutes.
out=$1
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
say() { echo "== $1 ($SECONDS s)"; }
kernels="regex:(gemm|triton|flash|multi_tensor|cross|nvjet).*"

say "run"
TORCH_TRACE=$out/run_torch_trace TORCH_LOGS=graph_breaks,recompiles timeout 150 \
    python3 -m stepscope run --no-report --memory --stop-after --skip 30 --out "$out/run" \
    "$here/train.py" --steps 100000 > "$out/run.stdout.txt" 2> "$out/run.torch_logs.txt"
tail -3 "$out/run.torch_logs.txt"

say "own profiler"
TORCH_TRACE=$out/own_torch_trace TORCH_LOGS=graph_breaks,recompiles timeout 150 \
    python3 "$here/train.py" --steps 20 --own "$out/own" 2> "$out/own.torch_logs.txt"
tail -3 "$out/own.torch_logs.txt"

say "proton"
timeout 100 python3 "$here/train.py" --steps 16 --proton "$out/proton" 2>&1 | tail -3

say "snapshot in expandable segments"
PYTORCH_ALLOC_CONF=expandable_segments:True timeout 100 \
    python3 "$here/train.py" --steps 16 --snapshot "$out/expandable/snapshot.pickle" 2>&1 | tail -3

say "snapshot of a program that runs out of memory"
timeout 100 python3 "$here/train.py" --steps 16 --snapshot "$out/oom/snapshot.pickle" --memory-gib 8 2>&1 | tail -5

say "ncu"
timeout 200 ncu --clock-control none --set full --kernel-name "$kernels" --launch-skip 400 --launch-count 40 \
    -o "$out/ncu" -f python3 "$here/train.py" --steps 16 2>&1 | tail -3
ncu --import "$out/ncu.ncu-rep" --csv --page raw > "$out/ncu_raw.csv"
ncu --import "$out/ncu.ncu-rep" --csv --page details > "$out/ncu_details.csv"
ncu --import "$out/ncu.ncu-rep" --page details > "$out/ncu_details.txt"

say "jax"
timeout 100 python3 "$here/jax_train.py" "$out/jax" > "$out/jax.json" 2> "$out/jax.err"
tail -c 400 "$out/jax.json"
say "done"
