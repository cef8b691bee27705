# SPDX-License-Identifier: Apache-2.0
# run: alone, limit=240
"""Clients of the HTTP door that are slow, many, silent, gone in the middle, or wrong again and again: each
costs what is promised and no more, others are served meanwhile, and nothing is left of them."""
import contextlib
import json
import os
import resource
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import api  # noqa: E402
import badhttp  # noqa: E402
import sbx  # noqa: E402
from badhttp import BASE, HEALTH, MIB  # noqa: E402
from rawhttp import Raw, head  # noqa: E402

SANITIZED = sbx.sanitizer(api.APID)
SPEC = {"spec_version": "1.0", "base_image": "host"}


def document(command, **more):
    return json.dumps({**SPEC, "command": command, **more}).encode()


def post(body, login, *headers):
    return head("POST", BASE + "/runs", [*login, ("Content-Length", str(len(body))), *headers]) + body


# ---- slow ------------------------------------------------------------------------------------------

class Slow(badhttp.Case):
    settings = {"api_header_timeout_sec": 1, "api_body_timeout_sec": 2, "api_idle_timeout_sec": 1}

    def trickle(self, data, most):
        """Sends a byte whenever nothing has come for a while. The seconds until the server ended it; it was
        sent less than everything."""
        began = time.monotonic()
        with Raw(self.address) as c:
            for i in range(len(data)):
                with contextlib.suppress(ConnectionError):
                    c.send(data[i:i + 1])
                if c.is_closed(0.05 / sbx.SLOW):
                    took = time.monotonic() - began
                    self.assertLess(took, most * sbx.SLOW)
                    return took, c.pending
        raise AssertionError("%d bytes were taken one by one" % len(data))

    def test_a_head_that_trickles(self):
        took, said = self.trickle(b"GET " + HEALTH.encode() + b" HTTP/1.1\r\nX: " + b"y" * 10000, 5)
        self.assertGreater(took, 0.9)
        self.assertEqual(said, b"")

    def test_headers_that_never_end(self):
        took, _ = self.trickle(b"GET " + HEALTH.encode() + b" HTTP/1.1\r\n" + b"A: b\r\n" * 2000, 5)
        self.assertGreater(took, 0.9)

    def test_blank_lines_that_never_end(self):
        self.trickle(b"\r\n" * 5000, 5)

    def test_a_body_that_trickles(self):
        first = head("POST", BASE + "/runs", [*self.login, ("Content-Length", "100000")])
        with Raw(self.address) as c:
            c.send(first)
            began = time.monotonic()
            for _ in range(100000):
                with contextlib.suppress(ConnectionError):
                    c.send(b" ")
                if c.is_closed(0.05 / sbx.SLOW):
                    break
            took = time.monotonic() - began
        self.assertGreater(took, 1.9)
        self.assertLess(took, 5 * sbx.SLOW)
        self.assertEqual(self.rows(), 0)

    def test_chunks_that_trickle(self):
        with Raw(self.address) as c:
            c.send(head("POST", BASE + "/runs", [*self.login, ("Transfer-Encoding", "chunked")]))
            for _ in range(100000):
                with contextlib.suppress(ConnectionError):
                    c.send(b"1\r\n \r\n")
                if c.is_closed(0.05 / sbx.SLOW):
                    return
        raise AssertionError("it is still open")

    def test_silence(self):
        """At once after connecting, in a head, in a body, after an answer: the end, and no answer."""
        with contextlib.ExitStack() as stack:
            silent = []
            for data in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: h\r\n",
                         head("POST", BASE + "/runs", [*self.login, ("Content-Length", "9")]) + b"{",
                         head("POST", BASE + "/runs", [*self.login, ("Content-Length", "9"), ("Expect", "100-continue")]),
                         head("POST", BASE + "/runs", [*self.login, ("Transfer-Encoding", "chunked")]) + b"5\r\nab"):
                c = stack.enter_context(Raw(self.address))
                silent.append((data, c.send(data)))
            for data, c in silent:
                self.assertTrue(c.is_closed(), data[:40])
                self.assertIn(c.pending, (b"", b"HTTP/1.1 100 Continue\r\n\r\n"), data[:40])
            c = stack.enter_context(Raw(self.address))
            self.assertEqual(c.ask("GET", HEALTH).status, 200)
            self.assertTrue(c.is_closed(), "an idle connection has an end, too")

    def test_silence_with_one_half_closed(self):
        """It never can send the rest."""
        cases = [("nothing", b""), ("head", b"GET / HTTP/1.1\r\n"),
                 ("body", head("POST", BASE + "/runs", [*self.login, ("Content-Length", "9")]) + b"{")]
        for name, said in self.volley(cases):
            self.assertEqual(said, b"", name)

    def test_a_wait_is_longer_than_every_limit(self):
        """Who waits for a run is not idle."""
        run = self.a.sh("sleep 3; echo done")
        with Raw(self.address, 60) as c:
            got = c.ask("GET", BASE + "/runs/%s?wait=60" % run.id, self.login)
        self.assertEqual(got.json()["phase"], "completed")

    def test_others_are_served_meanwhile(self):
        with contextlib.ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(Raw(self.address)).send(b"GET / HTTP/1.1\r\nHost:")
            for _ in range(20):
                self.alive()


