#!/usr/bin/env bash
# Everything that must pass before a change is handed in: linters, types, layers, tests.
# Installs what that needs. Arguments go to pytest: ./run_tests.sh -k link, ./run_tests.sh -m 'not browser'
set -euo pipefail

REPO=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd -P)
# shellcheck source=scripts/lib.sh
source "$REPO/scripts/lib.sh"

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
    sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}"
    exit 0
fi

# --- a place that the unprivileged user can read ----------------------------------------------------------------------

# Run as root, the web process under test gives root up, and can then read neither code nor templates in a checkout
# below /root, say. There the tests run in a copy. The recordings of others lie beside the checkout, in ../shared.
COPY=''
USER_NAME=''
if is_root; then
    USER_NAME=$(service_user)
    if ! can_reach "$USER_NAME" "$REPO/pyproject.toml"; then
        COPY=$(mktemp -d /var/tmp/tidegate-tests.XXXXXX)
        trap 'rm -rf -- "$COPY"' EXIT
        chmod 0755 "$COPY"
        mkdir "$COPY/main"
        say "$USER_NAME cannot read $REPO: testing a copy in $COPY"
        tar -C "$REPO" --exclude=./.venv --exclude=./.venv-vllm --exclude='__pycache__' -cf - . | tar -C "$COPY/main" -xf -
        chmod 0755 "$COPY/main"
        [[ ! -e $REPO/../shared ]] || ln -s -- "$(readlink -f "$REPO/../shared")" "$COPY/shared"
    fi
fi
ORIGINAL=$REPO
[[ -z $COPY ]] || REPO=$COPY/main
cd -- "$REPO"

# --- what the tests need ----------------------------------------------------------------------------------------------

apt_missing() { # prints the Debian packages that are not there
    local pair
    for pair in git:git cc:gcc clang:clang make:make shellcheck:shellcheck chromium:chromium; do
        command -v "${pair%%:*}" >/dev/null 2>&1 || printf '%s\n' "${pair#*:}"
    done
    [[ -e /usr/include/bpf/bpf_helpers.h ]] && has_library libbpf.so.1 || printf 'libbpf-dev\n'
    # The second loader; about 100 MB, most of it libLLVM.
    [[ -e /usr/lib/python3/dist-packages/bcc/libbcc.py ]] || printf 'python3-bpfcc\n'
    # Chromium draws text as empty boxes without any font.
    [[ -d /usr/share/fonts/truetype/dejavu ]] || printf 'fonts-dejavu-core\n'
}

PYTHON=$(pick_python "$USER_NAME" || true)
mapfile -t packages < <(apt_missing)
if [[ -z $PYTHON ]] || ! "$PYTHON" -I -c 'import ensurepip, venv' 2>/dev/null; then
    packages+=(python3 python3-venv)
fi
if ((${#packages[@]})); then
    if can_apt; then
        apt_install "${packages[@]}" || die 1 "apt could not install: ${packages[*]}"
    else
        warn "missing: ${packages[*]}; the tests that need them will fail or be skipped with that reason"
    fi
fi
[[ -n $PYTHON ]] || PYTHON=$(pick_python "$USER_NAME") || die 1 "Python 3.11 or later is needed"

VENV=${TIDEGATE_VENV:-$REPO/.venv}
venv_current "$VENV" editable '[test]' || ensure_venv "$VENV" editable '[test]' "$PYTHON"
BIN=$VENV/bin
if is_root; then
    ensure_bpf "$BIN/python" || die 1 "the kernel programs could not be built"
fi

# --- the checks -------------------------------------------------------------------------------------------------------

RESULTS=()
FAILED=0
check() { # NAME COMMAND...
    local name=$1 started=$SECONDS status=0
    shift
    say "== $name"
    "$@" || status=$?
    if ((status == 0)); then
        RESULTS+=("ok      $name  $((SECONDS - started)) s")
    else
        RESULTS+=("FAILED  $name  $((SECONDS - started)) s  (exit code $status)")
        FAILED=1
    fi
}

if command -v shellcheck >/dev/null 2>&1; then
    check "shellcheck" shellcheck -x start_backend.sh run_tests.sh scripts/lib.sh scripts/install_vllm.sh .ci/run
fi
check "ruff check" "$BIN/ruff" check --quiet .
check "ruff format" "$BIN/ruff" format --quiet --check .
check "mypy" "$BIN/mypy"
check "lint-imports" "$BIN/lint-imports"

# Tests of the engine's plugin run inside a vLLM; where it cannot be had they are skipped with the reason.
# shellcheck disable=SC2317 # called by name
vllm_tests() {
    local status=0
    scripts/install_vllm.sh "$REPO/.venv-vllm" || status=$?
    case $status in
    0) .venv-vllm/bin/python -m pytest "$@" ;;
    3) say "tests/engine: SKIPPED, there is no vLLM here (the reason is above)" ;;
    *) return "$status" ;;
    esac
}
# With arguments one tier runs: that of the engine when they name something of it.
names_engine() {
    local argument
    for argument in "$@"; do
        case ${argument#./} in
        tests/engine | tests/engine/*) return 0 ;;
        esac
    done
    return 1
}
if (($# == 0)); then
    check "pytest (vllm)" vllm_tests tests/engine
    check "pytest" "$BIN/python" -m pytest
elif names_engine "$@"; then
    check "pytest (vllm)" vllm_tests "$@"
else
    check "pytest" "$BIN/python" -m pytest "$@"
fi

# Screenshots and the like, made by the tests, are wanted where the checkout is.
if [[ -n $COPY && -d $REPO/test-artifacts ]]; then
    cp -a -- "$REPO/test-artifacts" "$ORIGINAL/"
fi

printf '\n== summary\n'
printf '%s\n' "${RESULTS[@]}"
exit "$FAILED"
