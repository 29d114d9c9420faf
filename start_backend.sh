#!/usr/bin/env bash
# Start Tidegate: installs what is missing, then runs the web process and, on the live host, the kernel collector.
set -euo pipefail

REPO=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd -P)
# shellcheck source=scripts/lib.sh
source "$REPO/scripts/lib.sh"

usage() {
    cat <<'HELP'
Usage: ./start_backend.sh [OPTION]...

Starts the Tidegate web process (unprivileged) and the kernel collector (its own process), installing first what is
missing. Prints a one-time login URL. Ctrl-C stops everything that it started.

  --replay [FILE]  show a recording (JSONL, also .gz and .zst) instead of the live host: needs no root and no kernel
                   support. Without FILE: recordings/engine.jsonl.zst, agents with real tools and a real vLLM
  --demo           once up, run three scripted agents with real tools (about a minute and a half)
  --host ADDRESS   address to listen on (default 127.0.0.1)
  --port N         port to listen on (default 6456)
  --record-args    keep the full command lines of tool calls; without it only their recognised words are stored
  --setup-only     install everything, start nothing
  --help           this text

As root: installs missing Debian packages, creates the system user `tidegate` for the web process and traces with BPF.
Without root: the collector samples /proc instead, and the Health page says what is missing.

Environment: TIDEGATE_STATE_DIR (database and logs; /var/lib/tidegate as root, else ~/.local/share/tidegate),
TIDEGATE_RUNTIME_DIR (sockets), TIDEGATE_CGROUP_ROOT (name of our control group; tidegate), TIDEGATE_VENV (virtual
environment to use), TIDEGATE_PYTHON (Python to build it with).

Exit codes: 0 stopped or set up; 1 setting up failed; 2 wrong options; 3 the port is taken; 4 the web process failed.
HELP
}

usage_error() {
    printf 'error: %s\nTry ./start_backend.sh --help\n' "$*" >&2
    exit 2
}

REPLAY='' DEMO=no HOST=127.0.0.1 PORT=6456 SETUP_ONLY=no
RECORD_ARGS=no
while (($#)); do
    option=$1
    case $option in
    --replay=* | --host=* | --port=*) # as the GNU programs: --option=VALUE is --option VALUE
        set -- "${option%%=*}" "${option#*=}" "${@:2}"
        continue
        ;;
    --replay)
        if [[ $# -ge 2 && $2 != --* ]]; then
            [[ -n $2 ]] || usage_error "--replay needs a value"
            REPLAY=$2
            shift
        else
            REPLAY=$REPO/recordings/engine.jsonl.zst
        fi
        ;;
    --host | --port)
        [[ $# -ge 2 && -n $2 ]] || usage_error "$option needs a value"
        case $option in --host) HOST=$2 ;; --port) PORT=$2 ;; esac
        shift
        ;;
    --demo) DEMO=yes ;;
    --record-args) RECORD_ARGS=yes ;;
    --setup-only) SETUP_ONLY=yes ;;
    -h | --help) usage && exit 0 ;;
    *) usage_error "unknown option: $option" ;;
    esac
    shift
done
if [[ ! $PORT =~ ^[1-9][0-9]{0,4}$ ]] || ((PORT > 65535)); then
    usage_error "--port: $PORT is no port (1 to 65535)"
fi
if [[ -n $REPLAY ]]; then
    [[ $DEMO == no ]] || usage_error "--demo needs the live host; it does not go with --replay"
    [[ $RECORD_ARGS == no ]] || usage_error "--record-args is for the live host; it does not go with --replay"
    [[ -f $REPLAY && -r $REPLAY ]] || usage_error "--replay: $REPLAY is no file that can be read (a folder: tidegate serve --replay, or tidegate import)"
    REPLAY=$(readlink -f -- "$REPLAY")
fi

# --- where things are -------------------------------------------------------------------------------------------------

USER_NAME='' # of the web process; '' when there is no root to drop
if is_root; then
    command -v setpriv >/dev/null 2>&1 || die 1 "setpriv (package util-linux) is missing"
    USER_NAME=$(service_user)
    STATE_DIR=${TIDEGATE_STATE_DIR:-/var/lib/tidegate}
    RUNTIME_DIR=${TIDEGATE_RUNTIME_DIR:-/run/tidegate}