class HalfClosed(badhttp.Case):
    """With the limits as they are, which are far away."""

    def test_who_has_sent_everything_gets_the_answer_and_the_end(self):
        for n in (1, 3):
            with self.subTest(n):
                began = time.monotonic()
                said = self.volley([(n, head("GET", HEALTH) * n)])[0][1]
                self.assertEqual(said.count(b"HTTP/1.1 200 OK\r\n"), n)
                self.assertLess(time.monotonic() - began, 10, "it took an idle connection's time")

    def test_a_run_is_accepted_from_a_half_closed_connection(self):
        body = document(["echo", "half"])
        said = self.volley([("", post(body, self.login))])[0][1]
        self.assertTrue(said.startswith(b"HTTP/1.1 200 OK\r\n"), said[:300])
        self.assertEqual(self.rows(), 1)


# ---- many ------------------------------------------------------------------------------------------

class Many(badhttp.Case):
    settings = {"api_max_connections": 20, "warm_runners": 0}

    def fill(self, stack, n):
        """Connections that are known to be taken in, because each has had an answer. Those of the test before
        may still be leaving."""
        held = []

        def one_more():
            c = stack.enter_context(Raw(self.address))
            c.send(head("GET", HEALTH))
            if c.answer().status == 200:
                held.append(c)
            return len(held) == n

        badhttp.until(one_more, "%d connections" % n)
        return held

    def polite(self, address=None):
        with Raw(address or self.address) as c:
            got = c.answer()  # nothing needs to be asked
            self.assertEqual((got.status, got.code), (503, "too_many_connections"))
            self.assertEqual((got.header("Connection"), got.header("Retry-After")), ("close", "5"))
            self.assertTrue(c.is_closed())

    def test_one_too_many_is_told_so(self):
        with contextlib.ExitStack() as stack:
            held = self.fill(stack, 20)
            self.polite()
            # Who comes by the Unix socket, as an operator who wants to know why, has a few more.
            with contextlib.ExitStack() as local:
                for _ in range(16):
                    c = local.enter_context(Raw(self.a.socket))
                    self.assertEqual(c.ask("GET", HEALTH).status, 200)
                self.polite(self.a.socket)
            # The answer is not lost when the client has sent a request already.
            with Raw(self.address) as c:
                with contextlib.suppress(ConnectionError):
                    c.send(head("POST", BASE + "/runs", [*self.login, ("Content-Length", "100000")]), b" " * 100000)
                self.assertEqual(c.answer().status, 503)
            # Those that are in are served.
            for c in held:
                self.assertEqual(c.ask("GET", HEALTH).status, 200)
            held[0].close()
            badhttp.until(self.room, "room for one")

    def room(self):
        with Raw(self.address) as c:
            return c.ask("GET", HEALTH).status == 200

    def test_again_and_again(self):
        with contextlib.ExitStack() as stack:
            self.fill(stack, 20)
            for _ in range(600):
                self.polite()
        self.all_gone()
        self.assertTrue(self.room())

    def test_many_that_are_refused_at_once(self):
        """They are each given a second to read why; the crowd is not."""
        with contextlib.ExitStack() as stack:
            held = self.fill(stack, 20)
            crowd = [stack.enter_context(Raw(self.address)) for _ in range(500)]
            told = [c.rest() for c in crowd]
            self.assertGreater(sum(t.startswith(b"HTTP/1.1 503 ") for t in told), 400)
            self.assertEqual(held[-1].ask("GET", HEALTH).status, 200)
        badhttp.until(self.room, "room for one")


