/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a snapshot holds. A manifest lists paths with mode, owner's bits, times, size, the SHA-256
 * of the content or the target of a link; contents are objects, files named by their hash that all
 * snapshots of all sessions share. <dir>/snapshots/<id> is the manifest, <dir>/objects/ab/cd... an
 * object. Manifests and objects are complete when they have their name, and never change.
 *
 * Threads: every function may be called from any thread; none touches the database. A snapshot that
 * is taken holds <dir>/objects.lock shared, the collection of garbage holds it exclusively.
 *
 * The tree is made of bytes that a sandbox wrote: names of any bytes, links to anywhere, sockets,
 * any depth. No link is ever followed, nothing is opened that could block. Regular files,
 * directories, links, hard links among them and extended attributes user.* are kept; sockets,
 * pipes, devices and what is mounted inside are left out and counted. Permissions are kept but for
 * setuid and setgid. What vanishes while it is looked at is left out; a file that is written to
 * meanwhile gives one of its states, or a mixture, and is read again by the next snapshot.
 */
#ifndef SBX_STORE_SNAP_H
#define SBX_STORE_SNAP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

#include "base/error.h"
#include "store/store.h"

struct snap_limits {
	int64_t bytes;	 /* of all files together, one with several names once; 0: any */
	int64_t entries; /* 0: any */
};
struct snap_sums {
	int64_t bytes;	   /* of all files, one with several names once */
	int64_t entries;   /* files, directories, links; the root is none */
	int64_t left_out;  /* sockets, pipes, devices */
	int64_t new_bytes; /* of objects that were not there before */
	char digest[72];   /* "sha256:" and the hash of the manifest */
};

/*
 * Takes one of the directory `tree`. previous: the id of an earlier snapshot of the same tree,
 * whose hashes are believed for files with the same size, mtime, ctime and inode, unless they
 * changed within a tick of the clock before it; NULL, or one that is gone or damaged: all is read.
 * limits may be NULL. WORKSPACE_CAP (it is larger than the limits), STORAGE_FULL, ENTRY_EXISTS;
 * after a failure nothing was kept. After success all of it is on the disk.
 */
int snap_take(struct store *s, int tree, const char *id, const char *previous,
	      const struct snap_limits *limits, struct snap_sums *ret, struct sbx_error *e);
/* Between a snap_take and the commit of its row a collection would find a snapshot that nobody
 * knows. The descriptor (or a negative errno) keeps collections away until it is closed. */
int snap_hold(struct store *s);
/* Makes the snapshot's tree in the empty directory `tree` (else ENTRY_EXISTS): content, modes,
 * times, hard links, extended attributes. Owner of everything: uid and gid (-1: the caller's).
 * Synced. After a failure the directory is empty again. */
int snap_make(struct store *s, const char *id, int tree, uid_t uid, gid_t gid, struct sbx_error *e);
/* Copies a tree in the same way, by reflink or copy_file_range where the file system has them, but
 * does not sync it. limits and ret may be NULL. */
int snap_copy(int from, int to, uid_t uid, gid_t gid, const struct snap_limits *limits,
	      struct snap_sums *ret, struct sbx_error *e);
/* Bytes and entries of a tree now. */
int snap_measure(int tree, struct snap_sums *ret, struct sbx_error *e);
void snap_drop(struct store *s, const char *id); /* the manifest; objects go with the garbage */
/* Removes objects that no manifest names, and manifests and half-made files that nobody knows.
 * known() says whether an id has a row; true when it cannot tell. *ret_bytes: what was freed, -1
 * when nothing was done because somebody takes a snapshot. A manifest that is known and damaged is
 * STORE_UNAVAILABLE, and no object is removed. */
int snap_collect(struct store *s, bool (*known)(void *ctx, const char *id), void *ctx,
		 int64_t *ret_bytes, struct sbx_error *e);

/* ---- looking into one ------------------------------------------------------------------------ */

struct snap;
struct snap_entry {
	uint32_t index;	 /* of the entry in this snapshot: 0 is the root; stable for ever */
	uint32_t parent; /* index of its directory */
	const char *
		name; /* last part of the path; borrowed from the snap; any bytes but '/' and NUL */
	mode_t mode;  /* type and permission bits */
	int64_t size; /* of a file: bytes; of a link: its length */
	struct timespec mtime;
	const char *target;   /* of a link */
	uint8_t hash[32];     /* of a file's content */
	uint32_t children;    /* of a directory: how many */
	uint32_t first_child; /* and the index of the first; they are sorted by name and in a row */
	uint32_t links;	      /* how many entries are this same file */
};
/* Maps the manifest. SNAPSHOT_NOT_FOUND; STORE_UNAVAILABLE when it is damaged: every number in it
 * is checked before it is believed. */
int snap_open(struct store *s, const char *id, struct snap **ret, struct sbx_error *e);
struct snap *snap_close(struct snap *n); /* NULL is fine; returns NULL */
uint32_t snap_count(const struct snap *n);
bool snap_entry(const struct snap *n, uint32_t index, struct snap_entry *ret);
/* The child of a directory by name: false when there is none. */
bool snap_child(const struct snap *n, uint32_t dir, const char *name, struct snap_entry *ret);
/* The content of a file, read-only; an fd or a negative errno (-EIO: it has another length). */
int snap_content(struct store *s, const struct snap_entry *entry);

enum snap_change { SNAP_ADDED = 1, SNAP_REMOVED, SNAP_CONTENT, SNAP_ATTRIBUTES, SNAP_TYPE };
/* What changed from a to b, in order of path, the bytes of each name compared; false from each()
 * ends the walk. a or b NULL: an empty tree. All below a directory that was added or removed is
 * told as well. SNAP_CONTENT goes before SNAP_ATTRIBUTES: mode, target, extended attributes, and
 * the mtime of what is no directory. The root itself is not told. A size is -1 where there is no
 * entry. */
int snap_diff(const struct snap *a, const struct snap *b,
	      bool (*each)(void *ctx, const char *path, enum snap_change what, int64_t size_a,
			   int64_t size_b),
	      void *ctx, struct sbx_error *e);
/* A snapshot of a tree that is not kept, to compare with: names, sizes, hashes (previous as above).
 */
int snap_of_tree(struct store *s, int tree, const char *previous, struct snap **ret,
		 struct sbx_error *e);

/* ---- as a tar (pax) -------------------------------------------------------------------------
 * Everything belongs to user 0, and the root is not in it. A snapshot is always the same bytes. */

struct snap_tar;
/* SNAPSHOT_NOT_FOUND; STORE_UNAVAILABLE. Takes a moment for each ten thousand entries. One thread
 * at a time may use it. */
int snap_tar_open(struct store *s, const char *id, struct snap_tar **ret, struct sbx_error *e);
struct snap_tar *snap_tar_close(struct snap_tar *t); /* NULL is fine; returns NULL */
int64_t snap_tar_size(const struct snap_tar *t);
/* len bytes from off on, fewer only at the end; a negative errno: -ENOENT when the snapshot was
 * dropped and its content has been collected. */
ssize_t snap_tar_read(struct snap_tar *t, void *to, size_t len, int64_t off);
/* All of it into fd. */
int snap_export(struct store *s, const char *id, int fd, struct sbx_error *e);

#endif
