/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rows say of artifacts against what the disk has. Both are written in an order that a crash
 * does not spoil, so this finds what a crash left half done, and what somebody did behind our back:
 * files that no row knows are removed, rows whose file is gone are, too, a wrong size is set
 * right, and so is the total of a user. Only runs that have ended are looked at: what others have
 * captured is still coming.
 */
#include "orchestrator/orch_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"

enum {
	RUNS_BATCH = 256,
	USERS_BATCH = 64,
	DEPTH_MAX = 128,    /* of folders below artifacts/, far more than are captured */
	PATHS_MAX = 8 << 20 /* bytes of the paths of one run's artifacts, as rows */
};

struct found {
	int64_t files, bytes, users; /* that were wrong */
};

/* ---- one run --------------------------------------------------------------------------------- */

/* The rows of a run, in the order of their bytes. */
struct rows {
	int dir;		     /* of the artifacts; -1: there is none */
	struct store_artifact *list; /* owns; paths too */
	size_t n, size, bytes;
	struct store_artifact *wrong; /* owns; paths are those of list */
	size_t n_wrong;
	bool failed;
};

static void rows_clear(struct rows *r)
{
	for (size_t i = 0; i < r->n; i++)
		free((char *)(uintptr_t)r->list[i].path);
	free(r->list);
	free(r->wrong);
	sbx_closep(&r->dir);
}

static bool add_row(void *ctx, const struct store_artifact *a)
{
	struct rows *r = ctx;
	size_t size = r->size ? 2 * r->size : 64;

	if (r->n == r->size) {
		struct store_artifact *more = realloc(r->list, size * sizeof(*more));

		r->failed = !more;
		if (!more)
			return false;
		r->list = more;
		r->size = size;
	}
	r->bytes += strlen(a->path) + 1;
	r->list[r->n] = (struct store_artifact){ .path = strdup(a->path), .size = a->size };
	r->failed = !r->list[r->n].path || r->bytes > PATHS_MAX;
	r->n += r->list[r->n].path != NULL;
	return !r->failed;
}

/* The size of the file; -1: there is none. False: it cannot be looked at now. */
static bool look(const struct rows *r, const char *path, int64_t *ret)
{
	sbx_autoclose int fd = r->dir < 0 ? -ENOENT : sbx_open_beneath(r->dir, path, O_PATH, 0);
	struct stat st;

	*ret = -1;
	if (fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP)
		return true;
	if (fd < 0 || fstat(fd, &st) < 0)
		return false;
	if (S_ISREG(st.st_mode))
		*ret = st.st_size;
	return true;
}

static int look_at_rows(struct rows *r)
{
	r->wrong = calloc(r->n ? r->n : 1, sizeof(*r->wrong));
	if (!r->wrong)
		return -ENOMEM;
	for (size_t i = 0; i < r->n; i++) {
		int64_t size;

		if (!look(r, r->list[i].path, &size))
			return -EIO;
		if (size != r->list[i].size)
			r->wrong[r->n_wrong++] = (struct store_artifact){ r->list[i].path, size };
	}
	return 0;
}

static bool has_row(const struct rows *r, const char *path)
{
	size_t low = 0, high = r->n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		int c = strcmp(path, r->list[mid].path);

		if (c == 0)
			return true;
		if (c < 0)
			high = mid;
		else
			low = mid + 1;
	}
	return false;
}

struct sweep {
	const struct rows *rows;
	struct found *found;
	char path[SBX_PATH_MAX + 1];
};

static void sweep_dir(struct sweep *s, int at, size_t len, unsigned depth);

