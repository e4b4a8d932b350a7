#!/bin/sh
# Make the virtual environment and install p2ptrain in it, with the extras that EXTRAS names (none: what a node needs).
# Called by the Makefile, again whenever pins change.
set -eu

fail() {
    printf 'p2ptrain setup: %s\n' "$1" >&2
    exit 1
}

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    fail "needs Python 3.11 or newer as $PYTHON; name another one: make PYTHON=python3.12 setup"

if [ ! -x "$VENV/bin/python" ]; then
    echo "p2ptrain setup: making $VENV"
    "$PYTHON" -m venv "$VENV" || fail "cannot make a virtual environment (Debian: apt install python3-venv)"
fi

if [ "${EXTRAS:-}" ]; then
    echo "p2ptrain setup: installing with the development tools (the first time takes some minutes and about 2.5 GB of disk)"
else
    echo "p2ptrain setup: installing (the first time takes a minute or two and about 1.5 GB of disk)"
fi
# Not compiled: of 30,000 files a run imports a tenth, and Python keeps what it has compiled of these.
if ! "$VENV/bin/pip" install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt \
    torch --editable ".${EXTRAS:+[$EXTRAS]}" >"$VENV/setup.log" 2>&1; then
    if "$VENV/bin/python" -c 'import p2ptrain, node, gossip, torch, libp2p' 2>/dev/null; then
        echo "p2ptrain setup: offline? the package index does not answer; going on with what is installed" >&2
    else
        tail -n 5 "$VENV/setup.log" >&2
        fail "installing failed (whole log: $VENV/setup.log); offline? It needs the package index once"
    fi
fi

# trio-typing, which libp2p depends on, brings stubs of a trio of 2021 that hide trio's own types from mypy.
rm -rf "$VENV"/lib/python*/site-packages/trio-stubs