else
    STATE_DIR=${TIDEGATE_STATE_DIR:-${HOME:?HOME is not set}/.local/share/tidegate}
    # As tidegate_collectors.paths has it.
    RUNTIME_DIR=${TIDEGATE_RUNTIME_DIR:-${XDG_RUNTIME_DIR:+$XDG_RUNTIME_DIR/tidegate}}
    RUNTIME_DIR=${RUNTIME_DIR:-/tmp/tidegate-$EUID}
fi
LOG_DIR=$STATE_DIR/logs

# shared_directory PATH: as root, a directory in which root keeps logs and programs and the web process its database.
# Sticky and owned by root: the web process can add files, but not put its own in the place of root's. One that is there
# and is neither ours by name nor the web process's own stays as it is.
shared_directory() {
    if [[ ! -e $1 || $1 == /var/lib/tidegate || $(stat -c %U -- "$1") == "$USER_NAME" ]]; then
        install -d -m 1770 -o root -g "$(id -gn "$USER_NAME")" -- "$1" || die 1 "$1 cannot be made"
    fi
}

make_directories() {
    if is_root; then
        shared_directory "$STATE_DIR"
    else
        (umask 077 && mkdir -p -- "$STATE_DIR") || die 1 "$STATE_DIR cannot be made; set TIDEGATE_STATE_DIR"
    fi
    (umask 027 && mkdir -p -- "$LOG_DIR") || die 1 "$LOG_DIR cannot be made; set TIDEGATE_STATE_DIR"
    [[ -O $LOG_DIR && ! -L $LOG_DIR ]] || die 1 "$LOG_DIR does not belong to $(id -un); remove it or set TIDEGATE_STATE_DIR"
}

VENV=${TIDEGATE_VENV:-$REPO/.venv} MODE=editable
choose_venv() {
    [[ -z ${TIDEGATE_VENV:-} ]] || return 0
    if [[ -n $USER_NAME ]] && ! can_reach "$USER_NAME" "$REPO/pyproject.toml"; then
        # The checkout lies where only root can read (below /root, say). The web process must not run as root, so the
        # program is copied to where its user can read it.
        VENV=/var/lib/tidegate/venv MODE=copied
        shared_directory /var/lib/tidegate
        [[ ! -e $VENV || -O $VENV && ! -L $VENV ]] || die 1 "$VENV does not belong to root; remove it"
    fi
}

# --- installing -------------------------------------------------------------------------------------------------------

install_python() {
    local python
    if venv_current "$VENV" "$MODE" '' && python_fits "$VENV/bin/python" "$USER_NAME"; then
        return 0
    fi
    INSTALLED=yes
    if ! python=$(pick_python "$USER_NAME"); then
        can_apt || die 1 "Python 3.11 or later is needed. On Debian: sudo apt-get install python3 python3-venv"
        apt_install python3 python3-venv || die 1 "apt could not install python3"
        python=$(pick_python "$USER_NAME") || die 1 "Python 3.11 or later is needed; this distribution has an older one"
    fi
    if ! "$python" -I -c 'import ensurepip, venv' 2>/dev/null; then
        can_apt || die 1 "Python's venv module is missing. On Debian: sudo apt-get install python3-venv"
        apt_install python3-venv || die 1 "apt could not install python3-venv"
    fi
    ensure_venv "$VENV" "$MODE" '' "$python"
}

