/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/orch_i.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/id.h"
#include "base/json.h"
#include "base/log.h"

enum { DEATH_WAIT_MS = 2000 }; /* for a killed process; the kernel needs milliseconds */

/* Field 22 of /proc/PID/stat, in clock ticks since boot: with the pid it names a process for
 * ever (proc(5)). 0 when there is certainly no such process, or only its exit status for a parent
 * that may never ask; ULLONG_MAX when that cannot be told. */
static unsigned long long start_time(long pid)
{
	char path[64];
	sbx_autofree char *text = NULL;
	unsigned long long start = 0;
	char *p, state;
	int r;

	(void)snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
	r = sbx_read_file(AT_FDCWD, path, 4096, &text, NULL);
	if (r < 0)
		return r == -ENOENT || r == -ESRCH ? 0 : ULLONG_MAX;
	p = strrchr(text, ')'); /* the name may hold spaces and parentheses */
	if (!p || sscanf(p + 1,
			 " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d "
			 "%*d %*d %*d %llu",
			 &state, &start) != 2)
		return 0;
	return state == 'Z' || state == 'X' ? 0 : start;
}

char *orch_owner_new(void)
{
	char host[65] = "", *text = NULL;
	uint32_t random;

	(void)gethostname(host, sizeof(host) - 1);
	/* '/' separates the parts, and ',' stands for it in the name of a file. */
	for (char *p = host; *p; p++)
		if (*p == '/' || *p == ',')
			*p = '_';
	sbx_random(&random, sizeof(random));
	if (asprintf(&text, "%s/%s/%d/%llu/%08x", host, sbx_boot_id(), (int)getpid(),
		     start_time(getpid()), random) < 0)
		return NULL;
	return text;
}

bool orch_owner_alive(const char *owner)
{
	char host[65] = "", o_host[65], o_boot[37];
	unsigned long long start, now;
	long pid;

	(void)gethostname(host, sizeof(host) - 1);
	if (sscanf(owner, "%64[^/]/%36[^/]/%ld/%llu/", o_host, o_boot, &pid, &start) != 4)
		return true;
	if (strcmp(o_host, host) != 0)
		return true; /* another machine: only its lease can tell */
	if (strcmp(o_boot, sbx_boot_id()) != 0)
		return false;
	now = start_time(pid);
	return now == start || now == ULLONG_MAX;
}

/* Does not return before the process is gone, so that nothing it does can come later. */
bool orch_owner_kill(const char *owner)
{
	struct pollfd p = { .fd = -1, .events = POLLIN };
	sbx_autoclose int fd = -1;
	char host[65] = "", o_host[65];
	long pid;

	(void)gethostname(host, sizeof(host) - 1);
	if (sscanf(owner, "%64[^/]/%*36[^/]/%ld/", o_host, &pid) != 2 || strcmp(o_host, host) != 0)
		return false;
	fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
	/* Looked at with the descriptor in hand, the number cannot pass to somebody else. */
	if (!orch_owner_alive(owner))
		return true;
	if (fd < 0 || pid == getpid() || syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0) < 0)
		return false;
	p.fd = fd;
	return poll(&p, 1, DEATH_WAIT_MS) == 1;
}

static int lost(const char *id, struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_CLAIM_LOST, "run %s is no longer held by this claim", id);
}

int orch_phase_running(struct store *s, const char *id, int64_t generation, int64_t started_us,
		       struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	struct store_transition t = { .id = id,
				      .from = STORE_MASK(STORE_STARTING),
				      .generation = generation,
				      .to = STORE_RUNNING,
				      .reason = "running",
				      .started_us = started_us };
	bool done = false;
	int r = store_begin(s, &tx, e);

	if (r == 0)
		r = store_tx_run_transition(tx, &t, &done, e);
	if (r < 0)
		return r;
	if (!done)
		return lost(id, e);
	return store_commit(sbx_steal(&tx), false, e);
}

int orch_phase_renew(struct store *s, const char *id, int64_t generation, int64_t lease_us,
		     struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	int r = store_begin(s, &tx, e);

	if (r == 0)
		r = store_tx_run_renew(tx, id, generation, sbx_boot_us() + lease_us, e);
	if (r < 0)
		return r;
	return store_commit(sbx_steal(&tx), false, e);
}

/* ---- audit ----------------------------------------------------------------------------------- */

static int audit_add(struct store_tx *tx, const struct store_run *run, const char *action,
		     const char *result, struct sbx_buf *details, struct sbx_error *e)
{
	struct store_audit a = { .at_us = sbx_now_us(),
				 .user = run->user,
				 .door = run->door,
				 .action = action,
				 .resource = run->id,
				 .result = result };

	if (sbx_buf_failed(details))
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the audit record");
	a.details = details->data;
	return store_tx_audit(tx, &a, e);
}

