/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A main for fuzz targets without a fuzzer: runs every file that is given, or that is in a
 * directory that is given, so that a corpus is a regression test with any compiler.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/auto.h"
#include "base/fs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 32 << 20 };

static int run_file(int dirfd, const char *name)
{
	sbx_autofree char *text = NULL;
	sbx_autofree uint8_t *exact = NULL;
	size_t len;
	int rc = sbx_read_file(dirfd, name, INPUT_MAX, &text, &len);

	if (rc < 0) {
		(void)fprintf(stderr, "%s: %s\n", name, strerror(-rc));
		return rc;
	}
	/* Without the NUL behind it, so that a sanitizer sees the first byte read too far. */
	exact = malloc(len ? len : 1);
	if (!exact)
		return -ENOMEM;
	memcpy(exact, text, len);
	(void)LLVMFuzzerTestOneInput(exact, len);
	return 0;
}

static int run_directory(const char *path, size_t *runs)
{
	DIR *dir = opendir(path);
	const struct dirent *entry;
	int rc = 0;

	if (!dir)
		return -errno;
	while (rc == 0 && (entry = readdir(dir)) != NULL) {
		if (entry->d_name[0] == '.')
			continue;
		rc = run_file(dirfd(dir), entry->d_name);
		(*runs)++;
	}
	(void)closedir(dir);
	return rc;
}

int main(int argc, char **argv)
{
	size_t runs = 0;
	struct stat st;
	int rc = 0;

	for (int i = 1; i < argc && rc == 0; i++) {
		if (stat(argv[i], &st) < 0) {
			perror(argv[i]);
			return 1;
		}
		if (S_ISDIR(st.st_mode)) {
			rc = run_directory(argv[i], &runs);
		} else {
			rc = run_file(AT_FDCWD, argv[i]);
			runs++;
		}
	}
	(void)printf("%zu inputs\n", runs);
	return rc < 0 || runs == 0 ? 1 : 0;
}
