#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The HTTP API with curl: start a run, wait for its end, read its log, fetch what it made.
#
#   sandbox-apid &       # listens on 127.0.0.1:8420; its key is in api.key in the state directory
#   ./api-hello.sh
#
# usage: api-hello.sh [URL]      the key in $SANDBOX_KEY, or else it is read from the state directory
set -eu
url=${1:-http://127.0.0.1:8420}
state=${XDG_STATE_HOME:-$HOME/.local/state}/sandboxfs
[ "$(id -u)" -eq 0 ] && state=/var/lib/sandboxfs
key=${SANDBOX_KEY:-$(cat "$state/api.key")}

api() { # METHOD PATH [CURL OPTION...]
	method=$1 path=$2
	shift 2
	curl -sS --fail-with-body -X "$method" -H "X-API-KEY: $key" "$@" "$url/api/v1/sandbox$path"
}
field() { sed -n "s/.*\"$1\":\"\\{0,1\\}\\([^\",}]*\\).*/\\1/p"; }

# The document is the one that the mount takes. The answer comes at once, while the run begins.
id=$(api POST /runs -d '{
  "base_image": "host",
  "command": ["sh", "-c", "echo hello from $(uname -n) | tee hello.txt; seq 1000 > numbers.txt; exit 3"],
  "capture_patterns": ["*.txt"]
}' | field id)

# Wait for the end, for at most a minute. Nothing polls: the answer is sent when the run has ended.
end=$(api GET "/runs/$id?wait=60")
echo "$(echo "$end" | field phase), exit code $(echo "$end" | field exit_code)"

# What matched capture_patterns: a list with a link for each, and ranges of each.
api GET "/runs/$id/artifacts" | tr '{' '\n' | sed -n 's/^"path":"\([^"]*\)","size":\([0-9]*\).*/\1: \2 bytes/p'
api GET "/runs/$id/artifacts/hello.txt"
echo "the last two numbers:"
api GET "/runs/$id/artifacts/numbers.txt" -H "Range: bytes=-9"

# A document that is refused says why, and --fail-with-body makes curl fail.
api POST /runs -d '{"base_image":"host","command":"a string"}' > /dev/null 2>&1 || echo "a wrong document: refused"

# The same key starts nothing twice, so a client that lost the answer may simply ask again.
again() { api POST /runs -H "Idempotency-Key: hello-$id" -d '{"base_image":"host","command":["true"]}' | field id; }
[ "$(again)" = "$(again)" ] && echo "the same key: the same run"
