/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What unpacks foreign bytes is a process of its own, sandbox-image: a door gives it an open file,
 * reads its one answer, and ends it when the door itself ends. A door that is killed leaves it to
 * finish; what it does is whole or swept up by the next one.
 */
#include "orchestrator/helper_i.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/fs.h"
#include "base/json.h"

enum { ANSWER_MAX = 1 << 20, WORDS = 16 };

/* ---- the program ----------------------------------------------------------------------------- */

static int find_program(char **ret, struct sbx_error *e)
{
	static const char *const beside[] = { "sandbox-image", "../fsd/sandbox-image",
					      "../libexec/sandboxfs/sandbox-image",
					      "../lib/sandboxfs/sandbox-image" };
	char self[SBX_PATH_MAX + 1], *slash;
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	self[n > 0 ? n : 0] = '\0';
	slash = strrchr(self, '/');
	if (slash)
		*slash = '\0';
	for (size_t i = 0; i < SBX_COUNT(beside); i++) {
		sbx_autofree char *path = NULL;

		if (asprintf(&path, "%s/%s", self, beside[i]) < 0) {
			path = NULL;
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
		}
		if (access(path, X_OK) == 0) {
			*ret = sbx_steal(&path);
			return 0;
		}
	}
	return sbx_fail(e, SBX_E_INTERNAL, "sandbox-image is not beside this program ('%s')", self);
}

/* "-o WORD" of its command line, where a comma would end the word. */
static void add_option(struct sbx_buf *out, const char *key, const char *value)
{
	sbx_buf_puts(out, out->len ? "," : "");
	sbx_buf_puts(out, key);
	for (; *value; value++) {
		sbx_buf_puts(out, *value == ',' ? "\\" : "");
		sbx_buf_add(out, value, 1);
	}
}

static void add_options(const struct orch *o, struct sbx_buf *out)
{
	add_option(out, "state=", o->state_dir);
	add_option(out, "config=", "/proc/self/fd/3");
	for (size_t i = 0; i < o->n_overrides; i++)
		add_option(out, "", o->overrides[i]);
}

/* Descriptors of the child: 0 is the file, 1 its answer, 3 the configuration, 4 what else it is
 * given. */
static int spawn(struct orch *o, char **argv, int file, int extra, int out, pid_t *ret)
{
	const struct orch_config *c = orch_config(o);
	const int fds[] = { file, out, SBX_SPAWN_SAME, c->file, extra };

	return sbx_spawn(argv, fds, extra >= 0 ? 5 : 4, true, ret);
}

/* ---- its answer ------------------------------------------------------------------------------ */

/* Until it has said everything. False: the door ends. */
static bool listen_to(struct orch *o, int fd, struct sbx_buf *out)
{
	struct pollfd p[2] = { { .fd = fd, .events = POLLIN },
			       { .fd = o->helpers_over, .events = POLLIN } };

	for (;;) {
		char *room = sbx_buf_reserve(out, 4096);
		ssize_t n;

		if (!room)
			return true; /* that is no answer; what it writes further ends it */
		if (poll(p, SBX_COUNT(p), -1) < 0 && errno != EINTR)
			return false;
		if (p[1].revents)
			return false;
		if (!p[0].revents)
			continue;
		n = read(fd, room, 4096);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return true;
		out->len += (size_t)n;
		out->data[out->len] = '\0';
	}
}

static const char *text(struct json_object *o, const char *key)
{
	struct json_object *v = NULL;

	return json_object_object_get_ex(o, key, &v) ? json_object_get_string(v) : NULL;
}

/* {"error":{"code","message"}}, or what was asked for. */
static int judge(const struct sbx_buf *out, int status, struct sbx_error *e)
{
	sbx_autojson *doc = NULL;
	struct json_object *error = NULL;
	enum sbx_code code = SBX_OK;
	int rc = sbx_json_parse_object(out->data ? out->data : "", out->len, &doc, NULL);

	if (rc == 0 && json_object_object_get_ex(doc, "error", &error) && text(error, "code"))
		code = sbx_code_find(text(error, "code"));
	if (rc < 0 || !WIFEXITED(status) || (WEXITSTATUS(status) && !code))
		return sbx_fail(e, SBX_E_INTERNAL, "sandbox-image ended by %s %d without an answer",
				WIFSIGNALED(status) ? "signal" : "exit code",
				WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	return code ? sbx_fail(e, code, "%s", text(error, "message") ? text(error, "message") : "")
		    : 0;
}

static int reap(pid_t pid)
{
	int status = 0;

	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status;
}

int helper_run(struct orch *o, const char *const *words, int file, int extra, struct sbx_buf *out,
	       struct sbx_error *e)
{
	sbx_autobuf options = SBX_BUF_INIT(64 << 10);
	sbx_autofree char *program = NULL;
	char *argv[WORDS] = { NULL };
	sbx_autoclose int from = -1, to = -1;
	int p[2], status, r, rc = find_program(&program, e);
	pid_t pid = -1;
	size_t n = 0;
	bool heard;

	if (rc < 0)
		return rc;
	add_options(o, &options);
	if (sbx_buf_failed(&options))
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	argv[n++] = program;
	argv[n++] = (char *)(uintptr_t) "--json";
	argv[n++] = (char *)(uintptr_t) "-o";
	argv[n++] = options.data;
	for (; *words && n < WORDS - 1; words++)
		argv[n++] = (char *)(uintptr_t)*words;
	if (pipe2(p, O_CLOEXEC) < 0)
		return sbx_fail_errno(e, SBX_E_INTERNAL, errno, "cannot make a pipe");
	from = p[0];
	to = p[1];
	r = spawn(o, argv, file, extra, to, &pid);
	if (r != 0)
		return sbx_fail_errno(e, SBX_E_INTERNAL, r, "cannot run '%s'", program);
	sbx_closep(&to);
	heard = listen_to(o, from, out);
	sbx_closep(&from);
	if (!heard)
		(void)kill(pid, SIGKILL);
	status = reap(pid);
	return heard ? judge(out, status, e)
		     : sbx_fail(e, SBX_E_INTERRUPTED, "the service stops; nothing was done");
}

void orch_stop_helpers(struct orch *o)
{
	uint64_t one = 1;

	if (o && write(o->helpers_over, &one, sizeof(one)) < 0)
		return; /* it says so already */
}
