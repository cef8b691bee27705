# SPDX-License-Identifier: Apache-2.0
"""Never more at once than is allowed."""
import conf
from conf import api


class Cap(conf.Alone):
    def apart(self, *docs):
        """None of them ran while another did."""
        docs = sorted(docs, key=lambda d: d["started_at"])
        for before, after in zip(docs, docs[1:]):
            self.assertGreaterEqual(after["started_at"], before["finished_at"])

    def test_T173_one_after_the_other(self):
        with self.server({"max_concurrent_runs": 1}) as a:
            runs = [a.sh("sleep 1", timeout_sec=5) for _ in range(2)]
            self.apart(*(self.ended(r) for r in runs))

    def test_T174_who_waits_loses_nothing_by_waiting(self):
        # Design: a run is claimed when it is admitted and not before, so there is no claim of a waiting run
        # to renew; it waits for longer than a lease, is still queued, and then runs, once.
        with self.server({"max_concurrent_runs": 1, "run_claim_lease_sec": conf.LEASE}) as a:
            first, second = (a.sh("sleep %d" % n, timeout_sec=30) for n in (conf.LEASE + 1, 0))
            created = first.row("created_us")[0]
            doc = self.ended(first)
            self.assertEqual(doc["claim_generation"], 1)
            self.apart(doc, self.ended(second))
            self.assertEqual(second.row("generation", "claim_owner"), (1, None))
            self.assertGreater(second.row("started_us")[0] - created, conf.LEASE * 1000000)

    def test_T176_one_of_a_user_over_two_servers(self):
        with conf.two({**api.USERS, "max_concurrent_runs": 2, "active_max_per_user": 1}) as (p1, p2):
            runs = [p.sh("sleep 1", timeout_sec=5) for p in (p1, p2)]
            self.apart(*(self.ended(r) for r in runs))


if __name__ == "__main__":
    conf.main()
