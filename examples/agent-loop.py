#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The loop of a coding agent, without a browser and without a shell of its own: write code, run it where it
can do no harm, read what came of it, mend it, run it again. Only the HTTP API is used, by the standard library.

  sandbox-apid &       # listens on 127.0.0.1:8420; its key is in api.key in the state directory
  ./agent-loop.py

usage: agent-loop.py [URL]     the key in $SANDBOX_KEY, or else it is read from the state directory
The model is played by mend(), which reads the output as a model would; put yours in its place.
"""
import base64
import json
import os
import sys
import urllib.error
import urllib.request

URL = (sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8420") + "/api/v1/sandbox"
ATTEMPTS = 5


def read_key():
    state = ("/var/lib" if os.geteuid() == 0 else
             os.environ.get("XDG_STATE_HOME", os.path.expanduser("~/.local/state")))
    with open(state + "/sandboxfs/api.key") as f:
        return f.read().strip()


KEY = os.environ.get("SANDBOX_KEY") or read_key()


def ask(path, document=None):
    """The body of the answer; a refusal is one, too, and says what would be right."""
    data = json.dumps(document).encode() if document is not None else None
    request = urllib.request.Request(URL + path, data, {"X-API-KEY": KEY})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.read()
    except urllib.error.HTTPError as e:
        return e.read()


def strictest():
    """The least trust that this host can serve: for `untrusted` it must be able to enforce every limit."""
    runtime = next(r for r in json.loads(ask("/runtimes"))["runtimes"] if r["available"])
    return next(x for x in ("untrusted", "standard", "trusted") if x in runtime["supported_trust_levels"])


def run(code, trust, attempt):
    """(status, what it said): one run that has ended, of a program that we know nothing about."""
    status = json.loads(ask("/runs?wait=60", {
        "base_image": "host",
        "command": ["sh", "-c", "python3 main.py > output.txt 2>&1"],
        "files": [{"path": "main.py", "content_b64": base64.b64encode(code.encode()).decode()}],
        "capture_patterns": ["output.txt"],
        # An endless loop, a fork bomb, all the memory: each ends here and not on this host.
        "trust_level": trust, "timeout_sec": 10, "resources": {"memory_mb": 256, "pids": 32},
        "labels": {"agent": "example", "attempt": str(attempt)},
    }))
    if "error" in status:
        sys.exit("refused: " + status["error"]["message"])
    return status, ask("/runs/%s/artifacts/output.txt" % status["id"]).decode()


FIRST = """\
words = "the cat and the dog and the bird".split()
counts = Counter(words)
for word, n in sorted(counts.items(), key=lambda item: item.value)[-2:]:
    print(word, n)
"""


def mend(code, said):
    """What a model would make of the traceback."""
    last = said.strip().splitlines()[-1]
    if "name 'Counter' is not defined" in last:
        return "from collections import Counter\n" + code
    if "has no attribute 'value'" in last:
        return code.replace("item.value", "item[1]")
    sys.exit("no idea what to do about: " + last)


def main():
    code, trust = FIRST, strictest()
    for attempt in range(1, ATTEMPTS + 1):
        status, said = run(code, trust, attempt)
        print("attempt %d: %s" % (attempt, status["status_reason_code"]))
        if status["phase"] == "completed":
            print(said, end="")
            return
        if status["phase"] != "failed":
            sys.exit("it ended as %s" % status["phase"])
        print("  " + said.strip().splitlines()[-1])
        code = mend(code, said)
    sys.exit("it does not work after %d attempts" % ATTEMPTS)


if __name__ == "__main__":
    main()
