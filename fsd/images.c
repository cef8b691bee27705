/* SPDX-License-Identifier: Apache-2.0 */
/* Images by the command line: nothing is mounted, and whoever serves the state directory sees them
 * at once. */
#include "orchestrator/images.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/auto.h"
#include "base/log.h"
#include "base/process.h"
#include "fsd/options.h"
#include "orchestrator/unpack.h"

static int import(const struct fsd_options *o, const struct orch_settings *st, struct sbx_error *e)
{
	bool piped = strcmp(o->image_file, "-") == 0;
	sbx_autoclose int fd = piped ? fcntl(0, F_DUPFD_CLOEXEC, 3)
				     : open(o->image_file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	char digest[ORCH_IMAGE_DIGEST];
	int rc;

	if (fd < 0)
		return sbx_fail_errno(e, SBX_E_INVALID_ARGUMENT, errno, "cannot open '%s'",
				      o->image_file);
	rc = orch_image_import(st, o->state, fd, o->image, digest, e);
	if (rc == 0 && o->json)
		printf("{\"name\":\"%s\",\"digest\":\"%s\"}\n", o->image, digest);
	else if (rc == 0)
		printf("%s\t%s\n", o->image, digest);
	return rc;
}

static int list(const struct fsd_options *o, const struct orch_settings *st, struct sbx_error *e)
{
	sbx_autobuf out = SBX_BUF_INIT(4 << 20);
	int rc = orch_image_list(st, o->state, &out, e);

	if (rc == 0 && out.data)
		(void)fwrite(out.data, 1, out.len, stdout);
	return rc;
}

/* The door has made the directory, and removes it when this fails. */
static int unpack(const struct fsd_options *o, struct sbx_error *e)
{
	enum { TREE = 4, ENTRIES_MAX = 1000000 };
	struct orch_archive_limits limits = { .entries = ENTRIES_MAX };
	char *end;
	struct stat st;
	int rc;

	limits.bytes = strtoll(o->image, &end, 10);
	if (*end || limits.bytes <= 0 || fstat(TREE, &st) < 0 || !S_ISDIR(st.st_mode))
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
				"--unpack-tree BYTES is for a service, which opens the directory");
	rc = orch_unpack_tree(0, TREE, &limits, e);
	if (rc == 0)
		puts("{}");
	return rc;
}

static int run(const struct fsd_options *o, struct sbx_error *e)
{
	struct orch_settings *st = NULL;
	int rc = orch_settings_load(o->config, (const char *const *)o->overrides, o->n_overrides,
				    &st, e);

	if (rc == 0)
		(void)sbx_log_set_level(st->log_level);
	if (rc == 0 && o->mode == FSD_IMPORT_IMAGE)
		rc = import(o, st, e);
	else if (rc == 0 && o->mode == FSD_REMOVE_IMAGE)
		rc = orch_image_remove(st, o->state, o->image, true, e);
	else if (rc == 0 && o->mode == FSD_LIST_IMAGES)
		rc = list(o, st, e);
	else if (rc == 0 && o->mode == FSD_UNPACK_TREE)
		rc = unpack(o, e);
	else if (rc == 0)
		rc = sbx_fail(e, SBX_E_INVALID_ARGUMENT,
			      "use sandboxfs --import-image, --list-images or --remove-image");
	orch_settings_free(st);
	return rc;
}

/* For a door, which started us and tells its client. */
static void print_error(const struct sbx_error *e)
{
	sbx_autofree char *text = sbx_error_json(e);

	if (text)
		(void)fputs(text, stdout);
}

int main(int argc, char **argv)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	struct fsd_options o;
	int rc;

	sbx_process_init("sandbox-image");
	rc = fsd_options_parse(argc, argv, &o, &e);
	if (rc == 0)
		rc = fsd_choose_state(&o, &e);
	if (rc == 0)
		rc = run(&o, &e);
	if (rc < 0 && o.json)
		print_error(&e);
	fsd_options_clear(&o);
	return sbx_exit_code(rc, &e);
}
