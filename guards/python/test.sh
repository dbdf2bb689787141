#!/usr/bin/env bash
# Builds the package as `pip install` does and runs its tests against what was installed.
# Needs cargo and Python >= 3.10 with pip and venv; numpy comes with the package, torch is optional.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${CARGO_TARGET_DIR:-$here/target}
venv=$target/guard-venv
export CARGO_TARGET_DIR=$target/guard
[ -x "$venv/bin/python" ] || python3 -m venv --without-pip "$venv"
install() { python3 -m pip --python "$venv/bin/python" install --quiet --disable-pip-version-check "$@"; }
install --upgrade --force-reinstall --no-deps "$here"
"$venv/bin/python" -c 'import numpy, zmq' 2>/dev/null || install numpy pyzmq
cd "$here/tests" # not beside the sources, so that what is tested is what was installed
"$venv/bin/python" -W error -m unittest -v
