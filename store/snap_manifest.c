/* SPDX-License-Identifier: Apache-2.0 */
/* A manifest: made in memory, written, mapped again and looked into. What is believed of a mapped
 * one is decided in snap_check.c. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fs.h"
#include "store/snap_i.h"

struct snap *snap_new(void)
{
	struct snap *n = calloc(1, sizeof(*n));

	if (!n)
		return NULL;
	n->strings.limit = n->xattrs.limit = SNAP_TEXT_MAX;
	sbx_buf_add(&n->strings, "", 1); /* the name of the root */
	if (sbx_buf_failed(&n->strings))
		return snap_close(n);
	return n;
}

struct snap *snap_close(struct snap *n)
{
	if (!n)
		return NULL;
	if (n->map_len) {
		(void)munmap(n->map, n->map_len);
	} else if (!n->map) {
		free(n->records);
		sbx_buf_free(&n->strings);
		sbx_buf_free(&n->xattrs);
	}
	free(n);
	return NULL;
}

int snap_room(struct snap *n, uint32_t more, struct sbx_error *e)
{
	struct snap_record *p;
	uint64_t size = n->size;

	if (n->n + (uint64_t)more > SNAP_RECORDS_MAX)
		return sbx_fail(e, SBX_E_WORKSPACE_CAP, "the tree has more than %d entries",
				SNAP_RECORDS_MAX);
	if (n->n + more <= n->size)
		return 0;
	while (size < n->n + (uint64_t)more)
		size += size / 2 + 64;
	p = reallocarray(n->records, size, sizeof(*p));
	if (!p)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a list of %u entries",
				n->n + more);
	n->records = p;
	n->size = (uint32_t)size;
	return 0;
}

int snap_string(struct snap *n, const char *text, size_t len, uint32_t *ret, struct sbx_error *e)
{
	size_t at = n->strings.len;
	char *p = sbx_buf_reserve(&n->strings, len + 1);

	if (!p && at + len >= SNAP_TEXT_MAX)
		return sbx_fail(e, SBX_E_WORKSPACE_CAP, "the tree's names have more than %d bytes",
				SNAP_TEXT_MAX);
	if (!p)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the names of a tree");
	memcpy(p, text, len);
	p[len] = '\0';
	n->strings.len += len + 1;
	*ret = (uint32_t)at;
	return 0;
}

int snap_compare(const char *a, size_t a_len, const char *b, size_t b_len)
{
	int r = memcmp(a, b, a_len < b_len ? a_len : b_len);

	return r ? r : (a_len > b_len) - (a_len < b_len);
}

void snap_hash_hex(const uint8_t hash[SNAP_HASH_LEN], char out[65])
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < SNAP_HASH_LEN; i++) {
		out[2 * i] = digits[hash[i] >> 4];
		out[2 * i + 1] = digits[hash[i] & 15];
	}
	out[64] = '\0';
}

const char *snap_where(const struct snap *n, uint32_t i, char *buf, size_t size)
{
	size_t at = size - 1;

	buf[at] = '\0';
	for (; i; i = n->records[i].parent) {
		size_t len = n->records[i].name_len, slash = buf[at] != '\0';

		if (len + slash + 3 > at) {
			at -= 3;
			memcpy(buf + at, "...", 3);
			break;
		}
		if (slash)
			buf[--at] = '/';
		at -= len;
		memcpy(buf + at, snap_name(n, i), len);
	}
	return buf[at] ? buf + at : ".";
}

/* ---- writing --------------------------------------------------------------------------------- */

struct part {
	const void *data;
	size_t len;
};

static bool digest_of(const struct part *parts, size_t n, uint8_t out[SNAP_HASH_LEN])
{
	EVP_MD_CTX *ctx = EVP_MD_CTX_new();
	bool ok = ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1;

	for (size_t i = 0; ok && i < n; i++)
		ok = EVP_DigestUpdate(ctx, parts[i].data, parts[i].len) == 1;
	ok = ok && EVP_DigestFinal_ex(ctx, out, NULL) == 1;
	EVP_MD_CTX_free(ctx);
	return ok;
}

