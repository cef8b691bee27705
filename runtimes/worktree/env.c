/* SPDX-License-Identifier: Apache-2.0 */
/* Runner: the environment of a command in a worktree. */
#include "runtimes/worktree/wt_i.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

/* Never in a worktree, whoever says so: the home of the service's user and what opens doors. */
static const char *const denied[] = {
	"HOME",
	"SSH_AUTH_SOCK",
	"SSH_AGENT_PID",
	"AWS_ACCESS_KEY_ID",
	"AWS_SECRET_ACCESS_KEY",
	"AWS_SESSION_TOKEN",
	"ANTHROPIC_API_KEY",
	"OPENAI_API_KEY",
	"GITHUB_TOKEN",
	"GH_TOKEN",
	"DATABASE_URL",
	"SINGLE_USER_API_KEY",
};

static bool is_name(const char *entry, const char *name, size_t n)
{
	return strncmp(entry, name, n) == 0 && entry[n] == '=';
}

static bool is_denied(const char *entry)
{
	for (size_t i = 0; i < SBX_COUNT(denied); i++)
		if (is_name(entry, denied[i], strlen(denied[i])))
			return true;
	return false;
}

static const char *find(char *const *envp, const char *name, size_t n)
{
	for (; envp && *envp; envp++)
		if (is_name(*envp, name, n))
			return *envp;
	return NULL;
}

static size_t count(char *const *envp, const char *commas)
{
	size_t n = 1; /* the last name has no comma behind it */

	while (envp && *envp++)
		n++;
	for (; commas && *commas; commas++)
		n += *commas == ',';
	return n;
}

void wt_env_free(char **envp)
{
	for (size_t i = 0; envp && envp[i]; i++)
		free(envp[i]);
	free(envp);
}

int wt_env_make(const struct rt_host *host, char *const *envp, char ***ret, struct sbx_error *e)
{
	char **all = calloc(count(envp, host->worktree.env) + 1, sizeof(*all));
	bool whole = all != NULL;
	size_t n = 0;

	for (size_t i = 0; whole && envp && envp[i]; i++)
		if (!is_denied(envp[i]))
			whole = (all[n++] = strdup(envp[i])) != NULL;
	for (const char *p = host->worktree.env; whole && p && *p; p += strspn(p, ",")) {
		size_t len = strcspn(p, ",");
		const char *mine = find(environ, p, len);

		if (mine && !is_denied(mine) && !find(all, p, len))
			whole = (all[n++] = strdup(mine)) != NULL;
		p += len;
	}
	if (!whole) {
		wt_env_free(all);
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the environment");
	}
	*ret = all;
	return 0;
}
