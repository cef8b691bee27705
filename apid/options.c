/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of sandbox-apid. */
#include "apid/options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/process.h"

const char apid_usage[] =
	"usage: sandbox-apid [--state DIR] [--config FILE] [--listen ADDR:PORT]... [--unix PATH]\n"
	"                    [--workers N] [-o KEY=VALUE]...\n"
	"       sandbox-apid --check [--json]   try what this host can isolate with, and say why "
	"not\n"
	"       sandbox-apid --print-config     every setting, its value and where it came from\n"
	"       sandbox-apid --version | --help\n"
	"\n"
	"  --state DIR   where runs and the database are kept (default /var/lib/sandboxfs,\n"
	"                or $XDG_STATE_HOME/sandboxfs for an ordinary user)\n"
	"  --config FILE instead of /etc/sandboxfs/sandboxfs.conf\n"
	"  --listen A:P  instead of 127.0.0.1:8420; `none` listens on the Unix socket alone\n"
	"  --unix PATH   instead of api.sock in the state directory\n"
	"  --workers N   runs at once; 0 submits and shows but does not execute\n"
	"  -o KEY=VALUE  any setting of docs/configuration.md, for example "
	"max_concurrent_runs=4\n"
	"\n"
	"The key for X-API-KEY is SINGLE_USER_API_KEY, or else in api.key in the state "
	"directory.\n"
	"SIGTERM ends it, and runs go on; SIGHUP reads the configuration again.\n";

void apid_options_clear(struct apid_options *o)
{
	for (size_t i = 0; i < o->n_overrides; i++)
		free(o->overrides[i]);
	free(o->overrides);
	free(o->state);
	free(o->config);
	memset(o, 0, sizeof(*o));
}

static int no_memory(struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
}

static int add_override(struct apid_options *o, const char *key, const char *value,
			struct sbx_error *e)
{
	char **list = realloc(o->overrides, (o->n_overrides + 1) * sizeof(*list));

	if (!list)
		return no_memory(e);
	o->overrides = list;
	if (asprintf(&list[o->n_overrides], "%s%s%s", key, *key ? "=" : "", value) < 0)
		return no_memory(e);
	o->n_overrides++;
	return 0;
}

static int set_workers(struct apid_options *o, const char *value, struct sbx_error *e)
{
	char *end;
	long n = strtol(value, &end, 10);

	if (end == value || *end || n < 0 || n > 1024)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
				"--workers: found '%s', allowed 0 to 1024", value);
	o->workers = (int)n;
	return 0;
}

/* --listen may be given more than once; the setting is one list. */
static int add_listen(char **list, const char *value, struct sbx_error *e)
{
	char *joined = NULL;

	if (asprintf(&joined, "%s%s%s", *list ? *list : "", *list ? "," : "", value) < 0)
		return no_memory(e);
	free(*list);
	*list = joined;
	return 0;
}

static int take(struct apid_options *o, int c, char **listen, const char *word, struct sbx_error *e)
{
	sbx_autofree char *path = NULL;
	int r;

	switch (c) {
	case 's':
		return sbx_option_path(&o->state, "--state", optarg, e);
	case 'c':
		return sbx_option_path(&o->config, "--config", optarg, e);
	case 'l':
		return add_listen(listen, optarg, e);
	case 'u':
		r = sbx_option_path(&path, "--unix", optarg, e);
		return r < 0 ? r : add_override(o, "api_socket", path, e);
	case 'w':
		return set_workers(o, optarg, e);
	case 'o':
		return add_override(o, "", optarg, e);
	case 'j':
		o->json = true;
		return 0;
	case APID_CHECK:
	case APID_PRINT_CONFIG:
	case APID_VERSION:
	case APID_HELP:
		o->mode = (enum apid_mode)c;
		return 0;
	default:
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
				"%s: no such option, or its value is missing", word);
	}
}

int apid_options_parse(int argc, char **argv, struct apid_options *o, struct sbx_error *e)
{
	static const struct option longs[] = {
		{ "state", required_argument, NULL, 's' },
		{ "config", required_argument, NULL, 'c' },
		{ "listen", required_argument, NULL, 'l' },
		{ "unix", required_argument, NULL, 'u' },
		{ "workers", required_argument, NULL, 'w' },
		{ "json", no_argument, NULL, 'j' },
		{ "check", no_argument, NULL, APID_CHECK },
		{ "print-config", no_argument, NULL, APID_PRINT_CONFIG },
		{ "version", no_argument, NULL, APID_VERSION },
		{ "help", no_argument, NULL, APID_HELP },
		{ NULL, 0, NULL, 0 },
	};
	sbx_autofree char *listen = NULL;
	int c, r = 0;

	memset(o, 0, sizeof(*o));
	o->mode = APID_SERVE;
	o->workers = -1;
	opterr = 0;
	while (r == 0 && (c = getopt_long(argc, argv, "o:", longs, NULL)) != -1)
		r = take(o, c, &listen, argv[optind - 1], e);
	if (r == 0 && optind < argc)
		r = sbx_fail(e, SBX_E_INVALID_ARGUMENT, "%s: only options are taken", argv[optind]);
	return r == 0 && listen ? add_override(o, "api_listen", listen, e) : r;
}
