/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of an upload that knows no session: parts are staged in one directory, then archives are
 * unpacked and everything is renamed into another. No link is followed in either, and a run may
 * write to the second one meanwhile.
 *
 * Not thread-safe.
 */
#ifndef SBX_ORCHESTRATOR_INTAKE_H
#define SBX_ORCHESTRATOR_INTAKE_H

#include "base/auto.h"
#include "base/buf.h"
#include "base/error.h"

struct intake;

struct intake_options {
	int stage, target; /* directories on one file system; borrowed. stage is empty, and the
			      caller's to remove */
	int64_t used, cap; /* bytes in target now, and that it may have */
	uid_t uid;	   /* owner of what comes in; -1: as it is */
	gid_t gid;
	/* Asked for `used` again before anything is put in place; NULL: it stays. */
	int (*measure)(void *ctx, int64_t *ret, struct sbx_error *e);
	void *ctx;
};
int intake_new(const struct intake_options *opts, struct intake **ret, struct sbx_error *e);
struct intake *intake_free(struct intake *in); /* NULL is fine; returns NULL */
SBX_DEFINE_AUTO(struct intake, intake_free)

/* As upload_file, upload_data and upload_commit. After WORKSPACE_CAP of intake_data the files
 * before can be committed. */
int intake_file(struct intake *in, const char *name, struct sbx_error *e);
int intake_data(struct intake *in, const void *data, size_t len, struct sbx_error *e);
int intake_commit(struct intake *in, struct sbx_error *e);

/* "bytes_received":...,"file_count":...,"skipped":[...],"skipped_count":... without the braces. */
void intake_view(const struct intake *in, struct sbx_buf *out);
int64_t intake_bytes(const struct intake *in);
int64_t intake_files(const struct intake *in);

#endif
