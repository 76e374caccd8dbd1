#!/usr/bin/env bash
# A virtual environment of its own for verifiers: it pins packages of ours. About 1.5 GB, three minutes.
#   setup.sh FOLDER
set -euo pipefail
folder=$1
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
ready="$folder/ready"
[ "$ready" -nt "$root/pyproject.toml" ] && [ "$ready" -nt "$here/setup.sh" ] && exit 0

"${PYTHON:-python3}" -m venv "$folder"
echo '*' > "$folder/.gitignore"
install=("$folder/bin/python" -m pip install --quiet --disable-pip-version-check)
# torch first and exactly, as everywhere.
"${install[@]}" torch==2.13.0
"${install[@]}" --editable "$root[verifiers,viewer]" pytest pytest-timeout
touch "$ready"
