#!/usr/bin/env bash
# Gradescope runs this once, as root, while it builds the container's image. Grading needs no network afterwards.
{torch}
set -euo pipefail
cd "$(dirname "$0")"
TORCH="${TORCH-torch==2.13.0}"
TORCH_INDEX="${TORCH_INDEX-{index}}"
export GPT149_CACHE="$PWD/cache" PIP_DISABLE_PIP_VERSION_CHECK=1

if ! command -v g++ >/dev/null || ! python3 -c 'import ensurepip' 2>/dev/null; then
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends g++ python3 python3-venv python3-dev
fi
test -x .venv/bin/python || python3 -m venv .venv
test -z "$TORCH" || .venv/bin/pip install --quiet ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$TORCH"
.venv/bin/pip install --quiet --requirement requirements.txt

# Only root may read hidden cases and solutions: the container may not allow a sandbox that hides files.
chmod 0700 {private}
chmod 0600 {source}

# Build the reference, the kit's own programs and the precompiled headers once for all submissions.
.venv/bin/python -m grader.staff.platforms.container ${TORCH:+--torch}
.venv/bin/python -m grader doctor --quick || echo "setup.sh: the doctor found problems, listed above" >&2
