#!/bin/sh
# The tests of models and trees on the oldest and the newest transformers that pyproject.toml allows:
#
#     sh benchmarks/versions.sh [VERSION...]
#
# Each version gets an environment of its own in .venv-versions. It borrows the other packages from .venv, except
# those that this transformers needs in another version (5.17 needs huggingface-hub before 2).
set -eu
cd "$(dirname "$0")/.."
versions=${*:-"5.17.0 5.22.2"}
shared=$(.venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")
failed=""
for version in $versions; do
    folder=.venv-versions/$version
    if [ ! -x "$folder/bin/python" ]; then
        .venv/bin/python -m venv "$folder"
        site=$("$folder/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
        echo "$shared" > "$site/shared.pth"
        "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "transformers==$version"
    fi
    echo "transformers $version"
    PYTHONPATH=src "$folder/bin/python" -m pytest -q tests/models tests/trees tests/policy tests/engines/local || failed="$failed $version"
done
if [ -n "$failed" ]; then
    echo "failed:$failed"
    exit 1
fi
