/* SPDX-License-Identifier: Apache-2.0 */
/* What the files snap_*.c share: a manifest as it is in memory and on disk, the walk of a tree that
 * somebody else may be changing, the objects, and the making of a tree. */
#ifndef SBX_STORE_SNAP_I_H
#define SBX_STORE_SNAP_I_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/id.h"
#include "store/snap.h"

enum {
	SNAP_VERSION = 1,
	SNAP_HASH_LEN = 32,
	SNAP_RECORDS_MAX = 4 << 20, /* entries of one manifest */
	SNAP_TEXT_MAX = 256 << 20,  /* bytes of its names and targets; and of its attributes */
	SNAP_MODE_MASK = 01777,	    /* what is kept: a file that changes its user is no content */
	SNAP_HELD_MAX = 64,	    /* directories of one path that are open at a time */
	SNAP_COPY_BUFFER = 1 << 20,
	SNAP_XATTR_NAME_MAX = 255,
	SNAP_XATTR_VALUE_MAX = 65536,
	SNAP_TARGET_MAX = 4095,
};
#define SNAP_NONE UINT32_MAX

/*
 * The file: header, records, strings, attributes, and the SHA-256 of all that. Numbers as this
 * machine writes them; the magic reads wrongly where that is another way.
 *
 * Record 0 is the root. The children of a directory are in a row, sorted by the bytes of their
 * names, behind the directory.
 */
#define SNAP_MAGIC 0x31504e5358425355ull
struct snap_header {
	uint64_t magic;
	uint32_t version, record_size;
	uint32_t records;
	uint32_t strings, xattrs; /* bytes */
	uint32_t taken_nsec; /* the clock when the walk began: what changed after is not believed */
	int64_t taken_sec;
	int64_t bytes, left_out;
	uint64_t reserved;
};
_Static_assert(sizeof(struct snap_header) == 64, "no padding on disk");

struct snap_record {
	int64_t size; /* of a file: bytes; of a link: its length */
	int64_t mtime_sec, ctime_sec;
	uint64_t ino, dev; /* these and ctime: only to see that a file is as it was */
	uint32_t mtime_nsec, ctime_nsec;
	uint32_t mode;	 /* type and permissions */
	uint32_t parent; /* record */
	uint32_t name;	 /* in strings, with a NUL behind it */
	uint32_t first;	 /* directory: first child; link: target in strings; file: the first record
			    that is the same file */
	uint32_t count;	 /* directory: children; link: length of the target; file: records that are
			    the same file */
	uint32_t xattrs; /* in attributes */
	uint32_t xattrs_len; /* 0: none */
	uint16_t name_len, reserved;
	uint8_t hash[SNAP_HASH_LEN];
};
_Static_assert(sizeof(struct snap_record) == 112, "no padding on disk");

/* A manifest that is mapped (map is set: all is read-only) or in the making. */
struct snap {
	struct snap_header head;
	struct snap_record *records;
	uint32_t n, size;	/* records in use; room for */
	struct sbx_buf strings; /* .data is in the map when there is one */
	struct sbx_buf xattrs;	/* likewise */
	void *map;
	size_t map_len;
};
SBX_DEFINE_AUTO(struct snap, snap_close)
#define snap_auto SBX_AUTO(snap_closep)

static inline const char *snap_name(const struct snap *n, uint32_t i)
{
	return n->strings.data + n->records[i].name;
}
static inline const char *snap_target(const struct snap *n, uint32_t i)
{
	return n->strings.data + n->records[i].first;
}

/* ---- snap_manifest.c ------------------------------------------------------------------------- */

struct snap *snap_new(void); /* NULL without memory */
/* Room for n more records behind the last: their number is not counted yet. */
int snap_room(struct snap *n, uint32_t more, struct sbx_error *e);
/* Puts text and a NUL into strings; its offset. */
int snap_string(struct snap *n, const char *text, size_t len, uint32_t *ret, struct sbx_error *e);
/* All of it into fd; the digest as text. */
int snap_write(struct snap *n, int fd, char digest[72], struct sbx_error *e);
/* As a mapped file is looked at: the bytes stay the caller's. trusting: without the digest. */
int snap_from_bytes(void *data, size_t len, bool trusting, struct snap **ret, struct sbx_error *e);
void snap_hash_hex(const uint8_t hash[SNAP_HASH_LEN], char out[65]);
/* The path of a record, from the root on without a slash before it; what is too long is cut. For
 * messages. */
