/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files from outside into a workspace: plain ones, and archives that are unpacked. All of it is
 * staged in a directory beside the workspace, checked, and renamed in. A part that is refused
 * leaves nothing behind, and neither does what follows it; the parts before it stay, as with the
 * reference. What comes is hostile: names that climb out, links, devices, names twice, ratio bombs,
 * a million entries, bad headers. No link in the workspace is followed.
 *
 * Not thread-safe: one upload belongs to one thread at a time.
 */
#ifndef SBX_ORCHESTRATOR_UPLOAD_H
#define SBX_ORCHESTRATOR_UPLOAD_H

#include "orchestrator/sessions.h"

struct upload;

/* Takes the workspace's lock shared until upload_free. SESSION_NOT_FOUND, also for one that is
 * being destroyed; SESSION_ACTIVE_RUNS when the lock is not to be had in time. */
int upload_begin(struct orch *o, const struct orch_principal *p, const char *session_id,
		 struct upload **ret, struct sbx_error *e);
/* A file named so by the client; NULL or "": file_N. Its bytes follow by upload_data. WORKSPACE_CAP
 * as soon as what has come cannot fit (a commit then puts the files before it in place, and nothing
 * more can be added), STORAGE_FULL, SPEC_TOO_LARGE (too many files). */
int upload_file(struct upload *u, const char *name, struct sbx_error *e);
int upload_data(struct upload *u, const void *data, size_t len, struct sbx_error *e);
/* Unpacks the archives and renames everything in. Waits for the disk, maybe long. */
int upload_commit(struct upload *u, struct sbx_error *e);
/* After a commit:
 * {"session_id","bytes_received","file_count","skipped":[{"path","reason"}...],"skipped_count"}. */
void upload_view(const struct upload *u, struct sbx_buf *out);
struct upload *
upload_free(struct upload *u); /* NULL is fine; drops what was not committed; returns NULL */
SBX_DEFINE_AUTO(struct upload, upload_free)

#endif
