/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SBX_APID_OPTIONS_H
#define SBX_APID_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

enum apid_mode { APID_SERVE = 256, APID_CHECK, APID_PRINT_CONFIG, APID_VERSION, APID_HELP };

/* The command line of sandbox-apid, taken apart. Strings are owned. */
struct apid_options {
	enum apid_mode mode;
	bool json;
	char *state, *config; /* absolute; state NULL: the setting's, or the default place */
	int workers;	      /* -1: not given */
	char **overrides;     /* "key=value" settings */
	size_t n_overrides;
};

/* INVALID_ARGUMENT names the option and what is allowed. */
int apid_options_parse(int argc, char **argv, struct apid_options *ret, struct sbx_error *e);
void apid_options_clear(struct apid_options *o);
extern const char apid_usage[];

#endif