class TenThousand(badhttp.Case):
    N = 10000
    env = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1"}

    @classmethod
    def setUpClass(cls):
        n = 1000 if SANITIZED else cls.N
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < n + 600:
            n = hard - 600
        if n < 500:
            raise unittest.SkipTest("the limit of open files is %d" % hard)
        if soft != resource.RLIM_INFINITY and soft < n + 600:
            resource.setrlimit(resource.RLIMIT_NOFILE, (n + 600, hard))
            cls.addClassCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        cls.n = n
        cls.settings = {"api_max_connections": n, "api_header_timeout_sec": 300, "api_idle_timeout_sec": 300,
                        "warm_runners": 0}
        super().setUpClass()

    def test_idle_connections(self):
        """As many as are allowed cost no processor and a bounded memory; one more is refused politely; when
        they go, all is as before."""
        self.alive()
        fds, kib = self.descriptors(), self.resident_kib()
        with contextlib.ExitStack() as stack:
            held = []
            for i in range(self.n - 1):
                held.append(stack.enter_context(Raw(self.a.socket if i % 2 else self.address, 60)))
            for c in held[::97]:
                self.assertEqual(c.ask("GET", HEALTH).status, 200)
            # Each listening socket is served in turn, so that the last of it comes last.
            for c in held[-2:]:
                self.assertEqual(c.ask("GET", HEALTH).status, 200)
            with Raw(self.address) as last:
                self.assertEqual(last.ask("GET", HEALTH).status, 200)
                with Raw(self.address) as c:
                    got = c.answer()
                    self.assertEqual((got.status, got.code), (503, "too_many_connections"))
                self.assertEqual(last.ask("GET", HEALTH).status, 200)
            self.assertLess(self.resident_kib() - kib, self.n * (200 if SANITIZED == "tsan" else 40), "KiB for each")
            run = None if SANITIZED else self.cpu()
            self.assertTrue(all(c.is_open() for c in held[1::89] if c.pending == b"" and c not in held[::97]))
            if run is not None:
                # What so many cost while nothing happens is the last look, and no more.
                self.assertLess(self.cpu() - run, 0.5)
        self.all_gone(60)
        # Those of the Unix socket, too; the threads may have opened the database meanwhile.
        badhttp.until(lambda: self.descriptors() <= fds + 40, "as many descriptors as before", 60)
        self.alive()

    def cpu(self):
        with open("/proc/%d/stat" % self.a.proc.pid) as f:
            f = f.read().rsplit(")", 1)[1].split()
        return (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK")


# ---- gone ------------------------------------------------------------------------------------------

class Gone(badhttp.Case):
    settings = {"max_artifact_file_bytes": 1 << 31, "max_artifact_total_bytes": 1 << 31,
                "max_artifact_bytes_per_run_mb": 2048, "max_artifact_bytes_per_user_mb": 8192,
                "workspace_cap_mb": 2048, "tier_standard_workspace_cap_mb": 2048, "cancel_grace_seconds": 0,
                # Runners that wait for work are descriptors, too.
                "warm_runners": 0}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.big = cls.a.sh("truncate -s 1G big; printf end >> big", capture_patterns=["big"])
        doc = cls.big.wait(120)
        assert doc["phase"] == "completed" and cls.big.artifacts() == {"big": (1 << 30) + 3}, doc
        cls.waited = cls.a.run({"command": ["sleep", "600"], "timeout_sec": 600})
        cls.waited.wait_phase("running")
        cls.addClassCleanup(cls.waited.cancel)

    def gone(self, data, n=50, read=0):
        """n clients send this, read so much, and are gone: half of them with a reset, half with a close."""
        self.all_gone()
        clients = [Raw(self.address) for _ in range(n)]
        for c in clients:
            c.send(data)
        for c in clients:
            if read:
                c.take(read)
        for i, c in enumerate(clients):
            c.reset() if i % 2 else c.close()
        self.all_gone()
        self.alive()

    def test_before_the_first_byte(self):
        self.gone(b"")

    def test_in_the_first_line(self):
        self.gone(b"GET /api")

    def test_in_the_headers(self):
        self.gone(b"GET " + HEALTH.encode() + b" HTTP/1.1\r\nHost: h\r\nX-Lo")

    def test_in_front_of_the_body(self):
        self.gone(head("POST", BASE + "/runs", [*self.login, ("Content-Length", "1000")]))

    def test_in_the_body(self):
        rows = self.rows()
        self.gone(head("POST", BASE + "/runs", [*self.login, ("Content-Length", "1000")]) + document(["true"]))
        self.assertEqual(self.rows(), rows)

    def test_in_a_chunk(self):
        rows = self.rows()
        body = document(["true"])
        self.gone(head("POST", BASE + "/runs", [*self.login, ("Transfer-Encoding", "chunked")])
                  + b"%x\r\n%s" % (len(body) + 10, body))
        self.assertEqual(self.rows(), rows)

    def test_behind_a_whole_request(self):
        """Nobody reads the answer; what was asked for is done, once. A reset may take the request with it."""
        rows = self.rows()
        self.gone(post(document(["true"]), self.login), n=10)
        badhttp.until(lambda: self.rows() >= rows + 5, "five runs")
        self.assertLessEqual(self.rows(), rows + 10)

    def test_while_it_waits_for_the_end(self):
        self.gone(head("GET", BASE + "/runs/%s?wait=600" % self.waited.id, self.login), n=100)
        self.assertEqual(self.waited.phase(), "running")

    def test_while_its_post_waits_for_the_end(self):
        """The run goes on without its client."""
        key = "gone-while-waiting"
        body = document(["sh", "-c", "sleep 1; echo went on"])
        c = Raw(self.address)
        c.send(head("POST", BASE + "/runs?wait=600", [*self.login, ("Content-Length", str(len(body))),
                                                      ("Idempotency-Key", key)]), body)
        badhttp.until(lambda: self.a.sql("SELECT count(*) FROM idempotency WHERE idem_key=?", key)[0][0], "it is accepted")
        c.reset()
        self.all_gone()
        run = self.a.run({"command": ["sh", "-c", "sleep 1; echo went on"]}, key=key)
        self.assertEqual(run.wait()["phase"], "completed")
        self.assertEqual(run.log(), b"went on\n")

    def test_in_a_download(self):
        self.gone(head("GET", BASE + "/runs/%s/artifacts/big" % self.big.id, self.login), n=20, read=100000)

    def test_a_client_that_never_reads_a_gigabyte(self):
        """It costs a socket buffer, delays nobody, and ends when its silence has lasted too long."""
        before = self.resident_kib()
        with contextlib.ExitStack() as stack:
            deaf = [stack.enter_context(Raw(self.address)) for _ in range(20)]
            for c in deaf:
                c.send(head("GET", BASE + "/runs/%s/artifacts/big" % self.big.id, self.login))
                c.take(12)  # the answer has begun
            for _ in range(50):
                self.alive()
            self.assertLess(self.resident_kib() - before, 16 << 10)
            # Who reads gets every byte, in spite of them.
            with Raw(self.address) as c:
                c.send(head("GET", BASE + "/runs/%s/artifacts/big" % self.big.id, [*self.login, ("Range", "bytes=-5")]))
                got = c.answer()
                self.assertEqual((got.status, got.body), (206, b"\0\0end"))

    def test_the_whole_gigabyte_and_its_end(self):
        with Raw(self.address) as c:
            c.send(head("GET", BASE + "/runs/%s/artifacts/big" % self.big.id, self.login))
            while b"\r\n\r\n" not in c.pending:
                c.more()
            length = (1 << 30) + 3
            first, rest = c.pending.split(b"\r\n\r\n", 1)
            self.assertIn(b"Content-Length: %d\r\n" % length, first + b"\r\n")
            n, last = len(rest), rest
            while n < length:
                last = c.sock.recv(MIB)
                self.assertNotEqual(last, b"", "%d of %d bytes came" % (n, length))
                n += len(last)
            self.assertEqual((n, last[-3:]), (length, b"end"))
            c.pending = b""
            self.assertEqual(c.ask("GET", HEALTH).status, 200)


class Deaf(badhttp.Case):
    settings = {"api_idle_timeout_sec": 1, "max_artifact_file_bytes": 1 << 28, "warm_runners": 0}

    def test_who_takes_nothing_for_too_long_is_cut_off(self):
        run = self.a.sh("truncate -s 200M big", capture_patterns=["big"])
        self.assertEqual(run.wait(60)["phase"], "completed")
        with Raw(self.address) as c:
            c.send(head("GET", BASE + "/runs/%s/artifacts/big" % run.id, self.login))
            self.all_gone()
            self.assertLess(len(c.rest()), 200 << 20)


# ---- the same again and again ----------------------------------------------------------------------

class OneKey(badhttp.Case):
    settings = {"queue_max_length": 1000}

    def test_200_posts_with_one_key_at_once_are_one_run(self):
        body = document(["sh", "-c", "echo once; sleep 1"])
        request = post(body, self.login, ("Idempotency-Key", "one-of-200"))
        answers, clients = [], [Raw(self.address) for _ in range(200)]
        go, rows = threading.Barrier(200), self.rows()

        def one(c):
            with c:
                c.send(request[:-1])  # all but its last brace is there before anybody may go on
                go.wait(60 * sbx.SLOW)
                c.send(request[-1:])
                answers.append(c.answer())

        threads = [threading.Thread(target=one, args=(c,)) for c in clients]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual([a.status for a in answers], [200] * 200)
        self.assertEqual(len({a.json()["id"] for a in answers}), 1)
        self.assertEqual(self.rows(), rows + 1)
        run = api.Run(self.a, answers[0].json())
        self.assertEqual(run.wait()["phase"], "completed")
        self.assertEqual(run.log(), b"once\n")

    def test_200_posts_with_one_key_and_two_documents(self):
        """One document wins; all others of its kind are answered with it, those of the other kind refused."""
        bodies = [document(["echo", w]) for w in ("left", "right")]
        requests = [post(b, self.login, ("Idempotency-Key", "two-kinds")) for b in bodies]
        clients = [Raw(self.address) for _ in range(200)]
        rows = self.rows()
        for i, c in enumerate(clients):
            c.send(requests[i % 2][:-1])
        for i, c in enumerate(clients):
            c.send(requests[i % 2][-1:])
        answers = [c.answer() for c in clients]
        for c in clients:
            c.close()
        self.assertEqual(self.rows(), rows + 1)
        kinds = [sorted({(a.status, a.code) for a in answers[k::2]}, key=str) for k in (0, 1)]
        self.assertEqual(sorted(kinds, key=str), [[(200, None)], [(409, "idempotency_conflict")]])


class Growth(badhttp.Case):
    settings = {"api_access_log": "false", "api_header_timeout_sec": 2, "api_body_timeout_sec": 2, "api_threads": 2,
                "warm_runners": 0}
    env = TenThousand.env
    ROUNDS = 2000 if SANITIZED else 20000

    def rain(self, n):
        badhttp.rain(self.address, self.login, n)
        for _, said in self.volley([("", badhttp.MANY_ARGUMENTS)] * 300):
            self.assertRegex(said, rb"\A(?!.)|\AHTTP/1\.1 431 ")
        self.all_gone()

    def test_bad_requests_cost_no_memory(self):
        """The bench program bad_requests.py does the same with a million."""
        self.rain(self.ROUNDS // 4)
        fds, kib = self.descriptors(), self.resident_kib()
        self.rain(self.ROUNDS)
        self.assertLess(self.descriptors(), fds + 20)
        most = kib + (20 << 10 if SANITIZED else 768)
        # It gives back what a crowd needed once the last of it has gone, which nothing tells.
        badhttp.until(lambda: self.resident_kib() < most, "it is as large as before")
        self.assertEqual(self.rows(), 0)
        self.alive()


if __name__ == "__main__":
    sbx.main()
