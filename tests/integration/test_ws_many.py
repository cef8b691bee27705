# SPDX-License-Identifier: Apache-2.0
# run: alone, plain, limit=300
"""A thousand sockets that follow one run: every frame to each, in order, from one copy."""
import json
import os
import resource
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import sbx  # noqa: E402
import wsclient  # noqa: E402
import wskit  # noqa: E402

FOLLOWERS = os.path.join(os.path.abspath(sbx.BUILD), "tests", "bench", "ws_followers")
SOCKETS, LINES, PER_SECOND = 1000, 10000, 1000
RSS_MAX = 64 << 20
# Waits for "go", then prints lines at an even pace.
PROGRAM = """
import sys, time
sys.stdin.readline()
began = time.monotonic()
for i in range(%d):
    late = began + i / %d - time.monotonic()
    if late > 0.0005:
        time.sleep(late)
    sys.stdout.write("line %%d\\n" %% i)
    sys.stdout.flush()
"""
UNLIMITED = {"ws_heartbeat_sec": 3600,  # would come at other places for each
             "ws_max_connections_total": 0, "ws_max_connections_per_user": 0, "ws_max_connections_per_run": 0}


class Many(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        wanted = SOCKETS + 200
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise unittest.SkipTest("only %d descriptors are allowed here" % hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        cls.a = wskit.Apid(**UNLIMITED)
        cls.addClassCleanup(cls.a.close)
        cls.a.start()

    def follow(self, run):
        p = subprocess.run([FOLLOWERS, str(self.a.address[1]), self.a.path(run), wskit.token(self.a.user),
                            str(SOCKETS)], stdout=subprocess.PIPE, text=True, check=False, timeout=240)
        print("# " + p.stdout.strip(), flush=True)
        return json.loads(p.stdout)

    def check(self, lines, pace):
        run = self.a.run(["python3", "-c", PROGRAM % (lines, pace)], interactive=True, timeout_sec=240)
        said = self.follow(run)
        self.assertEqual((said["sockets"], said["short"], said["different"]), (SOCKETS, 0, 0))
        with self.a.ws(run) as w:
            frames, code = w.frames()
        self.assertEqual(code, 1000)
        self.assertEqual([f["seq"] for f in frames], list(range(1, len(frames) + 1)))
        self.assertEqual(wsclient.output(frames), b"".join(b"line %d\n" % i for i in range(lines)))
        print("# resident: %.1f MiB" % (self.a.rss() / 2**20), flush=True)
        self.assertLess(self.a.rss(), RSS_MAX)
        self.assertEqual(self.a.metric("sandbox_ws_queue_drops_total"), 0)
        return said

    def test_at_an_even_pace(self):
        said = self.check(LINES, PER_SECOND)
        # The promise is 100 ms on a machine that has nothing else to do; the bench measures that.
        self.assertLess(said["p99_ms"], 100 * sbx.SLOW)

    def test_all_at_once(self):
        self.check(LINES, 1000000)

    def test_all_of_them_late(self):
        """The whole log, for a thousand who come after the end."""
        run = self.a.run(["python3", "-c", "for i in range(%d): print('line', i)" % LINES])
        self.a.wait(run)
        self.assertEqual([self.follow(run)[k] for k in ("short", "different")], [0, 0])


if __name__ == "__main__":
    sbx.main()
