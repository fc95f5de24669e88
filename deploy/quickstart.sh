#!/bin/sh
# From a clone to a lookup from another process, with TLS and a token: the commands of the README's quickstart, each
# printed before it runs. The status is 0 if all went as it should, and 1 if not.
#
#   make quickstart           (or sh deploy/quickstart.sh)
#
# It needs Linux, make and Python 3.11 or later (PYTHON=/path/to/python3 names one). What it leaves is .venv; all else
# is written to secrets and state/try, which are removed in the end.
set -eu
cd "$(dirname "$0")/.."
SERVER=

main() {
    say "Install: .venv, from the lock files. The first time takes some minutes."
    run <<STEP
make install
STEP
    run <<STEP
. .venv/bin/activate
STEP
    say "Credentials, for trials: an authority, the server's certificate, and a token for each role."
    run <<STEP
embershard credentials secrets/
STEP
    say "Serve the sample collection."
    start <<STEP
embershard serve --config deploy/movielens.toml --data-dir state/try --listen localhost:0 \\
    --tls-cert secrets/server.pem --tls-key secrets/server.key --tokens secrets/tokens.toml
STEP
    say "Look up from another process, as a reader."
    run <<STEP
embershard lookup --target localhost:$PORT --ca secrets/ca.pem --token-file secrets/read.token --ids user_id=1,2,3
STEP
    say "A reader's update is refused,"
    told 1 "role 'update'" <<STEP
echo '{"global_bias": {"ids": [0], "values": [[3.5]]}}' |
    embershard update --target localhost:$PORT --ca secrets/ca.pem --token-file secrets/read.token --request -
STEP
    say "an updater's is not,"
    run <<STEP
echo '{"global_bias": {"ids": [0], "values": [[3.5]]}}' |
    embershard update --target localhost:$PORT --ca secrets/ca.pem --token-file secrets/update.token --request -
STEP
    say "and the reader reads it."
    told 0 "3.5" <<STEP
embershard lookup --target localhost:$PORT --ca secrets/ca.pem --token-file secrets/read.token --ids global_bias=0
STEP
    say "Stop: it finishes the calls in flight, and writes a snapshot."
    stop
}

say() {
    printf '\n# %s\n' "$1"
}

# Runs the command on standard input, which must go well.
run() {
    command=$(cat)
    printf '$ %s\n' "$command"
    eval "$command" || fail "the command above ended with status $?"
}

# Runs the command on standard input, which must end with the status that is given, and print what is given.
told() {
    command=$(cat)
    printf '$ %s\n' "$command"
    status=0
    eval "$command" >"$LOGS/said" 2>&1 || status=$?
    cat "$LOGS/said"
    [ "$status" = "$1" ] || fail "it should have ended with status $1, and not with $status"
    grep -qF -- "$2" "$LOGS/said" || fail "it should have printed $2"
}

# Starts the server that is on standard input, and waits until it serves: SERVER is its process, PORT where it listens.
start() {
    command=$(cat)
    printf '$ %s &\n' "$command"
    : >"$LOGS/serve"
    eval "exec $command" >"$LOGS/serve" 2>&1 &
    SERVER=$!
    until PORT=$(sed -n 's/^rank 0 .* serves [^ ]*:\([0-9]*\).*/\1/p' "$LOGS/serve") && [ -n "$PORT" ]; do
        kill -0 "$SERVER" 2>/dev/null || { cat "$LOGS/serve"; fail "the server didn't start"; }
        sleep 0.2
    done
    cat "$LOGS/serve"
}

stop() {
    printf '$ kill %s\n' "$SERVER"
    kill "$SERVER"
    status=0
    wait "$SERVER" || status=$?
    SERVER=
    tail -n 2 "$LOGS/serve"
    [ "$status" = 0 ] || fail "the server ended with status $status"
}

fail() {
    echo "quickstart: $1" >&2
    exit 1
}

# Whatever happened: no process stays, and no key.
clean() {
    [ -z "$SERVER" ] || { kill "$SERVER" && wait "$SERVER"; } || true
    rm -rf secrets state/try "$LOGS"
}

for folder in secrets state/try; do
    [ ! -e $folder ] || fail "$folder is there already: remove it, or move it away"
done
LOGS=$(mktemp -d)
trap clean EXIT
trap 'exit 1' INT TERM HUP
main
printf '\nAll went as it should.\n'