static void sweep_one(struct sweep *s, int at, const char *name, size_t len, unsigned depth)
{
	int n = snprintf(s->path + len, sizeof(s->path) - len, "%s%s", len ? "/" : "", name);
	struct stat st;

	if (n < 0 || len + (size_t)n >= sizeof(s->path) ||
	    fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	if (S_ISDIR(st.st_mode)) {
		sbx_autoclose int fd = sbx_open_beneath(at, name, O_RDONLY | O_DIRECTORY, 0);

		if (fd >= 0 && depth < DEPTH_MAX)
			sweep_dir(s, fd, len + (size_t)n, depth + 1);
	} else if (!has_row(s->rows, s->path) && unlinkat(at, name, 0) == 0) {
		s->found->files++;
		s->found->bytes += st.st_size;
	}
}

/* Removes files that no row knows. */
static void sweep_dir(struct sweep *s, int at, size_t len, unsigned depth)
{
	int own = sbx_open_beneath(at, ".", O_RDONLY | O_DIRECTORY, 0);
	DIR *d = own >= 0 ? fdopendir(own) : NULL;
	const struct dirent *de;

	if (!d) {
		sbx_closep(&own);
		return;
	}
	while ((de = readdir(d))) {
		if (strcmp(de->d_name, ".") != 0 && strcmp(de->d_name, "..") != 0)
			sweep_one(s, at, de->d_name, len, depth);
		s->path[len] = '\0';
	}
	(void)closedir(d);
}

static int correct(struct orch *o, const char *id, const struct rows *r, struct found *found,
		   struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	int rc = store_begin(o->store, &tx, e);

	if (rc == 0)
		rc = store_tx_artifacts_correct(tx, id, r->wrong, r->n_wrong, e);
	if (rc == 0)
		rc = store_commit(sbx_steal(&tx), true, e);
	if (rc == 0)
		found->files += (int64_t)r->n_wrong;
	return rc;
}

/* Rows first: a file that they do not know is nobody's then. What cannot be looked at is left as it
 * is. */
static int check_run(struct orch *o, const char *id, struct found *found, struct sbx_error *e)
{
	__attribute__((cleanup(rows_clear))) struct rows r = { .dir = -1 };
	sbx_autoclose int dir = store_run_dir(o->store, id, false, NULL);
	struct sweep s = { .rows = &r, .found = found };
	struct store_run_key key;
	int rc = store_run_key(o->store, id, NULL, &key, e);

	if (rc == -SBX_E_RUN_NOT_FOUND) { /* it went since it was listed */
		sbx_error_clear(e);
		return 0;
	}
	if (rc < 0 || !store_phase_terminal(key.phase))
		return rc;
	rc = store_artifact_list(o->store, id, add_row, &r, e);
	if (rc < 0 || r.failed)
		return rc;
	/* Only what is surely not there is missing: a host out of descriptors loses nobody's. */
	r.dir = dir >= 0 ? sbx_open_beneath(dir, "artifacts", O_RDONLY | O_DIRECTORY, 0)
		: dir == -SBX_E_RUN_NOT_FOUND ? -ENOENT
					      : -EIO;
	if ((r.dir < 0 && r.dir != -ENOENT) || look_at_rows(&r) < 0)
		return 0;
	if (r.n_wrong)
		rc = correct(o, id, &r, found, e);
	if (rc == 0 && r.dir >= 0)
		sweep_dir(&s, r.dir, 0, 0);
	return rc;
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* Runs of which there are rows; those whose directory is gone are among them. */
static int check_rows(struct orch *o, struct found *found, struct sbx_error *e)
{
	char last[64] = "", *ids[RUNS_BATCH] = { NULL };
	int n, rc = 0;

	do {
		n = store_artifact_runs(o->store, last, ids, RUNS_BATCH, e);
		rc = n < 0 ? n : rc;
		for (int i = 0; i < n; i++) {
			if (rc == 0 && !atomic_load(&o->stop))
				rc = check_run(o, ids[i], found, e);
			(void)snprintf(last, sizeof(last), "%s", ids[i]);
			free(ids[i]);
		}
	} while (rc == 0 && n == RUNS_BATCH && !atomic_load(&o->stop));
	return rc;
}

struct pass {
	struct orch *o;
	struct found *found;
	struct sbx_error *e;
	int rc;
};

/* And runs that have files: those without a row among them. */
static bool check_dir(void *ctx, const char *id)
{
	struct pass *p = ctx;
	sbx_autoclose int dir = store_run_dir(p->o->store, id, false, NULL);

	if (dir >= 0 && faccessat(dir, "artifacts", F_OK, AT_SYMLINK_NOFOLLOW) == 0)
		p->rc = check_run(p->o, id, p->found, p->e);
	return p->rc == 0 && !atomic_load(&p->o->stop);
}

static int check_users(struct orch *o, struct found *found, struct sbx_error *e)
{
	char *users[USERS_BATCH] = { NULL };
	int n = store_usage_wrong(o->store, users, USERS_BATCH, e), rc = n < 0 ? n : 0;

	for (int i = 0; i < n; i++) {
		store_autotx struct store_tx *tx = NULL;
		int64_t by = 0;

		if (rc == 0)
			rc = store_begin(o->store, &tx, e);
		if (rc == 0)
			rc = store_tx_usage_correct(tx, users[i], &by, e);
		if (rc == 0)
			rc = store_commit(sbx_steal(&tx), true, e);
		if (rc == 0 && by) {
			found->users++;
			found->bytes += by;
		}
		free(users[i]);
	}
	return rc;
}

static int count(struct orch *o, const struct found *f, int64_t ms, struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	int rc = store_begin(o->store, &tx, e);

	if (rc == 0)
		rc = store_tx_counter_add(tx, ORCH_COUNT_RECONCILES, 1, e);
	if (rc == 0)
		rc = store_tx_counter_add(tx, ORCH_COUNT_RECONCILED_USERS, f->users, e);
	if (rc == 0)
		rc = store_tx_counter_add(tx, ORCH_COUNT_RECONCILED_FILES, f->files, e);
	if (rc == 0)
		rc = store_tx_counter_add(tx, ORCH_COUNT_RECONCILED_BYTES, f->bytes, e);
	if (rc == 0)
		rc = store_tx_counter_add(tx, ORCH_COUNT_RECONCILE_MS, ms, e);
	return rc < 0 ? rc : store_commit(sbx_steal(&tx), false, e);
}

int janitor_reconcile(struct orch *o, struct sbx_error *e)
{
	int64_t began = sbx_boot_us();
	struct found found = { 0 };
	struct pass p = { .o = o, .found = &found, .e = e };
	int rc = check_rows(o, &found, e);

	if (rc == 0)
		rc = store_run_dirs(o->store, check_dir, &p, e);
	if (rc == 0)
		rc = p.rc;
	if (rc == 0 && !atomic_load(&o->stop))
		rc = check_users(o, &found, e);
	if (rc == 0 && !atomic_load(&o->stop))
		rc = count(o, &found, (sbx_boot_us() - began) / 1000, e);
	if (found.files || found.users)
		sbx_log(SBX_LOG_WARNING, "artifacts reconciled files=%lld users=%lld bytes=%lld",
			(long long)found.files, (long long)found.users, (long long)found.bytes);
	return rc;
}
