/* SPDX-License-Identifier: Apache-2.0 */
/* Look-up in the table of runtimes. */
#include "runtimes/runtimes.h"

#include <string.h>

static const struct rt_known table[] = {
#define X(name_, impl, boundary, vm, untrusted, deny_state, deny_strict, deny_source, allow_state, \
	  allow_strict, allow_source, session, reuse, live, recovery, repair, images, notes_)      \
	{                                                                                          \
		.name = #name_,                                                                    \
		.implementation = RT_##impl,                                                       \
		.boundary_class = (boundary),                                                      \
		.vm_grade = (vm),                                                                  \
		.untrusted_eligible = (untrusted),                                                 \
		.deny_all = { RT_##deny_state, (deny_strict), (deny_source) },                     \
		.allowlist = { RT_##allow_state, (allow_strict), (allow_source) },                 \
		.session_support = RT_##session,                                                   \
		.session_reuse = (reuse),                                                          \
		.session_live_check = (live),                                                      \
		.session_recovery = RT_##recovery,                                                 \
		.session_repair = RT_##repair,                                                     \
		.default_images = (images),                                                        \
		.notes = (notes_),                                                                 \
	},
#include "runtimes/known.def"
#undef X
};

const struct rt_known *rt_known_at(size_t i)
{
	return i < SBX_COUNT(table) ? &table[i] : NULL;
}

const struct rt_known *rt_known_find(const char *name)
{
	for (size_t i = 0; name && i < SBX_COUNT(table); i++)
		if (strcmp(table[i].name, name) == 0)
			return &table[i];
	return NULL;
}

const char *rt_support_name(enum rt_support s)
{
	static const char *const names[] = {
		[RT_UNSUPPORTED] = "unsupported",
		[RT_SUPPORTED] = "supported",
		[RT_SCAFFOLD] = "scaffold",
		[RT_HOST_GATED] = "host_gated",
		[RT_NOT_APPLICABLE] = "not_applicable",
	};

	return (size_t)s < SBX_COUNT(names) && names[s] ? names[s] : "unsupported";
}
