/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to fsd/work*.c: the workspace of a session as a file system. Behind each of the kernel's
 * numbers is a node, and behind a node a file of the backing directory, found again by a descriptor
 * (O_PATH) or, when there are too many of those, by its name in its parent.
 *
 * The backing directory is the sandbox's, too: it changes at any moment, and what is in it is made
 * to do harm. So nothing is ever opened but one name at a time below a held directory, without
 * following a link, or by a descriptor of ours; and only plain files and directories are opened for
 * more than looking.
 */
#ifndef SBX_FSD_WORK_I_H
#define SBX_FSD_WORK_I_H

#include "fsd/fsd_i.h"
#include "orchestrator/sessions.h"

/* What tells that a file is the same one. Numbers of files are used again, moments are not. */
struct work_identity {
	dev_t dev;
	ino_t ino;
	struct timespec born;
	mode_t type; /* S_IFMT bits */
};

/* All fields under work_table.lock, but for those that never change (work, is, fd while pinned). */
struct work_node {
	struct work_node *next;	  /* in its bucket of the table */
	struct work *work;	  /* counted */
	struct work_node *parent; /* counted; NULL for the root */
	char *name;		  /* owned; its name there, as far as is known */
	struct work_identity is;
	uint64_t nlookup;
	unsigned refs; /* children, and the workspace for its root */
	unsigned pins; /* operations and open files that use the descriptor */
	int fd;	       /* owned; O_PATH; -1: to be opened when it is needed */
	bool hashed;
	bool keep;		      /* its name may not be enough to find it again */
	struct work_mark *mark;	      /* owned; of a directory that is watched, see work_watch.c */
	struct work_node *place_next; /* in its bucket of places */
	int64_t extra;		      /* bytes that go from the workspace's account with the node */
	uint64_t pages; /* the workspace's epoch at which the kernel began to cache its pages */
	struct work_node *older, **newer;   /* those whose descriptor may be closed */
	struct work_node *in_work, **in_at; /* all of the workspace */
};

struct work {
	struct work *next; /* in its bucket */
	struct fsd *f;
	int64_t row;
	char id[37];
	char name[SESSION_NAME]; /* of the session, for its owner */
	uid_t uid;		 /* shown as owner of everything */
	gid_t gid;
	uid_t disk_uid; /* who owns the root of the backing directory, and what is made in it */
	gid_t disk_gid;
	int64_t cap;		/* bytes, 0: none */
	unsigned refs;		/* nodes and operations; under the lock */
	bool gone;		/* the session is no more: it goes with its last node */
	struct work_node *root; /* counted; NULL: there is no such workspace (any more) */
	struct work_node *nodes, **nodes_end; /* also roots of before */
	size_t n_nodes;
	size_t sweep;		/* so many nodes from the first on are still to be told of */
	_Atomic bool busy;	/* a run of the session is active: others change what is there */
	_Atomic uint64_t epoch; /* raised when others may have changed it */
	_Atomic int64_t used;	/* bytes in all files */
	_Atomic bool measured;
	_Atomic int64_t measured_us; /* boot clock */
};

/* What the kicker is telling of just now, for the handlers of its requests, see work_tell.c. */
struct work_now {
	int64_t row;		    /* of the session; 0: nothing */
	unsigned what;		    /* one enum work_what bit, or 0 */
	fuse_ino_t dir, to;	    /* where the name is, and where it was moved */
	const char *name, *to_name; /* borrowed while it is told */
	mode_t type;
};

enum { WORK_ASKED_NAME = 1, WORK_ASKED_TO = 2 }; /* bits */

enum { WORK_BUCKETS = 1 << 14, WORKS_BUCKETS = 256 };

struct work_table {
	struct fsd *f;
	pthread_mutex_t lock; /* never held over a system call that could wait */
	struct work_node *nodes[WORK_BUCKETS];
	struct work_node *places[WORK_BUCKETS]; /* the same by parent and name */
	struct work_watch *watch;		/* owned; NULL: watchers hear nothing of others */
	struct work *works[WORKS_BUCKETS];
	_Atomic size_t n_works;
	struct work_node *oldest, **newest; /* have a descriptor that nobody uses */
	size_t open, open_max;		    /* descriptors of nodes */
	/* Of work_tell.c. */
	unsigned asked; /* WORK_ASKED_ bits, under now_lock: the kicker has looked these up */
	pthread_mutex_t now_lock;
	struct work_now now;
	_Atomic uint64_t ghosts;
	/* The thread that tells the kernel. */
	pthread_t thread;
	pthread_cond_t wake;
	bool running, stop;
};

