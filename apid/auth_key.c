/* SPDX-License-Identifier: Apache-2.0 */
/* The API key: of the settings, or in a file of the state directory that is made at first start. */
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apid/auth_i.h"
#include "base/fs.h"
#include "base/id.h"

#define KEY_FILE "api.key"

enum { KEY_BYTES = 32, KEY_DIGITS = 2 * KEY_BYTES, KEY_FILE_MAX = 4096 };

void auth_digest(const void *data, size_t len, unsigned char ret[AUTH_DIGEST])
{
	(void)SHA256(data, len, ret);
}

static int refuse_file(struct sbx_error *e, const char *problem)
{
	return sbx_fail(e, SBX_E_INVALID_CONFIG, KEY_FILE " in the state directory %s", problem);
}

/* The line in the file; no space around it. */
static int digest_of_text(const char *text, size_t len, unsigned char ret[AUTH_DIGEST],
			  struct sbx_error *e)
{
	while (len && (text[len - 1] == '\n' || text[len - 1] == '\r' || text[len - 1] == ' '))
		len--;
	if (len < AUTH_API_KEY_LEAST)
		return refuse_file(e, "holds fewer than 16 characters");
	for (size_t i = 0; i < len; i++)
		if (text[i] <= ' ' || text[i] > '~')
			return refuse_file(e, "must be one line of printable ASCII without spaces");
	auth_digest(text, len, ret);
	return 0;
}

static int read_key(int dirfd, unsigned char ret[AUTH_DIGEST], bool *ret_absent,
		    struct sbx_error *e)
{
	sbx_autoclose int fd =
		openat(dirfd, KEY_FILE, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	char text[KEY_FILE_MAX + 1];
	struct stat st;
	ssize_t n;
	int rc;

	*ret_absent = fd < 0 && errno == ENOENT;
	if (*ret_absent)
		return 0;
	if (fd < 0 || fstat(fd, &st) < 0)
		return sbx_fail_errno(e, SBX_E_INVALID_CONFIG, errno,
				      KEY_FILE " in the state directory");
	if (!S_ISREG(st.st_mode))
		return refuse_file(e, "is no regular file");
	/* A group may be meant to read it. */
	if (st.st_mode & (S_IWGRP | S_IRWXO))
		return refuse_file(e, "can be read or written by others; chmod 0600 it");
	n = sbx_read_full(fd, text, sizeof(text));
	if (n < 0)
		return sbx_fail_errno(e, SBX_E_INVALID_CONFIG, (int)-n,
				      KEY_FILE " in the state directory");
	rc = n > KEY_FILE_MAX ? refuse_file(e, "is longer than 4096 bytes")
			      : digest_of_text(text, (size_t)n, ret, e);
	OPENSSL_cleanse(text, sizeof(text));
	return rc;
}

/* Two doors may start at once: the first link wins, and the other reads that one. */
static int make_key(int dirfd, struct sbx_error *e)
{
	unsigned char random[KEY_BYTES];
	char line[KEY_DIGITS + 2], name[64];
	int r, err = 0;

	sbx_random(random, sizeof(random));
	for (size_t i = 0; i < sizeof(random); i++)
		(void)snprintf(line + 2 * i, 3, "%02x", random[i]);
	line[KEY_DIGITS] = '\n';
	(void)snprintf(name, sizeof(name), "." KEY_FILE ".%d", (int)gettid());
	r = sbx_replace_file(dirfd, name, line, KEY_DIGITS + 1, 0600);
	if (r == 0) {
		if (linkat(dirfd, name, dirfd, KEY_FILE, 0) < 0 && errno != EEXIST)
			err = errno;
		(void)unlinkat(dirfd, name, 0);
		if (!err && fsync(dirfd) < 0)
			err = errno;
	}
	OPENSSL_cleanse(random, sizeof(random));
	OPENSSL_cleanse(line, sizeof(line));
	if (r == 0 && !err)
		return 0;
	return sbx_fail_errno(e, SBX_E_INVALID_CONFIG, r < 0 ? -r : err,
			      "cannot make " KEY_FILE " in the state directory; "
			      "single_user_api_key or auth_mode=multi_user need none");
}

int auth_key_load(const struct orch_settings *st, int dirfd, unsigned char ret[AUTH_DIGEST],
		  struct sbx_error *e)
{
	bool absent;
	int rc;

	if (st->single_user_api_key) {
		auth_digest(st->single_user_api_key, strlen(st->single_user_api_key), ret);
		return 0;
	}
	rc = read_key(dirfd, ret, &absent, e);
	if (rc < 0 || !absent)
		return rc;
	rc = make_key(dirfd, e);
	if (rc == 0)
		rc = read_key(dirfd, ret, &absent, e);
	return rc == 0 && absent ? refuse_file(e, "disappeared while it was made") : rc;
}
