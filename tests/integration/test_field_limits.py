# SPDX-License-Identifier: Apache-2.0
"""Field cases about limits: processes, memory, output, disk. The name of a test begins with the number of
its case."""
import contextlib
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import field  # noqa: E402
import sbx  # noqa: E402
from field import py, sh, spec  # noqa: E402


def marked(mark):
    """(pid, start time) of every process, living or defunct, whose command line has the mark or whose
    parent's has."""
    found, parents = set(), {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open("/proc/%s/stat" % pid) as f:
                fields = f.read().rsplit(")", 1)[1].split()
            with open("/proc/%s/cmdline" % pid, "rb") as f:
                line = f.read()
            me = (int(pid), fields[19])
            parents[me] = int(fields[1])
            if mark.encode() in line:
                found.add(me)
    pids = {pid for pid, _ in found}
    return found | {me for me, parent in parents.items() if parent in pids}


def still_there(processes):
    left = set()
    for pid, start in processes:
        with contextlib.suppress(OSError):
            with open("/proc/%d/stat" % pid) as f:
                if f.read().rsplit(")", 1)[1].split()[19] == start:
                    left.add(pid)
    return left


class F20(field.Case):
    BOMB = ("import os,time\nfull=0\nwhile True:\n  try: os.fork()\n  except OSError:\n"
            "    full or os.write(1,b'full'); full=1; time.sleep(0.01)  # f20-%d")

    def test_F20_fork_bomb(self):
        mark = "f20-%d" % os.getpid()
        bomb = self.m.submit(py(self.BOMB % os.getpid(), trust_level="untrusted", timeout_sec=4))
        bomb.stream_until(b"full")
        others = [self.m.submit(spec(command=["echo", "ok"])) for _ in range(3)]
        seen = marked(mark)
        for r in others:
            self.ended(r, 0, "completed", timeout=60)
            self.assertEqual(r.log, b"ok\n")
        seen |= marked(mark)
        self.assertGreater(len(seen), 3)
        bomb.wait(60)
        self.assertIn(self.reason(bomb), ("execution_timeout", "limits_applied"))
        self.assertEqual(still_there(seen), set())
        self.assertEqual(marked(mark), set())
        self.alive()

    def test_F20_orphans_are_reaped(self):
        r = self.m.submit(sh("i=0; while [ $i -lt 200 ]; do sh -c 'sleep 0.01 & exit 0'; i=$((i+1)); done; sleep 1; "
                             "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l", trust_level="untrusted"))
        self.ended(r, 0, "completed", timeout=60)
        self.assertEqual(r.stdout.strip(), b"0")
        self.assertEqual(r.stderr, b"")

    def test_F20_pids_limit_of_the_spec(self):
        r = self.m.submit(py("import os,time\nn=0\ntry:\n  while n<100:\n    if os.fork()==0: time.sleep(30)\n    n+=1\n"
                             "except OSError: pass\nprint(n)", resources={"pids": 10}))
        r.wait()
        self.assertLess(int(r.stdout), 10)


class F22(field.Case):
    def test_F22_memory_kill_of_a_child(self):
        r = self.m.submit(sh("python3 -c \"x=b'q'*(512<<20)\"; echo rc=$?; exit 0", resources={"memory_mb": 64}))
        self.ended(r, 0, "limits_applied")
        self.assertIn(r.stdout, (b"rc=137\n", b"rc=1\n"))
        doc = r.json()
        self.assertIn("memory", doc["message"])
        self.assertEqual(doc["resource_usage"].get("memory_limit_hit"), 1)
        self.assertIn(b"memory", r.read("why"))
        self.alive()

    def test_F22_exit_137_is_not_taken_for_a_memory_kill(self):
        r = self.m.submit(sh("kill -9 $$", resources={"memory_mb": 64}))
        self.ended(r, 137, "nonzero_exit")
        doc = r.json()
        self.assertNotIn("memory_limit_hit", doc["resource_usage"])
        self.assertNotIn("memory", doc["message"])
        self.assertNotIn(b"memory", r.read("why"))

    def test_F22_memory_kill_of_the_command_itself(self):
        r = self.m.submit(py("x=b'q'*(512<<20)", resources={"memory_mb": 64}))
        self.ended(r, 137, "limits_applied")
        self.assertIn("memory", r.json()["message"])
        self.alive()

    def test_F22_files_of_the_workspace_count_as_memory_or_are_capped(self):
        r = self.m.submit(sh("head -c 500000000 /dev/zero > f; echo rc=$?", resources={"memory_mb": 64}))
        r.wait()
        self.assertNotEqual(r.stdout, b"rc=0\n")
        if r.stdout != b"rc=1\n":  # not refused by the workspace's own limit
            self.assertEqual(self.reason(r), "limits_applied")
            self.assertIn("memory", r.json()["message"])
        self.alive()


class F24(field.Case):
    CAP = 10485760

    def memory_kb(self):
        """Resident memory of the server and its runners."""
        total = 0
        for pid in self.m.processes():
            with contextlib.suppress(OSError):
                with open("/proc/%d/status" % pid) as f:
                    total += sum(int(line.split()[1]) for line in f if line.startswith("RssAnon"))
        return total

    def truncated(self, r):
        frames = r.frames()
        cut = [f for f in frames if f["type"] == "truncated"]
        self.assertEqual([f["reason"] for f in cut], ["log_cap"])
        self.assertEqual(os.stat(r.path("log")).st_size, self.CAP)
        outs = [f["type"] in ("stdout", "stderr") for f in frames]
        last_output = max(i for i, is_out in enumerate(outs) if is_out)
        self.assertGreater(frames.index(cut[0]), last_output)

    def test_F24_100_megabytes_of_output(self):
        self.alive()
        before = self.memory_kb()
        runs = [self.m.submit(sh("head -c 104857600 /dev/zero | tr '\\0' k; echo END; echo err >&2", timeout_sec=60))
                for _ in range(3)]
        self.alive()  # while they write
        for r in runs:
            doc = self.ended(r, 0, "limits_applied", timeout=60)
            self.truncated(r)
            self.assertEqual(doc["resource_usage"]["log_truncated"], 1)
            # The command ran to its end; what came behind the cap is counted, of both streams.
            self.assertEqual(doc["resource_usage"]["log_bytes_dropped"], 104857600 + 8 - self.CAP)
            self.assertEqual(r.stderr, b"")
            with open(r.path("log"), "rb") as f:
                f.seek(-5, os.SEEK_END)
                self.assertEqual(f.read(), b"kkkkk")
        if not sbx.sanitizer(sbx.SANDBOXFS):
            self.assertLess(self.memory_kb() - before, 32 * 1024)

    def test_F24_one_write_over_the_cap(self):
        r = self.m.submit(py("import os;os.write(1,b'h'*(11<<20))"))
        self.ended(r, 0, "limits_applied", timeout=60)
        self.truncated(r)

    def test_F24_exactly_the_cap_is_not_cut(self):
        r = self.m.submit(sh("head -c %d /dev/zero" % self.CAP))
        self.ended(r, 0, "completed", timeout=60)
        self.assertEqual(os.stat(r.path("log")).st_size, self.CAP)
        self.assertNotIn("truncated", [f["type"] for f in r.frames()])

    def test_F24_output_before_a_timeout_is_kept(self):
        r = self.m.submit(py("import time;print('early',flush=True);time.sleep(60)", timeout_sec=2))
        r.wait()
        self.assertEqual(self.reason(r), "execution_timeout")
        self.assertEqual(r.log, b"early\n")


class F25(field.Case):
    settings = {"tier_standard_workspace_cap_mb": 32, "max_artifact_file_bytes": 8 << 20}
    SCRIPT = ("head -c 2000000000 /dev/zero > big; echo rc=$?; truncate -s 1T hole && echo hole; i=0; "
              "while [ $i -lt 300000 ] && : > n$i; do i=$((i+1)); done; echo n=$i")

    def state_kb(self):
        return int(subprocess.run(["du", "-sk", self.m.state], stdout=subprocess.PIPE).stdout.split()[0])

    def test_F25_disk_cap_and_sparse_files(self):
        before = self.state_kb()
        # The files are freed again where the loop needs room for names.
        r = self.m.submit(sh(self.SCRIPT, capture_patterns=["big", "hole", "n1"], timeout_sec=60))
        r.wait(90)
        doc = r.json()
        lines = dict(line.split("=") for line in r.stdout.decode().split() if "=" in line)
        self.assertEqual(lines.get("rc"), "1", r.log)
        self.assertNotEqual(doc["status_reason_code"], "execution_timeout")
        if "n" in lines:
            self.assertLess(int(lines["n"]), 300000)
        self.assertLessEqual(self.state_kb() - before, 33 << 10)
        # Both files are too large to be kept, and are counted as left out for that.
        self.assertEqual(doc["status_reason_code"], "limits_applied")
        self.assertEqual(doc["resource_usage"]["artifact_skip_file_limit"], 2)
        self.assertEqual(os.listdir(r.path("artifacts")), ["n1"])
        self.assertIn(b"No space", r.stderr)
        self.alive()

    def test_F25_the_next_workspace_is_empty(self):
        r = self.m.submit(sh("head -c 2000000000 /dev/zero > big"))
        r.wait(60)
        self.assertEqual(self.reason(r), "limits_applied")
        self.assertIn("workspace", r.json()["message"])
        r = self.m.submit(sh("ls -A | wc -l; head -c 20000000 /dev/zero > big; echo rc=$?"))
        self.ended(r, 0, "completed")
        self.assertEqual(r.stdout.split(), [b"0", b"rc=0"])

    def test_F25_holes_cost_nothing(self):
        """A file with holes that is small enough is stored with its holes."""
        before = self.state_kb()
        r = self.m.submit(sh("truncate -s 8M hole; printf x | dd of=hole bs=1 seek=4194304 conv=notrunc status=none",
                             capture_patterns=["hole"]))
        self.ended(r, 0, "completed")
        self.assertEqual(os.stat(r.path("artifacts", "hole")).st_size, 8 << 20)
        data = r.read("artifacts", "hole")
        self.assertEqual((data[4194304:4194305], data.count(b"\0")), (b"x", (8 << 20) - 1))
        self.assertLess(self.state_kb() - before, 1024)


if __name__ == "__main__":
    sbx.main()
