/* SPDX-License-Identifier: Apache-2.0 */
/* Drives the namespace driver as sandbox-runner does, for its tests. */
#ifndef SBX_TESTS_RUNTIME_NS_TEST_H
#define SBX_TESTS_RUNTIME_NS_TEST_H

#include "runtimes/runtimes.h"

extern const struct rt_driver rt_namespace;
extern struct rt_host test_host;

enum { TEST_SECONDS = 20 }; /* nothing here may take that long */

/* What to run; zeroed fields get sensible values. */
struct job {
	const char *argv[8];
	const char *const *envp; /* NULL-terminated; default: PATH only */
	const char *cwd, *image;
	const char *input; /* given to an open stdin, which is then closed */
	const struct rt_file *files;
	size_t n_files;
	struct rt_limits limits;
	int workspace_fd; /* 0: none */
	bool workspace_ro;
	bool probe; /* put the probe into the workspace; argv[0] is then "./probe" */
};

struct live {
	struct rt_sandbox *sb;
	struct rt_fds fds;
	struct rt_exit x;
	char out[65536], err[4096]; /* NUL-terminated */
	size_t n_out, n_err;
};

/* create, prepare, start. Fails the test when prepare or start fail. */
void job_start(const struct job *j, struct live *l);
/* Reads output until it contains `text`. */
void job_wait_output(struct live *l, const char *text);
/* Until the driver says that it is over; all output is then in l. */
void job_end(struct live *l);
/* destroy, and the descriptors. */
void job_free(struct live *l);
/* All of the above. */
void job_run(const struct job *j, struct live *l);
/* For processes without cmocka: as job_run, false when anything failed. */
bool job_try(const struct job *j, struct live *l);
/* What prepare says of a job that it should refuse. */
int job_refused(const struct job *j, struct sbx_error *e);

/* The exit status, or -1. */
int job_status(const struct live *l);
/* A shell command. */
struct job shell(const char *script);
struct job probe(const char *word, const char *arg);
/* Leaves of control groups that process pid made. */
int count_leaves(pid_t pid);
int count_entries(const char *dir);

#endif
