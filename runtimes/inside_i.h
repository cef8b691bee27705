/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens inside a sandbox is the same in every one: files are put into the workspace, the
 * command's directory is entered, the command is searched for and executed. These run in the
 * process that is already inside, so they allocate nothing, and report by errno.
 */
#ifndef SBX_RUNTIMES_INSIDE_I_H
#define SBX_RUNTIMES_INSIDE_I_H

#include <stdint.h>
#include <sys/types.h>

enum {
	RT_STATUS_CANNOT = 126, /* exit statuses of what could not be executed, as shells have it */
	RT_STATUS_NOT_FOUND = 127,
};

/* Executes argv[0], searched for in the command's own PATH. Returns, if at all, an errno: of the
 * first file that was there and could not be executed, else of the search. */
int rt_execute(char *const *argv, char *const *envp);
/* The exit status that stands for this errno. */
int rt_exec_status(int err);
/* Enters the directory, through no magic link; -1 with errno set. */
int rt_enter(const char *cwd);
/* Points the vector's n elements, and a NULL, at consecutive strings; the end of the last one. */
char *rt_split(char *p, char **vector, uint32_t n);

/* A new file, open for writing, in the place of whatever had the name; directories are made. A
 * negative errno, and *ret_what says what could not be done ("make the directories of"). */
int rt_place_file(int workspace, const char *path, const char **ret_what);
/* Makes the directory when it is below /workspace and missing. As above, or 1: *ret_what is the
 * problem that the path has ("has an empty part"). */
int rt_place_cwd(int workspace, const char *cwd, const char **ret_what);

#endif
