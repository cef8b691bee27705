/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes as an archive: what an upload unpacks, a layer of an image, a snapshot. The
 * first byte says which. Never a crash; what is there is what was counted, within the limits, of
 * the kinds that are kept; and nothing is outside.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"
#include "orchestrator/images_i.h"
#include "orchestrator/unpack.h"

enum { BYTES_MAX = 1 << 20, ENTRIES_MAX = 10000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	(void)fprintf(stderr, "fuzz_archive: broken: %s\n", what);
	abort();
}

static char base[] = "/tmp/sbx-fuzz-archive-XXXXXX";

static void remove_base(void)
{
	(void)sbx_remove_tree(AT_FDCWD, base);
}

/* <base>/in holds what is unpacked into; <base> must have nothing else but that. */
static int make_place(void)
{
	static int fd = -1;

	if (fd < 0) {
		must(mkdtemp(base) != NULL, "mkdtemp");
		(void)atexit(remove_base);
		fd = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	}
	must(sbx_remove_tree(fd, "in") == 0 && mkdirat(fd, "in", 0700) == 0, "mkdir");
	return fd;
}

struct sums {
	int64_t bytes, files, links, outside;
};

static void sum(int at, struct sums *s, int depth)
{
	int own = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fdopendir(own);
	const struct dirent *de;
	struct stat st;

	must(d != NULL, "a directory that can be read");
	while ((de = readdir(d))) {
		if (strcmp(de->d_name, ".") == 0 || strcmp(de->d_name, "..") == 0)
			continue;
		must(fstatat(at, de->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0, "stat");
		must((st.st_mode & 06000) == 0, "no set-user-id");
		if (S_ISDIR(st.st_mode)) {
			sbx_autoclose int fd =
				openat(at, de->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);

			/* By links of its own an image can be deeper than any path. */
			if (depth < ORCH_ARCHIVE_DEPTH_MAX)
				sum(fd, s, depth + 1);
			continue;
		}
		must(S_ISREG(st.st_mode) || S_ISLNK(st.st_mode), "no devices");
		s->files += S_ISREG(st.st_mode);
		s->links += S_ISLNK(st.st_mode);
		s->bytes += S_ISREG(st.st_mode) && st.st_nlink == 1 ? st.st_size : 0;
	}
	(void)closedir(d);
}

static void as_upload(int fd, int in, enum orch_archive_kind kind)
{
	struct sums s = { 0 };
	struct orch_unpack u = { .uid = (uid_t)-1, .gid = (gid_t)-1, .max_bytes = BYTES_MAX };

	must(mkdirat(in, "dir", 0700) == 0 && mkdirat(in, "spare", 0700) == 0, "mkdir");
	u.dir = openat(in, "dir", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	u.spare = openat(in, "spare", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	(void)orch_unpack(fd, kind, &u, NULL);
	sum(u.dir, &s, 0);
	must(s.bytes == u.bytes && s.files == u.files && s.links == 0, "what was counted is there");
	must(s.bytes <= BYTES_MAX, "the limit holds");
	must(unlinkat(in, "spare", AT_REMOVEDIR) == 0, "no half of a file is left");
	(void)close(u.dir);
	(void)close(u.spare);
}

static void as_layers(int fd, int in)
{
	struct image_budget b = { ENTRIES_MAX, BYTES_MAX };
	struct sums s = { 0 };

	if (image_layer_apply(fd, in, NULL, true, &b, NULL) == 0) {
		must(b.bytes >= 0 && b.entries >= 0, "the budget holds");
		(void)image_layer_apply(fd, in, NULL, false, &b, NULL);
	}
	sum(in, &s, 0);
	must(s.bytes <= BYTES_MAX, "the limit holds");
}

static void as_snapshot(int fd, int in)
{
	const struct orch_archive_limits limits = { .entries = ENTRIES_MAX, .bytes = BYTES_MAX };
	struct sums s = { 0 };

	/* Its directories keep their modes, which only root can look through. */
	if (geteuid() != 0)
		return;
	(void)orch_unpack_tree(fd, in, &limits, NULL);
	sum(in, &s, 0);
	must(s.bytes <= BYTES_MAX, "the limit holds");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	sbx_autoclose int in = -1, fd = memfd_create("fuzz", MFD_CLOEXEC);
	int place = make_place();
	struct sums s = { 0 };

	if (size < 1)
		return 0;
	must(fd >= 0 && sbx_write_all(fd, data + 1, size - 1) == 0, "memfd");
	in = openat(place, "in", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	switch (data[0] % 4) {
	case 0:
		as_upload(fd, in, ORCH_ARCHIVE_TAR);
		break;
	case 1:
		as_upload(fd, in, ORCH_ARCHIVE_ZIP);
		break;
	case 2:
		as_layers(fd, in);
		break;
	default:
		as_snapshot(fd, in);
		break;
	}
	must(sbx_remove_tree(place, "in") == 0, "it can be removed");
	sum(place, &s, 0);
	must(s.files == 0 && s.links == 0, "nothing is outside");
	return 0;
}
