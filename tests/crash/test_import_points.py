# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""An import dies, by SIGKILL, at each of its named points, or the door that waits for it does: there is the whole
image or snapshot, or nothing of it, and nothing is left beside it."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import house  # noqa: E402
import api  # noqa: E402
import sbx  # noqa: E402
import sessions  # noqa: E402
from imagekit import held, member, tar  # noqa: E402

IN_OPEN = 0x20
DATA = tar(lambda t: member(t, "etc/version", b"1"))
OTHER = tar(lambda t: member(t, "etc/version", b"2"))


def put(a, name, data=DATA):
    return a.request("PUT", "/admin/images/" + name, data)


@unittest.skipUnless(house.has_crash_points(), "this build has no crash points")
class Images(unittest.TestCase):
    def left(self, a):
        """But for what belongs to an image that has a name."""
        where = os.path.join(a.state, "images")
        names = sorted(os.listdir(where))
        roots = {os.readlink(os.path.join(where, n))[7:] for n in names if os.path.islink(os.path.join(where, n))}
        return [n for n in names if n != ".lock" and not os.path.islink(os.path.join(where, n)) and
                n.split("-", 1)[-1] not in roots]

    def die_at(self, point, there=False):
        with api.Apid() as a:
            self.assertEqual(put(a, "x", OTHER).status, 200)
            before = a.get("/admin/images/x").json
            a.stop()
            a.env["SBX_CRASH_AT"] = point
            a.start()
            got = put(a, "x")
            self.assertEqual((got.status, got.code), (500, "internal"), got)
            a.stop()
            del a.env["SBX_CRASH_AT"]
            a.start()
            now = a.get("/admin/images/x").json
            self.assertEqual(now["digest"] != before["digest"], there)
            # Whatever was left is swept up by whoever comes next, and does not harm.
            self.assertEqual(put(a, "x").status, 200)
            self.assertEqual(put(a, "y").json["digest"], a.get("/admin/images/x").json["digest"])
            self.assertEqual(self.left(a), [])

    def test_unpacked(self):
        self.die_at("image_unpacked")

    def test_described(self):
        self.die_at("image_described")

    def test_published(self):
        self.die_at("image_published")

    def test_named(self):
        self.die_at("image_named", True)

    def test_the_door_dies_and_the_import_is_whole(self):
        with api.Apid() as a:
            self.assertEqual(put(a, "x", OTHER).status, 200)
            lock = os.path.join(a.state, "images", ".lock")
            with held(lock), api.watch(lock, IN_OPEN) as ring:
                c = a.connection()
                c.request("PUT", a.url("/admin/images/y"), body=DATA, headers=api.KEY.headers)
                self.assertTrue(ring(20 * sbx.SLOW))
                a.kill()
                c.close()
            a.start()
            with held(lock):  # behind the import
                pass
            self.assertEqual({i["name"] for i in a.get("/admin/images").json["items"]} | {"y"}, {"x", "y"})
            self.assertEqual(put(a, "y").status, 200)
            self.assertEqual(self.left(a), [])


@unittest.skipUnless(house.has_crash_points(), "this build has no crash points")
class Snapshots(unittest.TestCase):
    def import_in(self, s, name="n"):
        return s.ask("POST", "/snapshots?name=" + name, DATA)

    def test_the_helper_dies(self):
        with api.Apid(env={"SBX_CRASH_AT": "tree_unpacked"}) as a:
            s = sessions.Session.make(a)
            got = self.import_in(s)
            self.assertEqual((got.status, got.code), (500, "internal"), got)
            self.assertEqual((s.snapshots(), os.listdir(s.files())), ([], ["workspace"]))

    def door_dies_at(self, point, there):
        with api.Apid() as a:
            s = sessions.Session.make(a)
            a.stop()
            a.env["SBX_CRASH_AT"] = point
            a.start()
            with self.assertRaises(OSError):
                self.import_in(s)
            a.proc.wait(20 * sbx.SLOW)
            del a.env["SBX_CRASH_AT"]
            a.start()
            self.assertEqual([n["name"] for n in s.snapshots()], ["n"] if there else [])
            # What stood beside the workspace goes at the latest with the next import.
            self.assertEqual(self.import_in(s, "m").status, 200)
            self.assertEqual(os.listdir(s.files()), ["workspace"])
            self.assertEqual(s.restore("m").status, 200)

    def test_taken(self):
        self.door_dies_at("door_snapshot_taken", False)

    def test_inserted(self):
        self.door_dies_at("door_snapshot_inserted", True)


@unittest.skipUnless(house.has_crash_points(), "this build has no crash points")
class Runs(unittest.TestCase):
    def test_a_run_that_is_removed(self):
        """Its row is gone; the directory is swept up at the next start."""
        settings = {"run_retention_hours": 1, "artifact_janitor_interval_sec": 1}
        with api.Apid(settings=settings) as a:
            run = a.sh("echo x")
            run.wait()
            a.stop()
            a.change("UPDATE runs SET finished_us = 1 WHERE id = ?", run.id)
            a.env["SBX_CRASH_AT"] = "door_run_retired"
            a.start()
            a.proc.wait(20 * sbx.SLOW)
            self.assertTrue(os.path.exists(run.files()))
            del a.env["SBX_CRASH_AT"]
            a.start()
            self.assertEqual(a.get("/runs/" + run.id).status, 404)
            a.wait_line("removing a run directory without a row run=" + run.id)
            self.assertEqual(a.sh("echo y").wait()["phase"], "completed")


if __name__ == "__main__":
    sbx.main()
