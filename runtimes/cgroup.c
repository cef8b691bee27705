/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the groups of this host and making the directories that hold leaves. */
#include "runtimes/cgroup_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/auto.h"
#include "base/fs.h"

enum {
	PROC_TEXT_MAX = 16 << 20, /* mountinfo of a busy container host has megabytes */
	CONTROL_TEXT_MAX = 64 << 10,
	MOVE_ROUNDS = 16, /* processes may fork while they are being moved */
};

static const char *const v2_names[CG__CONTROLLERS] = {
	[CG_MEMORY] = "memory",
	[CG_PIDS] = "pids",
	[CG_CPU] = "cpu",
	[CG_CPUACCT] = NULL, /* cpu.stat is there without a controller */
};

/* ---- version 2: handing controllers down ----------------------------------------------------- */

/* Moves every process of `dir` into its child `supervisor`. One that has ended, or a kernel
 * thread, is no reason to stop: what cannot be moved makes the caller's next write fail. */
static int empty_group(int dirfd)
{
	sbx_autoclose int child = -1;

	if (mkdirat(dirfd, CG_SUPERVISOR, 0755) < 0 && errno != EEXIST)
		return -errno;
	child = openat(dirfd, CG_SUPERVISOR, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (child < 0)
		return -errno;
	for (int round = 0; round < MOVE_ROUNDS; round++) {
		sbx_autofree char *pids = NULL;
		char *save = NULL;
		bool moved = false;
		int r = sbx_read_file(dirfd, "cgroup.procs", CONTROL_TEXT_MAX, &pids, NULL);

		if (r < 0)
			return r;
		for (char *p = strtok_r(pids, "\n", &save); p; p = strtok_r(NULL, "\n", &save))
			moved = sbx_write_file(child, "cgroup.procs", p) == 0 || moved;
		if (!moved)
			break;
	}
	return 0;
}

static bool has_word(const char *text, const char *word)
{
	size_t n = strlen(word);

	for (const char *p = text; (p = strstr(p, word)); p += n)
		if ((p == text || p[-1] == ' ') && (p[n] == '\0' || p[n] == ' ' || p[n] == '\n'))
			return true;
	return false;
}

/* Lets the children of `dirfd` have these controllers. Returns those that they do have. */
static unsigned hand_down(int dirfd, unsigned want, bool may_move)
{
	sbx_autofree char *text = NULL;
	unsigned have = 0;

	for (int c = 0; c < CG__CONTROLLERS; c++) {
		char word[16];

		if (!(want & 1u << c) || !v2_names[c])
			continue;
		(void)snprintf(word, sizeof(word), "+%s", v2_names[c]);
		if (sbx_write_file(dirfd, "cgroup.subtree_control", word) == -EBUSY && may_move &&
		    empty_group(dirfd) == 0)
			(void)sbx_write_file(dirfd, "cgroup.subtree_control", word);
	}
	if (sbx_read_file(dirfd, "cgroup.subtree_control", CONTROL_TEXT_MAX, &text, NULL) < 0)
		return 0;
	for (int c = 0; c < CG__CONTROLLERS; c++)
		if ((want & 1u << c) && v2_names[c] && has_word(text, v2_names[c]))
			have |= 1u << c;
	return have;
}

/* A service of ours that was started by another one is already in `supervisor`. */
static void leave_supervisor(char path[CG_PATH_SIZE])
{
	size_t len = strlen(path), tail = strlen("/" CG_SUPERVISOR);
	char sibling[CG_PATH_SIZE];

	if (len <= tail || strcmp(path + len - tail, "/" CG_SUPERVISOR) != 0)
		return;
	if (snprintf(sibling, sizeof(sibling), "%.*s/" CG_OUR_DIR, (int)(len - tail), path) <
		    CG_PATH_SIZE &&
	    access(sibling, F_OK) == 0)
		path[len - tail] = '\0';
}

/* ---- bases ----------------------------------------------------------------------------------- */

/* Makes and opens the directory; an index, or -1 when it cannot be used. */
static int add_base(struct cg *cg, const char *own, bool given, bool v2)
{
	struct cg_base *b = &cg->bases[cg->n_bases];
	const char *tail = given ? "" : "/" CG_OUR_DIR;

	if (snprintf(b->path, sizeof(b->path), "%s%s", own, tail) >= CG_PATH_SIZE)
		return -1;
	for (size_t i = 0; i < cg->n_bases; i++)
		if (strcmp(cg->bases[i].path, b->path) == 0)
			return (int)i;
	if (mkdir(b->path, 0755) < 0 && errno != EEXIST)
		return -1;
	b->fd = open(b->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (b->fd < 0)
		return -1;
	if (faccessat(b->fd, ".", W_OK, AT_EACCESS) < 0) {
		sbx_closep(&b->fd);
		return -1;
	}
	b->v2 = v2;
	/* Kernels before 5.11 count a child's memory in its parent only when asked to. */
	if (!v2)
		(void)sbx_write_file(b->fd, "memory.use_hierarchy", "1");
	return (int)cg->n_bases++;
}

static void add_v2(struct cg *cg, bool given)
{
	sbx_autoclose int parent = -1;
	unsigned want = 0, have;
	char *slash;
	char up[CG_PATH_SIZE];
	int i;

	for (int c = 0; c < CG__CONTROLLERS; c++)
		if (cg->base_of[c] < 0)
			want |= 1u << c;
	if (!want || !cg->layout.v2[0])
		return;
	leave_supervisor(cg->layout.v2);
	i = add_base(cg, cg->layout.v2, given, true);
	if (i < 0)
		return;
	memcpy(up, cg->bases[i].path, sizeof(up));
	slash = strrchr(up, '/');
	if (slash && slash != up)
		*slash = '\0';
	parent = open(up, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (parent >= 0)
		(void)hand_down(parent, want, !given);
	have = hand_down(cg->bases[i].fd, want, false);
	for (int c = 0; c < CG__CONTROLLERS; c++)
		if ((want & 1u << c) && (have & 1u << c || !v2_names[c]))
			cg->base_of[c] = i;
}

int cg_open(const char *root, struct cg **ret, struct sbx_error *e)
{
	sbx_autofree char *own = NULL, *mounts = NULL;
	struct cg *cg = calloc(1, sizeof(*cg));

	*ret = NULL;
	if (!cg)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the control groups");
	/* A kernel without control groups has no such file; that is as good as an empty one. */
	if (sbx_read_file(AT_FDCWD, "/proc/self/cgroup", PROC_TEXT_MAX, &own, NULL) == 0 &&
	    sbx_read_file(AT_FDCWD, "/proc/self/mountinfo", PROC_TEXT_MAX, &mounts, NULL) == 0)
		cg_layout_parse(own, mounts, root, &cg->layout);
	for (int c = 0; c < CG__CONTROLLERS; c++)
		cg->base_of[c] =
			cg->layout.v1[c][0] ? add_base(cg, cg->layout.v1[c], root, false) : -1;
	add_v2(cg, root);
	cg->owner = getpid();
	*ret = cg;
	return 0;
}

void cg_close(struct cg *cg)
{
	if (!cg)
		return;
	if (cg->owner == getpid())
		cg_leaf_discard(cg->parked);
	else
		cg_leaf_disown(cg->parked);
	for (size_t i = 0; i < cg->n_bases; i++)
		sbx_closep(&cg->bases[i].fd);
	free(cg);
}

bool cg_has(const struct cg *cg, enum cg_controller c)
{
	return cg && cg->base_of[c] >= 0;
}

const char *cg_name(const struct cg *cg)
{
	return cg && cg->n_bases ? cg_layout_name(&cg->layout) : "none";
}
