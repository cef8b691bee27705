/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads an archive that comes from outside, entry by entry, with libarchive: tar (ustar, pax, GNU;
 * as it is or with gzip, bzip2, xz or zstd) and zip. It makes names safe and keeps to limits; where
 * entries go is the caller's business. Memory does not grow with the archive, but for the directory
 * of a zip, which has a limit.
 *
 * Not thread-safe: one archive belongs to one thread at a time.
 */
#ifndef SBX_ORCHESTRATOR_UNPACK_H
#define SBX_ORCHESTRATOR_UNPACK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "base/auto.h"
#include "base/error.h"
#include "base/fs.h"

enum { ORCH_ARCHIVE_DEPTH_MAX = 128 }; /* parts of a path */

enum orch_archive_kind { ORCH_ARCHIVE_TAR = 1, ORCH_ARCHIVE_ZIP };

struct orch_archive_limits {
	int64_t entries; /* headers, also of entries that nobody wants */
	int64_t bytes;	 /* unpacked, also of entries that nobody wants: it is all work */
};

/* What a step came to; negative: an error of this host, as elsewhere. */
enum orch_archive_step {
	ORCH_ARCHIVE_END,
	ORCH_ARCHIVE_OK,
	ORCH_ARCHIVE_SPOILT, /* this entry cannot be had, the next one may be */
	ORCH_ARCHIVE_BROKEN, /* nor anything behind it */
	ORCH_ARCHIVE_OVER,   /* a limit is reached */
};

enum orch_archive_type {
	ORCH_ARCHIVE_FILE = 1,
	ORCH_ARCHIVE_DIR,
	ORCH_ARCHIVE_SYMLINK,
	ORCH_ARCHIVE_HARDLINK,
	ORCH_ARCHIVE_OTHER, /* device, pipe, socket */
};

/* Strings are borrowed until the next step. */
struct orch_archive_entry {
	enum orch_archive_type type;
	const char *name;    /* as the archive has it */
	const char *path;    /* clean and relative; "" is the root; NULL: it has a problem */
	const char *problem; /* a short phrase */
	const char *link;    /* target of a link, as the archive has it */
	mode_t mode;	     /* permission bits, without set-uid, set-gid and sticky */
	bool sticky;
	struct timespec mtime;
};

struct orch_archive;

/* fd is borrowed; it must be a regular file, its offset is not used. rooted: a slash in front of a
 * name is dropped, as it means the root of what is unpacked. digest: keeps the SHA-256 of the tar
 * behind the compression. A file that is no archive is BROKEN at the first step. */
struct orch_archive_options {
	enum orch_archive_kind kind;
	struct orch_archive_limits limits;
	bool rooted, digest;
};
int orch_archive_open(int fd, const struct orch_archive_options *opts, struct orch_archive **ret,
		      struct sbx_error *e);
struct orch_archive *orch_archive_close(struct orch_archive *a); /* NULL is fine; returns NULL */
SBX_DEFINE_AUTO(struct orch_archive, orch_archive_close)

/* What was not read of the last entry is passed over, and counts. */
int orch_archive_next(struct orch_archive *a, struct orch_archive_entry *ret, struct sbx_error *e);
/* The extended attributes of the entry that was the last step's, one after the other; false: no
 * more. Borrowed until the next step. */
bool orch_archive_xattr(struct orch_archive *a, const char **ret_name, const void **ret_value,
			size_t *ret_len);
/* The content of the current entry into the empty file `to`, holes kept, at most max bytes; OVER
 * leaves what fits. OK, or what went wrong. */
int orch_archive_data(struct orch_archive *a, int to, int64_t max, int64_t *ret_bytes,
		      struct sbx_error *e);
/* After END: the digest, 64 hexadecimal digits, with all that follows the last entry. OK, or what
 * went wrong. */
int orch_archive_digest(struct orch_archive *a, char ret[65], struct sbx_error *e);
/* After SPOILT, BROKEN or OVER: what is wrong, as a short phrase. */
const char *orch_archive_complaint(const struct orch_archive *a);

/* A name from outside as a clean relative path: "./a//b/" is "a/b", and "" names the root itself.
 * NULL, or what is wrong with it. */
const char *orch_archive_path(const char *name, bool rooted, char ret[SBX_PATH_MAX + 1]);

/* ---- unpack.c -------------------------------------------------------------------------------- */

/* Where an upload's archive goes. `dir` is an empty directory, in which whole files appear; `spare`
 * another one on the same file system. Of entries with one name the last counts. Links, devices and
 * unsafe names are left out, and told to `skipped` with a reason, as is an archive that breaks off
 * (its whole entries stay). */
struct orch_unpack {
	int dir, spare;
	uid_t uid; /* of all that is made; -1: as it is */
	gid_t gid;
	bool symlinks; /* are kept, as they are; they are never followed */
	void (*skipped)(void *ctx, const char *name, const char *reason);
	void *ctx;
	int64_t max_bytes; /* of all files together */
	/* what came of it */
	int64_t bytes, files;
};
/* WORKSPACE_CAP for a limit, STORAGE_FULL; what was staged is then the caller's to remove. */
int orch_unpack(int fd, enum orch_archive_kind kind, struct orch_unpack *u, struct sbx_error *e);

/* ---- unpack_tree.c --------------------------------------------------------------------------- */

/* A tar into the empty directory `dir`, as it was: names, modes, times, links, attributes user.*.
 * All of it, or an error that says what is wrong with it, and then what was made is the caller's to
 * remove: INVALID_ARGUMENT for what is damaged, leads out, or goes through a link; WORKSPACE_CAP;
 * STORAGE_FULL. Devices, pipes and sockets are left out. Not synced. */
int orch_unpack_tree(int fd, int dir, const struct orch_archive_limits *limits,
		     struct sbx_error *e);

/* The directory that holds the clean path, made where it is missing, with `mode` and owner; no link
 * is followed. A directory descriptor, or a negative errno; *ret_name is the last part. */
struct orch_owner {
	uid_t uid;
	gid_t gid;
};
int orch_unpack_parent(int dir, const char *path, mode_t mode, const struct orch_owner *owner,
		       const char **ret_name);

#endif
