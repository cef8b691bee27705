# SPDX-License-Identifier: Apache-2.0
"""Everybody's runs, for administrators."""
import datetime
import time
import urllib.parse

import conf
from conf import api

ADMIN = api.user("boss", role="admin")
ONE, TWO = api.user("1"), api.user("2")


class Lists(conf.Case):
    settings = api.USERS

    def page(self, total=None, **query):
        a = self.a.get("/admin/runs?" + urllib.parse.urlencode(query), login=ADMIN)
        self.assertEqual(a.status, 200, a)
        doc = a.json
        for name in ("total", "limit", "offset", "has_more", "next_offset"):
            self.assertEqual(doc["pagination"][name], doc[name], name)
        if total is not None:
            self.assertEqual(doc["total"], total, doc)
        return doc

    def three(self, digest):
        """Runs that began 300, 200 and 100 seconds ago, the first two of one image."""
        now, runs = int(time.time()), []
        for ago, image in ((300, digest), (200, digest), (100, digest + "-other")):
            run = self.a.sh("true", login=ONE, workspace_id=digest)
            self.ended(run)
            self.a.change("UPDATE runs SET image_digest=?, started_us=? WHERE id=?", image, (now - ago) * 1000000,
                          run.id)
            runs.append(run)
        return now, runs

    def test_T319_a_page_of_one_image(self):
        _, runs = self.three("d1")
        doc = self.page(2, image_digest="d1", limit=1, offset=0)
        self.assertEqual((doc["limit"], doc["offset"], doc["has_more"], doc["next_offset"]), (1, 0, True, 1))
        self.assertEqual(len(doc["items"]), 1)
        item = doc["items"][0]
        self.assertEqual(item["id"], runs[1].id)  # newest first
        self.assertEqual((item["status_reason_details"]["code"], item["status_reason_details"]["category"]),
                         (item["status_reason_code"], "success"))
        self.assertEqual(self.page(2, image_digest="d1", limit=1, offset=1)["items"][0]["id"], runs[0].id)

    def test_T321_those_that_began_later(self):
        now, runs = self.three("since")
        at = datetime.datetime.fromtimestamp(now - 250, datetime.timezone.utc).isoformat()
        doc = self.page(started_at_from=at, limit=1000)
        ids = [i["id"] for i in doc["items"]]
        self.assertGreaterEqual(doc["total"], 2)
        self.assertEqual([r.id in ids for r in runs], [False, True, True])

    def test_T322_of_one_user_and_phase(self):
        self.ended(self.a.sh("true", login=ONE))
        self.ended(self.a.sh("exit 1", login=TWO), "failed", "nonzero_exit")
        failed = self.a.sh("exit 1", login=ONE)
        self.ended(failed, "failed", "nonzero_exit")
        doc = self.page(1, user_id="1", phase="failed", limit=10, offset=0)
        self.assertEqual([i["id"] for i in doc["items"]], [failed.id])
        self.assertEqual(doc["items"][0]["user_id"], "1")

    def test_T324_one_run(self):
        run = self.a.sh("echo ok", login=ONE)
        self.ended(run)
        a = self.a.get("/admin/runs/" + run.id, login=ADMIN)
        self.assertEqual(a.status, 200)
        doc = a.json
        self.assertEqual((doc["id"], doc["user_id"], doc["status_reason_code"]), (run.id, "1", "completed"))
        self.assertEqual((doc["status_reason_details"]["code"], doc["status_reason_details"]["category"]),
                         ("completed", "success"))
        for name in ("cpu_time_sec", "wall_time_sec", "peak_rss_mb", "log_bytes", "artifact_bytes"):
            self.assertIs(type(doc["resource_usage"][name]), int, name)


if __name__ == "__main__":
    conf.main()
