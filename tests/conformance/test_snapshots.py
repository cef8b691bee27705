# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a workspace: taken, listed, restored, and what must be refused. The service this list comes from
keeps compressed archives and refuses every link. Here a snapshot is a manifest and objects that it names by their
digest, and a link in it is a link and nothing else: it is neither followed when a snapshot is taken nor when it is
restored (docs/architecture.md), so the rows about links are tested for that."""
import contextlib
import os
import shutil
import tempfile
import threading

import conf
import sessions
from conf import api
from sessions import Session


class Case(conf.Case):
    def taken(self, s, **doc):
        got = s.snapshot(**doc)
        self.assertEqual(got.status, 200, got)
        return got.json["snapshot_id"]

    def restored(self, s, snapshot_id):
        got = s.restore(snapshot_id)
        self.assertEqual((got.status, got.json), (200, {"restored": True, "snapshot_id": snapshot_id}), got)


class Restored(Case):
    def test_T225_the_whole_workspace_is_replaced(self):
        s = Session.make(self.a)
        s.put(("state.txt", b"original"))
        n = self.taken(s)
        s.put(("state.txt", b"mutated"), ("new.txt", b"new"))
        self.restored(s, n)
        self.assertEqual((s.tree(), s.read("state.txt")), (["state.txt"], b"original"))

    def outside(self):
        there = tempfile.mkdtemp(prefix="sbx-test-")
        self.addCleanup(shutil.rmtree, there)
        with open(os.path.join(there, "secret.txt"), "w") as f:
            f.write("outside content")
        return there

    def test_T234_a_link_that_leads_outside(self):
        # The row wants a refusal; here the link is kept as a link, and nothing behind it.
        there = self.outside()
        s = Session.make(self.a)
        s.sh("ln -s %s/secret.txt link; ln -s %s folder; echo x > f" % (there, there))
        got = s.snapshot()
        self.assertEqual(got.status, 200, got)
        self.assertEqual(got.json["size_bytes"], 2)
        s.sh("rm link folder f")
        self.restored(s, got.json["snapshot_id"])
        self.assertEqual(s.tree(), ["f", "folder", "link"])
        self.assertEqual(os.readlink(s.workspace("link")), there + "/secret.txt")
        for where, _, names in os.walk(os.path.join(self.a.state, "objects")):
            for name in names:
                with open(os.path.join(where, name), "rb") as f:
                    self.assertNotIn(b"outside content", f.read())

    def test_T236_the_workspace_is_a_link(self):
        there = self.outside()
        s = Session.make(self.a)
        s.put(("a", b"a"))
        os.rename(s.workspace(), s.files("elsewhere"))
        os.symlink(there, s.workspace())
        got = s.snapshot()
        self.assertGreaterEqual(got.status, 400, got)
        self.assertNotIn(there, str(got))
        self.assertEqual(s.snapshots(), [])
        os.unlink(s.workspace())
        os.rename(s.files("elsewhere"), s.workspace())
        self.assertEqual(s.delete().status, 200)
        self.assertEqual(os.listdir(there), ["secret.txt"])

    def test_T237_a_file_that_is_replaced_all_the_time(self):
        s = Session.make(self.a)
        written, stop = set(), threading.Event()

        def write():
            i = 0
            while not stop.is_set():
                text = "version-%05d-" % i + "x" * 5000
                written.add(text)
                s.write(text, "state.tmp")
                os.rename(s.workspace("state.tmp"), s.workspace("state.txt"))
                i += 1

        s.write("version-first", "state.txt")
        written.add("version-first")
        writer = threading.Thread(target=write)
        writer.start()
        try:
            taken = [self.taken(s) for _ in range(5)]
        finally:
            stop.set()
            writer.join()
        for n in taken:
            self.restored(s, n)
            self.assertIn(s.read("state.txt").decode(), written)

    def test_T238_a_file_that_goes_while_it_is_looked_at(self):
        # The row's state.tmp cannot be read; here nothing in a workspace is unreadable for the service, so it is
        # one that is there and gone again.
        s = Session.make(self.a)
        s.put(("state.txt", b"stable"))
        stop = threading.Event()

        def blink():
            while not stop.is_set():
                s.write(b"in progress", "state.tmp")
                os.unlink(s.workspace("state.tmp"))

        writer = threading.Thread(target=blink)
        writer.start()
        try:
            taken = [self.taken(s) for _ in range(5)]
        finally:
            stop.set()
            writer.join()
        for n in taken:
            s.put(("state.txt", b"changed"))
            self.restored(s, n)
            self.assertEqual(s.read("state.txt"), b"stable")
            self.assertLessEqual(set(s.tree()), {"state.txt", "state.tmp"})


class Busy(Case):
    settings = conf.QUEUED

    def busy(self, s, got):
        self.refused(got, 409, "session_has_active_runs")
        self.assertEqual(got.json["detail"], {"error": "session_has_active_runs", "active_runs": 1, "session_id": s.id})

    def test_T226_no_snapshot_beside_a_run(self):
        s = Session.make(self.a)
        s.run("true")
        self.busy(s, s.snapshot())
        self.busy(s, s.clone())

    def test_T227_no_restore_beside_a_run(self):
        s = Session.make(self.a)
        n = self.taken(s)
        s.run("true")
        self.busy(s, s.restore(n))


class Faults(conf.Alone):
    @contextlib.contextmanager
    def broken(self, a, folder):
        """In place of this folder of the service there is a file."""
        path = os.path.join(a.state, folder)
        os.rename(path, path + ".away")
        with open(path, "w"):
            pass
        try:
            yield
        finally:
            os.unlink(path)
            os.rename(path + ".away", path)

    def failed(self, a, got, text):
        self.assertEqual((got.status, got.json["detail"]), (500, text), got)
        self.assertEqual(got.error["message"], text)
        self.assertNotIn(a.state, got.body.decode())

    def test_T229_it_cannot_be_written(self):
        with self.server() as a:
            s = Session.make(a)
            s.put(("f", b"never seen before"))
            self.assertEqual(s.snapshot().status, 200)
            s.put(("g", b"nor this"))
            with self.broken(a, "objects"):
                self.failed(a, s.snapshot(), "Failed to create snapshot")
            self.assertEqual(len(s.snapshots()), 1)

    def test_T230_it_cannot_be_restored(self):
        with self.server() as a:
            s = Session.make(a)
            s.put(("f", b"content"))
            n = s.snapshot().json["snapshot_id"]
            with self.broken(a, "objects"):
                self.failed(a, s.restore(n), "Failed to restore snapshot")
            self.assertEqual((s.tree(), s.read("f")), (["f"], b"content"))

    def tampered(self, change):
        """A restore of a manifest in which somebody has changed bytes: refused, and nothing has happened."""
        with self.server() as a:
            s = Session.make(a)
            s.put(("aaaaaaaaaaaaaa", b"content"))
            s.sh("ln -s nowhere_at_all danger")
            n = s.snapshot().json["snapshot_id"]
            path = os.path.join(a.state, "snapshots", n)
            with open(path, "rb") as f:
                data = f.read()
            changed = data.replace(*change)
            self.assertNotEqual(data, changed)
            os.chmod(path, 0o600)
            with open(path, "wb") as f:
                f.write(changed)
            before = s.tree(), sorted(os.listdir(s.files()))
            got = s.restore(n)
            self.assertGreaterEqual(got.status, 400, got)
            self.assertEqual((s.tree(), sorted(os.listdir(s.files()))), before)
            self.assertEqual(s.read("aaaaaaaaaaaaaa"), b"content")

    def test_T232_a_manifest_whose_name_climbs(self):
        self.tampered((b"aaaaaaaaaaaaaa", b"../outside.txt"))

    def test_T233_a_manifest_whose_link_leads_elsewhere(self):
        self.tampered((b"nowhere_at_all", b"/etc/passwd\0\0\0"))


class Counted(conf.Alone):
    def test_T240_the_oldest_goes(self):
        with self.server({"snapshot_max_count": 2, "snapshot_max_size_mb": 256}) as a:
            s = Session.make(a)
            taken = []
            for i in range(3):
                s.put(("f", b"%d" % i))
                got = s.snapshot()
                self.assertEqual(got.status, 200, got)
                taken.append(got.json["snapshot_id"])
            self.assertEqual([i["snapshot_id"] for i in s.snapshots()], [taken[2], taken[1]])

    def test_T244_two_at_the_same_instant(self):
        with self.server() as a:
            s = Session.make(a)
            s.put(("f", b"x" * 100000))
            with sessions.objects(a):
                both = [sessions.Asked(s.snapshot) for _ in range(2)]
                sessions.waits_for_objects(a)
            answers = [b.wait() for b in both]
            self.assertEqual([b.status for b in answers], [200, 200], answers)
            self.assertEqual({i["snapshot_id"] for i in s.snapshots()}, {b.json["snapshot_id"] for b in answers})
            self.assertEqual(len(s.snapshots()), 2)

    def test_T245_a_list_waits_for_one_that_is_being_taken(self):
        with conf.two() as (p1, p2):
            s = Session.make(p1)
            s.put(("f", b"old"))
            self.assertEqual(s.snapshot().status, 200)
            s.put(("f", b"new"))
            arrivals = sessions.Arrivals(p2)
            with sessions.objects(p1):
                shot = sessions.Asked(s.snapshot)
                sessions.waits_for_objects(p1)
                listed = sessions.Asked(s.through(p2).snapshots)
                arrivals.wait()
                self.assertTrue(listed.is_open())
            self.assertEqual(shot.wait().status, 200)
            self.assertEqual(len(listed.wait()), 2)


class Cloned(conf.Alone):
    def test_T247_after_a_restart(self):
        user = api.user("7")
        with self.server(api.USERS) as a:
            s = Session.make(a, login=user)
            s.put(("notes.txt", b"stateful data"))
            a.stop()
            a.start()
            got = s.clone()
            self.assertEqual((got.status, got.json["cloned_from"]), (200, s.id), got)
            c = Session(a, got.json["session_id"], user)
            self.assertNotEqual(c.id, s.id)
            self.assertEqual(c.get().status, 200)
            self.refused(c.get(login=api.user("8")), 404, "session_not_found")
            self.assertEqual(c.read("notes.txt"), b"stateful data")
            self.assertEqual(c.snapshots(), [])


if __name__ == "__main__":
    conf.main()
