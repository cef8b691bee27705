/* SPDX-License-Identifier: Apache-2.0 */
/* sandbox-apid: the HTTP door. This file is about the process: command line, order of starting and
 * stopping, signals. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sysexits.h>
#include <unistd.h>

#include "apid/apid_i.h"
#include "apid/options.h"
#include "base/log.h"
#include "base/process.h"

static struct orch_options orch_options_of(const struct apid_options *o)
{
	return (struct orch_options){ .state_dir = o->state,
				      .config_path = o->config,
				      .overrides = (const char *const *)o->overrides,
				      .n_overrides = o->n_overrides,
				      .runner = getenv("SANDBOXFS_RUNNER"),
				      .door = "api",
				      .workers = o->workers };
}

/* ---- serving --------------------------------------------------------------------------------- */

/* What is bound comes before what costs time, so that a wrong address is told at once; what takes
 * requests in comes last. */
static int start(struct apid *a, const struct apid_options *o, struct sbx_error *e)
{
	struct orch_options oo = orch_options_of(o);
	int rc = orch_open(&oo, &a->orch, e);

	if (rc == 0)
		rc = orch_sessions_recover(a->orch, e);
	if (rc < 0)
		return rc;
	a->store = orch_store(a->orch);
	rc = conns_open(a, &a->conns, e);
	if (rc == 0)
		rc = auth_new(a, &a->auth, e);
	if (rc == 0 && (!(a->finished = finished_new()) || !(a->worker = worker_new())))
		rc = sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	if (rc == 0)
		rc = waiting_start(a, &a->waiting, e);
	if (rc == 0)
		rc = ws_start(a, &a->ws, e);
	if (rc == 0)
		rc = http_start(a, &a->http, e);
	if (rc == 0)
		rc = orch_start(a->orch, e);
	return rc == 0 ? conns_start(a->conns, e) : rc;
}

/* New connections first; then whoever waits gets an answer, and what is done for requests is done
 * to its end; then the streams, which libmicrohttpd must let go of before it can stop. */
static void stop(struct apid *a)
{
	conns_stop(a->conns);
	orch_stop_helpers(a->orch);
	waiting_end(a->waiting);
	worker_end(a->worker);
	waiting_flush(a->waiting);
	ws_end(a->ws);
	http_stop(a->http);
	ws_free(a->ws);
	worker_free(a->worker);
	waiting_free(a->waiting);
	finished_free(a->finished);
	conns_close(a->conns);
	auth_free(a->auth);
	orch_close(a->orch);
}

static void reload(struct apid *a)
{
	sbx_autoerror e = SBX_ERROR_INIT;

	if (orch_reload(a->orch, &e) < 0 || auth_reload(a->auth, &e) < 0)
		sbx_log(SBX_LOG_ERROR, "configuration not reloaded error=\"%s\"", e.message);
	else
		sbx_log(SBX_LOG_INFO, "configuration reloaded");
}

static void wait_for_end(struct apid *a, int signals)
{
	struct signalfd_siginfo si;

	for (;;) {
		ssize_t n = read(signals, &si, sizeof(si));

		if (n < 0 && errno == EINTR)
			continue;
		if (n != (ssize_t)sizeof(si) || si.ssi_signo != SIGHUP)
			return;
		reload(a);
	}
}

static int serve(const struct apid_options *o, struct sbx_error *e)
{
	struct apid a = { .spools_lock = PTHREAD_MUTEX_INITIALIZER };
	sbx_autoclose int signals = -1;
	int rc;

	signals = sbx_process_signals();
	if (signals < 0)
		return sbx_fail_errno(e, SBX_E_INTERNAL, errno, "cannot wait for signals");
	rc = start(&a, o, e);
	if (rc == 0) {
		sbx_process_ready();
		wait_for_end(&a, signals);
		sbx_process_stopping();
	}
	stop(&a);
	return rc;
}

/* ---- the other modes ------------------------------------------------------------------------- */

static int check(const struct apid_options *o, struct sbx_error *e)
{
	struct orch_options oo = orch_options_of(o);
	sbx_autobuf out = SBX_BUF_INIT(4 << 20);
	struct orch *orch = NULL;
	int rc;

	oo.workers = 0;
	oo.door = "local";
	rc = orch_open(&oo, &orch, e);
	if (rc == 0)
		rc = orch_view_check(orch, o->json, &out, e);
	if (rc == 0)
		(void)fwrite(out.data, 1, out.len, stdout);
	orch_close(orch);
	return rc;
}

static int print_config(const struct apid_options *o, struct sbx_error *e)
{
	sbx_autobuf out = SBX_BUF_INIT(1 << 20);
	struct orch_settings *st = NULL;
	int rc = orch_settings_load(o->config, (const char *const *)o->overrides, o->n_overrides,
				    &st, e);

	if (rc == 0) {
		orch_settings_print(st, &out);
		(void)fwrite(out.data ? out.data : "", 1, out.len, stdout);
	}
	orch_settings_free(st);
	return rc;
}

static int run_mode(struct apid_options *o, struct sbx_error *e)
{
	int rc = 0;

	switch (o->mode) {
	case APID_HELP:
		fputs(apid_usage, stdout);
		return 0;
	case APID_VERSION:
		printf("sandbox-apid %s (libmicrohttpd %s)\n", SBX_VERSION, MHD_get_version());
		return 0;
	case APID_PRINT_CONFIG:
		return print_config(o, e);
	default:
		break;
	}
	if (!o->state)
		rc = orch_state_dir(o->config, (const char *const *)o->overrides, o->n_overrides,
				    &o->state, e);
	if (rc < 0)
		return rc;
	return o->mode == APID_CHECK ? check(o, e) : serve(o, e);
}

int main(int argc, char **argv)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	struct apid_options o;
	int rc;

	sbx_process_init("sandbox-apid");
	rc = apid_options_parse(argc, argv, &o, &e);
	if (rc == 0)
		rc = run_mode(&o, &e);
	apid_options_clear(&o);
	rc = sbx_exit_code(rc, &e);
	if (rc == EX_USAGE)
		fprintf(stderr, "Try: sandbox-apid --help\n");
	return rc;
}
