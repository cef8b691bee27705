/* SPDX-License-Identifier: Apache-2.0 */
/* Runner: the helper, and questions to the engine through it. One helper for the process, started
 * when it is first needed. */
#include "runtimes/docker/dk_i.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <json-c/json.h>

#include "base/child.h"
#include "base/clock.h"
#include "base/fs.h"
#include "runtimes/runtimes_i.h"
#include "runtimes/waiting_i.h"

enum {
	API_NEWEST = 47,       /* 1.47: what we know; an engine speaks older versions, too */
	API_OLDEST = 40,       /* 1.40: Docker 19.03 */
	ANSWER_GRACE_MS = 500, /* the helper's own time limit comes first */
};

static struct {
	pid_t pid; /* of the helper; 0: none */
	int sock;
	uint32_t serial; /* of the last question */
	bool pending;	 /* it has not been answered */
	struct sbx_buf in;
	char socket[108], version[DK_VERSION_MAX], api[16];
	bool podman;
} eng = { .sock = -1, .in = SBX_BUF_INIT(DK_BODY_MAX + 4096) };

void dk_answer_clear(struct dk_answer *a)
{
	sbx_buf_free(&a->body);
	a->status = 0;
}

/* ---- settings -------------------------------------------------------------------------------- */

const struct rt_docker *dk_settings(const struct rt_host *host)
{
	static const struct rt_docker defaults = {
		.host = "/var/run/docker.sock",
		.default_image = "python:3.11-slim",
		.uid = 1000,
		.gid = 1000,
		.nproc = 512,
	};

	return host->docker ? host->docker : &defaults;
}

static const char *socket_of(const struct rt_docker *d)
{
	static const char scheme[] = "unix://";

	return strncmp(d->host, scheme, sizeof(scheme) - 1) == 0 ? d->host + sizeof(scheme) - 1
								 : d->host;
}

bool dk_engine_there(const struct rt_docker *d)
{
	struct stat st;

	return stat(socket_of(d), &st) == 0 && S_ISSOCK(st.st_mode);
}

int dk_program(const struct rt_host *host, const char *name, char *ret, size_t size,
	       struct sbx_error *e)
{
	static const char *const beside[] = { "", "/../docker", "/../../runtimes/docker" };
	const char *dir = dk_settings(host)->programs;
	char self[SBX_PATH_MAX + 1];
	ssize_t n = dir ? 0 : readlink("/proc/self/exe", self, sizeof(self) - 1);

	self[n > 0 ? n : 0] = '\0';
	if (strrchr(self, '/'))
		*strrchr(self, '/') = '\0';
	for (size_t i = 0; i < SBX_COUNT(beside); i++) {
		char path[2 * SBX_PATH_MAX], *real;
		bool fits;

		(void)snprintf(path, sizeof(path), "%s%s/%s", dir ? dir : self, beside[i], name);
		if (access(path, X_OK) < 0)
			continue;
		real = realpath(path, NULL); /* the engine looks it up from somewhere else */
		fits = real && strlen(real) < size;
		if (fits)
			(void)snprintf(ret, size, "%s", real);
		free(real);
		if (fits)
			return 0;
	}
	return sbx_fail(e, SBX_E_RUNTIME_UNAVAILABLE, "%s is not where sandbox-runner is", name);
}

/* ---- the helper ------------------------------------------------------------------------------ */

