/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of an upload are put in their places in the order in which they came, each one wholly or
 * not at all: the first that does not fit ends it, and those before it stay. An archive is one
 * part.
 */
#include "orchestrator/intake.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "orchestrator/unpack.h"

enum {
	PARTS_MAX = 10000,
	ONE_BY_ONE_MAX = 16,
	SKIPPED_MAX = 100,	 /* that are named; all are counted */
	SKIPPED_BYTES = 1 << 20, /* of their names and reasons together */
	SKIPPED_NAME = 1024,	 /* of a name that are shown */
};

struct part {
	char *name;		     /* owns; clean, for a file */
	enum orch_archive_kind kind; /* 0: a file */
};

struct intake {
	struct intake_options opts;
	struct part *parts; /* owns */
	size_t n_parts, next;
	size_t serial;	/* parts so far, also those that were skipped */
	int fd;		/* of the part that is coming in; -1: it is not wanted */
	int64_t so_far; /* bytes of it */
	int64_t room;	/* bytes that it may have */
	int64_t staged; /* what the parts before it add to the target */
	int64_t packed; /* bytes of all archives */
	bool closed;	/* nothing more comes in */
	bool ended;	/* it was committed */
	int64_t bytes, files, n_skipped;
	struct sbx_buf skipped; /* JSON */
};

/* By their names alone, as clients know it from the reference; what is inside is looked at later.
 */
static const struct {
	const char *end;
	enum orch_archive_kind kind;
} archives[] = {
	{ ".tar", ORCH_ARCHIVE_TAR },  { ".tar.gz", ORCH_ARCHIVE_TAR },
	{ ".tgz", ORCH_ARCHIVE_TAR },  { ".tar.bz2", ORCH_ARCHIVE_TAR },
	{ ".tbz2", ORCH_ARCHIVE_TAR }, { ".zip", ORCH_ARCHIVE_ZIP },
};

static enum orch_archive_kind kind_of(const char *name)
{
	size_t n = strlen(name);

	for (size_t i = 0; i < SBX_COUNT(archives); i++) {
		size_t end = strlen(archives[i].end);

		if (n >= end && strcasecmp(name + n - end, archives[i].end) == 0)
			return archives[i].kind;
	}
	return (enum orch_archive_kind)0;
}

/* ---- life ------------------------------------------------------------------------------------ */

int intake_new(const struct intake_options *opts, struct intake **ret, struct sbx_error *e)
{
	struct intake *in = calloc(1, sizeof(*in));

	if (!in)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	in->opts = *opts;
	in->fd = -1;
	in->skipped = (struct sbx_buf)SBX_BUF_INIT(SKIPPED_BYTES);
	if (mkdirat(opts->stage, "spare", 0700) < 0) {
		int err = errno;

		free(in);
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, err, "cannot stage an upload");
	}
	*ret = in;
	return 0;
}

struct intake *intake_free(struct intake *in)
{
	if (!in)
		return NULL;
	for (size_t i = 0; i < in->n_parts; i++)
		free(in->parts[i].name);
	free(in->parts);
	sbx_closep(&in->fd);
	sbx_buf_free(&in->skipped);
	free(in);
	return NULL;
}

static void skip(void *ctx, const char *name, const char *reason)
{
	struct intake *in = ctx;
	size_t n = strlen(name), len = in->skipped.len;

	if (in->n_skipped++ >= SKIPPED_MAX)
		return;
	sbx_buf_puts(&in->skipped, len ? ",{\"path\":" : "{\"path\":");
	sbx_buf_json_str(&in->skipped, name, n < SKIPPED_NAME ? n : SKIPPED_NAME);
	sbx_buf_puts(&in->skipped, ",\"reason\":");
	sbx_buf_json_strz(&in->skipped, reason);
	sbx_buf_puts(&in->skipped, "}");
}

void intake_view(const struct intake *in, struct sbx_buf *out)
{
	sbx_buf_printf(out, "\"bytes_received\":%lld,\"file_count\":%lld,\"skipped\":[%s],",
		       (long long)in->bytes, (long long)in->files,
		       in->skipped.data && !sbx_buf_failed(&in->skipped) ? in->skipped.data : "");
	sbx_buf_printf(out, "\"skipped_count\":%lld", (long long)in->n_skipped);
}

int64_t intake_bytes(const struct intake *in)
{
	return in->bytes;
}

int64_t intake_files(const struct intake *in)
{
	return in->files;
}

static int too_large(const struct intake *in, struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_WORKSPACE_CAP, "the workspace would have more than %lld bytes",
			(long long)in->opts.cap);
}

static int broken(int err, struct sbx_error *e)
{
	return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, err, "cannot store an upload");
}

