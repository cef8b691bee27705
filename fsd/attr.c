/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attributes. Sizes are true: a rendered node is rendered to be measured, a log asks its index.
 * How long the kernel may believe them: for ever when nothing can change any more, not at all
 * while a run lives, so that a state that was announced is the state that is read.
 */
#include "fsd/fsd_i.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"

void node_times(struct stat *st, int64_t born_us, int64_t changed_us)
{
	st->st_mtim.tv_sec = changed_us / SBX_SECOND_US;
	st->st_mtim.tv_nsec = (changed_us % SBX_SECOND_US) * 1000;
	st->st_ctim = st->st_mtim;
	st->st_atim.tv_sec = born_us / SBX_SECOND_US;
	st->st_atim.tv_nsec = (born_us % SBX_SECOND_US) * 1000;
}

bool node_exists(const struct ms_node *n, const struct run_ref *run)
{
	switch (n->when) {
	case MS_WHEN_ALWAYS:
		return true;
	case MS_WHEN_EXITED:
		return run && run->key.has_exit_code;
	case MS_WHEN_INTERACTIVE:
		return run && run->key.interactive;
	case MS_WHEN_SESSION:
		return run && run->key.in_session;
	}
	return false;
}

double run_name_time(struct fsd *f)
{
	return f->epochs || orch_settings(f->orch)->run_retention_hours == 0 ? FSD_FOREVER
									     : FSD_ARTIFACTS;
}

double entry_timeout(struct fsd *f, fuse_ino_t ino, const struct run_ref *run)
{
	/* A run that has not been announced must be asked for again, see kick.c. */
	if (run && run->key.row > atomic_load(&f->announced_row))
		return 0;
	if (serial_index(ino_node(ino)) >= 0 || ms_node(ino_node(ino))->who == MS_WHO_ADMIN)
		return 0; /* another number the next time; not for everybody */
	return run ? run_name_time(f)
		   : FSD_FOREVER; /* names never move, rows are never used again */
}

static bool later(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec != b->tv_sec ? a->tv_sec > b->tv_sec : a->tv_nsec > b->tv_nsec;
}

static int text_length(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct run_ref *run,
		       off_t *ret)
{
	sbx_autobuf out = SBX_BUF_INIT(RENDER_MAX);
	int r;

	/* What is final is cached for all, so its size must be the same for all. */
	*ret = is_final(ms_node(ino_node(ino)), run) ? -1 : text_size(f, req, ino);
	if (*ret >= 0)
		return 0;
	r = render(f, req, ino, run, &out);
	*ret = (off_t)out.len;
	return r;
}

static int set_size(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct ms_node *n,
		    const struct run_ref *run, struct stat *st)
{
	struct timespec changed = { 0 };
	int64_t size;

	switch (n->kind) {
	case MS_K_LOG:
		size = log_size(f, run->key.id, (enum log_view)log_view_of(n), &changed);
		if (size < 0)
			return (int)size;
		st->st_size = size;
		/* Changes of phase are frames, so log.ndjson changes with either. */
		if (changed.tv_sec && (n->view != MS_V_NDJSON || later(&changed, &st->st_mtim)))
			st->st_mtim = st->st_ctim = changed;
		return 0;
	case MS_K_FILE:
	case MS_K_LINK:
		break;
	case MS_K_CONTROL:
		if (n->view == MS_V_NONE)
			return 0;
		break;
	case MS_K_DIR:
	case MS_K_STREAM:
		return 0;
	}
	return text_length(f, req, ino, run, &st->st_size);
}

int node_size(struct fsd *f, fuse_req_t req, fuse_ino_t ino, off_t *ret)
{
	return text_length(f, req, ino, NULL, ret);
}

static double attr_timeout(const struct ms_node *n, const struct run_ref *run)
{
	/* Owner and mode, which path walks and opens check, never change, nor do sizes. */
	if (n->kind == MS_K_DIR || (n->kind == MS_K_STREAM && run))
		return run && !store_phase_terminal(run->key.phase) ? 1.0 : FSD_FOREVER;
	if (n->kind == MS_K_LOG || n->kind == MS_K_FILE)
		return is_final(n, run) ? FSD_FOREVER : 0;
	if (n->kind == MS_K_LINK || n->view != MS_V_NONE)
		return 0; /* differs by caller, or grows */
	return FSD_FOREVER;
}

int node_attr_run(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct run_ref *run,
		  struct stat *st, double *timeout)
{
	const struct ms_node *n = ms_node(ino_node(ino));
	static const mode_t types[] = {
		[MS_K_DIR] = S_IFDIR,  [MS_K_FILE] = S_IFREG,	[MS_K_LOG] = S_IFREG,
		[MS_K_LINK] = S_IFLNK, [MS_K_STREAM] = S_IFREG, [MS_K_CONTROL] = S_IFREG
	};
	int r;

	if (!n || !node_exists(n, run))
		return -ENOENT;
	memset(st, 0, sizeof(*st));
	st->st_ino = serial_index(ino_node(ino)) >= 0 ? ino_make(0, ino_node(ino)) : ino;
	st->st_mode = types[n->kind] | n->mode;
	acl_mode(f, st);
	st->st_nlink = n->kind == MS_K_DIR ? 2 : 1;
	st->st_uid = run && run->key.uid >= 0 ? (uid_t)run->key.uid : f->uid;
	st->st_gid = st->st_uid == f->uid ? getgid() : (gid_t)st->st_uid;
	st->st_blksize = 4096;
	if (run)
		node_times(st, run->key.created_us,
			   n->view == MS_V_SPEC ? run->key.created_us : run->key.changed_us);
	else
		node_times(st, f->started_us, f->started_us);
	r = set_size(f, req, ino, n, run, st);
	st->st_blocks = (st->st_size + 511) / 512;
	*timeout = attr_timeout(n, run);
	return r;
}

/* The directory `runs` changes when a run is added. */
static void runs_times(struct fsd *f, struct stat *st)
{
	struct store_run_key key;

	if (store_run_latest(f->store, NULL, &key, NULL) == 0)
		node_times(st, f->started_us, key.created_us);
}

int node_attr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct stat *st, double *timeout)
{
	const struct ms_node *n;
	struct run_ref run;
	int r;

	if (ino & INO_REAL) {
		*timeout = FSD_ARTIFACTS;
		return real_attr(f, ino, st);
	}
	if (is_shot(ino))
		return shot_attr(f, ino, st, timeout);
	n = ms_node(ino_node(ino));
	if (!n)
		return -ENOENT;
	if (is_coming_node(ino_node(ino)))
		return coming_attr(f, req, ino, st, timeout);
	if (is_session_node(ino_node(ino)))
		return session_attr(f, req, ino, st, timeout);
	if (is_by_node(ino_node(ino)))
		return by_attr(f, req, ino, st, timeout);
	if (is_image_node(ino_node(ino)))
		return img_attr(f, req, ino, st, timeout);
	if (!ino_of_run(ino)) {
		r = node_attr_run(f, req, ino, NULL, st, timeout);
		if (r == 0 && ino_node(ino) == MS_N_RUNS) {
			runs_times(f, st);
			*timeout = 1.0;
		}
		return r;
	}
	r = run_by_row(f, req, ino_row(ino), &run);
	return r < 0 ? r : node_attr_run(f, req, ino, &run, st, timeout);
}
