#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds, runs every test program, and adds up what they say. Called by ./test.

A program is one of
  build/...        a build itself: warnings are errors
  lint/lint        tests/lint/lint.py
  unit/..., runtime/..., fuzz/...   what meson knows as a test
  integration/..., doors/..., conformance/..., escape/..., crash/...
                   tests/<folder>/test_*.py
  fuzz-live/...    a short search for new inputs, where there is clang

Each prints TAP, in a temporary directory and a process group of its own, with a time limit. It fails
if a test fails, if it crashes, is late, prints no test, breaks its plan, or leaves a process or a mount
behind. A Python test may say how it wants to be run, in a comment of its first lines:
  # run: alone, plain, limit=300
  alone   nothing else runs meanwhile      plain   on the build without sanitizers
  limit   seconds, without sanitizers (default 120)
"""
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ASAN = os.path.join(ROOT, "build-asan")
PLAIN = os.path.join(ROOT, "build-plain")
FUZZ = os.path.join(ROOT, "build-fuzz")
LOGS = os.path.join(ASAN, "test-logs")
FOLDERS = ("integration", "doors", "conformance", "escape", "crash")
SANITIZED = 3  # how much more time a program gets under sanitizers
TOTAL_SECONDS = 45 * 60  # for everything; what has no time left fails
START = time.monotonic()
AT_ONCE = 2
FUZZ_SECONDS = 15
SETUP = {
    ASAN: ["-Db_sanitize=address,undefined", "-Dcrash_points=true", "-Dwerror=true"],
    PLAIN: ["-Dcrash_points=true", "-Dwerror=true"],
    FUZZ: ["-Dwerror=true", "-Db_lundef=false", "-Db_sanitize=address,undefined",
           "-Dc_args=-fsanitize=fuzzer-no-link"],
}


class Program:
    def __init__(self, name, argv, limit=120, env=None, alone=False, counts_inputs=False):
        self.name, self.argv, self.limit, self.env = name, argv, limit, env or {}
        self.alone = alone
        self.counts_inputs = counts_inputs  # no TAP: the exit status is the test
        self.passed = self.failed = self.skipped = 0
        self.problems, self.skips = [], []
        self.seconds = 0.0


# ---- finding ---------------------------------------------------------------------------------------

def run_quietly(argv, **kw):
    return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", **kw)


def configure(build, compiler=None):
    """Makes or keeps a build directory; None, or what meson said."""
    env = dict(os.environ, CC=compiler) if compiler else None
    if os.path.exists(os.path.join(build, "build.ninja")):
        argv = ["meson", "configure", build] + SETUP[build]
    else:
        shutil.rmtree(build, ignore_errors=True)
        argv = ["meson", "setup", build] + SETUP[build]
    done = run_quietly(argv, cwd=ROOT, env=env)
    return None if done.returncode == 0 else "%s\n%s" % (shlex.join(argv), done.stdout)


def meson_tests():
    done = subprocess.run(["meson", "introspect", "--tests", ASAN], stdout=subprocess.PIPE,
                          stdin=subprocess.DEVNULL, text=True, check=True)
    for t in json.loads(done.stdout):
        suite = t["suite"][0].split(":")[-1] if t["suite"] else "unit"
        name = t["name"] if "/" in t["name"] else "%s/%s" % (suite, t["name"])
        yield Program(name, t["cmd"], t["timeout"] * SANITIZED, t["env"],
                      alone=not t["is_parallel"], counts_inputs=suite == "fuzz")


def directives(path):
    """The words of the `# run:` line, as a dictionary."""
    with open(path) as f:
        for _, line in zip(range(12), f):
            m = re.match(r"# run:(.*)", line)
            if m:
                return dict((w.strip().split("=") + [True])[:2] for w in m.group(1).split(","))
    return {}


def python_tests():
    for folder in FOLDERS:
        where = os.path.join(ROOT, "tests", folder)
        for name in sorted(os.listdir(where)) if os.path.isdir(where) else []:
            if not re.fullmatch(r"test_\w+\.py", name):
                continue
            path = os.path.join(where, name)
            how = directives(path)
            unknown = set(how) - {"alone", "plain", "limit"}
            if unknown:
                sys.exit("%s: unknown word after '# run:': %s" % (path, ", ".join(unknown)))
            slow = 1 if "plain" in how else SANITIZED
            yield Program("%s/%s" % (folder, name[:-3]), [sys.executable, path],
                          int(how.get("limit", 120)) * slow,
                          {"SBX_BUILD_ROOT": PLAIN if "plain" in how else ASAN,
                           "SBX_TEST_SLOW": str(4 if "plain" in how else 6)},
                          alone="alone" in how)


def programs():
    found = [Program("lint/lint", [sys.executable, os.path.join(ROOT, "tests/lint/lint.py")], 300)]
    return found + list(meson_tests()) + list(python_tests())


# ---- builds, which are tests too -------------------------------------------------------------------

def build(directory, targets, compiler, name, tally):
    """True when it is built. Counted and reported like a program."""
    p = Program(name, ["ninja", "-C", directory] + targets)
    start = time.monotonic()
    said = configure(directory, compiler)
    if said is None:
        done = run_quietly(p.argv, cwd=ROOT)
        said = done.stdout
        p.failed = int(done.returncode != 0)
    else:
        p.failed = 1
    p.passed = 1 - p.failed
    p.seconds = time.monotonic() - start
    if p.failed:
        p.problems.append("does not build")
    tally.add(p, said)
    return not p.failed


def why_not_fuzz():
    if not shutil.which("clang"):
        return "clang is not installed"
    probe = subprocess.run(["clang", "-fsanitize=fuzzer", "-x", "c", "-o", os.devnull, "-"],
                           input=b"int LLVMFuzzerTestOneInput(void) { return 0; }",
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return "clang has no libFuzzer here" if probe.returncode else None


def fuzz_live(tally):
    """A short search with libFuzzer for every target, from its corpus."""
    reason = why_not_fuzz()
    if reason:
        p = Program("fuzz-live", [])
        p.skipped, p.skips = 1, [reason]
        tally.add(p, "")
        return
    if not build(FUZZ, [], "clang", "build/clang", tally):
        return
    where = os.path.join(FUZZ, "tests/fuzz")
    todo = []
    with tempfile.TemporaryDirectory(prefix="sbxt-") as found:
        for exe in sorted(n for n in os.listdir(where) if re.fullmatch(r"fuzz_\w+_live", n)):
            target = exe[len("fuzz_"):-len("_live")]
            new = os.path.join(found, target)
            os.mkdir(new)
            todo.append(Program("fuzz-live/" + target, [
                os.path.join(where, exe), "-max_total_time=%d" % FUZZ_SECONDS, "-timeout=20",
                "-rss_limit_mb=2048", "-verbosity=0", "-print_final_stats=1",
                "-artifact_prefix=" + LOGS + "/", new,
                os.path.join(ROOT, "tests/fuzz/corpus", target)],
                FUZZ_SECONDS + 60, counts_inputs=True))
        tally.run_all(todo)


# ---- running one -----------------------------------------------------------------------------------

def parse_tap(p, text):
    """Counts results. A program may print several groups, each with a plan."""
    planned = 0
    for line in text.splitlines():
        plan = re.fullmatch(r"1\.\.(\d+)( *# *SKIP *(.*))?", line.strip())
        if plan:
            planned += int(plan.group(1))
            if plan.group(2):
                p.skipped += 1
                p.skips.append(plan.group(3))
            continue
        m = re.match(r"(not )?ok\b *(\d*) *(?:- *)?(.*)", line)
        if not m:
            continue
        skip = re.search(r"# *SKIP\b *(.*)", m.group(3), re.I)
        if skip:  # cmocka before 1.1.7 says "not ok" of a skipped test
            p.skipped += 1
            p.skips.append(skip.group(1))
            if not skip.group(1):
                p.problems.append("skipped without a reason: " + line)
        elif m.group(1):
            p.failed += 1
        else:
            p.passed += 1
    total = p.passed + p.failed + p.skipped
    if total == 0:
        p.problems.append("printed no test")
    elif planned and planned != total:
        p.problems.append("planned %d tests and printed %d" % (planned, total))
    elif not planned:
        p.problems.append("printed no plan, so it may have ended early")


def mounts_below(path):
    with open("/proc/self/mountinfo") as f:
        return [w[4] for w in (line.split() for line in f) if w[4].startswith(path + "/")]


def processes_naming(path):
    needle, found = os.fsencode(path), {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as f:
                text = f.read()
        except OSError:
            continue
        if needle in text and int(pid) != os.getpid():
            found[int(pid)] = text.replace(b"\0", b" ").decode(errors="replace")
    return found


def clean_up(p, tmp):
    """What the program left behind, which is a failure, is removed."""
    for pid, text in processes_naming(tmp).items():
        p.problems.append("left process %d: %s" % (pid, text[:200]))
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for mount in reversed(mounts_below(tmp)):
        p.problems.append("left mount " + mount)
        subprocess.run(["umount", "-l", mount], stderr=subprocess.DEVNULL, check=False)
        if mount in mounts_below(tmp):
            subprocess.run(["fusermount3", "-u", "-z", mount], stderr=subprocess.DEVNULL,
                           check=False)
    shutil.rmtree(tmp, ignore_errors=True)


def execute(p):
    """Runs it and fills in what it did. Returns its output."""
    tmp = tempfile.mkdtemp(prefix="sbxt-")
    os.chmod(tmp, 0o1777)  # some tests become another user
    env = dict(os.environ, TMPDIR=tmp, CMOCKA_MESSAGE_OUTPUT="TAP", SBX_SOURCE_ROOT=ROOT,
               SBX_BUILD_ROOT=ASAN, PYTHONDONTWRITEBYTECODE="1", PYTHONUNBUFFERED="1",
               ASAN_OPTIONS="detect_leaks=1:abort_on_error=0",
               UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1")
    for name in [n for n in env if n.startswith("SANDBOX")]:
        del env[name]  # settings of this machine must not change a test
    env.update(p.env)
    start = time.monotonic()
    limit = max(1, min(p.limit, START + TOTAL_SECONDS - start))
    child = subprocess.Popen(p.argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             start_new_session=True)
    try:
        text, _ = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        p.problems.append("not done after %d s" % limit)
        os.killpg(child.pid, signal.SIGKILL)
        try:
            text, _ = child.communicate(timeout=10)
        except subprocess.TimeoutExpired:  # somebody outside the group holds the pipe
            child.stdout.close()
            text = b""
    p.seconds = time.monotonic() - start
    text = text.decode(errors="replace")
    if p.counts_inputs:
        p.passed = int(child.returncode == 0)
        p.failed = 1 - p.passed
    else:
        parse_tap(p, text)
    if child.returncode < 0 and not p.problems:
        p.problems.append("died of signal %d" % -child.returncode)
    elif child.returncode > 0 and p.failed == 0:
        p.problems.append("exit status %d" % child.returncode)
    if "ERROR: AddressSanitizer" in text or "ERROR: LeakSanitizer" in text or \
            re.search(r"runtime error: ", text):
        p.problems.append("a sanitizer complained")
    clean_up(p, tmp)
    # A problem that no failed test stands for counts as one.
    if p.problems and p.failed == 0:
        p.failed = 1
    return text


class Tally:
    def __init__(self):
        self.lock = threading.Lock()
        self.passed = self.failed = self.skipped = 0
        self.bad = []

    def add(self, p, text):
        with self.lock:
            self.passed += p.passed
            self.failed += p.failed
            self.skipped += p.skipped
            os.makedirs(LOGS, exist_ok=True)
            log = os.path.join(LOGS, p.name.replace("/", ".") + ".log")
            with open(log, "w") as f:
                f.write(text)
            print("%-4s %6.1f s  %-40s %d passed%s%s" % (
                "FAIL" if p.failed else "ok", p.seconds, p.name, p.passed,
                ", %d failed" % p.failed if p.failed else "",
                ", %d skipped" % p.skipped if p.skipped else ""), flush=True)
            for reason in p.skips:
                print("            skipped: %s" % reason)
            if p.failed:
                self.bad.append(p.name)
                for problem in p.problems:
                    print("            %s" % problem)
                print("---- output of %s, without what passed" % shlex.join(p.argv))
                print("\n".join(line for line in text.splitlines() if not line.startswith("ok ")))
                print("---- end of %s; all of it: %s" % (p.name, os.path.relpath(log, ROOT)),
                      flush=True)

    def run(self, p):
        self.add(p, execute(p))

    def run_all(self, todo):
        """Two at a time, those that may take long first; then those that want to be alone."""
        rest = sorted((p for p in todo if not p.alone), key=lambda p: p.limit)
        threads = [threading.Thread(target=self.worker, args=(rest,)) for _ in range(AT_ONCE)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for p in todo:
            if p.alone:
                self.run(p)

    def worker(self, rest):
        while True:
            try:
                p = rest.pop()  # from the end
            except IndexError:
                return
            try:
                self.run(p)
            except Exception as e:  # a fault of this file must not look like a pass
                p.failed, p.problems = 1, ["cannot be run: %r" % e]
                self.add(p, "")


def wanted(name, words):
    return not words or any(w in name for w in words)


def main():
    # A shell's job in the background begins with it ignored, and everything that it starts would, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    words = [a for a in sys.argv[1:] if not a.startswith("-")]
    options = [a for a in sys.argv[1:] if a.startswith("-")]
    if options not in ([], ["--list"]):
        sys.exit("usage: ./test [NAME...] | --list")
    said = configure(ASAN)
    if said:
        print(said)
        print("0 passed, 1 failed, 0 skipped")
        return 1
    todo = [p for p in programs() if wanted(p.name, words)]
    if options:
        print("\n".join([p.name for p in todo] + ["build/clang and fuzz-live/..."]))
        return 0
    live = not words or any(w in "fuzz-live" or w.startswith("fuzz-live") for w in words)
    if not todo and not live:
        sys.exit("no test program has a name like that; ./test --list shows them")
    start, tally = time.monotonic(), Tally()
    built = build(ASAN, [], None, "build/asan", tally)
    if any(PLAIN in p.env.values() for p in todo):
        built = build(PLAIN, [], None, "build/plain", tally) and built
    if built:
        tally.run_all(todo)
    if built and live:
        fuzz_live(tally)
    if tally.bad:
        print("failed: %s" % " ".join(tally.bad))
    print("in %d s, on %s as %s" % (time.monotonic() - start, os.uname().release,
                                    "root" if os.geteuid() == 0 else "uid %d" % os.geteuid()))
    print("%d passed, %d failed, %d skipped" % (tally.passed, tally.failed, tally.skipped))
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
