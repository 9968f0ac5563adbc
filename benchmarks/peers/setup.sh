#!/usr/bin/env bash
# Make an environment for each peer, as they want Rays and packages of their own, and name those that cannot be made.
#   benchmarks/peers/setup.sh [DIRECTORY]      (.bench by default)
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
target=${1:-$here/../../.bench}
mkdir -p "$target"
echo '*' >"$target/.gitignore"
declare -A python=([flower]=3.11 [pfl]=3.11 [blazefl]=3.13)
missing=()
for peer in "${!python[@]}"; do
  { [ -d "$target/$peer" ] || uv venv --quiet --python "${python[$peer]}" "$target/$peer"; } &&
    uv pip install --quiet --compile-bytecode --python "$target/$peer" -r "$here/requirements-$peer.txt" ||
    missing+=("$peer (Python ${python[$peer]})")
done
[ ${#missing[@]} = 0 ] || { echo "not made: ${missing[*]}" >&2; exit 1; }