const char *snap_where(const struct snap *n, uint32_t i, char *buf, size_t size);
/* As bytewise order of names. */
int snap_compare(const char *a, size_t a_len, const char *b, size_t b_len);

/* ---- snap_check.c ---------------------------------------------------------------------------- */

/* Every number of the manifest, whatever its bytes are. NULL, or what is wrong. */
const char *snap_check(const struct snap *n);

/* ---- snap_xattr.c ---------------------------------------------------------------------------- */

/* The attributes user.* of an open file, behind those that n has. */
int snap_xattrs_read(struct snap *n, int fd, uint32_t *ret, uint32_t *ret_len, struct sbx_error *e);
int snap_xattrs_set(const struct snap *n, const struct snap_record *rec, int fd); /* -errno */
bool snap_xattrs_equal(const struct snap *a, uint32_t i, const struct snap *b, uint32_t j);
/* Step through them: *at begins at 0; false at the end. Name and value are borrowed; the name has
 * no NUL behind it. */
struct snap_xattr {
	const char *name;
	const void *value;
	uint32_t name_len, value_len;
};
bool snap_xattrs_next(const struct snap *n, const struct snap_record *rec, uint32_t *at,
		      struct snap_xattr *ret);

/* ---- snap_table.c ---------------------------------------------------------------------------- */

/* Numbers by 32 bytes. Whoever chooses the keys does not know the order of the slots. */
struct snap_slot {
	uint8_t key[SNAP_HASH_LEN];
	uint32_t value; /* plus one; 0: empty */
};
struct snap_table {
	struct snap_slot *slots;
	size_t used, size;
	uint64_t salt;
};
void snap_table_fini(struct snap_table *t);
/* The number of a key; a new key gets `value`. -ENOMEM, 0: it was there, 1: it is new. */
int snap_table_add(struct snap_table *t, const uint8_t key[SNAP_HASH_LEN], uint32_t value,
		   uint32_t *ret);
bool snap_table_has(const struct snap_table *t, const uint8_t key[SNAP_HASH_LEN]);

/* ---- snap_path.c ----------------------------------------------------------------------------- */

/*
 * The open directories from the root of a tree down to where a walk is. Deep ones are closed on the
 * way down and found again by "..", and then they are the same directory or it is an error: a path
 * has any depth.
 */
struct snap_path {
	struct snap_step {
		int fd; /* -1: closed */
		dev_t dev;
		ino_t ino;
	} * steps;
	size_t depth, size;
};
void snap_path_fini(struct snap_path *p);
int snap_path_push(struct snap_path *p, int fd); /* takes fd, also on failure; -errno */
int snap_path_pop(struct snap_path *p);		 /* -errno; -ESTALE: the directory above moved */
int snap_path_top(const struct snap_path *p);	 /* borrowed */
/* A directory of a tree, from its root by names: a descriptor (O_PATH) or -errno. */
int snap_open_record(const struct snap *n, uint32_t dir, int root);

/* ---- snap_walk.c ----------------------------------------------------------------------------- */

struct snap_walk;
/* What a walk does with what it finds. NULL: nothing. All: 0 or an error. */
struct snap_walk_ops {
	/* A regular file; `name` in dirfd looked like `stat` a moment ago. Sets size, hash, xattrs
	 * of *rec. *ret_gone: it is not there any more, or not a file; then it is left out. */
	int (*file)(struct snap_walk *w, int dirfd, const char *name, struct snap_record *rec,
		    bool *ret_gone, struct sbx_error *e);
	/* The record i, complete now, in the directory that was entered last: a link, or a name
	 * more of a file that was found before. */
	int (*other)(struct snap_walk *w, uint32_t i, struct sbx_error *e);
	int (*enter)(struct snap_walk *w, uint32_t dir, struct sbx_error *e);
	int (*leave)(struct snap_walk *w, uint32_t dir, struct sbx_error *e);
};
struct snap_walk {
	const struct snap_walk_ops *ops;
	void *ctx;
	struct snap *now;	   /* what was found */
	const struct snap *before; /* what is believed; may be NULL */
	struct snap_limits limits;
	struct snap_sums sums;
	bool count_only; /* now holds no more than the way to here */

