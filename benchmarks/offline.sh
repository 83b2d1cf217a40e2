#!/usr/bin/env bash
# Run a benchmark on a GPU node without network, with the packages of .wheels:
#
#   pip download --only-binary=:all: --no-deps --python-version 3.12 --platform any \
#     --platform manylinux_2_28_x86_64 --platform manylinux_2_26_x86_64 --platform manylinux_2_17_x86_64 \
#     --platform manylinux2014_x86_64 --dest .wheels --requirement benchmarks/offline.txt
#   benchmarks/offline.sh labelled_diagnosis --lot held-out
#
# The first line is for a machine with network, the second for the node.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${TMPDIR:-/tmp}/hoptui-packages/site-packages
if [ ! -e "$target/installed" ]; then
  python3 -m pip install --quiet --no-index --no-deps --target "$target" .wheels/*.whl
  touch "$target/installed"
fi
export PYTHONPATH="$PWD:$PWD/trainer:$target"
exec python3 -m "benchmarks.$1" "${@:2}"
