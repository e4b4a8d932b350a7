#!/bin/sh
# Puts Debian's Prometheus and promtool into the folder that is named, without root and without installing anything:
# the tests that ask a real Prometheus are skipped where there is none. Its package lists and its cache are its own.
set -eu
FOLDER=$(mkdir -p "$1" && cd "$1" && pwd)
mkdir -p "$FOLDER/lists/partial" "$FOLDER/archives/partial"
cd "$FOLDER"
rm -f prometheus_*.deb
fetch() {
    timeout 120 apt-get -qq -o Dir::State::lists="$FOLDER/lists" -o Dir::Cache="$FOLDER" \
        -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o APT::Sandbox::User= "$@"
}
fetch update
fetch download prometheus
dpkg-deb -x prometheus_*.deb .
usr/bin/promtool --version