/* ---- work.c: workspaces, and which are known ------------------------------------------------- */

/* The root of the workspace of this session, pinned; opened by name when `fresh` is set, which
 * notices that it was exchanged. */
int work_root(struct fsd *f, int64_t row, bool fresh, struct work_node **ret);
/* Once a reference or two are fewer: frees it if it is gone and this was the last. Under the lock.
 */
void work_settle(struct work_table *t, struct work *w);
/* Takes back what the kernel was told of it. */
void work_take_back(struct work *w);
/* The same, and it is to be measured again: others have written. */
void work_stale(struct work *w);

/* The number of something that is shown to the kicker alone, and not there: nodes are aligned. */
static inline bool work_is_ghost(fuse_ino_t ino)
{
	return (ino & INO_WORK) && (ino & 1);
}

/* ---- work_node.c: nodes ---------------------------------------------------------------------- */

bool work_same(const struct work_identity *a, const struct work_identity *b);
struct work_node *work_node_new(struct work *w, struct work_node *parent, const char *name, int fd,
				const struct work_identity *is); /* under the lock */
/* The node behind the number, with its descriptor open until it is unpinned; -errno. ESTALE: it
 * cannot be found any more, which makes the kernel look the name up again. */
int work_pin(struct fsd *f, fuse_ino_t ino, struct work_node **ret);
/* One more user of what is pinned already. */
void work_pin_more(struct work_node *n);
void work_unpin(struct work_node *n);
static inline void work_unpinp(struct work_node **n)
{
	if (*n)
		work_unpin(*n);
}
#define work_autopin SBX_AUTO(work_unpinp)
/* Gives a reference back, under the lock; what nobody needs any more comes into the list, which is
 * for work_bury() without the lock. */
void work_node_put(struct work_table *t, struct work_node *n, struct work_node **dead);
void work_bury(struct work_table *t, struct work_node *dead);

/* Looks a name up and counts it for the kernel. */
int work_child(struct work_node *dir, const char *name, struct fuse_entry_param *ret);
/* The same for somebody who may want to watch it. */
int work_look_up(struct work_node *dir, const char *name, struct fuse_entry_param *ret);
/* The same with a descriptor (O_PATH) of it, which is consumed. */
int work_enter(struct work_node *dir, const char *name, int fd, struct fuse_entry_param *ret);
/* What a name stands for now, before it is changed. -errno. */
int work_identify(int dir, const char *name, struct work_identity *ret, struct stat *st);
/* What is known of it has this place now. */
void work_moved(const struct work_identity *is, struct work_node *from, struct work_node *to,
		const char *name);
/* The workspace is another directory now, of which the kernel knows the names of before. Under the
 * lock. */
void work_adopt(struct work_node *old, struct work_node *root, struct work_node **dead);
/* Its last name is gone, and size bytes with it as soon as nobody uses it any more. */
void work_gone(const struct work_identity *is, struct work_node *dir, int64_t size);
/* Has more than one name from now on. */
void work_keep(struct work_node *n);
/* Directories between it and the root. */
unsigned work_depth(struct work_node *n);
/* One that the kernel knows by this name, but for what `is` is; pinned. NULL: there is none. */
struct work_node *work_find_place(struct work_node *dir, const char *name,
				  const struct work_identity *is);
/* The names in it that the kernel knows, each as "d" or "f" (what is no directory), the name and a
 * NUL; as many as there is room for. */
void work_names(struct work_node *dir, struct sbx_buf *out);
/* The node of this file that the kernel knows, as seen in dir; pinned. NULL: it knows none. */
struct work_node *work_find_known(struct work_node *dir, const struct work_identity *is);
/* The kernel's number of it. */
fuse_ino_t work_ino(const struct work_node *n);

