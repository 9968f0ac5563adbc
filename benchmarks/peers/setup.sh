#!/usr/bin/env bash
# Make one environment for each peer: they want Rays and packages of their own.
#   benchmarks/peers/setup.sh [DIRECTORY]      (.bench by default)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
target=${1:-$here/../../.bench}
mkdir -p "$target"
echo '*' >"$target/.gitignore"
declare -A python=([flower]=3.11 [pfl]=3.11 [blazefl]=3.13)
for peer in "${!python[@]}"; do
  [ -d "$target/$peer" ] || uv venv --quiet --python "${python[$peer]}" "$target/$peer"
  uv pip install --quiet --compile-bytecode --python "$target/$peer" -r "$here/requirements-$peer.txt"
done
