/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files below a held directory. A path that came from outside is only ever used through
 * sbx_open_beneath: no absolute path, no "..", no symbolic link is followed (openat2(2)).
 * Functions that return int give 0 (or a descriptor) or a negative errno.
 */
#ifndef SBX_BASE_FS_H
#define SBX_BASE_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	SBX_NAME_MAX = 255,  /* bytes in one name, limits.h NAME_MAX */
	SBX_PATH_MAX = 4095, /* bytes in a path, limits.h PATH_MAX without the NUL */
};

/* NULL when path is a clean relative path (no empty, "." or ".." part, no NUL, no leading or
 * trailing slash, names up to 255 bytes); else what is wrong with it, as a short phrase. */
const char *sbx_path_problem(const char *path, size_t len);

/* openat2 with RESOLVE_BENEATH | NO_SYMLINKS | NO_MAGICLINKS, plus O_CLOEXEC. */
int sbx_open_beneath(int dirfd, const char *path, int flags, mode_t mode);
/* Makes the directories that lead to path (not path itself), each `mode`; existing ones stay. */
int sbx_mkdirs_beneath(int dirfd, const char *path, mode_t mode);
/* The path, from the working directory on when it is relative; malloc'd, NULL with errno set. */
char *sbx_absolute(const char *path);
/* mkdir -p of a trusted path, as given. */
int sbx_mkdirs(const char *path, mode_t mode);

/* Field number `field` (3 and up, as proc_pid_stat(5) counts) of /proc/PID/stat and what follows
 * it, read into `buf`; NULL when there is no such process or field. *ret_dead, if wanted: only its
 * exit status is left. Thread-safe. */
const char *sbx_proc_stat(pid_t pid, int field, char *buf, size_t size, bool *ret_dead);

/* All of it, or a negative errno (EINTR is retried). */
int sbx_write_all(int fd, const void *data, size_t len);
int sbx_pwrite_all(int fd, const void *data, size_t len, off_t off);
/* Up to len bytes until end of file; the number read, or a negative errno. */
ssize_t sbx_read_full(int fd, void *data, size_t len);
ssize_t sbx_pread_full(int fd, void *data, size_t len, off_t off);
/* A whole small file, NUL-terminated, malloc'd; -EFBIG above max. *ret_len may be NULL. */
int sbx_read_file(int dirfd, const char *path, size_t max, char **ret, size_t *ret_len);
/* One write to an existing file, as for /proc and cgroup files. */
int sbx_write_file(int dirfd, const char *path, const char *text);
/* The file appears whole or not at all: temporary name, fsync, rename, fsync of the directory. */
int sbx_replace_file(int dirfd, const char *name, const void *data, size_t len, mode_t mode);
/* Copies len bytes (or until end of file) between descriptors at the given offsets, keeping
 * holes. *ret_copied counts bytes of the result, holes included. */
int sbx_copy_sparse(int from, int to, uint64_t len, uint64_t *ret_copied);

/* The type (DT_*) of an entry of the open directory, also where the file system does not say it in
 * its listing; DT_UNKNOWN: it is gone. */
struct dirent;
unsigned char sbx_entry_type(int dirfd, const struct dirent *d);

/* Removes name below dirfd with everything in it: follows no link, crosses no mount, uses
 * constant stack and a constant number of descriptors for any depth. -ENOENT is success. -EXDEV or
 * -EBUSY: something is mounted in there, or on it; what is behind that is untouched. */
int sbx_remove_tree(int dirfd, const char *name);
/* The same, but -EINTR soon after *stop has become true: what is left can be removed later. */
int sbx_remove_tree_until(int dirfd, const char *name, const _Atomic(bool) *stop);

/* Closes every descriptor from `lowest` up. */
void sbx_close_from(unsigned lowest);

#endif
