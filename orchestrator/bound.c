/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs that live only as long as a client's handle. The door that holds the handle ends them when
 * it closes; if the door itself dies the kernel closes the handle without telling anybody. So each
 * such run has a file <state>/bound/<run id> that names the door's process, written before the run
 * exists; the next door to start ends the runs of dead ones.
 */
#include "orchestrator/orch_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fs.h"
#include "base/id.h"
#include "base/log.h"

enum { OWNER_MAX = 256 };

static int bound_dir(struct orch *o)
{
	int root = store_dir_fd(o->store);

	if (mkdirat(root, "bound", 0700) < 0 && errno != EEXIST)
		return -errno;
	return sbx_open_beneath(root, "bound", O_RDONLY | O_DIRECTORY, 0);
}

int bound_add(struct orch *o, const char *id, struct sbx_error *e)
{
	sbx_autoclose int dir = bound_dir(o);
	sbx_autofree char *owner = orch_owner_new();
	int r;

	if (dir < 0 || !owner)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, dir < 0 ? -dir : ENOMEM,
				      "cannot note the run's handle");
	r = sbx_replace_file(dir, id, owner, strlen(owner), 0600);
	return r < 0 ? sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -r,
				      "cannot note the run's handle")
		     : 0;
}

void bound_drop(struct orch *o, const char *id)
{
	sbx_autoclose int dir = bound_dir(o);

	if (dir >= 0)
		(void)unlinkat(dir, id, 0);
}

int orch_run_unbind(struct orch *o, const struct orch_principal *p, const char *id,
		    struct sbx_error *e)
{
	bool done;
	int rc = orch_run_cancel(o, p, id, STORE_CANCEL_KILL, &done, e);

	/* While it may still live, the next door must be able to find it. */
	if (rc == 0 || rc == -SBX_E_RUN_NOT_FOUND)
		bound_drop(o, id);
	return rc;
}

static void end_if_dead(struct orch *o, int dir, const char *id)
{
	/* The one who acts is the service itself. */
	const struct orch_principal self = {
		.user = "root", .uid = -1, .admin = true, .door = "local"
	};
	sbx_autofree char *owner = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc;

	if (!sbx_id_valid(id) || sbx_read_file(dir, id, OWNER_MAX, &owner, NULL) < 0 ||
	    orch_owner_alive(owner))
		return;
	sbx_log(SBX_LOG_INFO, "ending a run whose handle died with its door run=%s", id);
	rc = orch_run_unbind(o, &self, id, &e);
	if (rc < 0 && rc != -SBX_E_RUN_NOT_FOUND)
		sbx_log(SBX_LOG_WARNING, "cannot end it run=%s error=\"%s\"", id, e.message);
}

void bound_sweep(struct orch *o)
{
	int fd = bound_dir(o), dir = -1;
	DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
	struct dirent *one;

	if (!d) {
		sbx_closep(&fd);
		return;
	}
	dir = dirfd(d);
	while ((one = readdir(d)))
		end_if_dead(o, dir, one->d_name);
	closedir(d);
}
