# SPDX-License-Identifier: Apache-2.0
"""A million bad requests to a sandbox-apid, of every kind that tests/lib/badhttp.py has. It fails when the
server has grown by more than a handful of pages, holds more descriptors, has taken one of them for a run, or
does not answer any more. `bad_requests.py [N]` sends another number."""
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import api  # noqa: E402
import badhttp  # noqa: E402
import sbx  # noqa: E402

GROWTH_KIB = 2048


class Soak(badhttp.Case):
    settings = {"api_access_log": "false", "api_header_timeout_sec": 2, "api_body_timeout_sec": 2, "warm_runners": 0}
    env = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1"}


def main(n):
    Soak.setUpClass()
    soak = Soak()
    try:
        badhttp.rain(soak.address, soak.login, n // 20)
        soak.all_gone()
        kib, fds, began = soak.resident_kib(), soak.descriptors(), time.monotonic()
        for tenth in range(1, 11):
            badhttp.rain(soak.address, soak.login, n // 10)
            soak.volley([("", badhttp.MANY_ARGUMENTS)] * 200)
            print("%9d requests  %6.0f s  resident %+d KiB" % (n // 10 * tenth, time.monotonic() - began,
                                                            soak.resident_kib() - kib), flush=True)
        soak.all_gone()
        soak.alive()  # by now it has given back what the crowd needed
        grown, held = soak.resident_kib() - kib, soak.descriptors() - fds
        soak.alive()
        bad = [what for what, is_so in (("it has grown by %d KiB" % grown, grown > GROWTH_KIB and not sbx.sanitizer(api.APID)),
                                        ("it holds %d more descriptors" % held, held > 20),
                                        ("there are %d runs" % soak.rows(), soak.rows() > 0)) if is_so]
    finally:
        soak.doClassCleanups()
    sys.exit(", ".join(bad) or 0)


if __name__ == "__main__":
    if not os.path.exists(api.APID):
        sys.exit("%s is not built" % api.APID)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000000)
