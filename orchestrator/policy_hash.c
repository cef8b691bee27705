/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hash that says whether two runs were made under the same configuration. The text that is
 * hashed is the reference's byte for byte (keys sorted, no spaces), so that the same values give
 * the same hash there and here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/sha.h>

#include "base/auto.h"
#include "base/json.h"
#include "orchestrator/policy_i.h"

enum { VERSIONS_MAX = 16, HASH_TEXT_MAX = 8192 };

static size_t count(const char *commas)
{
	size_t n = commas && *commas;

	for (; commas && *commas; commas++)
		n += *commas == ',';
	return n;
}

static int compare(const void *a, const void *b)
{
	const char *x, *y;

	memcpy(&x, a, sizeof(x));
	memcpy(&y, b, sizeof(y));
	return strcmp(x, y);
}

static void add_versions(struct sbx_buf *b, const char *commas)
{
	sbx_autofree char *copy = strdup(commas);
	const char *items[VERSIONS_MAX];
	char *rest = copy, *word;
	size_t n = 0;

	while (rest && n < VERSIONS_MAX && (word = strsep(&rest, ",")))
		items[n++] = word;
	qsort(items, n, sizeof(items[0]), compare);
	b->failed |= !copy;
	orch_json_strings(b, items, n);
}

static void add_text(struct sbx_buf *b, const struct orch_settings *s)
{
	sbx_buf_printf(b, "{\"artifact_ttl_hours\":%lld,\"default_runtime\":",
		       (long long)s->artifact_ttl_hours);
	sbx_buf_json_strz(b, s->default_runtime);
	sbx_buf_printf(b,
		       ",\"egress\":{\"allowlist_count\":%zu,\"enforced\":%s}"
		       ",\"max_artifact_file_bytes\":%lld,\"max_artifact_total_bytes\":%lld"
		       ",\"max_cpu\":",
		       count(s->egress_allowlist), s->egress_enforcement ? "true" : "false",
		       (long long)s->max_artifact_file_bytes,
		       (long long)s->max_artifact_total_bytes);
	sbx_json_double(b, s->max_cpu);
	sbx_buf_printf(b,
		       ",\"max_log_bytes\":%lld,\"max_mem_mb\":%lld,\"max_upload_mb\":%lld"
		       ",\"network_default\":",
		       (long long)s->max_log_bytes, (long long)s->max_mem_mb,
		       (long long)s->max_upload_mb);
	sbx_buf_json_strz(b, s->network_default);
	sbx_buf_printf(b,
		       ",\"pids_limit\":%lld,\"security\":{\"docker_apparmor\":%s"
		       ",\"docker_seccomp\":%s,\"ulimit_nofile\":%lld,\"ulimit_nproc\":%lld}"
		       ",\"supported_spec_versions\":",
		       (long long)s->pids_limit, s->docker_apparmor_profile ? "true" : "false",
		       s->docker_seccomp ? "true" : "false", (long long)s->ulimit_nofile,
		       (long long)s->ulimit_nproc);
	add_versions(b, s->supported_spec_versions);
	sbx_buf_printf(b, ",\"workspace_cap_mb\":%lld}", (long long)s->workspace_cap_mb);
}

void orch_policy_hash(const struct orch_settings *settings, char out[17])
{
	sbx_autobuf text = SBX_BUF_INIT(HASH_TEXT_MAX);
	unsigned char digest[SHA256_DIGEST_LENGTH];

	add_text(&text, settings);
	/* 8 KiB hold every text that these settings can make; only memory can be short. No hash is
	 * then better than a wrong one. */
	if (sbx_buf_failed(&text)) {
		out[0] = '\0';
		return;
	}
	(void)SHA256((const unsigned char *)text.data, text.len, digest);
	for (size_t i = 0; i < 8; i++)
		(void)snprintf(out + 2 * i, 3, "%02x", digest[i]);
}
