# SPDX-License-Identifier: Apache-2.0
"""Bearer tokens for tests, with the standard library only. HS256: a secret of 32 bytes or more.

  tokens.token(SECRET, "alice")                              good for an hour
  tokens.token(SECRET, "alice", lifetime=-1)                 has expired
  tokens.token(SECRET, "alice", role="admin", aud="sandbox")
  tokens.sign({"sub": "alice"}, SECRET, {"alg": "none"})     anything else
"""
import base64
import hashlib
import hmac
import json
import time

SECRET = "tests-tests-tests-tests-tests-32"


def encode(data):
    """base64url without padding, of bytes, text, or what becomes JSON."""
    if not isinstance(data, (bytes, str)):
        data = json.dumps(data, separators=(",", ":"))
    if isinstance(data, str):
        data = data.encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def sign(claims, secret=SECRET, header=None):
    """The signature is always HMAC with SHA-256, whatever the header claims."""
    text = encode({"alg": "HS256", "typ": "JWT"} if header is None else header) + "." + encode(claims)
    return text + "." + encode(hmac.new(secret.encode(), text.encode(), hashlib.sha256).digest())


def token(secret=SECRET, sub="alice", lifetime=3600, **claims):
    return sign(dict({"sub": sub, "exp": int(time.time()) + lifetime}, **claims), secret)
