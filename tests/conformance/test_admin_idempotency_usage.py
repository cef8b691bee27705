# SPDX-License-Identifier: Apache-2.0
import conf
from conf import api

ADMIN = api.user("boss", role="admin")
TOP = {"total", "limit", "offset", "has_more", "items", "pagination"}


class Pages(conf.Case):
    settings = {**api.USERS, **conf.FOREGROUND}

    def page(self, path, limit, offset):
        a = self.a.get(path, login=ADMIN)
        self.assertEqual(a.status, 200, a)
        doc = a.json
        # The contract adds next_offset to the members of the row.
        self.assertEqual(set(doc) - {"next_offset"}, TOP)
        self.assertEqual((doc["limit"], doc["offset"], type(doc["has_more"]), type(doc["total"])),
                         (limit, offset, bool, int))
        for name in ("total", "limit", "offset", "has_more"):
            self.assertEqual(doc["pagination"][name], doc[name], name)
        return doc

    def test_T325_keys_that_are_remembered(self):
        # Of a run: sessions come with their own routes.
        run = self.a.try_run({"command": ["true"]}, api.user("1"), key="run-uniq-1").json
        doc = self.page("/admin/idempotency?endpoint=runs&key=run-uniq-1&limit=10&offset=0&sort=desc", 10, 0)
        self.assertEqual(len(doc["items"]), 1)
        item = doc["items"][0]
        self.assertEqual((item["endpoint"], item["key"], item["object_id"], item["user_id"]),
                         ("runs", "run-uniq-1", run["id"], "1"))
        self.assertRegex(item["created_at"], r"^\d{4}-\d\d-\d\dT")

    def test_T327_usage(self):
        for _ in range(2):
            self.assertEqual(self.a.try_run({"command": ["echo", "x"]}, api.user("7")).status, 200)
        doc = self.page("/admin/usage?limit=50&offset=0", 50, 0)
        for item in doc["items"]:
            self.assertEqual(set(item), {"user_id", "runs_count", "log_bytes", "artifact_bytes"})
        seven = [i for i in doc["items"] if i["user_id"] == "7"]
        self.assertEqual(seven, [{"user_id": "7", "runs_count": 2, "log_bytes": 4, "artifact_bytes": 0}])

    def test_T328_usage_of_nobody(self):
        doc = self.page("/admin/usage?user_id=nonexistent&limit=1&offset=0", 1, 0)
        self.assertEqual((doc["total"], doc["items"]), (0, []))


if __name__ == "__main__":
    conf.main()
