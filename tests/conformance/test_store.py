# SPDX-License-Identifier: Apache-2.0
"""Where state is kept, and what happens when that cannot be."""
import contextlib
import json
import os
import re
import shutil
import sqlite3
import tempfile

import conf
from conf import api


def schema_1():
    """The tables as the first release made them: that text is never edited."""
    with open(os.path.join(conf.sbx.SOURCE, "store/schema.c")) as f:
        body = re.search(r"version_1\[\] =(.*?);\n\n", f.read(), re.S).group(1)
    text = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', re.sub(r"/\*.*?\*/", "", body, flags=re.S)))
    for word, spelled in (("%ROW%", "INTEGER PRIMARY KEY AUTOINCREMENT"), ("%KEY%", "INTEGER PRIMARY KEY"),
                          ("%BYTES%", "BLOB")):
        text = text.replace(word, spelled)
    assert "CREATE TABLE runs" in text and "%" not in text, text
    return text


class Store(conf.Alone):
    def setUp(self):
        self.base = tempfile.mkdtemp(prefix="sbx-test-")
        self.addCleanup(shutil.rmtree, self.base, ignore_errors=True)

    def test_T378_the_environment_outranks_the_file(self):
        # There is one kind of store here; what is told in both places is where it is.
        by_env, by_file = os.path.join(self.base, "env"), os.path.join(self.base, "file")
        a = api.Apid(state=by_env, env={"SANDBOX_STATE_DIR": by_env, "SANDBOX_STORE_BACKEND": "sqlite"},
                     config="[sandbox]\nstate_dir = %s\nmax_concurrent_runs = 3\n" % by_file)
        argv = a.argv()
        at = argv.index("--state")
        a.argv = lambda: argv[:at] + argv[at + 2:]
        with a:
            self.assertEqual(a.runtime("namespace")["store_mode"], "sqlite")
            self.ended(a.sh("echo x"))
            self.assertEqual(len(a.sql("SELECT id FROM runs")), 1)
        self.assertTrue(os.path.exists(os.path.join(by_env, "state.db")))
        self.assertFalse(os.path.exists(by_file))

    def test_T379_no_other_store_in_place_of_the_one_asked_for(self):
        a = api.Apid(env={"SANDBOX_STORE_BACKEND": "cluster"})
        try:
            status, said = a.fails()
            self.assertEqual(status, 78)  # EX_CONFIG
            self.assertIn("store_backend", said.lower())
            self.assertIn("cluster", said)
            self.assertNotIn("listening", said)
        finally:
            a.close(check=False)

    def test_T381_a_database_of_an_older_release(self):
        # All nine columns of the row were there from the first release on; what a migration must not do is the
        # same: lose a row or a field of it.
        fields = {"runtime_version": "9.9", "session_id": "s-1", "persona_id": "p-1", "workspace_id": "w-1",
                  "workspace_group_id": "g-1", "scope_snapshot_id": "x-1"}
        run_id, usage = "01a229e2-0000-7000-8000-000000000001", {"log_bytes": 7, "artifact_bytes": 0}
        with self.server() as a:  # makes the directories
            self.assertEqual(a.stop(), 0)
            for name in ("state.db", "state.db-wal", "state.db-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(a.state, name))
            old = sqlite3.connect(os.path.join(a.state, "state.db"))
            old.executescript(schema_1() + "CREATE TABLE schema_version (version BIGINT NOT NULL);"
                              "INSERT INTO schema_version VALUES (1);")
            row = {"id": run_id, "owner": "somebody", "uid": -1, "door": "api", "phase": 4, "reason": "completed",
                   "spec_version": "1.0", "runtime": "namespace", "base_image": "host", "interactive": 0,
                   "generation": 1, "claim_expires_us": 0, "cancel": 0, "created_us": 1, "started_us": 2,
                   "finished_us": 3, "queue_expires_us": 0, "estimated_start_us": 0, "changed_us": 3,
                   "has_exit_code": 1, "exit_code": 0, "usage_json": json.dumps(usage), "labels": '{"team":"a"}',
                   "log_bytes": 7, "artifact_bytes": 0, "artifact_count": 0, "artifacts_gone": 0, **fields}
            old.execute("INSERT INTO runs (%s) VALUES (%s)" % (", ".join(row), ", ".join("?" * len(row))),
                        list(row.values()))
            old.commit()
            old.close()
            a.start()
            self.assertGreater(a.sql("SELECT version FROM schema_version")[0][0], 1)
            doc = a.get("/runs/" + run_id).json
            self.assertEqual({k: doc[k] for k in fields}, fields)
            self.assertEqual((doc["phase"], doc["resource_usage"], doc["user"]), ("completed", usage, "somebody"))
            items = a.get("/admin/runs?user_id=somebody").json["items"]
            self.assertEqual([i["id"] for i in items], [run_id])
            # And it stores them of new runs; the session alone is not a run's to name.
            tags = {k: fields[k] for k in ("persona_id", "workspace_id", "workspace_group_id", "scope_snapshot_id")}
            run = a.sh("read x", interactive=True, spec_version="1.1", **tags)
            run.wait_phase("running")
            owner, expires = run.row("claim_owner", "claim_expires_us")
            self.assertRegex(owner, r"/\d+/")
            self.assertGreater(expires, 0)
            run.cancel()
            doc = self.ended(run, "killed", "canceled_by_user")
            self.assertEqual({k: doc[k] for k in tags}, tags)
            self.assertIn("log_bytes", doc["resource_usage"])


if __name__ == "__main__":
    conf.main()
