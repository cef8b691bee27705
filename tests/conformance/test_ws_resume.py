# SPDX-License-Identifier: Apache-2.0
"""Where a stream begins."""
import urllib.parse

import conf


class Address(conf.Case):
    settings = conf.QUEUED

    def test_T305_the_address_says_where(self):
        doc = self.a.try_run({"command": ["sh", "-c", "echo run"], "timeout_sec": 5, "resume_from_seq": 7}).json
        url = urllib.parse.urlsplit(doc["log_stream_url"])
        self.assertEqual(urllib.parse.parse_qs(url.query)["from_seq"], ["7"])
        self.assertTrue(url.path.endswith("/runs/%s/stream" % doc["id"]))


class Resume(conf.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.run_ = cls.a.sh("echo hello; sleep 0.5; echo world")
        cls.run_.wait()

    def frames(self, run, **query):
        with self.a.stream(run, **query) as ws:
            frames, code = ws.frames()
        self.assertEqual(code, 1000)
        seqs = [f["seq"] for f in frames]
        self.assertEqual(sorted(set(seqs)), seqs)
        return frames

    def test_T306_from_a_number_on(self):
        frames = self.frames(self.run_, from_seq=3)
        self.assertGreaterEqual(len(frames), 1)
        self.assertGreaterEqual(frames[0]["seq"], 3)
        self.assertEqual(frames, [f for f in self.frames(self.run_) if f["seq"] >= 3])

    def test_T307_the_number_itself_is_included(self):
        last = self.frames(self.run_)[-1]
        self.assertEqual(self.frames(self.run_, from_seq=last["seq"]), [last])

    def test_T309_nothing_is_forgotten(self):
        # Design: replay reaches back to the first frame; the row keeps the last hundred.
        run = self.a.sh("i=0; while [ $i -lt 150 ]; do echo line-$i; sleep 0.01; i=$((i+1)); done")
        self.ended(run)
        frames = self.frames(run, from_seq=1)
        self.assertEqual([f["seq"] for f in frames], list(range(1, len(frames) + 1)))
        out = "".join(f["data"] for f in frames if f["type"] == "stdout")
        self.assertEqual(out, "".join("line-%d\n" % i for i in range(150)))
        self.assertEqual(frames, self.frames(run))


if __name__ == "__main__":
    conf.main()
