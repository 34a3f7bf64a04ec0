#!/bin/sh
# The command of a pod that runs torchrun: `sh pod.sh train.py --steps 200`. It passes signals on and keeps exit codes.
EXIT_CODE_FILE="$(mktemp -d)/code"
export EXIT_CODE_FILE
torchrun --nnodes="$WORLD_SIZE" --node-rank="$JOB_COMPLETION_INDEX" --nproc-per-node="${PROCESSES_PER_POD:-8}" \
    --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" "$@" &
launcher=$!
trap 'kill -TERM "$launcher"' TERM
wait "$launcher"
code=$?
while kill -0 "$launcher" 2>/dev/null; do wait "$launcher"; code=$?; done  # a signal ends `wait`, not torchrun
if [ "$code" -ne 0 ] && [ -s "$EXIT_CODE_FILE" ]; then code="$(cat "$EXIT_CODE_FILE")"; fi
exit "$code"
