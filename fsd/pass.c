/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passthrough: the kernel reads an open file from the one behind it, and asks us no more. It needs
 * libfuse 3.17, Linux 6.9 and CAP_SYS_ADMIN; elsewhere contents are spliced as before.
 *
 * The kernel wants all that have one file open at a time to have it open in one way. So there is an
 * entry for each open file here, and the first to open it decides. Who only reads passes through.
 * Who writes does not, for a workspace has a limit that is counted at each write: when such an open
 * is the first, the file is cached by the kernel as ever, for readers too; and when readers have it
 * already, its reads and writes come to us and only its mappings pass through.
 */
#include "fsd/fsd_i.h"

#include <errno.h>
#include <linux/fuse.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "base/log.h"

enum { PASS_BUCKETS = 256 };

struct pass {
	struct pass *next;
	fuse_ino_t ino;
	unsigned users;
	int id; /* of the file behind it, known to the kernel; 0: it is cached */
};

struct passes {
	pthread_mutex_t lock;
	bool on; /* never again once the kernel has refused */
	struct pass *buckets[PASS_BUCKETS];
};

/* ---- the kernel's part ----------------------------------------------------------------------- */

#ifdef SBX_PASSTHROUGH

void pass_init(struct fuse_conn_info *conn)
{
	if (conn->capable & FUSE_CAP_PASSTHROUGH)
		conn->want |= FUSE_CAP_PASSTHROUGH;
}

static int backing_open(struct fsd *f, int fd)
{
	struct fuse_backing_map map = { .fd = fd };
	int id = ioctl(fuse_session_fd(f->se), FUSE_DEV_IOC_BACKING_OPEN, &map);

	return id > 0 ? id : 0;
}

static void backing_close(struct fsd *f, int id)
{
	uint32_t arg = (uint32_t)id;

	if (ioctl(fuse_session_fd(f->se), FUSE_DEV_IOC_BACKING_CLOSE, &arg) < 0 && errno != ENODEV)
		sbx_log(SBX_LOG_WARNING, "a file cannot be taken back from the kernel error=\"%s\"",
			strerror(errno));
}

/* With passthrough only some of the other flags are allowed. */
static void set_id(struct fuse_file_info *fi, int id, bool writes)
{
	fi->backing_id = id;
	fi->keep_cache = 0;
	fi->direct_io = writes;
}

#else

void pass_init(struct fuse_conn_info *conn)
{
	(void)conn;
}

static int backing_open(struct fsd *f, int fd)
{
	(void)f;
	(void)fd;
	return 0;
}

static void backing_close(struct fsd *f, int id)
{
	(void)f;
	(void)id;
}

static void set_id(struct fuse_file_info *fi, int id, bool writes)
{
	(void)fi;
	(void)id;
	(void)writes;
}

#endif

/* ---- open files ------------------------------------------------------------------------------ */

struct passes *pass_new(void)
{
	struct passes *p = calloc(1, sizeof(*p));

	if (p)
		pthread_mutex_init(&p->lock, NULL);
	return p;
}

void pass_free(struct passes *p)
{
	if (!p)
		return;
	for (size_t i = 0; i < PASS_BUCKETS; i++) {
		struct pass *one;

		while ((one = p->buckets[i])) {
			p->buckets[i] = one->next;
			free(one);
		}
	}
	pthread_mutex_destroy(&p->lock);
	free(p);
}

/* Whether this process may can only be tried: with a file that is nobody's. */
bool pass_start(struct fsd *f)
{
	sbx_autoclose int fd = memfd_create("passthrough", MFD_CLOEXEC);
	int id = fd < 0 ? 0 : backing_open(f, fd);

	if (id)
		backing_close(f, id);
	pthread_mutex_lock(&f->passes->lock);
	f->passes->on = id != 0;
	pthread_mutex_unlock(&f->passes->lock);
	return id != 0;
}

static struct pass **bucket_of(struct passes *p, fuse_ino_t ino)
{
	return &p->buckets[(ino * UINT64_C(0x9e3779b97f4a7c15)) >> 56];
}

/* Under the lock. NULL: no memory. */
static struct pass *enter(struct fsd *f, fuse_ino_t ino, int fd, bool writes)
{
	struct pass **at = bucket_of(f->passes, ino), *one;

	for (one = *at; one && one->ino != ino;)
		one = one->next;
	if (!one) {
		one = calloc(1, sizeof(*one));
		if (!one)
			return NULL;
		one->ino = ino;
		one->id = f->passes->on && fd >= 0 && !writes ? backing_open(f, fd) : 0;
		one->next = *at;
		*at = one;
	}
	one->users++;
	return one;
}

int pass_open(struct fsd *f, fuse_ino_t ino, int fd, struct fuse_file_info *fi)
{
	bool writes = fd < 0 || (fi->flags & O_ACCMODE) != O_RDONLY;
	struct pass *one;
	int r;

	pthread_mutex_lock(&f->passes->lock);
	one = enter(f, ino, fd, writes);
	if (one && one->id)
		set_id(fi, one->id, writes);
	r = one ? one->id != 0 : -ENOMEM;
	pthread_mutex_unlock(&f->passes->lock);
	return r;
}

bool pass_close(struct fsd *f, fuse_ino_t ino)
{
	struct pass **at = bucket_of(f->passes, ino), *one;
	bool passed;
	int id = 0;

	pthread_mutex_lock(&f->passes->lock);
	while (*at && (*at)->ino != ino)
		at = &(*at)->next;
	one = *at;
	passed = one && one->id;
	if (one && --one->users == 0) {
		*at = one->next;
		id = one->id;
		free(one);
	}
	pthread_mutex_unlock(&f->passes->lock);
	if (id)
		backing_close(f, id);
	return passed;
}