	struct snap_path path;
	struct snap_level *levels;
	size_t depth, levels_size;
	struct snap_table links;
	char *listing;		 /* of getdents64 */
	struct sbx_buf names;	 /* of one directory */
	struct snap_item *items; /* likewise, sorted */
	size_t items_size;
};
int snap_walk(struct snap_walk *w, int tree, struct sbx_error *e);
void snap_walk_fini(struct snap_walk *w); /* not `now` */
/* Opens a file that the walk found, to read it: a descriptor; -ENOENT also when it is no file. */
int snap_walk_open(int dirfd, const char *name);
/* Counts bytes: WORKSPACE_CAP when they are too many. */
int snap_walk_count(struct snap_walk *w, int64_t bytes, struct sbx_error *e);

/* ---- snap_objects.c -------------------------------------------------------------------------- */

/* The objects of one snapshot in the making. Until they are named nobody else sees them. */
struct snap_objects {
	struct store *s;
	int dir;		    /* <dir>/objects */
	char token[SBX_ID_LEN + 1]; /* of the temporary names; nobody else has it */
	struct snap_table known;    /* hashes that were looked for */
	struct snap_object {
		uint8_t hash[SNAP_HASH_LEN];
		bool named;
	} * fresh;
	uint32_t n, size;
	uint64_t touched[4]; /* a bit for each directory ab/ that an object of ours is in */
	int64_t new_bytes;
	void *digest; /* EVP_MD_CTX */
	void *kind;   /* EVP_MD */
	char *buffer; /* SNAP_COPY_BUFFER */
	bool hash_only;
};
int snap_objects_init(struct snap_objects *o, struct store *s, bool hash_only, struct sbx_error *e);
void snap_objects_fini(struct snap_objects *o); /* removes what has no name yet */
/* Reads fd to its end and keeps that, if nobody has it. Fails with WORKSPACE_CAP above max. */
int snap_objects_put(struct snap_objects *o, int fd, int64_t max, uint8_t hash[SNAP_HASH_LEN],
		     int64_t *ret_size, struct sbx_error *e);
int snap_objects_sync(struct snap_objects *o, int manifest, struct sbx_error *e);
int snap_objects_name(struct snap_objects *o, struct sbx_error *e);
/* The directories, after snap_objects_name. */
int snap_objects_settle(struct snap_objects *o, int manifests, struct sbx_error *e);

enum snap_dirs { SNAP_DIR_OBJECTS = 1, SNAP_DIR_MANIFESTS };
/* <dir>/objects or <dir>/snapshots; made if it is missing. -errno. */
int snap_dir(struct store *s, enum snap_dirs which, bool create);
int snap_lock(struct store *s, int how); /* flock on <dir>/objects.lock: a descriptor or -errno */
int snap_storage(struct sbx_error *e, int err, const char *what); /* "cannot <what>" */

/* ---- snap_take.c ----------------------------------------------------------------------------- */

/* What a record says of a file that is open, but its content and attributes. */
void snap_describe(struct snap_record *rec, const struct stat *st);

/* ---- snap_dest.c ----------------------------------------------------------------------------- */

/* A tree in the making. Names and attributes come from *n, which may be growing. */
struct snap_dest {
	const struct snap *n;
	int root; /* borrowed */
	uid_t uid;
	gid_t gid;
	struct snap_path path;
	bool to_sync;	/* the whole is synced at the end */
	int leader_dir; /* the directory of the file that was linked to last */
	uint32_t leader_parent;
};
int snap_dest_init(struct snap_dest *d, const struct snap *n, int root, uid_t uid, gid_t gid,
		   struct sbx_error *e);
void snap_dest_fini(struct snap_dest *d);
int snap_dest_enter(struct snap_dest *d, uint32_t dir, struct sbx_error *e);
int snap_dest_leave(struct snap_dest *d, uint32_t dir, struct sbx_error *e);
/* The file `name` with the content of `from` (-1: empty) and what rec says. */
int snap_dest_file(struct snap_dest *d, const char *name, const struct snap_record *rec, int from,
		   int64_t *ret_size, struct sbx_error *e);
int snap_dest_symlink(struct snap_dest *d, uint32_t i, struct sbx_error *e);
/* A further name of the file that record i says; a copy of it where it has too many. */
int snap_dest_link(struct snap_dest *d, uint32_t i, struct sbx_error *e);
int snap_dest_sync(struct snap_dest *d, struct sbx_error *e);
void snap_dest_undo(int root); /* empties the directory */

#endif
