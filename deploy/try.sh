#!/usr/bin/env bash
# Shows the main job on this machine, from a label to a draft pull request: a small forge for trying things out, the
# real bot, and, unless `--endpoint URL` (and `--model NAME`) names a model's server, a recording in the model's place.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/needs.sh
needs
echo "building (the first time takes some five minutes on two cores)"
cargo build --locked -p bot -p tests --bins
exec "${CARGO_TARGET_DIR:-target}/debug/try-hyla" "$@"
