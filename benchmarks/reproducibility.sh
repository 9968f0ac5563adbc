#!/usr/bin/env bash
# The promise, from outside: one seed gives one hash, in process, with 1, 2 and 3 actors, and after kill -9 and resume.
#   benchmarks/reproducibility.sh [KEY=VALUE]...      (settings of recipe digits)
set -u
out=$(mktemp -d)
hash() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["rounds"][-1]["state_sha256"])' "$out/$1/run.json"; }
run() { name=$1; shift; rayfed-ssl run -q --out "$out/$name" "$@" >"$out/$name.log" 2>&1 || cat "$out/$name.log"; echo "$name $(hash "$name")"; }

run in-process engine.executor=local "$@"
for actors in 1 2 3; do run "$actors-actors" engine.cpus_per_actor=0.5 engine.actors=$actors "$@"; done
run another-seed engine.executor=local seed=1 "$@"

rayfed-ssl run -q --out "$out/killed" "$@" >"$out/killed.log" 2>&1 &
driver=$!
until [ -e "$out/killed/checkpoints/round-000001.json" ]; do sleep 0.2; done
sleep 1  # in the middle of round 2
kill -9 $driver
sleep 3
rayfed-ssl resume -q "$out/killed" >"$out/resumed.log" 2>&1 || cat "$out/resumed.log"
echo "killed-in-round-2-and-resumed $(hash killed)"
