/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of snapshots until they are there. */
#include "store/snap.h"

static int none(struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_INTERNAL, "this build has no snapshots");
}

int snap_take(struct store *s, int tree, const char *id, const char *previous,
	      const struct snap_limits *limits, struct snap_sums *ret, struct sbx_error *e)
{
	(void)s, (void)tree, (void)id, (void)previous, (void)limits, (void)ret;
	return none(e);
}

int snap_make(struct store *s, const char *id, int tree, uid_t uid, gid_t gid, struct sbx_error *e)
{
	(void)s, (void)id, (void)tree, (void)uid, (void)gid;
	return none(e);
}

int snap_copy(int from, int to, uid_t uid, gid_t gid, const struct snap_limits *limits,
	      struct snap_sums *ret, struct sbx_error *e)
{
	(void)from, (void)to, (void)uid, (void)gid, (void)limits, (void)ret;
	return none(e);
}

void snap_drop(struct store *s, const char *id)
{
	(void)s, (void)id;
}

int snap_collect(struct store *s, bool (*known)(void *ctx, const char *id), void *ctx,
		 int64_t *ret_bytes, struct sbx_error *e)
{
	(void)s, (void)known, (void)ctx, (void)e;
	*ret_bytes = 0;
	return 0;
}

int snap_open(struct store *s, const char *id, struct snap **ret, struct sbx_error *e)
{
	(void)s, (void)id, (void)ret;
	return none(e);
}

struct snap *snap_close(struct snap *n)
{
	(void)n;
	return NULL;
}

int snap_diff(const struct snap *a, const struct snap *b,
	      bool (*each)(void *ctx, const char *path, enum snap_change what, int64_t size_a,
			   int64_t size_b),
	      void *ctx, struct sbx_error *e)
{
	(void)a, (void)b, (void)each, (void)ctx;
	return none(e);
}

int snap_of_tree(struct store *s, int tree, const char *previous, struct snap **ret,
		 struct sbx_error *e)
{
	(void)s, (void)tree, (void)previous, (void)ret;
	return none(e);
}

int snap_measure(int tree, struct snap_sums *ret, struct sbx_error *e)
{
	(void)tree, (void)ret;
	return none(e);
}
