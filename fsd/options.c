/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: `sandboxfs [-f] [-d] [-o opts] [SOURCE] MOUNTPOINT`, as mount(8) also calls it.
 */
#include "fsd/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"
#include "base/process.h"
#include "orchestrator/settings.h"

const char fsd_usage[] =
	"usage: sandboxfs [-f] [-d] [-o OPTION[,OPTION...]] MOUNTPOINT\n"
	"       sandboxfs --check [--json]      try what this host can isolate with, and say why "
	"not\n"
	"       sandboxfs --print-config        every setting, its value and where it came from\n"
	"       sandboxfs --import-image NAME=FILE  make an image of a `docker save` archive, an "
	"OCI\n"
	"                                       layout in a tar, or the tar of a root; FILE may be "
	"-\n"
	"       sandboxfs --list-images | --remove-image NAME\n"
	"       sandboxfs --version | --help\n"
	"\n"
	"  -f            stay in the foreground; without it the command returns once the mount is "
	"ready\n"
	"  -d            debug: print every request of the kernel (implies -f)\n"
	"  -o state=DIR  where runs and the database are kept (default /var/lib/sandboxfs,\n"
	"                or $XDG_STATE_HOME/sandboxfs for an ordinary user)\n"
	"  -o config=FILE  instead of /etc/sandboxfs/sandboxfs.conf\n"
	"  -o workers=N  runs at once; 0 submits and shows but does not execute\n"
	"  -o allow_other  let other users in; they see their own runs\n"
	"  -o ro         nothing can be submitted\n"
	"  -o KEY=VALUE  any setting of docs/configuration.md, for example max_concurrent_runs=4\n"
	"\n"
	"Unmount with: fusermount3 -u MOUNTPOINT (or umount). Runs outlive the mount.\n";

/* Options that go to libfuse and the kernel as they are (mount.fuse3(8)). */
static const char *const fuse_words[] = { "allow_other",
					  "allow_root",
					  "ro",
					  "rw",
					  "nosuid",
					  "nodev",
					  "noexec",
					  "exec",
					  "suid",
					  "dev",
					  "async",
					  "sync",
					  "noatime",
					  "atime",
					  "dirsync",
					  "auto_unmount",
					  "default_permissions" };
static const char *const fuse_prefixes[] = { "fsname=", "subtype=", "max_read=" };
/* Words that mount(8) and fstab pass on and that mean nothing to a mount that exists. */
static const char *const ignored[] = { "defaults", "auto",   "noauto",	"user",	    "nouser",
				       "users",	   "nofail", "_netdev", "x-systemd" };

void fsd_options_clear(struct fsd_options *o)
{
	for (size_t i = 0; i < o->n_overrides; i++)
		free(o->overrides[i]);
	free(o->overrides);
	free(o->mountpoint);
	free(o->state);
	free(o->config);
	free(o->fuse_opts);
	free(o->image);
	free(o->image_file);
	memset(o, 0, sizeof(*o));
}

static bool is_setting(const char *word, size_t len)
{
	const struct orch_setting_info *s;

	for (size_t i = 0; (s = orch_setting_at(i)); i++)
		if (strlen(s->key) == len && strncmp(s->key, word, len) == 0)
			return true;
	return false;
}

static int append(char **list, const char *word, struct sbx_error *e)
{
	char *joined = NULL;

	if (asprintf(&joined, "%s%s%s", *list ? *list : "", *list ? "," : "", word) < 0)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	free(*list);
	*list = joined;
	return 0;
}

static int add_override(struct fsd_options *o, const char *word, struct sbx_error *e)
{
	char **list = realloc(o->overrides, (o->n_overrides + 1) * sizeof(*list));

	if (!list)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	o->overrides = list;
	list[o->n_overrides] = strdup(word);
	if (!list[o->n_overrides])
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	o->n_overrides++;
	return 0;
}

static bool in(const char *const *list, size_t n, const char *word)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(list[i], word) == 0)
			return true;
	return false;
}

static int take_option(struct fsd_options *o, const char *word, struct sbx_error *e)
{
	const char *eq = strchr(word, '=');
	char *end;

	if (strncmp(word, "state=", 6) == 0)
		return sbx_option_path(&o->state, "-o state=", word + 6, e);
	if (strncmp(word, "config=", 7) == 0)
		return sbx_option_path(&o->config, "-o config=", word + 7, e);
	if (strncmp(word, "workers=", 8) == 0) {
		long n = strtol(word + 8, &end, 10);

		if (end == word + 8 || *end || n < 0 || n > 1024)
			return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
					"-o workers: found '%s', allowed 0 to 1024", word + 8);
		o->workers = (int)n;
		return 0;
	}
	if (in(fuse_words, SBX_COUNT(fuse_words), word)) {
		o->allow_other |= strcmp(word, "allow_other") == 0;
		return append(&o->fuse_opts, word, e);
	}
	for (size_t i = 0; i < SBX_COUNT(fuse_prefixes); i++)
		if (strncmp(word, fuse_prefixes[i], strlen(fuse_prefixes[i])) == 0)
			return append(&o->fuse_opts, word, e);
	if (in(ignored, SBX_COUNT(ignored), word) || strncmp(word, "x-", 2) == 0)
		return 0;
	if (eq && is_setting(word, (size_t)(eq - word)))
		return add_override(o, word, e);
	return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
			"-o %s: no such option; sandboxfs --help lists them, settings are in "
			"docs/configuration.md",
			word);
}