int snap_write(struct snap *n, int fd, char digest[72], struct sbx_error *e)
{
	uint8_t hash[SNAP_HASH_LEN];
	struct part parts[] = {
		{ &n->head, sizeof(n->head) },
		{ n->records, n->n * sizeof(*n->records) },
		{ n->strings.data, n->strings.len },
		{ n->xattrs.data, n->xattrs.len },
		{ hash, sizeof(hash) },
	};
	int r = 0;

	n->head.magic = SNAP_MAGIC;
	n->head.version = SNAP_VERSION;
	n->head.record_size = sizeof(*n->records);
	n->head.records = n->n;
	n->head.strings = (uint32_t)n->strings.len;
	n->head.xattrs = (uint32_t)n->xattrs.len;
	if (!digest_of(parts, SBX_COUNT(parts) - 1, hash))
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory to hash a manifest");
	for (size_t i = 0; r == 0 && i < SBX_COUNT(parts); i++)
		r = sbx_write_all(fd, parts[i].data, parts[i].len);
	if (r < 0)
		return snap_storage(e, -r, "write a manifest");
	memcpy(digest, "sha256:", 7);
	snap_hash_hex(hash, digest + 7);
	return 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

static const char *take_apart(struct snap *n, char *data, size_t len, bool trusting)
{
	uint8_t hash[SNAP_HASH_LEN];
	uint64_t want;

	if (len < sizeof(n->head) + SNAP_HASH_LEN)
		return "it is too short";
	memcpy(&n->head, data, sizeof(n->head));
	if (n->head.magic != SNAP_MAGIC)
		return "it is not one";
	if (n->head.version != SNAP_VERSION || n->head.record_size != sizeof(*n->records))
		return "its version is not known";
	if (n->head.records == 0 || n->head.records > SNAP_RECORDS_MAX)
		return "its number of entries is wrong";
	want = sizeof(n->head) + (uint64_t)n->head.records * sizeof(*n->records) + n->head.strings +
	       n->head.xattrs + SNAP_HASH_LEN;
	if (want != len)
		return "its length is wrong";
	if (!trusting && !digest_of(&(struct part){ data, len - SNAP_HASH_LEN }, 1, hash))
		return "there is no memory to check it";
	if (!trusting && memcmp(hash, data + len - SNAP_HASH_LEN, SNAP_HASH_LEN) != 0)
		return "its hash is another";
	n->n = n->size = n->head.records;
	n->records = (struct snap_record *)(void *)(data + sizeof(n->head));
	n->strings.data = (char *)(n->records + n->n);
	n->strings.len = n->head.strings;
	n->xattrs.data = n->strings.data + n->strings.len;
	n->xattrs.len = n->head.xattrs;
	return snap_check(n);
}

int snap_from_bytes(void *data, size_t len, bool trusting, struct snap **ret, struct sbx_error *e)
{
	snap_auto struct snap *n = calloc(1, sizeof(*n));
	const char *wrong;

	if (!n)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a snapshot");
	n->map = data;
	wrong = take_apart(n, data, len, trusting);
	if (wrong)
		return sbx_fail(e, SBX_E_STORE_UNAVAILABLE, "the manifest is damaged: %s", wrong);
	*ret = sbx_steal(&n);
	return 0;
}

int snap_open(struct store *s, const char *id, struct snap **ret, struct sbx_error *e)
{
	sbx_autoclose int dir = -1, fd = -1;
	struct stat st;
	void *map;
	int r;

	if (!id || !sbx_id_valid(id))
		return sbx_fail(e, SBX_E_SNAPSHOT_NOT_FOUND, "no such snapshot");
	dir = snap_dir(s, SNAP_DIR_MANIFESTS, false);
	fd = dir < 0 ? dir : sbx_open_beneath(dir, id, O_RDONLY, 0);
	if (fd == -ENOENT)
		return sbx_fail(e, SBX_E_SNAPSHOT_NOT_FOUND, "snapshot '%s' has no manifest", id);
	if (fd < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -fd,
				      "cannot open the manifest of snapshot '%s'", id);
	if (fstat(fd, &st) < 0 || st.st_size <= 0)
		return sbx_fail(e, SBX_E_STORE_UNAVAILABLE,
				"snapshot '%s': the manifest is damaged: it is empty", id);
	map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
	if (map == MAP_FAILED)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
				      "cannot map the manifest of snapshot '%s'", id);
	r = snap_from_bytes(map, (size_t)st.st_size, false, ret, e);
	if (r < 0) {
		(void)munmap(map, (size_t)st.st_size);
		return sbx_error_wrap(e, r, "snapshot '%s'", id);
	}
	(*ret)->map_len = (size_t)st.st_size;
	return 0;
}

uint32_t snap_count(const struct snap *n)
{
	return n->n;
}

bool snap_entry(const struct snap *n, uint32_t index, struct snap_entry *ret)
{
	const struct snap_record *r;

	if (index >= n->n)
		return false;
	r = &n->records[index];
	*ret = (struct snap_entry){
		.index = index,
		.parent = r->parent,
		.name = snap_name(n, index),
		.mode = r->mode,
		.size = r->size,
		.mtime = { .tv_sec = r->mtime_sec, .tv_nsec = r->mtime_nsec },
		.target = S_ISLNK(r->mode) ? snap_target(n, index) : NULL,
		.children = S_ISDIR(r->mode) ? r->count : 0,
		.first_child = S_ISDIR(r->mode) ? r->first : 0,
		.links = S_ISREG(r->mode) ? r->count : 1,
	};
	memcpy(ret->hash, r->hash, sizeof(ret->hash));
	return true;
}

bool snap_child(const struct snap *n, uint32_t dir, const char *name, struct snap_entry *ret)
{
	size_t len = strlen(name);
	uint32_t low, high;

	if (dir >= n->n || !S_ISDIR(n->records[dir].mode))
		return false;
	low = n->records[dir].first;
	high = low + n->records[dir].count;
	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		int r = snap_compare(snap_name(n, mid), n->records[mid].name_len, name, len);

		if (r == 0)
			return snap_entry(n, mid, ret);
		if (r < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return false;
}
