# SPDX-License-Identifier: Apache-2.0
"""Input over the stream."""
import conf
import wsclient


class Stdin(conf.Case):
    def test_T316_a_frame_that_is_too_long(self):
        run = self.a.sh("read x; echo got $x", timeout_sec=30, interactive=True, spec_version="1.1",
                        stdin_max_bytes=5, stdin_max_frame_bytes=3)
        with self.a.stream(run) as ws:
            ws.stdin("abcdef")
            frames = ws.until(lambda f: f["type"] == "truncated")
            self.assertRegex(frames[-1]["reason"], r"^stdin_")
            ws.eof()
            rest, code = ws.frames()
        self.assertEqual(code, 1000)
        self.assertEqual(wsclient.output(frames + rest), b"got abc\n")

    def test_T318_input_that_nobody_asked_for(self):
        run = self.a.sh("sleep 0.5; cat; echo done", timeout_sec=30)
        with self.a.stream(run) as ws:
            ws.stdin("a")
            frames, code = ws.frames()
        self.assertEqual(code, 1000)
        self.assertEqual(wsclient.output(frames), b"done\n")
        self.ended(run)


if __name__ == "__main__":
    conf.main()