/* Comma separated; "\," stands for a comma inside a value. */
static int take_list(struct fsd_options *o, const char *list, struct sbx_error *e)
{
	sbx_autofree char *word = malloc(strlen(list) + 1);
	size_t n = 0;
	int r = 0;

	if (!word)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	for (const char *p = list; r == 0; p++) {
		if (p[0] == '\\' && p[1] == ',') {
			word[n++] = *++p;
		} else if (*p == ',' || *p == '\0') {
			word[n] = '\0';
			if (n)
				r = take_option(o, word, e);
			n = 0;
			if (*p == '\0')
				break;
		} else {
			word[n++] = *p;
		}
	}
	return r;
}

static int take_mountpoint(struct fsd_options *o, const char *path, struct sbx_error *e)
{
	char *real = realpath(path, NULL);
	struct stat st;

	/* A mount whose server died answers ENOTCONN; the path itself is still good. */
	if (!real && errno == ENOTCONN)
		return sbx_option_path(&o->mountpoint, "-o mountpoint=", path, e);
	if (!real)
		return sbx_fail_errno(e, SBX_E_INVALID_ARGUMENT, errno, "mount point '%s'", path);
	free(o->mountpoint);
	o->mountpoint = real;
	/* The kernel would mount over a file as well, and nobody could enter. */
	if (stat(real, &st) == 0 && !S_ISDIR(st.st_mode))
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "mount point '%s' is not a directory",
				real);
	return 0;
}

/* NAME, or for an import NAME=FILE. */
static int take_image(struct fsd_options *o, enum fsd_mode mode, const char *arg,
		      struct sbx_error *e)
{
	const char *eq = mode == FSD_IMPORT_IMAGE ? strchr(arg, '=') : NULL;

	if (o->image)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "one image at a time");
	if (mode == FSD_IMPORT_IMAGE && (!eq || !eq[1]))
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
				"--import-image: found '%s', allowed NAME=FILE", arg);
	o->mode = mode;
	o->image = strndup(arg, eq ? (size_t)(eq - arg) : strlen(arg));
	o->image_file = eq ? strdup(eq + 1) : NULL;
	return o->image && (!eq || o->image_file) ? 0 : sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
}

int fsd_options_parse(int argc, char **argv, struct fsd_options *o, struct sbx_error *e)
{
	static const struct option longs[] = {
		{ "check", no_argument, NULL, FSD_CHECK },
		{ "print-config", no_argument, NULL, FSD_PRINT_CONFIG },
		{ "version", no_argument, NULL, FSD_VERSION },
		{ "help", no_argument, NULL, FSD_HELP },
		{ "json", no_argument, NULL, 'j' },
		{ "import-image", required_argument, NULL, FSD_IMPORT_IMAGE },
		{ "remove-image", required_argument, NULL, FSD_REMOVE_IMAGE },
		{ "list-images", no_argument, NULL, FSD_LIST_IMAGES },
		{ "unpack-tree", required_argument, NULL, FSD_UNPACK_TREE },
		{ NULL, 0, NULL, 0 },
	};
	int c, r = 0;

	memset(o, 0, sizeof(*o));
	o->mode = FSD_MOUNT;
	o->workers = -1;
	opterr = 0;
	while (r == 0 && (c = getopt_long(argc, argv, "fdsnho:V", longs, NULL)) != -1) {
		if (c == FSD_CHECK || c == FSD_PRINT_CONFIG || c == FSD_VERSION || c == FSD_HELP ||
		    c == FSD_LIST_IMAGES)
			o->mode = (enum fsd_mode)c;
		else if (c == FSD_IMPORT_IMAGE || c == FSD_REMOVE_IMAGE || c == FSD_UNPACK_TREE)
			r = take_image(o, (enum fsd_mode)c, optarg, e);
		else if (c == 'f')
			o->foreground = true;
		else if (c == 'd')
			o->foreground = o->debug = true;
		else if (c == 'j')
			o->json = true;
		else if (c == 'h')
			o->mode = FSD_HELP;
		else if (c == 'V')
			o->mode = FSD_VERSION;
		else if (c == 'o')
			r = take_list(o, optarg, e);
		else if (c != 's' && c != 'n') /* mount(8) may pass -n; -s means nothing here */
			r = sbx_fail(e, SBX_E_INVALID_ARGUMENT, "%s: no such option",
				     argv[optind - 1]);
	}
	if (r < 0 || o->mode != FSD_MOUNT)
		return r;
	if (argc - optind < 1 || argc - optind > 2)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "one mount point must be given");
	/* mount(8): SOURCE MOUNTPOINT. A source that is a path names the state directory. */
	if (argc - optind == 2 && argv[optind][0] == '/' && !o->state)
		r = sbx_option_path(&o->state, "-o state=", argv[optind], e);
	return r < 0 ? r : take_mountpoint(o, argv[argc - 1], e);
}
