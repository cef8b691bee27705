#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A script is a run, too: a text that begins with #! becomes the file /workspace/script, and its
# first line says what executes it.
#
# usage: script.sh [MOUNTPOINT]
set -eu
mnt=${1:-$HOME/sandbox}

# An existing file works the same way: cat build.sh > runs/new
cat > "$mnt/runs/new" << 'END'
#!/usr/bin/python3
import os, sys

print("python", sys.version_info.major, "runs", sys.argv[0], "in", os.getcwd())
print("6 * 7 =", 6 * 7)
END

read -r id < "$mnt/runs/new"
cat "$mnt/runs/$id/.wait" > /dev/null
cat "$mnt/runs/$id/stdout"
