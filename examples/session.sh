#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A session: files that many runs share. Its workspace is a plain directory on the mount, so cp,
# editors, git and rsync work in it, and what a run writes is there at once.
#
# usage: session.sh [MOUNTPOINT]
set -eu
mnt=${1:-$HOME/sandbox}
session=$mnt/sessions/example-$$
mkdir "$session"
trap 'rmdir "$session"' EXIT

# Runs one command in the session and prints what it said.
run() {
	exec 3<> "$session/runs/new"
	printf '{"command":["sh","-c","%s"]}' "$1" >&3
	read -r id <&3
	exec 3>&-
	cat "$session/runs/$id/.wait" > /dev/null
	cat "$session/runs/$id/log"
}

cat > "$session/workspace/count.py" << 'END'
import pathlib
n = pathlib.Path("n")
n.write_text(str(int(n.read_text()) + 1 if n.exists() else 1))
print("run number", n.read_text())
END

run "python3 count.py"
run "python3 count.py"
echo "seen from here: $(cat "$session/workspace/n")"
sed -i 's/run number/this is run/' "$session/workspace/count.py"
run "python3 count.py"
ls "$session/workspace"
