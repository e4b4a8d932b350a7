#!/bin/sh
# Fetch uPlot (MIT) through npm, and lay what the page serves of it, with its licence, where the page has it.
# The version is pinned here, the files' digests in tests/node/test_page_charts.py: whoever raises one raises both.
set -eu
version=1.6.32
into=$(cd "$(dirname "$0")/.." && pwd)/node/page/static
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm pack --silent "uplot@$version" >/dev/null
tar xzf "uplot-$version.tgz"
cp package/dist/uPlot.iife.min.js "$into/uplot.js"
cp package/dist/uPlot.min.css "$into/uplot.css"
cp package/LICENSE "$into/uplot.LICENSE"