void dk_engine_close(void)
{
	sbx_closep(&eng.sock);
	if (eng.pid > 0) {
		(void)kill(eng.pid, SIGKILL);
		while (waitpid(eng.pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
	eng.pid = 0;
	eng.pending = false;
	sbx_buf_free(&eng.in);
}

/* The socket on descriptor 3, and nothing else besides standard error. */
static int spawn_helper(const char *program, const char *socket, int end)
{
	const int fds[] = { SBX_SPAWN_NULL, SBX_SPAWN_NULL, SBX_SPAWN_SAME, end };
	char *const argv[] = { (char *)(uintptr_t)program, (char *)(uintptr_t)socket, NULL };
	int r = sbx_spawn(argv, fds, SBX_COUNT(fds), false, &eng.pid);

	_Static_assert(SBX_COUNT(fds) == DK_HELPER_SOCKET + 1, "it is the last one");
	if (r != 0)
		eng.pid = 0;
	return r;
}

static int start_helper(const struct rt_host *host, struct sbx_error *e)
{
	const char *socket = socket_of(dk_settings(host));
	char program[SBX_PATH_MAX + 1];
	static bool at_exit;
	sbx_autoclose int end = -1;
	int pair[2], r;

	r = dk_program(host, "sandbox-engine", program, sizeof(program), e);
	if (r < 0)
		return r;
	if (strlen(socket) >= sizeof(eng.socket))
		return sbx_fail(e, SBX_E_RUNTIME_UNAVAILABLE,
				"docker_host: the path of the socket has more than %zu bytes",
				sizeof(eng.socket) - 1);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_UNAVAILABLE, errno, "cannot make a socket");
	end = pair[1];
	eng.sock = pair[0];
	eng.serial = 0;
	r = spawn_helper(program, socket, end);
	if (r != 0) {
		dk_engine_close();
		return sbx_fail_errno(e, SBX_E_RUNTIME_UNAVAILABLE, r, "cannot run sandbox-engine");
	}
	(void)snprintf(eng.socket, sizeof(eng.socket), "%s", socket);
	if (!at_exit)
		at_exit = atexit(dk_engine_close) == 0;
	return 0;
}

int dk_engine_fd(void)
{
	return eng.sock;
}

/* ---- question and answer --------------------------------------------------------------------- */

static int helper_lost(struct sbx_error *e)
{
	dk_engine_close();
	return sbx_fail(e, SBX_E_RUNTIME_UNAVAILABLE, "sandbox-engine has died");
}

int dk_post(const struct rt_host *host, const struct dk_ask *ask, struct sbx_error *e)
{
	char path[DK_PATH_MAX];
	struct dk_ask_head h = { .method = ask->method,
				 .body_size = (uint32_t)(ask->body ? ask->body_size : 0),
				 .limit_ms = ask->limit_ms,
				 .tail = ask->tail,
				 .tar = ask->tar };
	int n, r = 0;

	if (eng.sock < 0)
		r = ask->bare ? start_helper(host, e) : dk_engine_open(host, e);
	if (r < 0)
		return r;
	n = ask->bare ? snprintf(path, sizeof(path), "%s", ask->path)
		      : snprintf(path, sizeof(path), "/v%s%s", eng.api, ask->path);
	if (n < 0 || (size_t)n >= sizeof(path))
		return sbx_fail(e, SBX_E_INTERNAL, "a question to the engine is too long");
	h.path_size = (uint32_t)n;
	h.serial = ++eng.serial;
	eng.pending = true;
	if (sbx_write_all(eng.sock, &h, sizeof(h)) < 0 ||
	    sbx_write_all(eng.sock, path, (size_t)n) < 0 ||
	    (h.body_size && sbx_write_all(eng.sock, ask->body, h.body_size) < 0))
		return helper_lost(e);
	return 0;
}

/* The rest of the buffer begins with the next answer. */
static void drop_answer(size_t len)
{
	memmove(eng.in.data, eng.in.data + len, eng.in.len - len);
	eng.in.len -= len;
}

/* As the helper has it from its library. */
static int no_answer(const char *why, size_t len, struct sbx_error *e)
{
	char text[RT_SAID_SIZE], message[RT_SAID_SIZE];

	(void)snprintf(text, sizeof(text), "%.*s", (int)(len < sizeof(text) ? len : sizeof(text)),
		       why);
	rt_said(NULL, text, message, sizeof(message));
	return sbx_fail(e, SBX_E_RUNTIME_UNAVAILABLE, "the engine: %s", message);
}

static int give_answer(const struct dk_answer_head *h, const char *body, struct dk_answer *ret,
		       struct sbx_error *e)
{
	if (h->status == 0)
		return no_answer(body, h->body_size, e);
	sbx_buf_free(&ret->body);
	ret->body = (struct sbx_buf)SBX_BUF_INIT(DK_BODY_MAX);
	ret->status = h->status;
	sbx_buf_add(&ret->body, body, h->body_size);
	sbx_buf_add(&ret->body, "", 0);
	return sbx_buf_failed(&ret->body) ? sbx_fail(e, SBX_E_NO_MEMORY, "no memory for an answer")
					  : 1;
}

/* An answer that is whole, and to the last question: what has been given up is passed over. */
static int whole_answer(struct dk_answer *ret, struct sbx_error *e)
{
	struct dk_answer_head h;
	int r;

	while (eng.in.len >= sizeof(h)) {
		memcpy(&h, eng.in.data, sizeof(h));
		if (h.body_size > DK_BODY_MAX)
			return helper_lost(e);
		if (eng.in.len < sizeof(h) + h.body_size)
			return 0;
		if (h.serial == eng.serial) {
			eng.pending = false;
			r = give_answer(&h, eng.in.data + sizeof(h), ret, e);
			drop_answer(sizeof(h) + h.body_size);
			return r;
		}
		drop_answer(sizeof(h) + h.body_size);
	}
	return 0;
}

int dk_take(struct dk_answer *ret, struct sbx_error *e)
{
	for (;;) {
		int r = whole_answer(ret, e);
		char *room;
		ssize_t n;

		if (r != 0)
			return r;
		if (eng.sock < 0 || !(room = sbx_buf_reserve(&eng.in, 4096)))
			return helper_lost(e);
		n = recv(eng.sock, room, 4096, MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return 0;
		if (n <= 0)
			return helper_lost(e);
		eng.in.len += (size_t)n;
	}
}

static int await_answer(const struct rt_waiting *w, int64_t limit_ms, bool counts,
			struct dk_answer *ret, struct sbx_error *e)
{
	int64_t until = sbx_boot_us() + (limit_ms + ANSWER_GRACE_MS) * 1000;

	for (;;) {
		int r = dk_take(ret, e);
		struct pollfd p = { .fd = eng.sock, .events = POLLIN };

		if (r != 0)
			return r < 0 ? r : 0;
		r = rt_wait(w, &p, 1, until, counts);
		if (r == -SBX_E_INTERRUPTED)
			return sbx_fail(e, SBX_E_INTERRUPTED,
					"given up while the engine was at work");
		if (r <= 0)
			return helper_lost(e);
	}
}

int dk_call(const struct rt_host *host, const struct dk_ask *ask, struct dk_answer *ret,
	    struct sbx_error *e)
{
	int r = dk_post(host, ask, e);

	return r < 0 ? r : await_answer(host->waiting, ask->limit_ms, !ask->no_hurry, ret, e);
}

struct rt_host dk_firm(const struct rt_host *host)
{
	struct rt_host firm = *host;

	firm.waiting = NULL;
	return firm;
}

bool dk_engine_settle(uint32_t limit_ms)
{
	dk_autoanswer a = DK_ANSWER_INIT;

	if (eng.sock < 0 || !eng.pending)
		return false;
	if (await_answer(NULL, limit_ms, false, &a, NULL) == 0)
		return true;
	dk_engine_close();
	return false;
}

/* ---- what it says ---------------------------------------------------------------------------- */

struct json_object *dk_answer_json(const struct dk_answer *a)
{
	return a->body.data ? json_tokener_parse(a->body.data) : NULL;
}

const char *dk_text(struct json_object *o, const char *name)
{
	struct json_object *m = NULL;

	return json_object_object_get_ex(o, name, &m) && json_object_is_type(m, json_type_string)
		       ? json_object_get_string(m)
		       : "";
}

int dk_refused(const struct rt_host *host, const struct dk_answer *a, enum sbx_code code,
	       struct sbx_error *e, const char *what)
{
	struct json_object *o = dk_answer_json(a);
	char message[RT_SAID_SIZE];

	rt_said(host->state_dir, dk_text(o, "message"), message, sizeof(message));
	json_object_put(o);
	if (!message[0])
		return sbx_fail(e, code, "cannot %s: the engine answers with status %u", what,
				a->status);
	return sbx_fail(e, code, "cannot %s: %s", what, message);
}

/* ---- its version ----------------------------------------------------------------------------- */

const char *dk_engine_version(void)
{
	return eng.version;
}

const char *dk_engine_api(void)
{
	return eng.api;
}

bool dk_engine_is_podman(void)
{
	return eng.podman;
}

static bool is_podman(struct json_object *o)
{
	struct json_object *parts = NULL;

	return json_object_object_get_ex(o, "Components", &parts) &&
	       json_object_is_type(parts, json_type_array) &&
	       strncmp(dk_text(json_object_array_get_idx(parts, 0), "Name"), "Podman", 6) == 0;
}

/* The newest version that both know. */
static int negotiate(struct json_object *o, struct sbx_error *e)
{
	int newest = 0, oldest = 0;

	if (sscanf(dk_text(o, "ApiVersion"), "1.%d", &newest) != 1)
		return sbx_fail(e, SBX_E_RUNTIME_UNAVAILABLE,
				"whatever listens on the engine's socket is no Docker Engine");
	(void)sscanf(dk_text(o, "MinAPIVersion"), "1.%d", &oldest);
	if (newest < API_OLDEST || oldest > API_NEWEST)
		return sbx_fail(e, SBX_E_RUNTIME_UNAVAILABLE,
				"the engine speaks API 1.%d to 1.%d, supported are 1.%d to 1.%d",
				oldest, newest, API_OLDEST, API_NEWEST);
	(void)snprintf(eng.api, sizeof(eng.api), "1.%d", newest < API_NEWEST ? newest : API_NEWEST);
	eng.podman = is_podman(o);
	rt_said(NULL, dk_text(o, "Version"), eng.version, sizeof(eng.version));
	return 0;
}

static int ask_version(const struct rt_host *host, struct sbx_error *e)
{
	const struct dk_ask ask = {
		.method = DK_GET, .path = "/version", .limit_ms = DK_SMALL_MS, .bare = true
	};
	dk_autoanswer a = DK_ANSWER_INIT;
	struct json_object *o;
	int r = dk_call(host, &ask, &a, e);

	if (r < 0)
		return r;
	o = dk_answer_json(&a);
	r = a.status == 200 ? negotiate(o, e)
			    : dk_refused(host, &a, SBX_E_RUNTIME_UNAVAILABLE, e, "ask the engine");
	json_object_put(o);
	return r;
}

int dk_engine_open(const struct rt_host *host, struct sbx_error *e)
{
	int r;

	if (eng.sock >= 0 && strcmp(eng.socket, socket_of(dk_settings(host))) == 0)
		return 0;
	if (!dk_engine_there(dk_settings(host)))
		return sbx_fail(e, SBX_E_RUNTIME_UNAVAILABLE,
				"docker_unavailable: there is no socket of an engine");
	dk_engine_close();
	r = ask_version(host, e);
	if (r < 0)
		dk_engine_close(); /* whoever asks next asks for the version first */
	return r;
}
