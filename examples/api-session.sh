#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A session with curl: files in, several runs on the same workspace, a snapshot, what has changed since, back to
# it, and a copy to try something else on.
#
#   sandbox-apid &       # listens on 127.0.0.1:8420; its key is in api.key in the state directory
#   ./api-session.sh
#
# usage: api-session.sh [URL]      the key in $SANDBOX_KEY, or else it is read from the state directory
set -eu
url=${1:-http://127.0.0.1:8420}
state=${XDG_STATE_HOME:-$HOME/.local/state}/sandboxfs
[ "$(id -u)" -eq 0 ] && state=/var/lib/sandboxfs
key=${SANDBOX_KEY:-$(cat "$state/api.key")}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

api() { # METHOD PATH [CURL OPTION...]
	method=$1 path=$2
	shift 2
	curl -sS --fail-with-body -X "$method" -H "X-API-KEY: $key" "$@" "$url/api/v1/sandbox$path"
}
field() { sed -n "s/.*\"$1\":\"\\{0,1\\}\\([^\",}]*\\).*/\\1/p"; }
run() { # SESSION COMMAND: runs it there and waits for the end
	api POST "/runs?wait=60" -d "{\"session_id\":\"$1\",\"command\":[\"sh\",\"-c\",\"$2\"],\"capture_patterns\":[\"out.txt\"]}" | field id
}

# What the session says holds for all of its runs, unless they say otherwise.
s=$(api POST /sessions -d '{"base_image":"host","env":{"GREETING":"hello"},"labels":{"example":"session"}}' | field id)

# Files go in as a form; an archive is unpacked.
printf '3\n1\n2\n' > "$tmp/numbers.txt"
mkdir "$tmp/tools"
echo 'sort -n numbers.txt' > "$tmp/tools/sorted.sh"
tar -C "$tmp" -czf "$tmp/tools.tar.gz" tools
echo "files: $(api POST "/sessions/$s/files" -F "files=@$tmp/numbers.txt" -F "files=@$tmp/tools.tar.gz" | field file_count)"

# Runs find what earlier ones have left.
run "$s" 'sh tools/sorted.sh > sorted.txt' > /dev/null
r=$(run "$s" '(echo $GREETING; cat sorted.txt) > out.txt')
api GET "/runs/$r/artifacts/out.txt"

# Keep the workspace, let something go wrong, see what, and go back.
api POST "/sessions/$s/snapshot" -d '{"name":"sorted"}' > /dev/null
run "$s" 'rm numbers.txt; echo 4 >> sorted.txt' > /dev/null
api GET "/sessions/$s/snapshots/sorted/diff" | sed -n 's/.*"path":"\([a-z.]*\)","change":"\([a-z]*\)".*/\2: \1/p' |
	grep -v ': $' | sort
api POST "/sessions/$s/restore" -d '{"snapshot_id":"sorted"}' > /dev/null

# A copy is a session of its own.
c=$(api POST "/sessions/$s/clone" | field session_id)
run "$c" 'rm -r *' > /dev/null
r=$(run "$s" 'ls > out.txt')
api GET "/runs/$r/artifacts/out.txt"

# The sessions go with everything that is theirs; their runs can still be looked at.
for one in "$s" "$c"; do
	api DELETE "/sessions/$one" > /dev/null
done
api GET "/sessions/$s" > /dev/null 2>&1 || echo "gone"
echo "the run: $(api GET "/runs/$r" | field phase)"
