/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes as the tar that comes out of git's sandbox, as they are and with their headers'
 * sums made right: never a crash, and what is taken has clean paths, lies in the input, and is no
 * more than allowed.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fs.h"
#include "runtimes/worktree/wt_i.h"

enum { BLOCK = 512, FILES_MAX = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	(void)fprintf(stderr, "fuzz_tar: broken: %s\n", what);
	abort();
}

static void check_file(const struct rt_file *f, const uint8_t *data, size_t size)
{
	const uint8_t *at = f->data;

	must(!sbx_path_problem(f->path, strlen(f->path)), "a path is clean");
	if (S_ISDIR(f->mode)) {
		must(f->len == 0, "a directory has no content");
	} else if (S_ISLNK(f->mode)) {
		must(f->len > 0 && f->len == strlen(f->data), "a link has a target");
	} else {
		must(f->mode == 0644 || f->mode == 0755, "a file has plain permissions");
		must(at >= data && f->len <= size && at + f->len <= data + size,
		     "a file lies in the input");
	}
}

static void check(const uint8_t *data, size_t size)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	struct wt_tree t;
	int r = wt_tar_read(data, size, FILES_MAX, &t, &e);

	if (r < 0) {
		must(t.n == 0 && !t.list, "nothing is left of what was refused");
		must(e.message[0] != '\0', "a refusal says why");
		return;
	}
	must(t.n <= FILES_MAX, "no more than allowed");
	for (size_t i = 0; i < t.n; i++)
		check_file(&t.list[i], data, size);
	wt_tree_clear(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	sbx_autofree uint8_t *copy = malloc(size ? size : 1);

	check(data, size);
	must(copy != NULL, "memory");
	memcpy(copy, data, size);
	/* Every block that could be a header gets its sum. */
	for (size_t at = 0; at + BLOCK <= size; at += BLOCK) {
		unsigned sum = 0;
		char text[8];

		memset(copy + at + 148, ' ', 8);
		for (size_t i = 0; i < BLOCK; i++)
			sum += copy[at + i];
		if (sum == 8 * ' ') { /* the end stays one */
			memset(copy + at + 148, 0, 8);
			continue;
		}
		(void)snprintf(text, sizeof(text), "%06o", sum);
		memcpy(copy + at + 148, text, 8);
	}
	check(copy, size);
	return 0;
}
