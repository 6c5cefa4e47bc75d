#!/usr/bin/env bash
# Shows the main job on this machine, from a label to a draft pull request: a small forge for trying things out, the
# real bot, and, unless `--endpoint URL` names a model's server, a recording in the model's place.
set -euo pipefail
cd "$(dirname "$0")/.."