# The kernel programs. Only root can load them, so only root needs the compiler and libbpf.
install_bpf() {
    is_root || return 0
    local sources=$REPO/collectors/tidegate_collectors/kernel stamp=$VENV/.tidegate-bpf
    local -a missing=()
    if [[ $INSTALLED == no && -f $stamp && -z $(find "$sources" -newer "$stamp" -name '*.[ch]' -print -quit) ]]; then
        return 0
    fi
    command -v clang >/dev/null 2>&1 || missing+=(clang)
    has_library libbpf.so.1 && [[ -e /usr/include/bpf/bpf_helpers.h ]] || missing+=(libbpf-dev)
    if ((${#missing[@]})); then
        if has_apt; then
            apt_install "${missing[@]}" || warn "apt could not install ${missing[*]}"
        else
            warn "missing: ${missing[*]} (no apt-get here; install them by the distribution's own means)"
        fi
    fi
    say "building the kernel programs"
    if ensure_bpf "$VENV/bin/python"; then
        touch -- "$stamp"
    elif [[ -e /usr/lib/python3/dist-packages/bcc/libbcc.py ]]; then
        say "the collector will have BCC compile them for this kernel"
    else
        warn "no kernel programs, so the collector will sample /proc: no waits, no bursts, calls only by polling"
    fi
}

INSTALLED=no
choose_venv
make_directories
install_python
[[ -n $REPLAY ]] || install_bpf
if [[ $SETUP_ONLY == yes ]]; then
    say "set up: $VENV"
    exit 0
fi

# --- running ----------------------------------------------------------------------------------------------------------

TIDEGATE=$VENV/bin/tidegate
BACKEND_PID='' COLLECTOR_PID='' DEMO_PID='' WAITER_PID='' REPLAY_COPY='' BACKEND_UP=no COLLECTOR_UP=no
# Named by the port: another start, of a replay say, must not take the logs of one that runs.
BACKEND_LOG=$LOG_DIR/backend-$PORT.log COLLECTOR_LOG=$LOG_DIR/collector-$PORT.log
export TIDEGATE_STATE_DIR=$STATE_DIR

# mine PID: whether that process lives and is still the child that we started (a pid may be given to somebody else).
mine() {
    local key value
    [[ -n $1 && -r /proc/$1/status ]] || return 1
    while read -r key value; do
        case $key in
        State:) [[ $value != Z* ]] || return 1 ;;
        PPid:) [[ $value == "$$" ]] && return 0 || return 1 ;;
        esac
    done 2>/dev/null <"/proc/$1/status"
    return 1
}

# stop NAME PID SECONDS: asks it to end, waits so long, and then ends it.
stop() {
    local name=$1 pid=$2 tries=$(($3 * 20))
    mine "$pid" || return 0
    kill -TERM "$pid" 2>/dev/null || true
    while mine "$pid"; do
        if ((tries-- == 0)); then
            warn "$name did not stop within $3 s and was killed"
            kill -KILL "$pid" 2>/dev/null || true
            break
        fi
        # A pause without a child: bash can miss the end of a short one, and would then wait for ever.
        read -r -t 0.05 -u "$NOTHING_FD" || true
    done
}

# The agents first, then the collector, so that the last records of both still reach the web process.
stop_all() {
    trap '' INT TERM HUP
    exec {NOTHING_FD}<> <(:) # a pipe that nobody writes to
    stop "the wait for the collector" "$WAITER_PID" 1
    stop "the demo" "$DEMO_PID" 10
    stop "the collector" "$COLLECTOR_PID" 10
    stop "the web process" "$BACKEND_PID" 10
    # Bound as root, in a directory of root's: the web process cannot remove it itself.
    if is_root && [[ $BACKEND_UP == yes && -z $REPLAY && -S $RUNTIME_DIR/link.sock ]]; then
        rm -f -- "$RUNTIME_DIR/link.sock"
    fi
    # The numbers of calls, by session: the collector leaves them, so that another one goes on counting in the same run.
    # That is over when the web process has ended well; one that has not is resumed by the next. And only once our
    # collector has listened was the directory its own.
    if [[ $COLLECTOR_UP == yes ]]; then
        ended_with "$BACKEND_PID"
        [[ $ENDED_WITH != 0 ]] || rm -rf -- "$RUNTIME_DIR/sessions"
    fi
    [[ -z $REPLAY_COPY ]] || rm -rf -- "$REPLAY_COPY"
}
trap 'say "stopping"; exit 0' INT TERM HUP
trap stop_all EXIT

# fresh_log FILE: an empty log, the previous one kept beside it.
fresh_log() {
    [[ ! -e $1 ]] || mv -f -- "$1" "$1.1"
    (umask 077 && : >"$1")
}

show_log() { # FILE
    sed 's/^/    /' <(tail -n 20 -- "$1") >&2
    say "the whole log: $1"
}

# Where the browser and our own check find the listener; an address that means "all of them" is reached by loopback.
case $HOST in
0.0.0.0 | '') CHECK_HOST=127.0.0.1 ;;
::) CHECK_HOST=::1 ;;
*) CHECK_HOST=$HOST ;;
esac