/* ---- work_watch.c, work_mark.c: what others do ----------------------------------------------- */

enum work_what {
	WORK_MADE = 1,
	WORK_GONE = 2,
	WORK_WRITTEN = 4,
	WORK_CLOSED = 8,
	WORK_ATTRIB = 16,
	WORK_MOVED = 32
};
/* What happened to one name. */
struct work_news {
	struct work_news *next;
	struct work_node *dir, *to; /* pinned; `to` is where it was moved */
	unsigned what;		    /* enum work_what bits */
	bool there;		    /* and what is there is of this type; else, what was */
	mode_t type;
	const char *to_name;
	char name[];
};
/* Where the kernel refuses, nothing is watched, which is logged. */
int work_watch_start(struct work_table *t, struct sbx_error *e);
void work_watch_stop(struct work_watch *w, struct fsd *f);
/* w may be NULL */ /* joins its thread */
void work_watch_free(struct work_watch *w);
/* Somebody looks at this directory, which cannot go meanwhile: what others do in it is news from
 * now on. `fresh`: if it was made just now, what is in it is news, too. */
void work_watch(struct work_node *n, bool fresh);
/* The same for what is about to be answered, so that the kernel forgets nothing yet. */
static inline void work_watch_entry(const struct fuse_entry_param *e, bool fresh)
{
	if (S_ISDIR(e->attr.st_mode))
		work_watch((struct work_node *)(uintptr_t)(e->ino & ~INO_WORK), fresh);
}
/* Nobody can see it any more: first under the lock, and then without it. */
void work_unhash_mark(struct work_node *n);
void work_unwatch(struct work_node *n);
/* What is newer in it than this (0: all) is news, if it is watched; replaced: it is another
 * directory than before. */
void work_look_through(struct work_node *n, int64_t since_us, bool replaced);
/* The kicker: the next news, or NULL. */
struct work_news *work_news_take(struct work_watch *w);
void work_news_free(struct work_news *news);

/* ---- work_tell.c: the handlers of the kicker's requests; each answers ------------------------ */

void work_told_lookup(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name);
/* mkdir, mknod, symlink */
/* 0, or -EBUSY: what the kernel would take away is there. */
int work_told_gone(struct fsd *f, fuse_ino_t parent, const char *name);
int work_told_moved(struct fsd *f, fuse_ino_t parent, const char *name, fuse_ino_t to,
		    const char *to_name);
void work_told_made(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name);
void work_told_create(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name,
		      struct fuse_file_info *fi);
void work_told_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void work_told_attr(struct fsd *f, fuse_req_t req, fuse_ino_t ino);

/* ---- work_attr.c ----------------------------------------------------------------------------- */

int work_statx(int fd, struct stat *st, struct work_identity *ret);
/* What may be seen of a backing file. Of a link, also the length of what is shown. */
int work_present(struct work_node *n, struct stat *st);
double work_attr_time(const struct work *w);
double work_entry_time(const struct work *w);
/* How long the kernel may believe that a name is not there. */
double work_absent_time(const struct work *w);
struct work_path {
	char s[32];
};
/* The name under which a descriptor of ours can be used where the system wants a path. */
struct work_path work_path(int fd);

/* The number that is shown; the same each time. */
uint64_t work_number(dev_t dev, ino_t ino);

/* ---- work_file.c ----------------------------------------------------------------------------- */

/* Makes the handle of an open file or directory; takes fd, also on failure. -errno. */
int work_opened(struct fsd *f, fuse_req_t req, struct work_node *n, int fd,
		struct fuse_file_info *fi);
/* The descriptor of a handle that may write; -1. */
int work_handle_fd(const struct handle *h);

/* ---- work_size.c: how much is in it ---------------------------------------------------------- */

/* May n grow by this many bytes? They are put on the account. */
bool work_take(struct work_node *n, int64_t bytes);
void work_give(struct work_node *n, int64_t bytes);
int64_t work_used(struct work *w, int root);

/* ---- work_link.c ----------------------------------------------------------------------------- */

/* What a link with this content shows that is `depth` directories below the root. */
void work_target(const char *target, unsigned depth, struct sbx_buf *out);

#endif
