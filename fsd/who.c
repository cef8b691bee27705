/* SPDX-License-Identifier: Apache-2.0 */
/* From the caller of a request to a principal, and from names and numbers to runs. */
#include "fsd/fsd_i.h"

#include <errno.h>
#include <string.h>

#include "base/id.h"

void who_is(struct fsd *f, fuse_req_t req, struct orch_principal *ret)
{
	orch_principal_uid(f->orch, fuse_req_ctx(req)->uid, "fs", ret);
}

bool is_kicker(struct fsd *f, fuse_req_t req)
{
	pid_t tid = atomic_load(&f->kicker_tid);

	return tid && fuse_req_ctx(req)->pid == tid;
}

int fsd_errno(const struct sbx_error *e)
{
	return sbx_code_errno(e->code);
}

static int not_found(int rc, const struct sbx_error *e)
{
	return rc == -SBX_E_RUN_NOT_FOUND ? -ENOENT : -fsd_errno(e);
}

int run_by_row(struct fsd *f, fuse_req_t req, int64_t row, struct run_ref *ret)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	sbx_autofree char *user = NULL;
	struct orch_principal p;
	int rc = store_run_key_row(f->store, row, &ret->key, &user, &e);

	if (rc < 0)
		return not_found(rc, &e);
	who_is(f, req, &p);
	ret->mine = p.admin || is_kicker(f, req) || strcmp(p.user, user) == 0;
	return ret->mine ? 0 : -ENOENT;
}

int run_by_name(struct fsd *f, fuse_req_t req, const char *name, struct run_ref *ret)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	struct orch_principal p;
	int rc;

	if (!sbx_id_valid(name))
		return -ENOENT;
	who_is(f, req, &p);
	rc = store_run_key(f->store, name, p.admin || is_kicker(f, req) ? NULL : p.user, &ret->key,
			   &e);
	if (rc < 0)
		return not_found(rc, &e);
	ret->mine = true;
	return 0;
}
