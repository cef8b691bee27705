# SPDX-License-Identifier: Apache-2.0
"""Addresses of streams that are good for a while. Besides the login, not in place of it; here a login is a key, a
token or the Unix socket, and never a cookie."""
import hashlib
import hmac
import time
import urllib.parse

import conf
from conf import api

SECRET = "test-secret"


def sign(run_id, exp, secret=SECRET):
    return hmac.new(secret.encode(), ("%s:%d" % (run_id, exp)).encode(), hashlib.sha256).hexdigest()


class Signed(conf.Case):
    settings = {**conf.QUEUED, "ws_signed_urls": "true", "ws_signing_secret": SECRET}

    def setUp(self):
        self.run_ = self.a.sh("echo run", timeout_sec=5)
        self.addCleanup(self.run_.cancel)

    def refused_with(self, code, **query):
        with self.a.stream(self.run_, **query) as ws:
            self.assertEqual(ws.status, 101)
            self.assertEqual(ws.frames(), ([], code))

    def first_frame(self, url):
        with self.a.stream(url) as ws:
            self.assertEqual(ws.status, 101)
            self.run_.cancel()
            return ws.recv()

    def test_T311_the_address_of_the_answer(self):
        url = self.run_.posted["log_stream_url"]
        self.assertTrue(url.startswith(api.BASE + "/runs/"), url)
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)
        exp = int(query["exp"][0])
        self.assertGreater(exp, time.time())
        self.assertEqual(query["token"], [sign(self.run_.id, exp)])
        self.assertIn(self.first_frame(url)["type"], ("event", "heartbeat"))

    def test_T312_an_address_that_is_over(self):
        exp = int(time.time()) - 10
        self.refused_with(1008, token=sign(self.run_.id, exp), exp=exp)

    def test_T314_a_browser_with_cookie_and_origin(self):
        url = self.run_.posted["log_stream_url"]
        headers = {**api.KEY.headers, "Cookie": "session=abc", "Origin": "http://127.0.0.1:%d" % self.a.port}
        with self.a.stream(url, headers=headers) as ws:
            self.assertEqual(ws.status, 101)
            self.run_.cancel()
            self.assertIn(ws.recv()["type"], ("event", "heartbeat"))

    def test_T315_an_altered_address(self):
        exp = int(time.time()) + 60
        good = sign(self.run_.id, exp)
        other = "0" if good[0] != "0" else "1"
        self.refused_with(1008, token=other + good[1:], exp=exp)
        self.refused_with(1008, token=good, exp=exp + 1)
        self.refused_with(1008, token=sign(self.run_.id, exp, "another-secret"), exp=exp)
        self.refused_with(1008)
        past = int(time.time()) - 1
        self.refused_with(1008, token=sign(self.run_.id, past), exp=past)
        # Nor is a signature a login.
        with self.a.stream(self.run_, headers={}, token=good, exp=exp) as ws:
            self.assertEqual(ws.frames(), ([], 4401))


if __name__ == "__main__":
    conf.main()
