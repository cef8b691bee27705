/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floor of a file system in user space: a server that keeps nothing and answers everything at
 * once, with as few requests as the kernel lets it have. What a program takes on it, it takes on
 * any.
 *   fuse_floor MOUNTPOINT    prints "ready", serves until SIGTERM or umount
 */
#define FUSE_USE_VERSION 314
#include <errno.h>
#include <fuse_lowlevel.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define FOREVER 86400.0

static _Atomic fuse_ino_t next = 2;

/* Directories have odd numbers, as the root has. */
static struct stat attr_of(fuse_ino_t ino)
{
	return (struct stat){
		.st_ino = ino,
		.st_nlink = 1,
		.st_blksize = 4096,
		.st_mode = ino & 1 ? S_IFDIR | 0755 : S_IFREG | 0644,
	};
}

static struct fuse_entry_param new_entry(bool is_dir)
{
	struct fuse_entry_param e = { .entry_timeout = FOREVER, .attr_timeout = FOREVER };

	e.ino = atomic_fetch_add(&next, 2) + (is_dir ? 1 : 0);
	e.attr = attr_of(e.ino);
	return e;
}

/* That there is no such name may be believed until it is made. */
static void do_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	const struct fuse_entry_param none = { .entry_timeout = FOREVER };

	(void)parent;
	(void)name;
	fuse_reply_entry(req, &none);
}

static void do_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st = attr_of(ino);

	(void)fi;
	fuse_reply_attr(req, &st, FOREVER);
}

static void do_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *wanted, int what,
		       struct fuse_file_info *fi)
{
	(void)wanted;
	(void)what;
	do_getattr(req, ino, fi);
}

static void do_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct fuse_entry_param e = new_entry(true);

	(void)parent;
	(void)name;
	(void)mode;
	fuse_reply_entry(req, &e);
}

static void do_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		      struct fuse_file_info *fi)
{
	struct fuse_entry_param e = new_entry(false);

	(void)parent;
	(void)name;
	(void)mode;
	fi->noflush = 1;
	fuse_reply_create(req, &e, fi);
}

static void do_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t len, off_t off,
		     struct fuse_file_info *fi)
{
	(void)ino;
	(void)data;
	(void)off;
	(void)fi;
	fuse_reply_write(req, len);
}

static void do_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	(void)fi;
	fuse_reply_err(req, 0);
}

static void do_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	(void)ino;
	(void)name;
	(void)size;
	fuse_reply_err(req, ENODATA);
}

int main(int argc, char **argv)
{
	static const struct fuse_lowlevel_ops ops = {
		.lookup = do_lookup,
		.getattr = do_getattr,
		.setattr = do_setattr,
		.mkdir = do_mkdir,
		.create = do_create,
		.write = do_write,
		.release = do_release,
		.getxattr = do_getxattr,
	};
	char name[] = "fuse_floor", dash_o[] = "-o", options[] = "default_permissions";
	char *args[] = { name, dash_o, options, NULL };
	struct fuse_args fa = FUSE_ARGS_INIT(3, args);
	struct fuse_session *se;
	struct fuse_loop_config *config;
	int r;

	if (argc != 2) {
		(void)fprintf(stderr, "usage: fuse_floor MOUNTPOINT\n");
		return 2;
	}
	se = fuse_session_new(&fa, &ops, sizeof(ops), NULL);
	config = fuse_loop_cfg_create();
	if (!se || !config || fuse_set_signal_handlers(se) < 0 ||
	    fuse_session_mount(se, argv[1]) < 0)
		return 1;
	(void)printf("ready\n");
	(void)fflush(stdout);
	r = fuse_session_loop_mt(se, config);
	fuse_session_unmount(se);
	fuse_remove_signal_handlers(se);
	fuse_loop_cfg_destroy(config);
	fuse_session_destroy(se);
	fuse_opt_free_args(&fa);
	return r < 0 ? 1 : 0;
}