static int64_t count_of(struct json_object *usage, const char *name)
{
	struct json_object *v = NULL;

	return usage && json_object_object_get_ex(usage, name, &v) ? json_object_get_int64(v) : 0;
}

/* What was cut short, one record each. Names of files are the user's own business. */
static int audit_limits(struct store_tx *tx, const struct store_run *run,
			const struct orch_outcome *out, struct sbx_error *e)
{
	static const char *const skips[] = { "file_limit", "total_limit", "symlink", "invalid",
					     "read_error" };
	sbx_autojson *usage = out->usage ? json_tokener_parse(out->usage) : NULL;
	int64_t skipped = count_of(usage, "artifact_files_skipped");
	sbx_autobuf output = SBX_BUF_INIT(4096), artifacts = SBX_BUF_INIT(4096);
	const char *comma = "";
	int rc = 0;

	if (count_of(usage, "log_truncated")) {
		sbx_buf_printf(&output, "{\"log_limit_bytes\":%lld,\"log_truncated\":1}",
			       (long long)count_of(usage, "log_limit_bytes"));
		rc = audit_add(tx, run, "output_truncated", "limited", &output, e);
	}
	if (rc < 0 || skipped == 0)
		return rc;
	sbx_buf_printf(&artifacts, "{\"artifact_files_skipped\":%lld,\"artifact_skip_reasons\":[",
		       (long long)skipped);
	for (size_t i = 0; i < SBX_COUNT(skips); i++) {
		char name[64];

		(void)snprintf(name, sizeof(name), "artifact_skip_%s", skips[i]);
		if (count_of(usage, name) == 0)
			continue;
		sbx_buf_printf(&artifacts, "%s\"%s\"", comma, skips[i]);
		comma = ",";
	}
	sbx_buf_puts(&artifacts, "]}");
	return audit_add(tx, run, "artifacts_limited", "limited", &artifacts, e);
}

/* What a network was open to, what went through it, and what was refused in it. Which names were
 * asked for is the user's own business. */
static int audit_network(struct store_tx *tx, const struct store_run *run,
			 const struct orch_outcome *out, struct sbx_error *e)
{
	static const struct {
		const char *key;
		bool limits; /* it says that less went through than was wanted, or known */
	} counters[] = {
		{ "connections", false },
		{ "failed_connections", false },
		{ "flows", false },
		{ "echoes", false },
		{ "echo_replies", false },
		{ "bytes_sent", false },
		{ "bytes_received", false },
		{ "refused_tcp_packets", true },
		{ "refused_udp_packets", true },
		{ "refused_icmp_packets", true },
		{ "refused_other_packets", true },
		{ "refused_addresses", true },
		{ "refused_names", true },
		{ "refused_busy", true },
		{ "lost", true },
	};
	sbx_autojson *usage = json_tokener_parse(out->usage);
	sbx_autobuf b = SBX_BUF_INIT(512 << 10);
	bool limited = false;

	sbx_buf_printf(&b, "{\"allowed\":%s", out->network);
	for (size_t i = 0; i < SBX_COUNT(counters); i++) {
		char name[64];
		long long n;

		(void)snprintf(name, sizeof(name), "egress_%s", counters[i].key);
		n = (long long)count_of(usage, name);
		limited = limited || (counters[i].limits && n > 0);
		sbx_buf_printf(&b, ",\"%s\":%lld", counters[i].key, n);
	}
	sbx_buf_puts(&b, "}");
	return audit_add(tx, run, "network", limited ? "limited" : "allowed", &b, e);
}

