/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be used on this host. A runtime with a driver is asked; for the others the table
 * below names what is missing, and where nothing is, that this build has no driver for it: nothing
 * without a driver is ever available.
 */
#include "runtimes/runtimes.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#include <json-c/json.h>

#include "base/clock.h"
#include "base/log.h"
#include "runtimes/runtimes_i.h"

#define NO_DRIVER "real_execution_not_implemented"

enum { PROGRAMS_MAX = 2 };

struct probe {
	const char *name;
	const char *always[6]; /* reasons that hold on every Linux host */
	struct {
		const char *program, *reason; /* "name*" is any program that begins so */
	} needs[PROGRAMS_MAX];
	bool no_driver_too; /* say so even when a program is missing */
	bool trusted, standard, untrusted;
	bool host_facts; /* tells operating system and processor */
};

static const struct probe probes[] = {
	{ "namespace",
	  { "namespace_unavailable" },
	  .trusted = true,
	  .standard = true,
	  .untrusted = true },
	{ "firecracker", .needs = { { "firecracker", "firecracker_unavailable" } }, .trusted = true,
	  .standard = true, .untrusted = true },
	{ "lima", .needs = { { "limactl", "limactl_missing" } }, .trusted = true, .standard = true,
	  .untrusted = true, .host_facts = true },
	{ "qemu", .needs = { { "qemu-system-*", "qemu_missing" } }, .no_driver_too = true,
	  .trusted = true, .standard = true, .untrusted = true, .host_facts = true },
	{ "vz_linux",
	  { "macos_required", "apple_silicon_required" },
	  .trusted = true,
	  .standard = true,
	  .untrusted = true,
	  .host_facts = true },
	{ "vz_macos",
	  { "macos_required", "apple_silicon_required", "vz_macos_unavailable",
	    "macos_helper_missing", "macos_template_missing", NO_DRIVER },
	  .trusted = true,
	  .standard = true,
	  .untrusted = true,
	  .host_facts = true },
	{ "seatbelt",
	  { "macos_required", "apple_silicon_required", "seatbelt_unavailable" },
	  .needs = { { "sandbox-exec", "sandbox_exec_missing" } },
	  .trusted = true,
	  .host_facts = true },
};

/* ---- programs -------------------------------------------------------------------------------- */

static bool is_program(int dirfd, const char *name)
{
	struct stat st;

	return fstatat(dirfd, name, &st, 0) == 0 && S_ISREG(st.st_mode) &&
	       faccessat(dirfd, name, X_OK, AT_EACCESS) == 0;
}

static bool any_program(int dirfd, const char *prefix, size_t len)
{
	int copy = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = copy >= 0 ? fdopendir(copy) : NULL;
	bool found = false;
	struct dirent *d;

	if (!dir) {
		sbx_closep(&copy);
		return false;
	}
	while (!found && (d = readdir(dir)))
		found = strncmp(d->d_name, prefix, len) == 0 && is_program(dirfd, d->d_name);
	(void)closedir(dir);
	return found;
}

/* Is there such a program in PATH? Relative parts of PATH do not count: what they mean depends on
 * where the service was started. */
static bool on_path(const char *program)
{
	const char *path = getenv("PATH");
	size_t len = strlen(program);
	bool prefix = program[len - 1] == '*';

	if (!path || !*path)
		path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
	while (*path) {
		size_t n = strcspn(path, ":");
		char name[4096];
		sbx_autoclose int dirfd = -1;

		if (*path == '/' && n < sizeof(name)) {
			memcpy(name, path, n);
			name[n] = '\0';
			dirfd = open(name, O_PATH | O_DIRECTORY | O_CLOEXEC);
		}
		if (dirfd >= 0 &&
		    (prefix ? any_program(dirfd, program, len - 1) : is_program(dirfd, program)))
			return true;
		path += n;
		path += *path == ':';
	}
	return false;
}

const struct rt_limits rt_preflight_limits = {
	.memory_bytes = 64 << 20,
	.pids = 16,
	.nofile = 64,
	.workspace_bytes = 1 << 20,
	.workspace_inodes = 64,
	.tmp_bytes = 1 << 20,
	.cpu = 1,
};

