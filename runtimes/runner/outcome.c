/* SPDX-License-Identifier: Apache-2.0 */
/* What the end of a run is called: phase, reason code, exit code, message, usage. */
#include "runtimes/runner/runner_i.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"

/* What the network let through and what not; docs/network.md has the keys. */
static void egress_json(const struct egress_counters *c, struct sbx_buf *b)
{
	const struct {
		const char *key;
		uint64_t n;
	} counters[] = {
		{ "connections", c->connections },
		{ "failed_connections", c->failed_connections },
		{ "flows", c->flows },
		{ "echoes", c->echoes },
		{ "echo_replies", c->echo_replies },
		{ "bytes_sent", c->bytes_sent },
		{ "bytes_received", c->bytes_received },
		{ "refused_tcp_packets", c->refused_tcp },
		{ "refused_udp_packets", c->refused_udp },
		{ "refused_icmp_packets", c->refused_icmp },
		{ "refused_other_packets", c->refused_other },
		{ "refused_addresses", c->refused_addresses },
		{ "refused_names", c->refused_names },
		{ "refused_busy", c->refused_busy },
	};

	for (size_t i = 0; i < SBX_COUNT(counters); i++)
		sbx_buf_printf(b, ",\"egress_%s\":%llu", counters[i].key,
			       (unsigned long long)counters[i].n);
	if (c->lost)
		sbx_buf_puts(b, ",\"egress_lost\":1");
}

static void usage_json(const struct ending *end, const struct log_writer *log,
		       const struct collected *c, struct sbx_buf *b)
{
	const struct rt_exit *x = &end->exit;
	bool cut = log && log_writer_dropped(log) > 0;

	sbx_buf_printf(b,
		       "{\"cpu_time_sec\":%lld,\"wall_time_sec\":%lld,\"peak_rss_mb\":%lld,"
		       "\"log_bytes\":%lld,\"artifact_bytes\":%lld,\"cpu_time_us\":%lld,"
		       "\"wall_time_us\":%lld,\"peak_memory_bytes\":%lld",
		       (long long)(x->cpu_us / 1000000), (long long)(end->wall_us / SBX_SECOND_US),
		       (long long)(x->peak_bytes >> 20), log ? (long long)log_writer_bytes(log) : 0,
		       (long long)c->bytes, (long long)x->cpu_us, (long long)end->wall_us,
		       (long long)x->peak_bytes);
	if (cut)
		sbx_buf_printf(b,
			       ",\"log_truncated\":1,\"log_limit_bytes\":%lld,"
			       "\"log_bytes_dropped\":%lld",
			       (long long)log_writer_bytes(log),
			       (long long)log_writer_dropped(log));
	if (x->oom)
		sbx_buf_puts(b, ",\"memory_limit_hit\":1");
	if (x->pids_hit)
		sbx_buf_puts(b, ",\"pids_limit_hit\":1");
	if (end->workspace_full)
		sbx_buf_puts(b, ",\"workspace_full\":1");
	if (x->has_egress)
		egress_json(&x->egress, b);
	if (c->ran)
		sbx_buf_printf(
			b,
			",\"artifact_limit_file_bytes\":%lld,\"artifact_limit_total_bytes\":%lld,"
			"\"artifact_files_collected\":%zu,\"artifact_files_skipped\":%lld,"
			"\"artifact_files_excluded\":0,\"artifact_bytes_collected\":%lld,"
			"\"artifact_skip_file_limit\":%lld,\"artifact_skip_total_limit\":%lld,"
			"\"artifact_skip_symlink\":%lld,\"artifact_skip_invalid\":%lld,"
			"\"artifact_skip_read_error\":%lld",
			(long long)c->limit_file, (long long)c->limit_total, c->n,
			(long long)(c->skip_file_limit + c->skip_total_limit + c->skip_symlink +
				    c->skip_invalid + c->skip_read_error),
			(long long)c->bytes, (long long)c->skip_file_limit,
			(long long)c->skip_total_limit, (long long)c->skip_symlink,
			(long long)c->skip_invalid, (long long)c->skip_read_error);
	sbx_buf_puts(b, "}");
}

/* A limit that explains the end, as a sentence; NULL when none does. */
static const char *limit_hit(const struct rt_plan *plan, const struct ending *end, bool failed,
			     char text[256])
{
	if (end->exit.oom)
		(void)snprintf(text, 256, "the memory limit of %lld MiB was reached",
			       (long long)(plan->limits.memory_bytes >> 20));
	else if (failed && end->workspace_full)
		(void)snprintf(text, 256, "the workspace limit of %lld MiB was reached",
			       (long long)(plan->limits.workspace_bytes >> 20));
	else if (failed && end->exit.pids_hit)
		(void)snprintf(text, 256, "the limit of %lld processes was reached",
			       (long long)plan->limits.pids);
	else if (end->log_full_disk)
		(void)snprintf(text, 256, "the log was cut: the disk of the service is full");
	else
		return NULL;
	return text;
}

static void exited(const struct ms_run_spec *spec, const struct rt_plan *plan,
		   const struct ending *end, const struct log_writer *log,
		   const struct collected *c, char message[256], struct orch_outcome *out)
{
	int status = end->exit.status;
	bool skipped = c->skip_file_limit + c->skip_total_limit + c->skip_symlink +
			       c->skip_invalid + c->skip_read_error >
		       0;

	out->has_exit_code = true;
	out->exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
	out->phase = out->exit_code == 0 ? STORE_COMPLETED : STORE_FAILED;
	out->reason = out->exit_code == 0 ? "completed" : "nonzero_exit";
	if (end->exit.exec_errno) {
		(void)snprintf(message, 256, "cannot execute '%.150s': %s", spec->command[0],
			       strerror(end->exit.exec_errno));
		out->message = message;
		return;
	}
	out->message = limit_hit(plan, end, out->exit_code != 0, message);
	if (out->message) {
		out->reason = "limits_applied";
		return;
	}
	if (WIFSIGNALED(status)) {
		(void)snprintf(message, 256, "killed by signal %d (%s)", WTERMSIG(status),
			       strsignal(WTERMSIG(status)));
		out->message = message;
	}
	/* A limit that only cut what is kept does not hide a failure of the command itself. */
	if (out->exit_code == 0 && ((log && log_writer_dropped(log) > 0) || skipped))
		out->reason = "limits_applied";
}

void outcome_make(const struct ms_run_spec *spec, const struct rt_plan *plan,
		  const struct ending *end, const struct log_writer *log,
		  const struct collected *arts, struct sbx_buf *usage, char message[256],
		  struct orch_outcome *out)
{
	if (end->cancelled) {
		out->phase = STORE_KILLED;
		out->reason = out->message = "canceled_by_user";
	} else if (end->timed_out || end->startup_timed_out) {
		out->phase = STORE_TIMED_OUT;
		out->reason = out->message =
			end->timed_out ? "execution_timeout" : "startup_timeout";
	} else if (end->exit.lost && !end->exit.oom) {
		/* When files fill the memory, no kill frees any, and process 1 is the last to go.
		 */
		out->phase = STORE_FAILED;
		out->reason = "runtime_error";
		out->message = "the sandbox was killed from outside";
	} else {
		exited(spec, plan, end, log, arts, message, out);
	}
	usage_json(end, log, arts, usage);
	out->usage = sbx_buf_failed(usage) ? "{}" : usage->data;
	out->network = end->exit.has_egress ? end->exit.egress_list : NULL;
	out->log_bytes = log ? log_writer_bytes(log) : 0;
	out->artifacts = arts->list;
	out->n_artifacts = arts->n;
}
