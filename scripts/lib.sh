# Shell functions shared by start_backend.sh and run_tests.sh. Sourced, never run.
# shellcheck shell=bash
#
# The caller has `set -euo pipefail` on and sets REPO (the checkout's root). Nothing here prints to standard output
# except the functions whose result is that output; progress and warnings go to standard error.

say() { printf '%s\n' "$*" >&2; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() {
    local status=$1
    shift
    printf 'error: %s\n' "$*" >&2
    exit "$status"
}

is_root() { [[ $EUID -eq 0 ]]; }

# --- the unprivileged user that the web process runs as --------------------------------------------------------------

# The name of the service user: `tidegate`, created when it is missing, else `nobody`. Only root needs one.
service_user() {
    local name=tidegate
    if ! getent passwd "$name" >/dev/null 2>&1; then
        if command -v useradd >/dev/null 2>&1 &&
            useradd --system --user-group --no-create-home --home-dir /nonexistent \
                --shell /usr/sbin/nologin "$name" >/dev/null 2>&1; then
            say "created the system user $name (no login, no home)"
        else
            name=nobody
            warn "the system user tidegate could not be created; the web process will run as $name"
        fi
    fi
    printf '%s\n' "$name"
}

# as_user NAME COMMAND...: run a command with that user's rights and none of root's.
as_user() {
    local uid gid name=$1
    shift
    uid=$(id -u "$name") && gid=$(id -g "$name") || return 1
    setpriv --reuid "$uid" --regid "$gid" --clear-groups --inh-caps=-all -- "$@"
}

# can_reach USER PATH: whether that user can read the path and walk to it.
can_reach() { as_user "$1" test -r "$2" 2>/dev/null; }

# --- Python ----------------------------------------------------------------------------------------------------------

python_fits() { # CANDIDATE USER: new enough, and the service user can execute it ('' when there is no such user)
    local probe='import sys; sys.exit(sys.version_info < (3, 11))'
    "$1" -I -S -c "$probe" >/dev/null 2>&1 || return 1
    # An interpreter below /root works for root and fails for the web process, so try it as that user.
    [[ -z $2 ]] || as_user "$2" "$1" -I -S -c "$probe" >/dev/null 2>&1
}

# pick_python USER: path of a Python >= 3.11 that USER ('' = only ourselves) can execute. Fails when there is none.
pick_python() {
    local user=$1 name path
    local -a candidates=()
    [[ -z ${TIDEGATE_PYTHON:-} ]] || candidates+=("$TIDEGATE_PYTHON")
    # The distribution's own first when root: it is the one that every user can execute.
    ! is_root || candidates+=(/usr/bin/python3)
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        while IFS= read -r path; do candidates+=("$path"); done < <(type -aP "$name" 2>/dev/null)
    done
    for path in "${candidates[@]}"; do
        if [[ -x $path ]] && python_fits "$path" "$user"; then
            printf '%s\n' "$path"
            return 0
        fi
    done
    return 1
}

# --- Debian packages -------------------------------------------------------------------------------------------------

APT_UPDATED=no

# apt_install PACKAGE...: installs them, after one `apt-get update` in the life of this script. Only as root with apt.
apt_install() {
    local log
    log=$(mktemp)
    say "installing Debian packages: $*"
    if [[ $APT_UPDATED == no ]]; then
        apt-get update -qq >"$log" 2>&1 || warn "apt-get update: $(tail -n 1 "$log")"
        APT_UPDATED=yes
    fi
    if ! DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}

has_apt() { command -v apt-get >/dev/null 2>&1; }
can_apt() { is_root && has_apt; }
has_library() { ldconfig -p 2>/dev/null | grep -q -F "$1" || /sbin/ldconfig -p 2>/dev/null | grep -q -F "$1"; }

# --- the virtual environment -----------------------------------------------------------------------------------------

# What an install depends on. An editable install follows the sources by itself; a copied one does not.
install_fingerprint() { # MODE
    {
        printf '%s\n' "$1" "$REPO"
        sha256sum <"$REPO/pyproject.toml"
        if [[ $1 == copied ]]; then
            find "$REPO/backend" "$REPO/collectors" "$REPO/frontend" -type f \
                -not -name '*.pyc' -not -name '*.bpf.o' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
        fi
    } | sha256sum | cut -d ' ' -f 1
}

# venv_current VENV MODE EXTRAS: whether what is installed there is what the checkout asks for. The stamp file holds
# one line, `FINGERPRINT EXTRAS`; an install with extras serves one without.
venv_current() {
    local installed
    [[ -x $1/bin/tidegate && -f $1/.tidegate-install ]] || return 1
    installed=$(<"$1/.tidegate-install")
    [[ ${installed%% *} == "$(install_fingerprint "$2")" ]] && [[ -z $3 || ${installed#* } == "$3" ]]
}

# ensure_venv VENV MODE EXTRAS PYTHON: create VENV and install Tidegate into it, when it is not there or has changed.
# MODE editable: from the checkout; copied: built into the environment. EXTRAS: '' or e.g. '[test]'.
ensure_venv() {
    local venv=$1 mode=$2 extras=$3 python=$4 log
    if [[ -e $venv && ! -w $venv ]]; then
        die 1 "$venv needs an update but is not writable for $(id -un); run this as its owner once, or remove it"
    fi
    if [[ ! -x $venv/bin/python ]] || ! "$venv/bin/python" -c '' 2>/dev/null; then
        say "creating $venv with $python"
        "$python" -m venv --clear "$venv" || die 1 "no virtual environment could be made in $venv with $python"
    fi
    say "installing Python packages into $venv (about a minute the first time)"
    log=$(mktemp)
    local -a target=("$REPO$extras")
    [[ $mode == copied ]] && target+=(--force-reinstall --no-deps)
    if [[ $mode == editable ]]; then target=(-e "${target[@]}"); fi
    # A copied install is made in two steps: the dependencies, then our own package anew whatever its version says.
    if { [[ $mode == editable ]] || pip_install "$venv" "$REPO$extras" >"$log" 2>&1; } &&
        pip_install "$venv" "${target[@]}" >"$log" 2>&1; then
        rm -f "$log"
    else
        tail -n 15 "$log" >&2
        rm -f "$log"
        die 1 "pip could not install Tidegate; the lines above say why (it needs a package index)"
    fi
    printf '%s %s\n' "$(install_fingerprint "$mode")" "$extras" >"$venv/.tidegate-install"
}

pip_install() { # VENV ARGUMENTS...
    local venv=$1
    shift
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
        --root-user-action ignore "$@"
}

# --- the BPF object --------------------------------------------------------------------------------------------------

# ensure_bpf PYTHON: builds the kernel programs when they are missing or older than their sources.
# Returns 1, with the reason on standard error, when they cannot be built; the collector then samples /proc instead.
ensure_bpf() {
    local python=$1 log
    log=$(mktemp)
    if "$python" -m tidegate_collectors.kernel.build >"$log" 2>&1; then
        rm -f "$log"
        return 0
    fi
    tail -n 5 "$log" >&2
    rm -f "$log"
    return 1
}