port_answers() { (exec 3<>"/dev/tcp/$CHECK_HOST/$PORT") 2>/dev/null; }

# What waits for the web process, in one process that lasts as long as that takes: it looks for the answer of GET /health
# and then for the login URL in the log, which it prints. A loop of the shell would start dozens of subshells that end at
# once, and bash can miss the end of such a child while another one runs, and then waits for ever.
# Arguments: host, port, log, pid, seconds. Exit codes: 0, 1 the process ended, 2 no answer in time, 3 no URL in time.
WAIT_UNTIL_UP=$(
    cat <<'EOF'
import http.client, pathlib, re, signal, sys, time

signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is the shell's to answer
host, port, log, pid, seconds = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4], float(sys.argv[5])
deadline, up = time.monotonic() + seconds, False

def lives():
    try:
        return "\nState:\tZ" not in pathlib.Path("/proc", pid, "status").read_text()
    except OSError:
        return False

def answers():
    connection = http.client.HTTPConnection(host, port, timeout=2)
    try:
        connection.request("GET", "/health")
        return b'"UP"' in connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()

while time.monotonic() < deadline:
    if not lives():
        sys.exit(1)
    up = up or answers()
    if up and (found := re.search(r"https?://\S*/login\?token=\S*", log.read_text(errors="replace"))):
        print(found[0])
        sys.exit(0)
    time.sleep(0.03)
sys.exit(3 if up else 2)
EOF
)

# What waits for the collector: it connects to the agents' socket until ours answers there (another one may have left the
# file). Arguments: socket, pid, seconds. Exit codes: 0, 1 the process ended, 2 it does not listen in time.
WAIT_UNTIL_LISTENING=$(
    cat <<'EOF'
import pathlib, signal, socket, struct, sys, time

signal.signal(signal.SIGINT, signal.SIG_DFL)
path, pid, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
deadline = time.monotonic() + seconds

def lives():
    try:
        return "\nState:\tZ" not in pathlib.Path("/proc", str(pid), "status").read_text()
    except OSError:
        return False

def listens():
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.settimeout(1)
            sock.connect(path)
            return struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0] == pid
        except OSError:
            return False

while time.monotonic() < deadline:
    if not lives():
        sys.exit(1)
    if listens():
        sys.exit(0)
    time.sleep(0.03)
sys.exit(2)
EOF
)

if port_answers; then
    die 3 "something already listens on $CHECK_HOST:$PORT (another Tidegate?); choose another with --port"
fi

fresh_log "$BACKEND_LOG"
[[ -n $REPLAY ]] || fresh_log "$COLLECTOR_LOG"
serve=("$TIDEGATE" serve --host "$HOST" --port "$PORT")
[[ -z $USER_NAME ]] || export TIDEGATE_USER=$USER_NAME
if [[ -n $REPLAY ]]; then
    if [[ -n $USER_NAME ]] && ! can_reach "$USER_NAME" "$REPLAY"; then
        # The web process reads it without root's rights: give it a copy, for as long as we run.
        REPLAY_COPY=$(mktemp -d "$STATE_DIR/replay.XXXXXX")
        install -m 0640 -g "$(id -gn "$USER_NAME")" -- "$REPLAY" "$REPLAY_COPY/"
        chgrp -- "$(id -gn "$USER_NAME")" "$REPLAY_COPY" && chmod 0750 "$REPLAY_COPY"
        REPLAY=$REPLAY_COPY/$(basename -- "$REPLAY")
    fi
    serve+=(--replay "$REPLAY")
fi
# A session of its own (setsid), so that Ctrl-C reaches only this script, which then stops things in the right order.
setsid "${serve[@]}" </dev/null >>"$BACKEND_LOG" 2>&1 &
BACKEND_PID=$!

