# SPDX-License-Identifier: Apache-2.0
# run: limit=300
"""Both doors open into one house. Every row of the tables below is done through the mount and through HTTP,
on one state directory that a sandboxfs and a sandbox-apid share, and the results are compared: a run is the
same through whichever door it was started, looks the same through whichever door it is looked at, and what
is refused is refused alike. tests/lib/doors.py has the list of what may differ."""
import json
import os
import sys
from collections import namedtuple

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import doors  # noqa: E402
import sbx  # noqa: E402

import unittest  # noqa: E402

BASE = {"spec_version": "1.0", "base_image": "host", "timeout_sec": 20}


def spec(*command, **more):
    return {**BASE, "command": list(command), **more}


def sh(script, **more):
    return spec("sh", "-c", script, **more)


def py(program, **more):
    return spec("python3", "-c", program, **more)


# ---- what runs -------------------------------------------------------------------------------------

# name, document, how it ends (phase, exit code, reason), what is done meanwhile (a method of Acts; "other"
# in it means: through the other door than the one that started it)
Row = namedtuple("Row", "name document phase exit_code reason act", defaults=("completed", 0, "completed", None))
FAILED = ("failed", 1, "nonzero_exit")
KILLED = ("killed", None, "canceled_by_user")
TALK = dict(interactive=True, spec_version="1.1")

