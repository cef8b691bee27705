#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Files in, files out. `files` puts files into /workspace before the command starts; what matches
# `capture_patterns` when it ends appears below artifacts/, where cp, tar and rsync can take it.
#
# usage: files-and-artifacts.sh [MOUNTPOINT]
set -eu
mnt=${1:-$HOME/sandbox}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

data=$(printf 'pear\napple\nfig\n' | base64 -w 0)

# A document of any size may arrive in pieces; it starts at its last brace. The same descriptor
# then reads back the id, so that two shells never mix up their runs.
exec 3<> "$mnt/runs/new"
cat >&3 << END
{
  "command": ["sh", "-c", "mkdir out && sort fruit.txt > out/sorted.txt && wc -l < fruit.txt > out/count"],
  "files": [{"path": "fruit.txt", "content_b64": "$data"}],
  "capture_patterns": ["out/*"],
  "timeout_sec": 30
}
END
read -r id <&3
exec 3>&-

echo "exit code: $(cat "$mnt/runs/$id/.wait")"
cp -r "$mnt/runs/$id/artifacts/out" "$out/"
echo "lines: $(cat "$out/out/count")"
cat "$out/out/sorted.txt"