/* ---- a run ----------------------------------------------------------------------------------- */

static int wait_end(struct rt_sandbox *sb, int exit_fd, int64_t until_us, struct sbx_error *e)
{
	const struct rt_driver *driver = ((struct rt_sandbox_base *)sb)->driver;
	struct pollfd p = { .fd = exit_fd, .events = POLLIN };
	struct rt_exit x;
	int64_t left;

	while ((left = until_us - sbx_boot_us()) > 0) {
		if (poll(&p, 1, (int)(left / 1000) + 1) <= 0 || !driver->reap(sb, &x))
			continue;
		if (x.exec_errno == 0 && WIFEXITED(x.status) && WEXITSTATUS(x.status) == 0)
			return 0;
		return sbx_fail(e, SBX_E_RUNTIME_ERROR,
				"the command ended badly: wait status 0x%x, exec errno %d%s%s%s",
				(unsigned)x.status, x.exec_errno, x.oom ? ", out of memory" : "",
				x.pids_hit ? ", too many processes" : "",
				x.lost ? ", the sandbox was lost" : "");
	}
	return sbx_fail(e, SBX_E_RUNTIME_ERROR, "the command had not ended in time");
}

int rt_preflight_run(struct rt_sandbox *sb, const struct rt_plan *plan, int64_t until_us,
		     struct sbx_error *e)
{
	const struct rt_driver *driver = ((struct rt_sandbox_base *)sb)->driver;
	struct rt_fds fds = { -1, -1, -1, -1, -1 };
	int r = driver->prepare(sb, plan, e);

	if (r == 0)
		r = driver->start(sb, &fds, e);
	if (r == 0)
		r = wait_end(sb, fds.exit, until_us, e);
	sbx_closep(&fds.out);
	sbx_closep(&fds.err);
	sbx_closep(&fds.in);
	sbx_closep(&fds.exit);
	sbx_closep(&fds.workspace);
	return r;
}

void rt_preflight_log(const char *runtime, const char *tried, const struct sbx_error *e)
{
	sbx_log(SBX_LOG_WARNING, "preflight failed runtime=%s tried=\"%s\" error=\"%s\"", runtime,
		tried, e->message);
}

/* ---- asking ---------------------------------------------------------------------------------- */

void rt_preflight_clear(struct rt_preflight *p)
{
	if (!p)
		return;
	free(p->host_json);
	memset(p, 0, sizeof(*p));
}

static void add_reason(struct rt_preflight *p, const char *reason)
{
	if (p->n_reasons < RT_REASONS_MAX)
		p->reasons[p->n_reasons++] = reason;
}

static char *host_facts(void)
{
	struct sbx_buf b = SBX_BUF_INIT(4096);
	struct utsname u;

	if (uname(&u) < 0)
		return NULL;
	sbx_buf_puts(&b, "{\"os\":\"linux\",\"kernel\":");
	sbx_buf_json_strz(&b, u.release);
	sbx_buf_puts(&b, ",\"arch\":");
	sbx_buf_json_strz(&b, u.machine);
	sbx_buf_puts(&b, ",\"apple_silicon\":false}");
	return sbx_buf_steal(&b);
}

static void run_probe(const struct probe *probe, struct rt_preflight *out)
{
	for (size_t i = 0; i < SBX_COUNT(probe->always) && probe->always[i]; i++)
		add_reason(out, probe->always[i]);
	for (size_t i = 0; i < PROGRAMS_MAX && probe->needs[i].program; i++)
		if (!on_path(probe->needs[i].program))
			add_reason(out, probe->needs[i].reason);
	if (!out->n_reasons || probe->no_driver_too)
		add_reason(out, NO_DRIVER);
	out->trusted = probe->trusted;
	out->standard = probe->standard;
	out->untrusted = probe->untrusted;
	if (probe->host_facts)
		out->host_json = host_facts();
}