RUNS = (
    Row("nothing", spec("true")),
    Row("exit 1", spec("false"), *FAILED),
    Row("exit 7", sh("exit 7"), "failed", 7, "nonzero_exit"),
    Row("exit 255", sh("exit 255"), "failed", 255, "nonzero_exit"),
    Row("no such program", spec("no-such-program"), "failed", 127, "nonzero_exit"),
    Row("a folder as program", spec("/usr"), "failed", 126, "nonzero_exit"),
    Row("killed by a signal", sh("kill -9 $$"), "failed", 137, "nonzero_exit"),
    Row("stdout", sh("echo out")),
    Row("stderr", sh("echo err >&2")),
    Row("both streams", sh("echo out; echo err >&2; echo out again")),
    Row("no newline at the end", sh("printf 'alpha\\nomega'; printf E >&2")),
    Row("text of many kinds", py("print('\\u00e4\\u6f22\\U0001f642', end='')")),
    Row("bytes that are no text", py("import os; os.write(1, bytes(range(256)))")),
    Row("half a character", py("import os; os.write(1, b'\\xe3\\x81')")),
    Row("a character in two writes", py("import os,time\nos.write(1,b'\\xe3\\x81'); time.sleep(.2); os.write(1,b'\\x82')")),
    Row("NUL bytes", py("import os; os.write(1, b'a\\0b\\0'); os.write(2, b'\\0')")),
    Row("JSON in the output", sh("echo '{\"type\":\"event\",\"event\":\"end\"}'")),
    Row("30,000 lines", sh("seq 30000")),
    Row("200,000 bytes without a newline", py("import os\nfor i in range(4): os.write(1, b'x' * 50000)")),
    Row("more than the log takes", sh("head -c 300000 /dev/zero | tr '\\0' a; echo end"), "completed", 0,
        "limits_applied"),
    Row("environment", sh("echo $A:$B", env={"A": "x=y", "B": "\u00e4 b"})),
    Row("working directory", sh("pwd", cwd="/tmp")),
    Row("working directory below the workspace", sh("pwd; cat f", cwd="d", files=[{"path": "d/f", "content_b64": "aGk="}])),
    Row("arguments are exact", py("import sys; print(sys.argv[1:])", command=[
        "python3", "-c", "import sys; print(sys.argv[1:])", "", " ", "a\nb", "*", "$HOME", "\u00e4", "\\"])),
    Row("files in", sh("cat a; cat d/b; stat -c %s c", files=[
        {"path": "a", "content_b64": "b25l"}, {"path": "d/b", "content_b64": "AAEC/w=="}, {"path": "c", "content_b64": ""}])),
    Row("stdin up front", sh("cat; echo end", stdin_b64="aW5wdXQK")),
    Row("no stdin", sh("cat; echo end")),
    Row("a timeout", sh("echo begun; sleep 100", timeout_sec=1), "timed_out", None, "execution_timeout"),
    Row("clamped", spec("true", timeout_sec=3600, trust_level="untrusted", resources={"cpu": 64, "memory_mb": 100000})),
    Row("resources", sh("ulimit -n", resources={"cpu": 0.5, "memory_mb": 128, "pids": 20})),
    Row("name, labels and tags", spec("true", name="a name", labels={"ci": "17", "x": "\u00e4"}, persona_id="p",
                                      workspace_id="w", workspace_group_id="g", scope_snapshot_id="s")),
    Row("nulls are defaults", spec("true", timeout_sec=None, env=None, files=None, runtime=None, resources=None)),
    Row("an exponent", '{"spec_version":"1.0","base_image":"host","command":["true"],"timeout_sec":2e1}'),
    Row("a byte order mark", b"\xef\xbb\xbf" + json.dumps(spec("echo", "bom")).encode()),
    Row("white space around", b" \r\n\t" + json.dumps(spec("echo", "w"), indent=3).encode() + b"\n"),
    Row("version 1.1", spec("true", spec_version="1.1")),
    Row("one artifact", sh("echo made > a", capture_patterns=["a"])),
    Row("an empty artifact", sh("touch a", capture_patterns=["a"])),
    Row("artifacts in folders", sh("mkdir -p o/p/q; for i in 1 2 3; do echo $i > o/$i; echo $i > o/p/q/$i; done",
                                   capture_patterns=["o/*"])),
    Row("artifacts with odd names", py(
        "import os\nos.mkdir('o')\nfor n in ['50%.t','a b#c?.t','x%2fy.t','p+q.t','..dots.t','\\u00fcn.t','&=;.t',\"it's\",'new\\nline',"
        "'back\\\\slash','-rf','quote\"']: open('o/'+n,'w').write(n)", capture_patterns=["o/*"])),
    Row("an artifact of 3 MiB", py("open('a','wb').write(bytes(range(256)) * 12288)", capture_patterns=["a"])),
    Row("artifacts that are left out", sh("ln -s /etc/passwd l; mkfifo f; echo x > a", capture_patterns=["*"]),
        "completed", 0, "limits_applied"),
    Row("a pattern that nothing matches", spec("true", capture_patterns=["*.none"])),
    Row("artifacts of a failed run", sh("echo x > a; exit 3", capture_patterns=["a"]), "failed", 3, "nonzero_exit"),
    Row("cancelled by its own door", sh("echo up; sleep 100"), *KILLED, "cancel_own"),
    Row("cancelled by the other door", sh("echo up; sleep 100"), *KILLED, "cancel_other"),
    Row("cancelled, and it resists", sh("trap '' TERM; echo up; while :; do sleep 1; done"), *KILLED, "cancel_other"),
    Row("cancelled by both", sh("echo up; sleep 100"), *KILLED, "cancel_both"),
    Row("cancelled after its end", sh("echo up"), "completed", 0, "completed", "cancel_late"),
    Row("artifacts of a cancelled run", sh("echo x > a; echo up; sleep 100", capture_patterns=["a"]), *KILLED, "cancel_other"),
    Row("input from its own door", sh("wc -c; echo after", **TALK), "completed", 0, "completed", "talk_own"),
    Row("input from the other door", sh("wc -c; echo after", **TALK), "completed", 0, "completed", "talk_other"),
    Row("input from both doors", sh("read a; read b; echo $a-$b", **TALK), "completed", 0, "completed", "talk_both"),
    Row("input that is no text", sh("od -An -tx1", **TALK), "completed", 0, "completed", "talk_bytes"),
    Row("the end of input alone", sh("wc -c", **TALK), "completed", 0, "completed", "eof_other"),
    Row("a conversation", sh("while read n; do echo $((n * n)); done", **TALK), "completed", 0, "completed", "converse"),
    Row("followed by both from the start", sh("for i in 1 2 3; do echo $i; sleep 0.1; done"), "completed", 0,
        "completed", "follow"),
)