static int audit_end(struct store_tx *tx, const struct store_run *run,
		     const struct orch_outcome *out, struct sbx_error *e)
{
	const struct {
		const char *name, *value;
	} texts[] = {
		{ "runtime", run->runtime },
		{ "effective_runtime", run->runtime },
		{ "trust_level", run->trust_level },
		{ "network_policy", run->network_policy },
		{ "policy_hash", run->policy_hash },
		{ "spec_version", run->spec_version },
		{ "outcome", orch_outcome_word(out->phase) },
		{ "status_reason_code", out->reason },
	};
	sbx_autobuf b = SBX_BUF_INIT(16 << 10);
	int rc;

	for (size_t i = 0; i < SBX_COUNT(texts); i++) {
		sbx_buf_printf(&b, "%s\"%s\":", i ? "," : "{", texts[i].name);
		sbx_buf_json_strz(&b, texts[i].value);
	}
	if (out->has_exit_code)
		sbx_buf_printf(&b, ",\"exit_code\":%d", out->exit_code);
	sbx_buf_printf(&b, ",\"capture_pattern_count\":%zu,\"duration_ms\":%lld}", out->n_patterns,
		       run->started_us ? (long long)(sbx_now_us() - run->started_us) / 1000 : 0LL);
	rc = audit_add(tx, run, "run", store_phase_name(out->phase), &b, e);
	if (rc == 0 && out->network)
		rc = audit_network(tx, run, out, e);
	return rc < 0 ? rc : audit_limits(tx, run, out, e);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Runs of one user that end at the same moment have each found room for their artifacts. Under the
 * write lock there is one answer. */
static int over_cap(struct store *s, const struct store_run *run, const struct orch_outcome *out,
		    bool *ret, struct sbx_error *e)
{
	int64_t used = 0;
	int rc = 0;

	if (out->n_artifacts && out->artifact_user_max > 0)
		rc = store_usage_bytes(s, run->user, &used, e);
	for (size_t i = 0; i < out->n_artifacts; i++)
		used += out->artifacts[i].size;
	*ret = rc == 0 && out->n_artifacts && out->artifact_user_max > 0 &&
	       used > out->artifact_user_max;
	return rc;
}

/* *ret_over: nothing was written, the artifacts do not fit. */
static int end_once(struct store *s, const struct store_run *run, int64_t generation,
		    const struct orch_outcome *out, bool *ret_over, struct store_ticket *ret_ticket,
		    struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	struct store_transition t = {
		.id = run->id,
		.from = STORE_MASK_LIVE,
		.generation = generation,
		.to = out->phase,
		.reason = out->reason,
		.message = out->message,
		.usage = out->usage,
		.image_digest = out->image_digest,
		.runtime_version = out->runtime_version,
		.started_us = out->started_us,
		.finished_us = sbx_now_us(),
		.has_exit_code = out->has_exit_code,
		.exit_code = out->exit_code,
		.log_bytes = out->log_bytes,
		.artifact_count = (int64_t)out->n_artifacts,
	};
	bool done = false;
	int r;

	for (size_t i = 0; i < out->n_artifacts; i++)
		t.artifact_bytes += out->artifacts[i].size;
	*ret_over = false;
	r = store_begin(s, &tx, e);
	if (r == 0)
		r = over_cap(s, run, out, ret_over, e);
	if (r < 0 || *ret_over)
		return r;
	r = store_tx_run_transition(tx, &t, &done, e);
	if (r == 0 && !done)
		r = lost(run->id, e);
	if (r == 0 && out->n_artifacts)
		r = store_tx_artifacts_add(tx, run->id, out->artifacts, out->n_artifacts, e);
	/* outcome.c writes the member so, or not at all. */
	if (r == 0 && out->usage && strstr(out->usage, "\"log_truncated\":1"))
		r = store_tx_counter_add(tx, ORCH_COUNT_LOG_TRUNCATED, 1, e);
	if (r == 0)
		r = audit_end(tx, run, out, e);
	if (r < 0)
		return r;
	return store_commit_early(sbx_steal(&tx), ret_ticket, e);
}

/* The counters of a run whose artifacts are dropped; malloc'd. */
static char *usage_without(const struct orch_outcome *out)
{
	static const char *const none[] = { "artifact_bytes", "artifact_bytes_collected",
					    "artifact_files_collected" };
	static const char *const more[] = { "artifact_files_skipped", "artifact_skip_total_limit" };
	sbx_autojson *usage = json_tokener_parse(out->usage ? out->usage : "{}");
	int64_t n = (int64_t)out->n_artifacts;

	for (size_t i = 0; usage && i < SBX_COUNT(none); i++)
		json_object_object_add(usage, none[i], json_object_new_int64(0));
	for (size_t i = 0; usage && i < SBX_COUNT(more); i++)
		json_object_object_add(usage, more[i],
				       json_object_new_int64(count_of(usage, more[i]) + n));
	return usage ? strdup(json_object_to_json_string_ext(usage, JSON_C_TO_STRING_PLAIN)) : NULL;
}

int orch_phase_end(struct store *s, const struct store_run *run, int64_t generation,
		   const struct orch_outcome *out, struct store_ticket *ret_ticket,
		   struct sbx_error *e)
{
	sbx_autofree char *usage = NULL;
	sbx_autoclose int dir = -1;
	struct orch_outcome less = *out;
	bool over = false;
	int r = end_once(s, run, generation, out, &over, ret_ticket, e);

	if (r < 0 || !over)
		return r;
	/* It came second: what counts is written already, so all of its own go. */
	usage = usage_without(out);
	if (!usage)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the usage");
	dir = store_run_dir(s, run->id, false, NULL);
	if (dir >= 0)
		(void)sbx_remove_tree(dir, "artifacts");
	less.usage = usage;
	less.artifacts = NULL;
	less.n_artifacts = 0;
	if (out->phase == STORE_COMPLETED)
		less.reason = "limits_applied";
	return end_once(s, run, generation, &less, &over, ret_ticket, e);
}