void rt_preflight(const char *name, const struct rt_host *host, struct rt_preflight *out)
{
	const struct rt_driver *driver = rt_driver_find(name);

	memset(out, 0, sizeof(*out));
	if (driver) {
		driver->preflight(host, out);
		return;
	}
	for (size_t i = 0; i < SBX_COUNT(probes); i++)
		if (strcmp(probes[i].name, name) == 0) {
			run_probe(&probes[i], out);
			return;
		}
	add_reason(out, "preflight_missing");
}

/* ---- as JSON --------------------------------------------------------------------------------- */

static const char *bool_text(bool b)
{
	return b ? "true" : "false";
}

void rt_preflight_json(const struct rt_preflight *p, struct sbx_buf *out)
{
	const char *comma = "";

	sbx_buf_printf(out, "{\"available\":%s,\"reasons\":[", bool_text(!p->n_reasons));
	for (size_t i = 0; i < p->n_reasons; i++) {
		sbx_buf_puts(out, i ? "," : "");
		sbx_buf_json_strz(out, p->reasons[i]);
	}
	sbx_buf_printf(out, "],\"deny_all_ready\":%s,\"allowlist_ready\":%s,\"trust_levels\":[",
		       bool_text(p->deny_all_ready), bool_text(p->allowlist_ready));
	if (p->trusted) {
		sbx_buf_puts(out, "\"trusted\"");
		comma = ",";
	}
	if (p->standard) {
		sbx_buf_printf(out, "%s\"standard\"", comma);
		comma = ",";
	}
	if (p->untrusted)
		sbx_buf_printf(out, "%s\"untrusted\"", comma);
	sbx_buf_printf(out, "],\"host\":%s}", p->host_json ? p->host_json : "{}");
}

static struct json_object *member(struct json_object *o, const char *name, enum json_type type)
{
	struct json_object *m = NULL;

	if (!json_object_object_get_ex(o, name, &m) || !json_object_is_type(m, type))
		return NULL;
	return m;
}

static void read_reasons(struct json_object *array, struct rt_preflight *p)
{
	for (size_t i = 0; i < json_object_array_length(array); i++) {
		struct json_object *o = json_object_array_get_idx(array, i);
		const char *literal = NULL;

		if (json_object_is_type(o, json_type_string))
			literal = rt_reason_literal(json_object_get_string(o),
						    (size_t)json_object_get_string_len(o));
		add_reason(p, literal ? literal : "unknown");
	}
}

static void read_trust(struct json_object *array, struct rt_preflight *p)
{
	for (size_t i = 0; i < json_object_array_length(array); i++) {
		const char *level = json_object_get_string(json_object_array_get_idx(array, i));

		if (!level)
			continue;
		p->trusted |= strcmp(level, "trusted") == 0;
		p->standard |= strcmp(level, "standard") == 0;
		p->untrusted |= strcmp(level, "untrusted") == 0;
	}
}

int rt_preflight_from_json(struct json_object *o, struct rt_preflight *ret)
{
	struct json_object *available, *reasons, *deny, *allow, *trust, *host;
	const char *text;

	memset(ret, 0, sizeof(*ret));
	if (!json_object_is_type(o, json_type_object))
		return -SBX_E_INVALID_ARGUMENT;
	available = member(o, "available", json_type_boolean);
	reasons = member(o, "reasons", json_type_array);
	deny = member(o, "deny_all_ready", json_type_boolean);
	allow = member(o, "allowlist_ready", json_type_boolean);
	trust = member(o, "trust_levels", json_type_array);
	host = member(o, "host", json_type_object);
	if (!available || !reasons || !deny || !allow || !trust || !host)
		return -SBX_E_INVALID_ARGUMENT;
	read_reasons(reasons, ret);
	/* "Not available" without a reason must not read as available. */
	if (!json_object_get_boolean(available) && !ret->n_reasons)
		add_reason(ret, "unknown");
	ret->deny_all_ready = json_object_get_boolean(deny);
	ret->allowlist_ready = json_object_get_boolean(allow);
	read_trust(trust, ret);
	text = json_object_to_json_string_ext(host, JSON_C_TO_STRING_PLAIN |
							    JSON_C_TO_STRING_NOSLASHESCAPE);
	ret->host_json = text ? strdup(text) : NULL;
	return text && ret->host_json ? 0 : -SBX_E_NO_MEMORY;
}
