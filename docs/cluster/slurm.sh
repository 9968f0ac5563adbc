#!/bin/bash
# One run on several machines of a SLURM cluster:
#   RUN=/shared/runs/fedema sbatch docs/cluster/slurm.sh fedema data.name=cifar10 data.path=/shared/data engine.device=cuda
# RUN lies on a disk that all machines share. A run that is already there is resumed, so the same line goes on with it, and
# so does SLURM itself: it sends SIGTERM two minutes before the time is up, and the job is queued again.
#SBATCH --job-name=rayfed-ssl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=1
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

: "${RUN:?set RUN to the directory of the run, on a shared disk}"
: "${SLURM_JOB_ID:?submit this script with sbatch}"
# One Ray for each job: other users' jobs on the same machines must neither meet its port nor its files.
port=$((20000 + SLURM_JOB_ID % 10000))
export RAY_TMPDIR="/tmp/ray-$SLURM_JOB_ID"
export XDG_CACHE_HOME="${SLURM_TMPDIR:-/tmp/$USER-cache}" # each machine decodes the data once, onto its own disk

# Every connection has to show this token, for Ray listens on all interfaces of machines that others use too.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$HOME/.ray-token-$SLURM_JOB_ID"
(umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$RAY_AUTH_TOKEN_PATH")
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"; kill $(jobs -p) 2>/dev/null || true' EXIT
stopped=false driver=""
trap 'stopped=true; [ -z "$driver" ] || kill -TERM "$driver" || true' TERM # from here on: the machines may join late

# The settings of a Ray that rayfed-ssl starts itself; a machine that is gone is noticed within 5 seconds.
export RAY_USAGE_STATS_ENABLED=0 RAY_worker_niceness=0 GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=1073741824
export RAY_free_objects_period_milliseconds=20 RAY_free_objects_batch_size=1
export RAY_health_check_initial_delay_ms=1000 RAY_health_check_period_ms=1000
export RAY_health_check_timeout_ms=2000 RAY_health_check_failure_threshold=3

head=$(hostname)
address="$(hostname --ip-address | awk '{print $1}'):$port"
share=(--num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" --block)

srun --nodes=1 --ntasks=1 --nodelist="$head" \
  ray start --head --port="$port" --include-dashboard=false "${share[@]}" &
if ((SLURM_JOB_NUM_NODES > 1)); then
  others=$((SLURM_JOB_NUM_NODES - 1))
  sleep 10 # a machine that finds no head tries for a minute
  srun --nodes="$others" --ntasks="$others" --exclude="$head" ray start --address="$address" "${share[@]}" &
fi

count_machines() {
  python - "$address" 2>/dev/null <<'END' || echo 0
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
print(sum(node["Alive"] for node in ray.nodes()))
END
}
for ((tries = 0; $(count_machines) < SLURM_JOB_NUM_NODES; tries++)); do
  if $stopped; then break; fi
  if ((tries == 60)); then
    echo "only $(count_machines) of $SLURM_JOB_NUM_NODES machines joined the Ray at $address" >&2
    exit 1
  fi
  sleep 2
done

if $stopped; then
  scontrol requeue "$SLURM_JOB_ID"
  exit 143
fi
if [ -e "$RUN/run.json" ]; then
  rayfed-ssl resume "$RUN" --address "$address" &
else
  rayfed-ssl run "$@" --out "$RUN" --address "$address" &
fi
driver=$!
if $stopped; then kill -TERM "$driver"; fi # the signal came before there was anyone to hand it on to
status=0
wait "$driver" || status=$?
if $stopped; then
  wait "$driver" || true # the first wait ends with the signal, this one with the driver
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