# ended_with PID: sets ENDED_WITH to the exit code of a child that has ended.
ended_with() {
    ENDED_WITH=0
    wait "$1" 2>/dev/null || ENDED_WITH=$?
}

backend_failed() {
    ended_with "$BACKEND_PID"
    say "error: the web process ended (exit code $ENDED_WITH); its last lines:"
    show_log "$BACKEND_LOG"
    exit 4
}

wait_s=30
status=0
# The URL is in the log, readable by us only, where the web process writes it once it listens.
login_url=$("$VENV/bin/python" -I -S -c "$WAIT_UNTIL_UP" "$CHECK_HOST" "$PORT" "$BACKEND_LOG" "$BACKEND_PID" "$wait_s") ||
    status=$?
case $status in
0) ;;
1) backend_failed ;;
2)
    say "error: the web process did not answer within $wait_s s; its last lines:"
    show_log "$BACKEND_LOG"
    exit 4
    ;;
*)
    warn "the web process answers but has told no login URL within $wait_s s; its last lines:"
    show_log "$BACKEND_LOG"
    ;;
esac

BACKEND_UP=yes

# Only now: on a small host the two would slow each other down, and the first page would come later.
if [[ -z $REPLAY ]]; then
    collect=("$TIDEGATE" collect)
    [[ $RECORD_ARGS == no ]] || collect+=(--record-args)
    [[ -z ${TIDEGATE_CGROUP_ROOT:-} ]] || collect+=(--cgroup-root "$TIDEGATE_CGROUP_ROOT")
    setsid "${collect[@]}" </dev/null >>"$COLLECTOR_LOG" 2>&1 &
    COLLECTOR_PID=$!
fi

say "Tidegate is up. Log in once with this URL (it works one time):"
printf '%s\n' "${login_url:-http://$HOST:$PORT/ (no login URL was printed; see $BACKEND_LOG)}"
say "logs: $LOG_DIR    Ctrl-C stops everything"
if [[ -n $REPLAY ]]; then
    say "replaying $REPLAY; nothing is traced or changed on this host"
elif ! is_root; then
    say "without root the collector samples /proc: short calls, short peaks and single waits are missed."
    say "  'sudo ./start_backend.sh' traces with BPF; '$TIDEGATE doctor' tells what else this host lacks."
fi

# Who starts an agent before the collector listens has it run unobserved, so only then is it offered. In the background:
# a signal is to end this wait.
collector_wait_s=10
if [[ -n $COLLECTOR_PID ]]; then
    status=0
    setsid "$VENV/bin/python" -I -S -c "$WAIT_UNTIL_LISTENING" "$RUNTIME_DIR/agent.sock" "$COLLECTOR_PID" \
        "$collector_wait_s" </dev/null &
    WAITER_PID=$!
    wait "$WAITER_PID" || status=$?
    WAITER_PID=''
    case $status in
    0) COLLECTOR_UP=yes ;;
    1) ;; # told below
    *) warn "the collector does not listen yet after $collector_wait_s s; until it does, commands run unobserved" ;;
    esac
fi

if [[ $DEMO == yes ]]; then
    setsid "$TIDEGATE" demo </dev/null &
    DEMO_PID=$!
elif [[ $COLLECTOR_UP == yes ]]; then
    say "run an agent (or any command) under it:  $TIDEGATE run -- COMMAND..."
fi

while :; do
    mine "$BACKEND_PID" || backend_failed
    if [[ -n $COLLECTOR_PID ]] && ! mine "$COLLECTOR_PID"; then
        ended_with "$COLLECTOR_PID"
        say "error: the collector ended (exit code $ENDED_WITH); the pages stay up, with no new data. Its last lines:"
        show_log "$COLLECTOR_LOG"
        COLLECTOR_PID=''
    fi
    if [[ -n $DEMO_PID ]] && ! mine "$DEMO_PID"; then
        ended_with "$DEMO_PID"
        say "the demo has ended (exit code $ENDED_WITH); the pages stay up"
        DEMO_PID=''
    fi
    wait -n || true
done