class Acts:
    """What is done to a run while it executes; own is the door that started it."""

    @staticmethod
    def cancel_own(t, own, other, run):
        own.wait_output(run, b"up\n")
        t.assertTrue(own.cancel(run))

    @staticmethod
    def cancel_other(t, own, other, run):
        other.wait_output(run, b"up\n")
        t.assertTrue(other.cancel(run))

    @staticmethod
    def cancel_both(t, own, other, run):
        own.wait_output(run, b"up\n")
        t.assertTrue(other.cancel(run))
        own.cancel(run)  # it may have ended meanwhile

    @staticmethod
    def cancel_late(t, own, other, run):
        own.wait(run)
        t.assertFalse(other.cancel(run))
        t.assertFalse(own.cancel(run))

    @staticmethod
    def talk_own(t, own, other, run):
        own.stdin(run, b"hello")
        own.eof(run)

    @staticmethod
    def talk_other(t, own, other, run):
        other.stdin(run, b"hello")
        other.eof(run)

    @staticmethod
    def talk_both(t, own, other, run):
        own.stdin(run, b"one\n")
        other.stdin(run, b"two\n")

    @staticmethod
    def talk_bytes(t, own, other, run):
        other.stdin(run, b"\0\1\xff\xfe\x80\r\n")
        other.eof(run)

    @staticmethod
    def eof_other(t, own, other, run):
        other.eof(run)

    @staticmethod
    def converse(t, own, other, run):
        for n in (3, 12, 100):
            own.stdin(run, b"%d\n" % n)
            other.wait_output(run, b"%d\n" % (n * n))
            own, other = other, own
        own.eof(run)

    @staticmethod
    def follow(t, own, other, run):
        """Each gives the first frame and all others, live."""
        for door in (own, other):
            door.wait_output(run, b"1\n2\n3\n")


# ---- what is refused -------------------------------------------------------------------------------

# name, document, code. No document at all: `runs/check` of the mount refuses that in the very write in which
# it stops being one, as `runs/new` does, and gives no verdict.
Refusal = namedtuple("Refusal", "name document code no_document", defaults=("invalid_spec", False))
NONE = ("invalid_spec", True)


def with_text(text):
    return json.dumps(BASE)[:-1] + ', "command": ["true"], ' + text + "}"


REFUSALS = (
    Refusal("a list", "[]", *NONE),
    Refusal("a word", "hello", *NONE),
    Refusal("two documents", json.dumps(spec("true")) * 2),
    Refusal("text behind", json.dumps(spec("true")) + " trailing"),
    Refusal("a comma at the end", with_text('"name":"x",'), *NONE),
    Refusal("single quotes", "{'command':['true']}", *NONE),
    Refusal("NaN", with_text('"env":{},"cpu":NaN'), *NONE),
    Refusal("a raw NUL", b'{"command":["tr\0ue"],"base_image":"host"}', *NONE),
    Refusal("a NUL as escape", with_text('"env":{"X":"a\\u0000b"}'), *NONE),
    Refusal("no UTF-8", b'{"command":["\xff\xfe"],"base_image":"host"}', *NONE),
    Refusal("half a surrogate", '{"command":["\\ud800"],"base_image":"host"}', *NONE),
    Refusal("the same name twice", with_text('"timeout_sec":5')),
    Refusal("100,000 brackets", b"[" * 100000, *NONE),
    Refusal("a typing error", with_text('"timeout_secs":5')),
    Refusal("an unknown field in resources", with_text('"resources":{"gpu":1}')),
    Refusal("no command", BASE),
    Refusal("an empty command", spec()),
    Refusal("a command that is a string", {**BASE, "command": "true"}),
    Refusal("a number in the command", {**BASE, "command": ["sleep", 5]}),
    Refusal("an argument of 200,000 bytes", spec("echo", "x" * 200000), "spec_too_large"),
    Refusal("a timeout of 0", spec("true", timeout_sec=0)),
    Refusal("a timeout of half a second", spec("true", timeout_sec=0.5)),
    Refusal("a timeout that is a string", spec("true", timeout_sec="60")),
    Refusal("a timeout that is too long", spec("true", timeout_sec=2**63)),
    Refusal("a negative memory", spec("true", resources={"memory_mb": -1})),
    Refusal("no processor", spec("true", resources={"cpu": 0})),
    Refusal("an unknown trust level", spec("true", trust_level="root")),
    Refusal("an unknown runtime", spec("true", runtime="chroot")),
    Refusal("an unknown network policy", spec("true", network_policy="open"), "policy_unsupported"),
    Refusal("an environment name with an equals sign", spec("true", env={"A=B": "x"})),
    Refusal("a working directory outside", spec("true", cwd="../x")),
    Refusal("a capture pattern that climbs", spec("true", capture_patterns=["../*"])),
    Refusal("stdin that is no base64", spec("true", stdin_b64="@@@")),
    Refusal("an empty key", spec("true", idempotency_key="")),
    Refusal("a key of 300 bytes", spec("true", idempotency_key="k" * 300)),
    Refusal("labels that are a list", spec("true", labels=["a"])),
    Refusal("an image and a session", spec("true", session_id="s")),
    Refusal("version 9.9", spec("true", spec_version="9.9"), "invalid_spec_version"),
    Refusal("a file that climbs", spec("true", files=[{"path": "../x", "content_b64": ""}]), "invalid_inline_file"),
    Refusal("a file with an absolute path", spec("true", files=[{"path": "/x", "content_b64": ""}]), "invalid_inline_file"),
    Refusal("a file that is no base64", spec("true", files=[{"path": "x", "content_b64": "@@@"}]), "invalid_inline_file"),
    Refusal("the same file twice", spec("true", files=[{"path": "x", "content_b64": ""}] * 2), "invalid_inline_file"),
    Refusal("an unknown image", spec("true", base_image="no-such"), "image_not_found"),
    Refusal("an image that climbs", spec("true", base_image="../../etc"), "image_not_found"),
    Refusal("an unknown session", {"command": ["true"], "session_id": "no-such"}, "session_not_found"),
    Refusal("a runtime of another system", spec("true", runtime="vz_macos"), "runtime_unavailable"),
    Refusal("a network that is not there", spec("true", network_policy="allowlist"), "policy_unsupported"),
    Refusal("targets without a network", spec("true", network_policy="deny_all", network_allowlist=["192.0.2.1"])),
)


