/* SPDX-License-Identifier: Apache-2.0 */
/* Life of the orchestrator: configuration, store, what the runtimes can do here, threads. */
#include "orchestrator/orch_i.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"

static struct orch_config *config_free(struct orch_config *c)
{
	if (!c)
		return NULL;
	config_free(c->older);
	orch_settings_free(c->settings);
	orch_preflights_free(c->preflights);
	sbx_closep(&c->file);
	free(c);
	return NULL;
}

/* ---- where sandbox-runner is ----------------------------------------------------------------- */

static bool executable(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

static char *find_runner(const char *given, struct sbx_error *e)
{
	char self[SBX_PATH_MAX + 1];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	static const char *const beside[] = { "sandbox-runner", "../runtimes/runner/sandbox-runner",
					      "../libexec/sandboxfs/sandbox-runner",
					      "../lib/sandboxfs/sandbox-runner" };
	char *slash, *path = NULL;

	if (given) {
		path = strdup(given);
		if (path && executable(path))
			return path;
		free(path);
		sbx_fail(e, SBX_E_INVALID_CONFIG, "no program at '%s' to run sandboxes with",
			 given);
		return NULL;
	}
	self[n > 0 ? n : 0] = '\0';
	slash = strrchr(self, '/');
	if (slash)
		*slash = '\0';
	for (size_t i = 0; i < SBX_COUNT(beside); i++) {
		if (asprintf(&path, "%s/%s", self, beside[i]) < 0)
			break;
		if (executable(path))
			return path;
		free(path);
	}
	sbx_fail(e, SBX_E_INVALID_CONFIG,
		 "sandbox-runner is not beside this program ('%s') nor in ../libexec/sandboxfs",
		 self);
	return NULL;
}

/* ---- configuration --------------------------------------------------------------------------- */

/* The bytes in a file of memory that nobody can change. */
static int sealed_file(const struct orch_settings *s, int *ret, struct sbx_error *e)
{
	sbx_autoclose int fd = memfd_create("sandboxfs.conf", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int r = fd < 0 ? -errno : sbx_write_all(fd, s->file ? s->file : "", s->file_len);

	if (r == 0 &&
	    fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
		r = -errno;
	if (r < 0)
		return sbx_fail_errno(e, SBX_E_INTERNAL, -r, "cannot keep the configuration");
	*ret = sbx_steal_fd(&fd);
	return 0;
}

static struct orch_config *read_config(struct orch *o, bool preflight, struct sbx_error *e)
{
	struct orch_config *c = calloc(1, sizeof(*c));

	if (!c) {
		sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the configuration");
		return NULL;
	}
	c->file = -1;
	if (orch_settings_load(o->config_path, (const char *const *)o->overrides, o->n_overrides,
			       &c->settings, e) < 0 ||
	    sealed_file(c->settings, &c->file, e) < 0)
		return config_free(c);
	orch_policy_hash(c->settings, c->policy_hash);
	if (preflight) {
		c->preflights = findings_try(o, c, e);
		if (!c->preflights)
			return config_free(c);
	}
	return c;
}

const struct orch_settings *orch_settings(struct orch *o)
{
	return orch_config(o)->settings;
}

struct store *orch_store(struct orch *o)
{
	return o->store;
}

int orch_reload(struct orch *o, struct sbx_error *e)
{
	struct orch_config *c;

	pthread_mutex_lock(&o->reload_lock);
	c = read_config(o, true, e);
	if (c) {
		c->older = orch_config(o);
		atomic_store(&o->config, c);
		(void)sbx_log_set_level(c->settings->log_level);
	}
	pthread_mutex_unlock(&o->reload_lock);
	if (c)
		findings_share(o);
	if (!c)
		return -(int)(e && e->code ? e->code : SBX_E_INVALID_CONFIG);
	dispatch_wake(o);
	return 0;
}

/* ---- open and close -------------------------------------------------------------------------- */

static char *dup_or_null(const char *s)
{
	return s ? strdup(s) : NULL;
}

static int copy_options(struct orch *o, const struct orch_options *opts, struct sbx_error *e)
{
	o->state_dir = dup_or_null(opts->state_dir);
	o->config_path = dup_or_null(opts->config_path);
	o->mountpoint = dup_or_null(opts->mountpoint);
	o->door = opts->door;
	o->workers = opts->workers;
	o->overrides = calloc(opts->n_overrides + 1, sizeof(*o->overrides));
	if (!o->state_dir || !o->overrides)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	for (; o->n_overrides < opts->n_overrides; o->n_overrides++) {
		o->overrides[o->n_overrides] = strdup(opts->overrides[o->n_overrides]);
		if (!o->overrides[o->n_overrides])
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	}
	return 0;
}

static int check_settings(const struct orch *o, struct sbx_error *e)
{
	struct orch_settings *s = NULL;
	int rc = orch_settings_load(o->config_path, (const char *const *)o->overrides,
				    o->n_overrides, &s, e);

	if (rc == 0)
		(void)sbx_log_set_level(s->log_level);
	orch_settings_free(s);
	return rc;
}

int orch_open(const struct orch_options *opts, struct orch **ret, struct sbx_error *e)
{
	struct orch *o = calloc(1, sizeof(*o));
	struct orch_config *c;
	int rc;

	if (!o)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	pthread_condattr_t monotonic;

	(void)pthread_condattr_init(&monotonic);
	(void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	(void)pthread_cond_init(&o->janitor_wake, &monotonic);
	(void)pthread_condattr_destroy(&monotonic);
	pthread_mutex_init(&o->janitor_lock, NULL);
	pthread_mutex_init(&o->reload_lock, NULL);
	pthread_mutex_init(&o->settle_lock, NULL);
	o->loop = (struct dispatch_loop){ -1, -1, -1 };
	o->opened_us = sbx_now_us();
	o->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	o->helpers_over = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = copy_options(o, opts, e);
	if (rc == 0) {
		o->runner = find_runner(opts->runner, e);
		rc = o->runner ? 0 : -SBX_E_INVALID_CONFIG;
	}
	if (rc == 0) /* before anything is made: a mistake in them leaves nothing behind */
		rc = check_settings(o, e);
	if (rc == 0) {
		const struct store_options so = { 0 };

		rc = store_open(o->state_dir, &so, &o->store, e);
	}
	if (rc == 0) {
		c = read_config(o, true, e);
		atomic_store(&o->config, c);
		rc = c ? 0 : -(int)(e && e->code ? e->code : SBX_E_INVALID_CONFIG);
	}
	if (rc < 0) {
		orch_close(o);
		return rc;
	}
	*ret = o;
	return 0;
}

int orch_start(struct orch *o, struct sbx_error *e)
{
	int rc;

	findings_share(o);
	rc = dispatch_start(o, e);
	if (rc == 0)
		bound_sweep(o);
	return rc;
}

struct orch *orch_close(struct orch *o)
{
	if (!o)
		return NULL;
	dispatch_stop(o);
	store_close(o->store);
	config_free(orch_config(o));
	for (size_t i = 0; i < o->n_overrides; i++)
		free(o->overrides[i]);
	free(o->overrides);
	free(o->state_dir);
	free(o->config_path);
	free(o->runner);
	free(o->mountpoint);
	watching_end(o);
	sbx_closep(&o->wake_fd);
	sbx_closep(&o->helpers_over);
	pthread_mutex_destroy(&o->reload_lock);
	pthread_mutex_destroy(&o->settle_lock);
	pthread_mutex_destroy(&o->janitor_lock);
	pthread_cond_destroy(&o->janitor_wake);
	free(o);
	return NULL;
}

/* ---- principals ------------------------------------------------------------------------------ */

/* Is name an element of the comma separated list? */
static bool in_list(const char *list, const char *name)
{
	size_t n = strlen(name);

	for (const char *p = list; p && *p;) {
		size_t len;

		p += strspn(p, ", ");
		len = strcspn(p, ", ");
		if (len == n && strncmp(p, name, n) == 0)
			return true;
		p += len;
	}
	return false;
}

void orch_principal_uid(struct orch *o, uid_t uid, const char *door, struct orch_principal *ret)
{
	/* One entry: the same user asks again and again, and getpwuid opens files. A new login
	 * name for a uid is seen at the next start. */
	static _Thread_local struct {
		bool valid;
		uid_t uid;
		char user[64];
	} last;
	char room[16384];
	struct passwd pw, *found = NULL;

	if (!last.valid || last.uid != uid) {
		/* A directory service that is down is not remembered as "no such user". */
		last.valid = getpwuid_r(uid, &pw, room, sizeof(room), &found) == 0;
		if (last.valid && found && strlen(pw.pw_name) < sizeof(last.user))
			(void)snprintf(last.user, sizeof(last.user), "%s", pw.pw_name);
		else
			(void)snprintf(last.user, sizeof(last.user), "uid:%u", (unsigned)uid);
		last.uid = uid;
	}
	memcpy(ret->user, last.user, sizeof(ret->user));
	ret->uid = uid;
	ret->door = door;
	ret->admin = uid == 0 || in_list(orch_settings(o)->admins, ret->user);
}

size_t orch_admin_uids(struct orch *o, uid_t ret[ORCH_ADMINS_MAX])
{
	const char *p = orch_settings(o)->admins;
	char room[16384], name[64];
	struct passwd pw, *found;
	size_t n = 0, len;
	unsigned uid;

	for (; p && *p && n < ORCH_ADMINS_MAX; p += len + (p[len] == ',')) {
		len = strcspn(p, ",");
		if (len >= sizeof(name)) /* a principal's name is no longer than that */
			continue;
		memcpy(name, p, len);
		name[len] = '\0';
		if (getpwnam_r(name, &pw, room, sizeof(room), &found) == 0 && found)
			ret[n++] = pw.pw_uid;
		else if (sscanf(name, "uid:%u", &uid) == 1)
			ret[n++] = uid;
	}
	return n;
}
