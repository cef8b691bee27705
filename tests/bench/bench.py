# SPDX-License-Identifier: Apache-2.0
"""The measures of docs/performance.md, side by side with what they are compared with, in one run. It prints
ratios; it never passes or fails. `bench.py [NAME...]` runs some of the rows."""
import concurrent.futures
import contextlib
import json
import os
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import api  # noqa: E402
import engine  # noqa: E402
import fskit  # noqa: E402
import sbx  # noqa: E402

BWRAP = shutil.which("bwrap")
BWRAP_ARGV = [BWRAP, "--unshare-all", "--ro-bind", "/", "/", "/bin/true"]
TRUE = b'{"command":["/bin/true"]}\n'


def spawn(argv):
    null = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
    return os.posix_spawn(argv[0], argv, os.environ, file_actions=null)


def timed(f):
    t = time.perf_counter()
    f()
    return (time.perf_counter() - t) * 1e3


def spawn_ms(argv):
    return timed(lambda: os.waitpid(spawn(argv), 0))


SHOTS = os.path.join(os.path.abspath(sbx.BUILD), "tests", "bench", "shots")


def shots(*args):
    """Milliseconds, as the bench's client in C measured them."""
    out = subprocess.run([SHOTS, *map(str, args)], check=True, capture_output=True, text=True).stdout
    return [int(line) / 1e3 for line in out.split()]


def pct(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * p / 100))]


def row(name, ours, theirs, unit, what, goal):
    print("%-34s %10.2f %-6s %10.2f %-6s ratio %6.2f  (goal %s)  against %s" %
          (name, ours, unit, theirs, unit, ours / theirs if theirs else float("nan"), goal, what), flush=True)


def bench_oneshot():
    ours, theirs = [], []
    with sbx.Mount() as m:
        shots("turns", m.mnt, 20)
        for _ in range(40):  # taken in turns, so that a noisy moment hits both
            ours += shots("turns", m.mnt, 5)
            theirs += shots("spawn-turns", 5, *BWRAP_ARGV)
    row("one-shot /bin/true p50", pct(ours, 50), pct(theirs, 50), "ms", "bwrap --unshare-all", "0.5")
    row("one-shot /bin/true p95", pct(ours, 95), pct(theirs, 95), "ms", "bwrap --unshare-all", "-")
    docker = docker_argv()
    if docker:
        row("one-shot /bin/true p50", pct(ours, 50), pct(shots("spawn-turns", 5, *docker), 50), "ms",
            "docker run --rm", "0.02")


def docker_argv():
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "image", "inspect", "sbx-bench"], capture_output=True).returncode:
        return None
    return [docker, "run", "--rm", "sbx-bench", "/bin/true"]


def bench_docker():
    """Containers of one engine, by us and by its own client; ours also from a container that waits."""
    client = shutil.which("docker")
    if engine.why_not() or not client:
        print("docker: %s" % (engine.why_not() or "there is no docker client"))
        return
    with engine.Engine() as e:
        e.make_image("bench:1", engine.root_with_shell())
        theirs = [client, "--host", "unix://" + e.socket, "run", "--rm", "--network", "none", "bench:1", "/bin/true"]
        for name, warm, goal in (("container /bin/true p50", "false", "1.1"), ("container, warm, p50", "true", "0.7")):
            ours, others = [], []
            settings = {"docker_host": e.socket, "default_runtime": "docker", "docker_default_image": "bench:1",
                        "docker_pull": "false", "docker_warm": warm}
            with sbx.Mount(settings=settings) as m:
                shots("turns", m.mnt, 4)
                for _ in range(10):
                    ours += shots("turns", m.mnt, 2)
                    others += shots("spawn-turns", 2, *theirs)
            row(name, pct(ours, 50), pct(others, 50), "ms", "docker run --rm", goal)


def calm(m):
    """Until the service has done what it puts off, such as sandboxes for the next burst: theirs is not measured
    beside that."""
    last = None
    while True:
        pids = m.processes()
        try:
            now = (pids, cpu_ticks(pids))
        except FileNotFoundError:  # one of them has gone meanwhile
            now = None
        if now and now == last:
            return
        last = now
        select.select([], [], [], 0.5)