/* ---- places in the target -------------------------------------------------------------------- */

/* What the target has under this clean path. NULL: a file can go there, and *ret_frees bytes go
 * away with what it replaces. Else why not. */
static const char *look(const struct intake *in, const char *path, int64_t *ret_frees)
{
	sbx_autofree char *parent = NULL;
	const char *slash = strrchr(path, '/');
	sbx_autoclose int at = -1;
	struct stat st;

	*ret_frees = 0;
	parent = slash ? strndup(path, (size_t)(slash - path)) : strdup(".");
	at = parent ? sbx_open_beneath(in->opts.target, parent, O_PATH | O_DIRECTORY, 0) : -ENOMEM;
	if (at == -ENOENT)
		return NULL;
	if (at == -ELOOP)
		return "is below a symbolic link of the workspace";
	if (at == -ENOTDIR)
		return "is below something that is no directory in the workspace";
	if (at < 0)
		return "is below a directory of the workspace that cannot be entered";
	if (fstatat(at, slash ? slash + 1 : path, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? NULL : "cannot be looked at in the workspace";
	if (S_ISLNK(st.st_mode))
		return "is a symbolic link in the workspace";
	if (S_ISDIR(st.st_mode))
		return "is a directory in the workspace";
	if (S_ISREG(st.st_mode) && st.st_nlink == 1)
		*ret_frees = st.st_size;
	return NULL;
}

/* A run may change the workspace between look() and this: then it is one that is skipped, too. */
static const char *changed(int err)
{
	switch (err) {
	case ELOOP:
	case ENOTDIR:
	case EISDIR:
	case EEXIST:
	case ENOTEMPTY:
	case ENOENT:
	case EACCES:
	case EPERM:
		return "has no place in the workspace";
	default:
		return NULL;
	}
}

/* Renames a staged file to its path. *ret_done false: it was skipped. */
static int move_in(struct intake *in, int from, const char *name, const char *path, bool *ret_done,
		   struct sbx_error *e)
{
	const struct orch_owner owner = { in->opts.uid, in->opts.gid };
	const char *last = NULL;
	sbx_autoclose int at = orch_unpack_parent(in->opts.target, path, 0755, &owner, &last);
	int err = at < 0 ? -at : renameat(from, name, at, last) < 0 ? errno : 0;

	*ret_done = err == 0;
	if (err && !changed(err))
		return broken(err, e);
	if (err)
		skip(in, path, changed(err));
	return 0;
}

/* ---- bytes come in --------------------------------------------------------------------------- */

static int add_part(struct intake *in, const char *name, enum orch_archive_kind kind,
		    struct sbx_error *e)
{
	struct part *p = in->parts;

	if (in->n_parts == PARTS_MAX)
		return sbx_fail(e, SBX_E_SPEC_TOO_LARGE, "more than %d files in one upload",
				PARTS_MAX);
	if ((in->n_parts & (in->n_parts - 1)) == 0) /* room for twice as many */
		p = realloc(p, (in->n_parts ? 2 * in->n_parts : 1) * sizeof(*p));
	if (!p)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	in->parts = p;
	p[in->n_parts] = (struct part){ .name = strdup(name), .kind = kind };
	if (!p[in->n_parts].name)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	in->n_parts++;
	return 0;
}

static void stage_name(char ret[32], size_t i)
{
	(void)snprintf(ret, 32, "part-%zu", i);
}

/* The part that was coming in is there. */
static int end_part(struct intake *in, struct sbx_error *e)
{
	const struct part *p = in->n_parts ? &in->parts[in->n_parts - 1] : NULL;
	int err = 0;

	if (in->fd < 0 || !p)
		return 0;
	if (!p->kind &&
	    (fchmod(in->fd, 0644) < 0 ||
	     (in->opts.uid != (uid_t)-1 && fchown(in->fd, in->opts.uid, in->opts.gid) < 0)))
		err = errno;
	sbx_closep(&in->fd);
	return err ? broken(err, e) : 0;
}

/* Archives are compressed, mostly; what they hold is counted when it is unpacked. Tar has a block
 * for each name, so that they can also be larger. */
static int64_t room_for_archives(const struct intake *in)
{
	return 2 * in->opts.cap + (16 << 20) - in->packed;
}

int intake_file(struct intake *in, const char *name, struct sbx_error *e)
{
	char clean[SBX_PATH_MAX + 1], number[32], staged[32];
	enum orch_archive_kind kind;
	const char *why = NULL;
	int64_t frees = 0;
	int rc;

	if (in->closed)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "the upload has ended");
	rc = end_part(in, e);
	if (rc < 0)
		return rc;
	(void)snprintf(number, sizeof(number), "file_%zu", in->serial++);
	name = name && *name ? name : number;
	kind = kind_of(name);
	if (!kind) {
		why = orch_archive_path(name, false, clean);
		if (!why && !*clean)
			why = "is empty";
		if (!why)
			why = look(in, clean, &frees);
	}
	in->so_far = 0;
	if (why) {
		skip(in, name, why);
		return 0;
	}
	in->room = kind ? room_for_archives(in) : in->opts.cap - in->opts.used - in->staged + frees;
	in->staged -= kind ? 0 : frees;
	rc = add_part(in, kind ? name : clean, kind, e);
	if (rc < 0)
		return rc;
	stage_name(staged, in->n_parts - 1);
	in->fd = openat(in->opts.stage, staged, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	return in->fd < 0 ? broken(errno, e) : 0;
}

/* The part that is coming in is not wanted any more. */
static void drop_part(struct intake *in)
{
	char name[32];

	sbx_closep(&in->fd);
	stage_name(name, --in->n_parts);
	free(in->parts[in->n_parts].name);
	(void)unlinkat(in->opts.stage, name, 0);
}

int intake_data(struct intake *in, const void *data, size_t len, struct sbx_error *e)
{
	int r;

	if (in->closed)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "the upload has ended");
	if (in->fd < 0)
		return 0;
	if (in->so_far > in->room || (int64_t)len > in->room - in->so_far) {
		drop_part(in);
		in->closed = true;
		return too_large(in, e);
	}
	r = sbx_write_all(in->fd, data, len);
	if (r < 0)
		return broken(-r, e);
	in->so_far += (int64_t)len;
	if (in->parts[in->n_parts - 1].kind)
		in->packed += (int64_t)len;
	else
		in->staged += (int64_t)len;
	return 0;
}

/* ---- parts go to their places ---------------------------------------------------------------- */

static int place_file(struct intake *in, const struct part *p, const char *staged,
		      struct sbx_error *e)
{
	struct stat st;
	int64_t frees;
	bool done;
	const char *why = look(in, p->name, &frees);
	int rc;

	if (why) {
		skip(in, p->name, why);
		return 0;
	}
	if (fstatat(in->opts.stage, staged, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return broken(errno, e);
	if (st.st_size - frees > in->opts.cap - in->opts.used)
		return too_large(in, e);
	rc = move_in(in, in->opts.stage, staged, p->name, &done, e);
	if (rc < 0 || !done)
		return rc;
	in->opts.used += st.st_size - frees;
	in->bytes += st.st_size;
	in->files++;
	return 0;
}

/* One pass over what was unpacked. */
struct walk {
	struct intake *in;
	bool move; /* else it is measured */
	int64_t adds;
	char path[SBX_PATH_MAX + 1];
};

static int walk_dir(struct walk *w, int fd, size_t len, struct sbx_error *e);

static int walk_file(struct walk *w, int at, const char *name, int64_t size, struct sbx_error *e)
{
	int64_t frees;
	const char *why = look(w->in, w->path, &frees);
	bool done;
	int rc;

	if (!w->move) {
		w->adds += why ? 0 : size - frees;
		return 0;
	}
	if (why) {
		skip(w->in, w->path, why);
		return 0;
	}
	rc = move_in(w->in, at, name, w->path, &done, e);
	if (rc == 0 && done) {
		w->in->bytes += size;
		w->in->files++;
	}
	return rc;
}

/* The same directory in the target, before what is in it. It may be there. */
static int make_dir(struct walk *w, size_t len, mode_t mode, struct sbx_error *e)
{
	const struct orch_owner owner = { w->in->opts.uid, w->in->opts.gid };
	const char *last;
	sbx_autoclose int fd = -1;

	if (len + 2 > SBX_PATH_MAX)
		return 0; /* it is empty, as nothing below it could have a name */
	memcpy(w->path + len, "/.", 3);
	fd = orch_unpack_parent(w->in->opts.target, w->path, mode, &owner, &last);
	w->path[len] = '\0';
	if (fd >= 0)
		return 0;
	if (!changed(-fd))
		return broken(-fd, e);
	skip(w->in, w->path, changed(-fd));
	return 1;
}

static int walk_entry(struct walk *w, int at, const char *name, size_t len, struct sbx_error *e)
{
	int n = snprintf(w->path + len, sizeof(w->path) - len, "%s%s", len ? "/" : "", name);
	sbx_autoclose int fd = -1;
	struct stat st;
	int rc = 0;

	if (n < 0 || len + (size_t)n >= sizeof(w->path))
		return sbx_fail(e, SBX_E_INTERNAL, "a staged path is too long");
	len += (size_t)n;
	if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return broken(errno, e);
	if (!S_ISDIR(st.st_mode))
		return walk_file(w, at, name, st.st_size, e);
	if (w->move)
		rc = make_dir(w, len, st.st_mode & 0777, e);
	if (rc != 0) /* 1: it has no place, and so has nothing in it */
		return rc < 0 ? rc : 0;
	fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? broken(errno, e) : walk_dir(w, fd, len, e);
}

/* As deep as orch_unpack makes directories. */
static int walk_dir(struct walk *w, int fd, size_t len, struct sbx_error *e)
{
	int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	DIR *dir = own >= 0 ? fdopendir(own) : NULL;
	struct dirent *d;
	int rc = 0;

	if (!dir) {
		rc = broken(errno, e);
		sbx_closep(&own);
		return rc;
	}
	rewinddir(dir);
	while (rc == 0 && (d = readdir(dir))) {
		if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
			rc = walk_entry(w, fd, d->d_name, len, e);
		w->path[len] = '\0';
	}
	(void)closedir(dir);
	return rc;
}

static int place_tree(struct intake *in, int dir, struct sbx_error *e)
{
	struct walk w = { .in = in };
	int rc = walk_dir(&w, dir, 0, e);

	if (rc == 0 && w.adds > in->opts.cap - in->opts.used)
		return too_large(in, e);
	if (rc < 0)
		return rc;
	w.move = true;
	rc = walk_dir(&w, dir, 0, e);
	in->opts.used += w.adds;
	return rc;
}

static int unpack(struct intake *in, const struct part *p, const char *staged, int dir,
		  struct sbx_error *e)
{
	sbx_autoclose int fd = openat(in->opts.stage, staged, O_RDONLY | O_CLOEXEC);
	sbx_autoclose int spare =
		sbx_open_beneath(in->opts.stage, "spare", O_PATH | O_DIRECTORY, 0);
	struct orch_unpack u = { .dir = dir,
				 .spare = spare,
				 .uid = in->opts.uid,
				 .gid = in->opts.gid,
				 .skipped = skip,
				 .ctx = in,
				 .max_bytes = in->opts.cap };

	if (fd < 0 || spare < 0)
		return broken(fd < 0 ? errno : -spare, e);
	return orch_unpack(fd, p->kind, &u, e);
}

static int place_archive(struct intake *in, const struct part *p, const char *staged,
			 struct sbx_error *e)
{
	sbx_autoclose int dir = -1;
	int rc;

	if (mkdirat(in->opts.stage, "tree", 0700) < 0)
		return broken(errno, e);
	dir = sbx_open_beneath(in->opts.stage, "tree", O_RDONLY | O_DIRECTORY, 0);
	rc = dir < 0 ? broken(-dir, e) : unpack(in, p, staged, dir, e);
	if (rc == 0 && syncfs(dir) < 0)
		rc = broken(errno, e);
	if (rc == 0)
		rc = place_tree(in, dir, e);
	(void)sbx_remove_tree(in->opts.stage, "tree");
	(void)unlinkat(in->opts.stage, staged, 0);
	return rc;
}

/* Content goes to the disk before it gets its name, so that a crash leaves old or new content and
 * never an empty file. A few files one by one, many with everything that the disk has. */
static int settle_parts(const struct intake *in, struct sbx_error *e)
{
	if (in->n_parts > ONE_BY_ONE_MAX)
		return syncfs(in->opts.stage) < 0 ? broken(errno, e) : 0;
	for (size_t i = 0; i < in->n_parts; i++) {
		sbx_autoclose int fd = -1;
		char staged[32];

		if (in->parts[i].kind)
			continue;
		stage_name(staged, i);
		fd = openat(in->opts.stage, staged, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0 || fsync(fd) < 0)
			return broken(errno, e);
	}
	return 0;
}

int intake_commit(struct intake *in, struct sbx_error *e)
{
	sbx_autoerror own = SBX_ERROR_INIT;
	int rc;

	e = e ? e : &own;
	if (in->ended)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "the upload has ended");
	in->ended = in->closed = true;
	rc = end_part(in, e);
	if (rc == 0 && in->opts.measure)
		rc = in->opts.measure(in->opts.ctx, &in->opts.used, e);
	if (rc == 0)
		rc = settle_parts(in, e);
	for (; rc == 0 && in->next < in->n_parts; in->next++) {
		const struct part *p = &in->parts[in->next];
		char staged[32];

		stage_name(staged, in->next);
		rc = p->kind ? place_archive(in, p, staged, e) : place_file(in, p, staged, e);
	}
	/* The names, too, also of those that came before one that is refused. */
	if (in->files > 0 && syncfs(in->opts.target) < 0 && rc == 0)
		rc = broken(errno, e);
	return rc;
}
