# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""What the two doors share beyond single runs: keys, the queue, who owns what, lists, documents about the
service, events; and what one tells while the other acts."""
import json
import os
import socket
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import api  # noqa: E402
import doors  # noqa: E402
import fskit  # noqa: E402
import sbx  # noqa: E402
import wsclient  # noqa: E402
from fskit import ALICE, BOB, Inotify, as_user  # noqa: E402

BASE = {"spec_version": "1.0", "base_image": "host", "timeout_sec": 30}


def sh(script, **more):
    return {**BASE, "command": ["sh", "-c", script], **more}


class Case(unittest.TestCase):
    settings, mount, http = {}, {}, {}

    @classmethod
    def setUpClass(cls):
        cls.p = doors.Pair(cls.settings, cls.mount, cls.http)
        cls.p.start()
        cls.addClassCleanup(cls.p.close)

    def pairs(self):
        return (self.p.mount, self.p.http), (self.p.http, self.p.mount)

    def refused(self, door, document, code, **headers):
        with self.assertRaises(doors.Refused) as c:
            door.submit(document, **headers)
        status, number = doors.errors_table()[code]
        self.assertEqual((c.exception.code, c.exception.number),
                         (code, status if door.name == "http" else number), c.exception)
        return c.exception.error


class Keys(Case):
    def test_one_key_through_both_is_one_run(self):
        for own, other in self.pairs():
            with self.subTest(first=own.name):
                document = sh("echo once", idempotency_key="both-" + own.name)
                run = own.submit(document)
                self.assertEqual(other.submit(document), run)
                other.wait(run)
                self.assertEqual((own.submit(document), other.submit(document)), (run, run))
                self.assertEqual(self.p.mount.run(run).log, b"once\n")

    def test_the_header_is_the_member(self):
        """HTTP has a header for it, the mount a member of the document; they are one key and one document."""
        run = self.p.http.submit(sh("echo header"), Idempotency_Key="header-1")
        self.assertEqual(self.p.mount.submit(sh("echo header", idempotency_key="header-1")), run)
        run = self.p.mount.submit(sh("echo header", idempotency_key="header-2"))
        self.assertEqual(self.p.http.submit(sh("echo header"), Idempotency_Key="header-2"), run)

    def test_spelling_does_not_matter(self):
        run = self.p.mount.submit(json.dumps(sh("echo s", idempotency_key="spelling"), indent=4))
        self.assertEqual(self.p.http.submit(json.dumps(dict(reversed(sh("echo s", idempotency_key="spelling").items())))),
                         run)
        # The image that the mount would fill in is the image that HTTP must be told.
        short = {k: v for k, v in sh("echo s", idempotency_key="spelling").items() if k != "base_image"}
        self.assertEqual(self.p.mount.submit(short), run)

    def test_another_document_is_a_conflict_with_the_same_details(self):
        for own, other in self.pairs():
            with self.subTest(first=own.name):
                key = "conflict-" + own.name
                run = own.submit(sh("echo one", idempotency_key=key))
                errors = [self.refused(d, sh("echo two", idempotency_key=key), "idempotency_conflict")
                          for d in (own, other)]
                self.assertEqual(errors[0], errors[1])
                self.assertEqual((errors[0]["details"]["prior_id"], errors[0]["details"]["key"]), (run, key))

    def test_forty_at_once_through_both_are_one_run(self):
        document, ids, go = sh("echo race", idempotency_key="race"), [], threading.Barrier(40)

        def one(door):
            go.wait(30 * sbx.SLOW)
            ids.append(door.submit(document))

        threads = [threading.Thread(target=one, args=(self.p.both[i % 2],)) for i in range(40)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(len(ids), 40)
        self.assertEqual(len(set(ids)), 1)
        self.p.http.wait(ids[0])
        self.assertEqual(self.p.mount.run(ids[0]).log, b"race\n")

    def test_a_refused_document_uses_no_key_up(self):
        for own, other in self.pairs():
            key = "refused-" + own.name
            self.refused(own, sh("true", timeout_sec=0, idempotency_key=key), "invalid_spec")
            other.submit(sh("true", idempotency_key=key))


class Queue(Case):
    """Neither door executes, so that what is submitted stays where it is."""
    settings = {"queue_max_length": 4, "enable_execution": "false"}

    def test_the_limit_is_one_for_both(self):
        a, b = self.p.both
        runs = [door.submit(sh("true")) for door in (a, b, a, b)]
        errors = [self.refused(door, sh("true"), "queue_full") for door in (a, b)]
        self.assertEqual(errors[0], errors[1])
        got = b.ask("POST", "/runs", sh("true"))
        self.assertEqual(got.headers["Retry-After"], str(errors[0]["details"]["retry_after"]))
        self.assertEqual([a.ids(), b.ids()], [runs, runs])
        # Room that one makes, the other uses.
        self.assertTrue(b.cancel(runs[0]))
        runs.append(a.submit(sh("true")))
        self.refused(b, sh("true"), "queue_full")
        self.assertTrue(a.cancel(runs[1]))
        runs.append(b.submit(sh("true")))
        self.refused(a, sh("true"), "queue_full")
        for run in runs:
            self.assertEqual(a.status_bytes(run), b.status_bytes(run))


class Slots(Case):
    settings = {"max_concurrent_runs": 1, "cancel_grace_seconds": 0}

    def test_what_waits_for_the_other_doors_run(self):
        for own, other in self.pairs():
            with self.subTest(first=own.name):
                first = own.submit(sh("echo up; sleep 100"))
                own.wait_output(first, b"up\n")
                second = other.submit(sh("echo second"))
                self.assertEqual((own.status(second)["phase"], other.status(second)["phase"]), ("queued", "queued"))
                other.cancel(first)
                self.assertEqual(own.wait(second)["phase"], "completed")
                self.assertEqual(other.wait(first)["phase"], "killed")


class Front(Case):
    """A mount that executes and an HTTP door that only submits and shows."""
    http = {"enable_execution": "false"}

    def test_the_mount_executes_what_http_takes_in(self):
        run = self.p.http.submit(sh("echo by the other"))
        self.assertEqual(self.p.http.wait(run)["phase"], "completed")
        self.assertEqual(self.p.http.view(run).bytes_of("stdout"), b"by the other\n")


@unittest.skipUnless(sbx.ROOT, "only root can act for several users")
class Owners(Case):
    """On the Unix socket the kernel says who asks, as it does on the mount; by a token, whoever signed it.
    One person has one name on both."""
    settings = {"cancel_grace_seconds": 0}
    http = {"api_socket_mode": "0666", "jwt_secret": api.JWT_SECRET, "user_map": "alice=uid:%d,mallory=uid:%d" % (ALICE, BOB)}

    def as_peer(self, uid, fn):
        """fn(HttpDoor over the Unix socket) in a process of this uid."""
        def act():
            try:
                return fn(doors.HttpDoor(self.p.a, unix=True))
            except doors.Refused as e:
                return {"refused": e.number, "code": e.code}
        return as_user(uid, act)

    def as_mount_user(self, uid, fn):
        return as_user(uid, lambda: fn(self.p.mount))

    def finished(self, uid):
        run = self.as_mount_user(uid, lambda d: d.submit(sh("echo mine > a; cat a", capture_patterns=["a"])))
        self.p.mount.wait(run)
        return run

    def test_ones_own_run_of_the_mount_is_ones_own_over_http(self):
        for uid in (ALICE, BOB):
            run = self.finished(uid)
            doc = self.as_peer(uid, lambda d: d.status(run))
            self.assertEqual(doc["user"], "uid:%d" % uid)
            self.assertEqual(doc, self.as_mount_user(uid, lambda d: d.status(run)))
            self.assertEqual(self.as_peer(uid, lambda d: d.files(run)[b"a"].decode()), "mine\n")
            self.assertIn(run, self.as_peer(uid, lambda d: d.ids()))
            self.assertEqual(self.as_peer(uid, lambda d: d.frames(run)[-1]["data"]), {"exit_code": 0})

    def test_ones_own_run_of_http_is_ones_own_on_the_mount(self):
        run = self.as_peer(ALICE, lambda d: d.submit(sh("echo over http")))
        self.p.mount.wait(run)
        self.assertIn(run, self.as_mount_user(ALICE, lambda d: d.ids()))
        self.assertEqual(self.as_mount_user(ALICE, lambda d: d.run(run).log.decode()), "over http\n")
        self.assertEqual(os.stat(self.p.mount.run(run).dir).st_uid, ALICE)

    def test_a_foreign_run_is_not_there(self):
        run = self.finished(ALICE)
        for fn in (lambda d: d.status(run), lambda d: d.files(run), lambda d: d.cancel(run)):
            self.assertEqual(self.as_peer(BOB, fn), {"refused": 404, "code": "run_not_found"})
        self.assertNotIn(run, self.as_peer(BOB, lambda d: d.ids()))
        self.assertNotIn(run, self.as_mount_user(BOB, lambda d: d.ids()))
        with self.assertRaises(OSError):
            self.as_mount_user(BOB, lambda d: d.status(run))
        self.assertEqual(self.as_peer(BOB, lambda d: self.close_code(run)), 4404)

    def close_code(self, run):
        with wsclient.WS(self.p.a.socket, "%s/runs/%s/stream" % (api.BASE, run), timeout=20 * sbx.SLOW) as ws:
            return ws.close_code()

    def test_a_token_names_a_user_of_the_mount(self):
        for name, uid in (("alice", ALICE), ("mallory", BOB)):
            run = self.finished(uid)
            mine = doors.HttpDoor(self.p.a, api.user(name))
            self.assertEqual(mine.status(run)["user"], "uid:%d" % uid)
            self.assertIn(run, mine.ids())
            back = mine.submit(sh("echo by token"))
            self.p.mount.wait(back)
            self.assertIn(back, self.as_mount_user(uid, lambda d: d.ids()))
            self.assertEqual(self.as_mount_user(uid, lambda d: d.run(back).log.decode()), "by token\n")
        other = doors.HttpDoor(self.p.a, api.user("somebody"))
        with self.assertRaises(doors.Refused) as c:
            other.status(run)
        self.assertEqual(c.exception.number, 404)

    def test_root_sees_everybodys_through_both(self):
        run = self.finished(ALICE)
        self.assertEqual(self.p.mount.status(run), self.p.http.status(run))
        self.assertEqual(doors.HttpDoor(self.p.a, unix=True).status(run)["user"], "uid:%d" % ALICE)

    def test_keys_are_each_users_own(self):
        document = sh("true", idempotency_key="everybodys")
        a = self.as_peer(ALICE, lambda d: d.submit(document))
        b = self.as_mount_user(BOB, lambda d: d.submit(document))
        self.assertNotEqual(a, b)
        self.assertEqual(self.as_mount_user(ALICE, lambda d: d.submit(document)), a)
        self.assertEqual(self.as_peer(BOB, lambda d: d.submit(document)), b)


class Documents(Case):
    def test_lists_have_one_order(self):
        a, b = self.p.both
        runs = [door.submit(sh("true")) for door in (a, b, b, a, b, a, a)]
        self.assertEqual(a.ids(), b.ids())
        self.assertEqual([r for r in a.ids() if r in runs], runs)
        self.assertEqual(os.path.basename(os.readlink(os.path.join(self.p.m.mnt, "runs/latest"))), runs[-1])

    def test_what_finds_runs_finds_the_same(self):
        """by/ of the mount, and the filters of GET /runs."""
        session = self.p.http.good("POST", "/sessions", doors.text_of({**BASE, "name": "found"})).json["id"]
        labels = {"ci": "17", "path": "a/b c%&", "\u00e4": "", "k=": "="}
        for i, door in enumerate(self.p.both * 4):
            document = sh("exit %d" % (i // 2 % 2), labels=dict(list(labels.items())[i // 3:]))
            if i % 3:
                document["session_id"] = session
                del document["base_image"]  # the session's
            run = door.submit(document)
            door.wait(run)
        rows = [("phase", w) for w in ("queued", "running", "completed", "failed", "killed")] + [("session", "found")]
        rows += [("label", "%s=%s" % kv) for kv in labels.items()]
        for what, word in rows:
            with self.subTest(what=what, word=word):
                a, b = (d.found_by(what, word) for d in self.p.both)
                self.assertEqual(a, b)
                self.assertEqual(bool(a), word not in ("queued", "running", "killed"))
        with self.assertRaises(FileNotFoundError):
            self.p.mount.found_by("label", "ci=18")
        self.assertEqual(self.p.http.found_by("label", "ci=18"), [])

    def test_runtimes(self):
        rows = json.loads(self.p.http.document("/runtimes"))["runtimes"]
        names = sorted(os.listdir(os.path.join(self.p.m.mnt, "runtimes")))
        self.assertEqual(sorted(r["name"] + ".json" for r in rows), names)
        for row in rows:
            self.assertEqual(json.loads(self.p.mount.document("runtimes/%s.json" % row["name"])), row)

    def test_health(self):
        a, b = (json.loads(d) for d in (self.p.mount.document("health"), self.p.http.document("/health")))
        for doc in (a, b):
            self.assertTrue(doc["ok"])
            for name in doors.OWN_TO_A_LOOK:
                del doc[name]
        self.assertEqual(a, b)

    def test_documents_for_administrators(self):
        self.p.http.wait(self.p.mount.submit(sh("echo x")))
        for name, path in (("diagnostics.json", "/admin/runtime-diagnostics"),
                           ("operator-status.json", "/admin/operator-status")):
            with self.subTest(name):
                self.assertEqual(json.loads(self.p.mount.document("admin/" + name)),
                                 json.loads(self.p.http.document(path)))

    def families(self, text):
        """{sample: value} of what is about the state, which both read, not about one process."""
        samples = {}
        for line in text.decode().splitlines():
            if line and not line.startswith("#"):
                sample, value = line.rsplit(" ", 1)
                samples[sample] = float(value)
        return samples

    def test_metrics(self):
        """What both tell, they tell alike; HTTP counts its requests and streams besides."""
        for door in self.p.both:
            door.wait(door.submit(sh("echo x; exit 3")))
        mount = self.families(self.p.mount.document("metrics"))
        http = self.families(self.p.http.document("//metrics"))
        self.assertLess(set(mount), set(http))
        more = {s.split("{")[0] for s in set(http) - set(mount)}
        self.assertTrue(all(s.startswith(doors.HTTP_ALONE) for s in more), more)
        differ = {s for s in mount if mount[s] != http[s] and not s.startswith(doors.OWN_TO_A_PROCESS)}
        self.assertEqual(differ, set())


class Told(Case):
    """What one door tells while the other acts."""
    settings = {"cancel_grace_seconds": 0}

    def test_a_run_that_is_posted_appears_in_the_mount(self):
        with Inotify() as watch, fskit.Events(self.p.m) as events:
            watch.add(os.path.join(self.p.m.mnt, "runs"), Inotify.CREATE)
            run = self.p.http.submit(sh("echo posted"))
            watch.wait(lambda path, mask, name: name == run and mask & Inotify.CREATE)
            events.wait(lambda e: e.get("id") == run)
            self.assertEqual(self.p.mount.wait(run)["phase"], "completed")
            events.wait(lambda e: e.get("id") == run and e.get("phase") == "completed")
            self.assertIn(run, self.p.mount.ids())

    def test_status_files_change_when_http_acts(self):
        run = self.p.http.submit(sh("echo up; sleep 100"))
        self.p.http.wait_output(run, b"up\n")
        with Inotify() as watch:
            watch.add(self.p.mount.run(run).path("status"), Inotify.MODIFY | Inotify.CLOSE_WRITE)
            self.assertTrue(self.p.http.cancel(run))
            watch.wait(lambda path, mask, name: True)
        self.assertEqual(self.p.mount.wait(run)["phase"], "killed")

    def test_waiting_readers_of_the_mount_hear_of_posted_runs(self):
        run = self.p.http.submit(sh("read x; echo $x", interactive=True))
        got = {}

        def read(name):
            with open(self.p.mount.run(run).path(name), "rb") as f:
                got[name] = f.read()

        threads = [threading.Thread(target=read, args=(n,)) for n in (".wait", ".stream")]
        for t in threads:
            t.start()
        self.p.http.stdin(run, b"word\n")
        for t in threads:
            t.join(30 * sbx.SLOW)
        self.assertEqual(got[".wait"], b"0\n")
        self.assertEqual([json.loads(line) for line in got[".stream"].splitlines()], self.p.http.frames(run))

    def test_a_run_that_is_echoed_is_followed_from_its_first_frame(self):
        p = fskit.shell(self.p.m, 'exec 3<> "$MNT/runs/new"; echo "$1" >&3; read id <&3; echo $id'.replace(
            "$1", json.dumps(sh("echo first; read x; echo $x; echo bye >&2", interactive=True)).replace('"', '\\"')
            .replace("$x", "\\$x")))
        run = p.stdout.decode().strip()
        with self.p.http.stream(run) as ws:
            frames = ws.until(wsclient.says("first"))
            self.assertEqual((frames[0]["seq"], frames[0]["event"]), (1, "start"))
            self.p.mount.stdin(run, b"live\n")
            rest, code = ws.frames()
        frames += rest
        self.assertEqual(code, 1000)
        self.assertEqual(wsclient.output(frames), b"first\nlive\n")
        self.assertEqual([f["seq"] for f in frames], list(range(1, len(frames) + 1)))
        self.assertEqual(frames, self.p.mount.frames(run))

    def test_a_wait_over_http_ends_with_a_run_of_the_mount(self):
        run = self.p.mount.submit(sh("read x", interactive=True))
        answers = []
        t = threading.Thread(target=lambda: answers.append(self.p.http.wait(run)))
        t.start()
        self.p.mount.eof(run)
        t.join(30 * sbx.SLOW)
        self.assertEqual([a["phase"] for a in answers], ["failed"])  # `read` at the end of its input

    def test_an_end_that_is_seen_through_one_is_seen_through_the_other(self):
        """Whoever has seen the end over HTTP finds it in the mount at once, and the other way round."""
        for own, other in self.pairs():
            for _ in range(10):
                run = own.submit(sh("echo x > a", capture_patterns=["a"]))
                doc = own.wait(run)
                self.assertEqual(other.status(run), doc)
                self.assertEqual(other.files(run), {b"a": b"x\n"})

    def test_entity_tags_follow_what_the_mount_does(self):
        run = self.p.mount.submit(sh("echo up; sleep 100"))
        self.p.mount.wait_output(run, b"up\n")
        first = self.p.http.ask("GET", "/runs/" + run)
        again = self.p.http.ask("GET", "/runs/" + run, headers={"If-None-Match": first.headers["ETag"]})
        self.assertEqual((first.status, again.status, again.body), (200, 304, b""))
        self.p.mount.cancel(run)
        self.p.mount.wait(run)
        last = self.p.http.ask("GET", "/runs/" + run, headers={"If-None-Match": first.headers["ETag"]})
        self.assertEqual((last.status, last.json["phase"]), (200, "killed"))


class Ends(unittest.TestCase):
    """Each door may go and come; the other and the runs do not care."""

    def test_the_door_that_started_it_is_killed(self):
        for victim in ("http", "mount"):
            with self.subTest(victim), doors.Pair({"cancel_grace_seconds": 0}) as p:
                own, other = (p.http, p.mount) if victim == "http" else (p.mount, p.http)
                run = own.submit(sh("echo up; read x; echo $x", interactive=True))
                own.wait_output(run, b"up\n")
                (p.a if victim == "http" else p.m).kill()
                other.stdin(run, b"on\n")
                self.assertEqual(other.wait(run)["phase"], "completed")
                self.assertEqual(other.view(run).bytes_of("stdout"), b"up\non\n")
                (p.a if victim == "http" else p.m).start()
                self.assertEqual(own.view(run).frames, other.view(run).frames)
                self.assertEqual(own.status_bytes(run), other.status_bytes(run))

    def test_who_waits_when_the_service_stops_has_an_answer(self):
        # One thread serves connections in the order in which they come.
        with doors.Pair({"cancel_grace_seconds": 0}, {}, {"api_threads": 1}) as p:
            run = p.mount.submit(sh("echo up; sleep 100"))
            p.mount.wait_output(run, b"up\n")
            with socket.create_connection(("127.0.0.1", p.a.port), 30 * sbx.SLOW) as s:
                s.sendall(("GET %s/runs/%s?wait=100 HTTP/1.1\r\nHost: h\r\nX-API-KEY: %s\r\n\r\n"
                           % (api.BASE, run, api.API_KEY)).encode())
                # Another one behind it has its answer: it waits by now.
                self.assertEqual(p.http.status(run)["phase"], "running")
                self.assertEqual(p.a.stop(), 0)
                said = s.recv(65536)
            self.assertTrue(said.startswith(b"HTTP/1.1 200 OK\r\n"), said[:300])
            self.assertEqual(p.mount.status(run)["phase"], "running")
            p.mount.cancel(run)
            p.mount.wait(run)


class WithoutRights(unittest.TestCase):
    """An HTTP door that executes nothing, and that may not even try what the other one may (as under
    sandbox-apid.service): what counts is what the executing door has found."""

    NOTHING = {"namespace": {"available": False, "reasons": ["user_namespaces_unavailable"], "deny_all_ready": False,
                             "trust_levels": []}}
    SAID = "runtimes are as the door that executes has found them"

    def door(self, state):
        return api.Apid(state=state, args=["--workers", "0"], preflight=self.NOTHING)

    def accepts(self, a):
        run = a.run({**BASE, "command": ["echo", "hi"], "trust_level": "untrusted"})
        self.assertEqual(run.wait()["phase"], "completed")
        self.assertTrue(a.runtime("namespace")["available"])

    def test_it_comes_second(self):
        with sbx.Mount() as m, self.door(m.state) as a:
            self.accepts(a)

    def test_it_comes_first(self):
        with tempfile.TemporaryDirectory(prefix="sbx-test-") as where:
            state = os.path.join(where, "state")
            with self.door(state) as a:
                refused = a.try_run({**BASE, "command": ["echo", "hi"]})
                self.assertEqual((refused.status, refused.code), (503, "runtime_unavailable"))
                with sbx.Mount(state=state):
                    a.wait_line(self.SAID)
                    self.accepts(a)

    def test_alone_it_says_what_it_can(self):
        with tempfile.TemporaryDirectory(prefix="sbx-test-") as where, self.door(os.path.join(where, "state")) as a:
            self.assertEqual(a.runtime("namespace")["reasons"], self.NOTHING["namespace"]["reasons"])


if __name__ == "__main__":
    sbx.main()