def bench_burst():
    ours, theirs = [], []
    with sbx.Mount(settings={"queue_max_length": 1000}) as m:
        shots("burst", m.mnt, 20)
        for _ in range(6):
            calm(m)
            ours.append(pct(shots("burst", m.mnt, 100), 99))
            calm(m)
            theirs.append(pct(shots("spawn-burst", 100, *BWRAP_ARGV), 99))
    # The first burst teaches the runners how many sandboxes they are to have ready.
    print("%-34s %10.2f ms" % ("the first 100 at once, p99", ours.pop(0)), flush=True)
    theirs.pop(0)
    row("100 at once, p99", statistics.median(ours), statistics.median(theirs), "ms", "100 bwrap", "0.5")


def bench_throughput():
    n, workers = 1000, os.cpu_count() * 2
    with sbx.Mount(settings={"queue_max_length": 2000}) as m:
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            def rate(*args):
                return n / timed(lambda: list(pool.map(lambda _: shots(*args), range(workers)))) * 1e3

            ours = rate("turns", m.mnt, n // workers)
            theirs = rate("spawn-turns", n // workers, *BWRAP_ARGV)
    row("short runs per second", ours, theirs, "1/s", "bwrap, as many workers", ">= 1.5")


def bench_list():
    n = 100000
    with sbx.Mount() as m:
        m.stop()
        fill_runs(m.state, n)
        m.start()
        plain = os.path.join(m.base, "plain")
        os.mkdir(plain)
        for name in m.runs():
            os.mkdir(os.path.join(plain, name))
        ls = shutil.which("ls")
        ours = [spawn_ms([ls, m.mnt + "/runs"]) for _ in range(5)]
        theirs = [spawn_ms([ls, plain]) for _ in range(5)]
        row("ls runs with 100,000 rows", pct(ours, 50), pct(theirs, 50), "ms", "ls of a plain directory", "3")
        submits = [timed(lambda: m.submit({"command": ["true"]})) for _ in range(50)]
    with sbx.Mount() as m:
        few = [timed(lambda: m.submit({"command": ["true"]})) for _ in range(50)]
    row("submit with 100,000 rows p50", pct(submits, 50), pct(few, 50), "ms", "submit with none", "1.1")


def fill_runs(state, n):
    """Copies one finished row n times: the listing does not care what they did."""
    import sqlite3
    import uuid
    with sbx.Mount(state=state) as m:
        m.run({"command": ["true"]})
    db = sqlite3.connect(os.path.join(state, "state.db"))
    cols = [r[1] for r in db.execute("PRAGMA table_info(runs)") if r[1] not in ("id", "rid")]
    source = db.execute("SELECT %s FROM runs LIMIT 1" % ",".join(cols)).fetchone()
    sql = "INSERT INTO runs (id,%s) VALUES (%s)" % (",".join(cols), ",".join("?" * (len(cols) + 1)))
    base = int(time.time() * 1000) << 80 | 7 << 76 | 2 << 62
    with db:
        db.executemany(sql, ((str(uuid.UUID(int=base + (i << 20)),), *source) for i in range(n)))
    db.close()


def bench_readers():
    """stat by others while 10,000 readers are blocked on one .wait."""
    import resource
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    threading.stack_size(64 << 10)
    n = int(os.environ.get("SBX_BENCH_READERS", "10000"))
    with sbx.Mount() as m:
        r = m.submit({"command": ["sleep", "3000"]})
        r.wait_phase("running")
        path = m.mnt + "/runs/new"

        def stats():
            return pct([timed(lambda: os.stat(path)) for _ in range(2000)], 50)

        before = stats()
        done = []

        def reader():
            fd = os.open(r.path(".wait"), os.O_RDONLY)
            done.append(os.read(fd, 100))
            os.close(fd)

        threads = [threading.Thread(target=reader) for _ in range(n)]
        for t in threads:
            t.start()
        after = stats()
        row("stat beside %d blocked readers" % n, after * 1e3, before * 1e3, "us", "stat without them", "1.1")
        t0 = time.perf_counter()
        r.ctl("kill")
        for t in threads:
            t.join()
        print("%-34s %10.2f ms until the last of %d had its answer" %
              ("wake of all", (time.perf_counter() - t0) * 1e3, len(done)), flush=True)


def path_of_bytes(m):
    """How contents come to a reader."""
    return "by passthrough" if "passthrough=yes" in m.errors() else "by splice"


def bench_artifact():
    settings = {"workspace_cap_mb": 3000, "tier_trusted_workspace_cap_mb": 3000,
                "max_artifact_file_bytes": 2 << 30, "max_artifact_total_bytes": 2 << 30,
                "max_artifact_bytes_per_run_mb": 2048, "max_artifact_bytes_per_user_mb": 4096}
    with sbx.Mount(settings=settings) as m:
        r = m.run({"command": ["sh", "-c", "head -c 1073741824 /dev/zero > big"], "trust_level": "trusted",
                   "network_policy": "deny_all", "capture_patterns": ["big"]}, 120)
        assert r.exit == "0", r.json()
        back = os.path.join(m.state, "runs", r.id, "artifacts", "big")

        def read(path):
            buf = bytearray(1 << 20)
            with open(path, "rb", buffering=0) as f:
                while f.readinto(buf):
                    pass

        read(back)
        plain = pct([timed(lambda: read(back)) for _ in range(3)], 50)
        first = timed(lambda: read(r.path("artifacts", "big")))
        again = pct([timed(lambda: read(r.path("artifacts", "big"))) for _ in range(3)], 50)
        how = path_of_bytes(m)
        row("1 GiB artifact, first read, " + how, 1024e3 / first, 1024e3 / plain, "MiB/s", "its backing file", "-")
        row("1 GiB artifact, again, " + how, 1024e3 / again, 1024e3 / plain, "MiB/s", "its backing file", "-")


def bench_kill():
    spec = {"command": ["sh", "-c", "for i in $(seq 50); do sleep 1000 & done; echo up; wait"]}
    ours = []
    with sbx.Mount() as m:
        for _ in range(5):
            r = m.submit(spec)
            r.stream_until(b"up")
            t = time.perf_counter()
            r.ctl("kill")
            r.wait()
            ours.append((time.perf_counter() - t) * 1e3)
    theirs = []
    group = "/sys/fs/cgroup/unified/sbx-bench-%d" % os.getpid()
    for _ in range(5):
        try:
            os.mkdir(group)
        except OSError:
            print("kill of 50 processes: no cgroup2 to compare with", flush=True)
            return
        pids = [spawn([shutil.which("sleep"), "1000"]) for _ in range(50)]
        for pid in pids:
            with open(group + "/cgroup.procs", "w") as f:
                f.write(str(pid))
        t = time.perf_counter()
        with open(group + "/cgroup.kill", "w") as f:
            f.write("1")
        for pid in pids:
            os.waitpid(pid, 0)
        theirs.append((time.perf_counter() - t) * 1e3)
        os.rmdir(group)
    row("kill of 50 processes", pct(ours, 50), pct(theirs, 50), "ms", "bare cgroup.kill", "2")


def bench_log():
    settings = {"max_log_bytes": 1 << 30}
    cmd = "head -c 536870912 /dev/zero | tr '\\0' k"
    with sbx.Mount(settings=settings) as m:
        ours = timed(lambda: m.run({"command": ["sh", "-c", cmd]}, 120))
        out = os.path.join(m.base, "out")
        theirs = timed(lambda: subprocess.run(["sh", "-c", cmd + " | cat > " + out], check=True))
    row("log intake", 512e3 / ours, 512e3 / theirs, "MiB/s", "cat > file through a pipe", ">= 0.5")


def cpu_ticks(pids):
    total = 0
    for pid in pids:
        with open("/proc/%d/stat" % pid) as f:
            fields = f.read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total


def mib(pid, what):
    """Rss, or Pss: where several have the same page, each has its share of it."""
    with open("/proc/%d/smaps_rollup" % pid) as f:
        return next(int(line.split()[1]) for line in f if line.startswith(what + ":")) / 1024


def bench_idle():
    with sbx.Mount() as m:
        m.stop()
        fill_runs(m.state, 10000)
        m.start()
        m.run({"command": ["true"]})
        os.listdir(m.mnt + "/runs")
        select.select([], [], [], 2)  # the sandbox of that run goes, and its successor is made
        pids = m.processes()
        before = cpu_ticks(pids)
        select.select([], [], [], 60)
        used = (cpu_ticks(pids) - before) / os.sysconf("SC_CLK_TCK")
        print("%-34s %10.2f s of CPU in 60 s, %d processes (goal 0.00)" % ("idle", used, len(pids)), flush=True)
        print("%-34s %10.2f MiB resident with 10,000 runs (goal 12)" % ("sandboxfs", mib(m.proc.pid, "Rss")),
              flush=True)
        runners = [(mib(p, "Rss"), mib(p, "Pss")) for p in pids if p != m.proc.pid]
        print("%-34s %10.2f MiB resident, the largest of %d (goal 4); %.2f MiB without what it shares" %
              ("runner and its processes", max(runners)[0], len(runners), max(runners)[1]), flush=True)


class Client:
    """One connection that is kept, and as little Python as possible on it."""

    def __init__(self, apid):
        self.sock = socket.create_connection(("127.0.0.1", apid.port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def post(self, text):
        """One run until its end: the answer's body."""
        self.sock.sendall(b"POST /api/v1/sandbox/runs?wait=60 HTTP/1.1\r\nHost: bench\r\nX-API-KEY: %s\r\n"
                          b"Content-Length: %d\r\n\r\n%s" % (api.API_KEY.encode(), len(text), text))
        got = b""
        while b"\r\n\r\n" not in got:
            got += self.sock.recv(65536)
        head, body = got.split(b"\r\n\r\n", 1)
        length = next(int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length"))
        while len(body) < length:
            body += self.sock.recv(65536)
        assert b" 200 " in head and b'"phase":"completed"' in body, got
        return body


def bench_post():
    """POST of /bin/true with a wait for its end."""
    text = b'{"base_image":"host","command":["/bin/true"]}'
    ours, theirs = [], []
    with api.Apid() as a, Client(a) as c:
        for _ in range(20):
            c.post(text)
        for _ in range(40):
            ours += [timed(lambda: c.post(text)) for _ in range(5)]
            theirs += shots("spawn-turns", 5, *BWRAP_ARGV)
    row("POST of /bin/true, waited for, p50", pct(ours, 50), pct(theirs, 50), "ms", "bwrap --unshare-all", "0.5")


def wrk_rate(url, *headers):
    args = [a for h in headers for a in ("-H", h)]
    out = subprocess.run(["wrk", "-t1", "-c8", "-d3", *args, url], check=True, capture_output=True, text=True).stdout
    assert "Non-2xx" not in out, out
    return float(next(line for line in out.splitlines() if line.startswith("Requests/sec")).split()[1])


def bench_get():
    """GET of a run's status beside nginx, which sends a file with the same bytes."""
    if not (shutil.which("wrk") and shutil.which("nginx")):
        print("GET of a status: wrk and nginx are not installed", flush=True)
        return
    with api.Apid() as a, Client(a) as c:
        body = c.post(b'{"base_image":"host","command":["/bin/true"]}')
        url = "http://127.0.0.1:%d/api/v1/sandbox/runs/%s" % (a.port, json.loads(body)["id"])
        www = os.path.join(a.base, "www")
        os.mkdir(www)
        os.chmod(a.base, 0o755)
        with open(os.path.join(www, "status.json"), "wb") as f:
            f.write(body)
        with socket.create_server(("127.0.0.1", 0)) as s:
            port = s.getsockname()[1]
        conf = os.path.join(a.base, "nginx.conf")
        with open(conf, "w") as f:
            f.write("daemon off; worker_processes 2; pid %s/nginx.pid; error_log stderr; events {} http { "
                    "access_log %s/access.log; keepalive_requests 100000000; server { listen 127.0.0.1:%d; "
                    "root %s; } }" % (a.base, a.base, port, www))
        nginx = subprocess.Popen(["nginx", "-c", conf], stderr=subprocess.DEVNULL)
        try:
            static = "http://127.0.0.1:%d/status.json" % port
            subprocess.run(["curl", "-sf", "--retry-connrefused", "--retry", "10", static], check=True,
                           stdout=subprocess.DEVNULL)
            both = [(wrk_rate(url, "X-API-KEY: " + api.API_KEY), wrk_rate(static)) for _ in range(5)]
        finally:
            nginx.terminate()
            nginx.wait()
    row("GET of a status, keep-alive", pct([b[0] for b in both], 50), pct([b[1] for b in both], 50), "1/s",
        "nginx, a file of that size", ">= 0.8")


def bench_followers():
    """A thousand sockets follow one run: the delay from the log to each of them."""
    import wskit
    program = ("import sys,time\nsys.stdin.readline()\nbegan=time.monotonic()\n"
               "for i in range(10000):\n late=began+i/1000-time.monotonic()\n"
               " if late>0.0005: time.sleep(late)\n print('line',i,flush=True)\n")
    exe = os.path.join(os.path.abspath(sbx.BUILD), "tests", "bench", "ws_followers")
    with wskit.Apid(ws_max_connections_total=0, ws_max_connections_per_user=0, ws_max_connections_per_run=0,
                    ws_heartbeat_sec=3600) as a:
        run = a.run(["python3", "-c", program], interactive=True)
        said = json.loads(subprocess.run([exe, str(a.address[1]), a.path(run), wskit.token(a.user), "1000"],
                                         stdout=subprocess.PIPE, check=True).stdout)
        row("1,000 sockets on one run, delay p99", said["p99_ms"], 100, "ms", "a tenth of a second", "1")
        print("    the delay is at the median %.1f ms; sandbox-apid has %.1f MiB resident"
              % (said["p50_ms"], a.rss() / 2**20), flush=True)


def run_quiet(*argv, cwd=None):
    subprocess.run(argv, check=True, cwd=cwd, stdout=subprocess.DEVNULL)


def small_files(where, n):
    for i in range(n):
        if i % 100 == 0:
            os.mkdir("%s/d%d" % (where, i // 100))
        with open("%s/d%d/f%d" % (where, i // 100, i), "w") as f:
            f.write("%d\n" % i * 20)


SESSION_SETTINGS = {"workspace_cap_mb": 4096, "tier_standard_workspace_cap_mb": 4096, "snapshot_max_size_mb": 65536}


class Bench:
    """A session on a mount, and the directory behind its workspace."""

    def __init__(self, m):
        self.dir = os.path.join(m.mnt, "sessions", "bench")
        os.mkdir(self.dir)
        with open(self.dir + "/status.json") as f:
            self.id = json.load(f)["id"]
        self.work = self.dir + "/workspace"
        self.back = os.path.join(m.state, "sessions", self.id, "workspace")
        self.plain = os.path.join(m.base, "plain")
        os.mkdir(self.plain)


def bench_snapshot():
    """A snapshot after one of 10,000 files has changed, beside a walk that looks at all of them."""
    with sbx.Mount(settings=SESSION_SETTINGS) as m:
        b = Bench(m)
        small_files(b.back, 10000)
        first = timed(lambda: os.mkdir(b.dir + "/snapshots/s"))
        ours, theirs = [], []
        for i in range(9):
            with open(b.work + "/d7/f777", "a") as f:
                f.write("more\n")
            ours.append(timed(lambda: os.mkdir("%s/snapshots/s%d" % (b.dir, i))))
            theirs.append(timed(lambda: run_quiet("find", b.back, "-printf", "%p %s %T@\\n")))
        row("snapshot, 1 of 10,000 changed", pct(ours, 50), pct(theirs, 50), "ms", "find -printf", "<= 1.5")
        print("    the first one took %.0f ms" % first, flush=True)


def end_session(m, path):
    """Until its files are gone, which is the last of it."""
    trash = m.state + "/trash"
    os.makedirs(trash, 0o700, exist_ok=True)
    with fskit.Inotify() as watch:
        watch.add(trash, watch.DELETE)
        os.rmdir(path)
        watch.wait(lambda where, mask, name: mask & watch.DELETE)


def bench_clone():
    """A session with 1 GiB is cloned, beside cp -a of its workspace."""
    with sbx.Mount(settings=SESSION_SETTINGS) as m:
        b = Bench(m)
        for i in range(64):
            with open("%s/f%d" % (b.back, i), "wb") as f:
                f.write(os.urandom(16 << 20))
        copy, new = b.plain + "/copy", "%s/sessions/new-copy" % m.mnt
        ours, theirs, waited, synced = [], [], [], []

        def clone():
            with open(b.dir + "/ctl", "w") as f:
                f.write("clone new-copy\n")

        def cp():
            run_quiet("cp", "--reflink=auto", "-a", b.back, copy)

        def measure(to, act, remove):
            os.sync()
            to.append(timed(act))
            os.sync()
            remove()

        # What was copied goes at once: so all of them get the same memory, for which a machine that is
        # itself virtual may have to ask its host, at ten times the price of a copy.
        for _ in range(9):
            measure(ours, clone, lambda: end_session(m, new))
            measure(theirs, cp, lambda: shutil.rmtree(copy))
            measure(waited, lambda: (clone(), run_quiet("sync", new + "/workspace")), lambda: end_session(m, new))
            measure(synced, lambda: (cp(), run_quiet("sync", "-f", copy)), lambda: shutil.rmtree(copy))
        row("clone of 1 GiB", pct(ours, 50), pct(theirs, 50), "ms", "cp --reflink=auto -a", "<= 1.1")
        row("the same, on the disk", pct(waited, 50), pct(synced, 50), "ms", "the same and sync -f", "none")


@contextlib.contextmanager
def fresh_disk(gib=4):
    """A directory on an ext4 of its own: on one in use, creation passes over what was deleted in the last minutes,
    and takes up to ten times as long."""
    base = tempfile.mkdtemp(prefix="sbx-test-")
    image, where = base + "/image", base + "/disk"
    os.mkdir(where)
    with open(image, "wb") as f:
        f.truncate(gib << 30)
    run_quiet("mkfs.ext4", "-q", "-F", image)
    run_quiet("mount", "-o", "loop", image, where)
    try:
        yield where
    finally:
        run_quiet("umount", where)
        os.unlink(image)
        os.rmdir(where)
        os.rmdir(base)


@contextlib.contextmanager
def fuse_floor(where):
    """A mount of a server that does nothing but answer."""
    floor = os.path.join(where, "floor")
    os.mkdir(floor)
    p = subprocess.Popen([os.path.join(sbx.BUILD, "tests/bench/fuse_floor"), floor], stdout=subprocess.PIPE)
    try:
        if p.stdout.readline() != b"ready\n":
            sys.exit("fuse_floor does not mount")
        yield floor
    finally:
        p.terminate()
        p.wait()
        p.stdout.close()


def untar(archive, places):
    """Each in turn, three times; the medians."""
    times = [[] for _ in places]
    for i in range(3):
        for one, place in zip(times, places):
            to = "%s/t%d" % (place, i)
            os.mkdir(to)
            os.sync()
            one.append(timed(lambda: run_quiet("tar", "xf", archive, "-C", to)))
    return [pct(one, 50) for one in times]


def bench_untar():
    """10,000 small files come into a workspace, beside a plain directory of the same disk."""
    with fresh_disk() as where:
        made, archive = os.path.join(where, "made"), os.path.join(where, "a.tar")
        os.mkdir(made)
        small_files(made, 10000)
        run_quiet("tar", "cf", archive, "-C", made, ".")
        with sbx.Mount(settings=SESSION_SETTINGS, where=where) as m, fuse_floor(where) as floor:
            b = Bench(m)
            ours, least, theirs = untar(archive, (b.work, floor, b.plain))
        with sbx.Mount(settings=dict(SESSION_SETTINGS, workspace_links="true"), where=where) as m:
            b = Bench(m)
            linked, again = untar(archive, (b.work, b.plain))
    row("tar x of 10,000, workspace_links", linked, again, "ms", "a plain directory", "<= 3")
    row("tar x of 10,000 through the server", ours, theirs, "ms", "a plain directory", "<= 3")
    row("the same, a server without work", least, theirs, "ms", "a plain directory", "none")
    row("tar x of 10,000 through the server", ours, least, "ms", "a server without work", "none")


def bench_workspace():
    """Real programs on a workspace through the mount, and on a directory beside the state."""
    with fresh_disk() as where, sbx.Mount(settings=SESSION_SETTINGS, where=where) as m:
        b = Bench(m)
        places = (b.work, b.plain)
        for w in places:
            small_files(w, 10000)
        for w in places:
            run_quiet("git", "init", "-q", cwd=w)
            run_quiet("git", "add", ".", cwd=w)
            run_quiet("git", "status", cwd=w)
        times = [pct([timed(lambda: run_quiet("git", "status", cwd=w)) for _ in range(5)], 50) for w in places]
        row("git status of 10,000 files", *times, "ms", "a plain directory", "<= 3")
        for w in places:
            with open(w + "/big", "wb") as f:
                f.write(os.urandom(256 << 20))
        times = [pct([timed(lambda: run_quiet("cat", w + "/big")) for _ in range(5)], 50) for w in places]
        row("256 MiB of a workspace, " + path_of_bytes(m), *times, "ms", "a plain directory", "<= 1.1")


ROWS = {name[6:]: f for name, f in list(globals().items()) if name.startswith("bench_")}


def main():
    if not BWRAP:
        sys.exit("bwrap is not installed: there is nothing to compare with")
    print(json.dumps({"kernel": os.uname().release, "cpus": os.cpu_count(), "load": os.getloadavg()[0]}))
    for name in sys.argv[1:] or ROWS:
        if name not in ROWS:
            sys.exit("no row '%s'; there are: %s" % (name, " ".join(ROWS)))
        ROWS[name]()


if __name__ == "__main__":
    main()