def target(*targets):
    return spec("true", network_policy="allowlist", network_allowlist=list(targets))


EGRESS = (
    Refusal("a target beyond the operators", target("192.0.2.1", "192.0.2.2"), "policy_unsupported"),
    Refusal("a larger network", target("192.0.0.0/16"), "policy_unsupported"),
    Refusal("every port where one is allowed", target("example.org"), "policy_unsupported"),
    Refusal("another name", target("example.com:443"), "policy_unsupported"),
    Refusal("bits beyond the prefix", target("192.0.2.1/24")),
    Refusal("a target that is nonsense", target("no such thing")),
    Refusal("a port that is none", target("192.0.2.1:99999")),
    Refusal("an empty target", target("")),
    Refusal("targets for no network", spec("true", network_allowlist=["192.0.2.1"])),
)


class House(unittest.TestCase):
    """One pair of doors for a class. The mount may leave the image out and HTTP ignores what it does not
    know, unless it is told otherwise: class Defaults is about that."""
    settings = {"max_log_bytes": 1 << 18, "queue_max_length": 1000, "cancel_grace_seconds": 1}
    http = {"api_unknown_fields": "false"}
    mount = {}

    @classmethod
    def setUpClass(cls):
        cls.p = doors.Pair(cls.settings, cls.mount, cls.http)
        cls.p.start()
        cls.addClassCleanup(cls.p.close)

    def pairs(self):
        """(the door that starts, the other one), both ways."""
        return (self.p.mount, self.p.http), (self.p.http, self.p.mount)

    def same_view(self, run):
        """What both doors show of a run that has ended; it is the same."""
        views = {d.name: d.view(run) for d in self.p.both}
        m, h = views["mount"], views["http"]
        self.assertEqual(self.p.mount.status_bytes(run), self.p.http.status_bytes(run))
        self.assertEqual(m.frames, h.frames)
        self.assertEqual(m.files, h.files)
        files = self.p.mount.run(run)
        self.assertEqual(files.log, h.bytes_of("stdout", "stderr"))
        self.assertEqual(files.stdout, h.bytes_of("stdout"))
        self.assertEqual(files.stderr, h.bytes_of("stderr"))
        self.assertEqual([f["seq"] for f in h.frames], list(range(1, len(h.frames) + 1)))
        for path, data in m.files.items():
            n = len(data)
            for first, length in ((0, 1), (n // 2, n // 3), (n - 1, 1), (0, n)):
                if n and length:
                    self.assertEqual(self.p.http.part(run, path, first, length), data[first:first + length])
                    self.assertEqual(self.p.mount.part(run, path, first, length), data[first:first + length])
        return m


class Runs(House):
    def row(self, row):
        seen = []
        for own, other in self.pairs():
            with self.subTest(started_through=own.name):
                run = own.submit(row.document)
                if row.act:
                    getattr(Acts, row.act)(self, own, other, run)
                doc = own.wait(run)
                self.assertEqual((doc["phase"], doc["exit_code"], doc["status_reason_code"]),
                                 (row.phase, row.exit_code, row.reason), doc)
                self.assertEqual(other.wait(run), doc)
                seen.append(self.same_view(run))
        if len(seen) == 2:
            self.assertEqual(seen[0].document(), seen[1].document())
            self.assertEqual(seen[0].joined(), seen[1].joined())
            self.assertEqual(seen[0].files, seen[1].files)

    def test_the_table_says_everything_once(self):
        names = [r.name for r in RUNS + REFUSALS]
        self.assertEqual(len(names), len(set(names)))
        self.assertGreaterEqual(len(names), 60)
        acts = {r.act for r in RUNS if r.act}
        self.assertEqual(acts, {a for a in vars(Acts) if not a.startswith("_")})


class Refusals(House):
    table = doors.errors_table()

    def row(self, row):
        status, number = self.table[row.code]
        said, before = [], [d.ids() for d in self.p.both]
        for door, wanted in ((self.p.mount, number), (self.p.http, status)):
            with self.assertRaises(doors.Refused) as c:
                door.submit(row.document)
            self.assertEqual((c.exception.number, c.exception.code), (wanted, row.code), c.exception)
            said.append(c.exception.error)
        self.assertEqual(said[0], said[1])
        self.assertEqual([d.ids() for d in self.p.both], before)

    def test_check_says_the_same_of_everything(self):
        for row in RUNS + REFUSALS:
            if getattr(row, "no_document", False):
                continue
            with self.subTest(row.name):
                verdicts = [d.check(row.document) for d in self.p.both]
                self.assertEqual(verdicts[0], verdicts[1])
                self.assertEqual(json.loads(verdicts[0])["accepted"], isinstance(row, Row))


def fill(case, rows):
    """One test for each row."""
    for row in rows:
        name = "test_" + "_".join("".join(c if c.isalnum() else " " for c in row.name).split())
        assert not hasattr(case, name), name
        setattr(case, name, lambda self, row=row: self.row(row))


fill(Runs, RUNS)
fill(Refusals, REFUSALS)


class Egress(House):
    """Doors of a host with networks."""
    settings = dict(House.settings, egress_enforcement="true", egress_granular_enforcement="true",
                    egress_allowlist="192.0.2.1,example.org:443")
    table = doors.errors_table()
    row = Refusals.row

    def test_check_says_the_same_of_everything(self):
        for row in EGRESS:
            with self.subTest(row.name):
                verdicts = [d.check(row.document) for d in self.p.both]
                self.assertEqual(verdicts[0], verdicts[1])
                self.assertFalse(json.loads(verdicts[0])["accepted"])

    def test_a_run_with_a_network_is_the_same_through_both(self):
        for one, other in self.pairs():
            with self.subTest(one.name):
                run = one.submit(target("192.0.2.1"))
                self.assertEqual(other.wait(run)["network_policy"], "allowlist")
                self.same_view(run)
                self.assertEqual(one.view(run).status["resource_usage"]["egress_connections"], 0)


fill(Egress, EGRESS)


class Defaults(House):
    """The two differences that are meant."""
    http = {}

    def test_the_mount_fills_in_the_image_and_http_does_not(self):
        run = self.p.mount.submit({"command": ["true"]})
        self.assertEqual(self.p.http.wait(run)["base_image"], "host")
        with self.assertRaises(doors.Refused) as c:
            self.p.http.submit({"command": ["true"]})
        self.assertEqual((c.exception.number, c.exception.details["field"]), (422, "base_image"))

    def test_the_mount_takes_scripts_and_http_does_not(self):
        run = self.p.m.submit("#!/bin/sh\necho script\n").id
        self.p.http.wait(run)
        self.assertEqual(self.same_view(run).bytes_of("stdout"), b"script\n")
        with self.assertRaises(doors.Refused):
            self.p.http.submit("#!/bin/sh\necho script\n")

    def test_unknown_fields(self):
        document = spec("true", timeout_secs=5)
        with self.assertRaises(doors.Refused) as c:
            self.p.mount.submit(document)
        self.assertEqual(c.exception.details["did_you_mean"], "timeout_sec")
        self.assertEqual(self.p.mount.wait(self.p.http.submit(document))["phase"], "completed")


if __name__ == "__main__":
    sbx.main()
