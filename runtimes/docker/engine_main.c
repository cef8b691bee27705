/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sandbox-engine: one runner's voice to the engine. It reads requests from descriptor 3, does each
 * over the engine's socket, and writes back what came. It ends with its runner, and it drops what
 * it is doing when the runner asks for something else.
 */
#include <curl/curl.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/fs.h"
#include "runtimes/docker/wire_i.h"

struct request {
	struct dk_ask_head head;
	char path[DK_PATH_MAX + 1];
	char *body; /* owned */
};

struct reply {
	struct sbx_buf body; /* owned */
	bool tail;
	bool too_long;
};

/* False: the runner is gone. */
static bool read_request(struct request *q)
{
	struct dk_ask_head *h = &q->head;

	free(q->body);
	q->body = NULL;
	if (sbx_read_full(DK_HELPER_SOCKET, h, sizeof(*h)) != (ssize_t)sizeof(*h) ||
	    h->path_size > DK_PATH_MAX || h->body_size > DK_BODY_MAX)
		return false;
	if (sbx_read_full(DK_HELPER_SOCKET, q->path, h->path_size) != (ssize_t)h->path_size)
		return false;
	q->path[h->path_size] = '\0';
	q->body = malloc((size_t)h->body_size + 1);
	return q->body &&
	       sbx_read_full(DK_HELPER_SOCKET, q->body, h->body_size) == (ssize_t)h->body_size;
}

static void send_reply(const struct request *q, uint32_t status, const char *body, size_t len)
{
	struct dk_answer_head h = { .serial = q->head.serial,
				    .status = status,
				    .body_size = (uint32_t)len };

	if (sbx_write_all(DK_HELPER_SOCKET, &h, sizeof(h)) < 0 ||
	    sbx_write_all(DK_HELPER_SOCKET, body, len) < 0)
		exit(EX_OK);
}

/* Keeps the last DK_TAIL_MAX bytes, at least. */
static void drop_head(struct sbx_buf *b)
{
	if (b->len < (size_t)2 * DK_TAIL_MAX)
		return;
	memmove(b->data, b->data + b->len - DK_TAIL_MAX, DK_TAIL_MAX);
	b->len = DK_TAIL_MAX;
}

static size_t take(char *data, size_t size, size_t n, void *ctx)
{
	struct reply *r = ctx;

	sbx_buf_add(&r->body, data, size * n);
	if (sbx_buf_failed(&r->body)) {
		r->too_long = true;
		return 0;
	}
	if (r->tail)
		drop_head(&r->body);
	return size * n;
}

static void set_method(CURL *c, const struct request *q)
{
	switch ((enum dk_method)q->head.method) {
	case DK_POST:
		(void)curl_easy_setopt(c, CURLOPT_POST, 1L);
		(void)curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE,
				       (curl_off_t)q->head.body_size);
		(void)curl_easy_setopt(c, CURLOPT_POSTFIELDS, q->body);
		break;
	case DK_DELETE:
		(void)curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, "DELETE");
		break;
	case DK_GET:
	default:
		break;
	}
}

static void set_up(CURL *c, const char *socket, const struct request *q, struct curl_slist *headers,
		   struct reply *r, char *error)
{
	char url[DK_PATH_MAX + 32];

	(void)snprintf(url, sizeof(url), "http://engine%s", q->path);
	curl_easy_reset(c);
	(void)curl_easy_setopt(c, CURLOPT_URL, url);
	(void)curl_easy_setopt(c, CURLOPT_UNIX_SOCKET_PATH, socket);
	(void)curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http");
	(void)curl_easy_setopt(c, CURLOPT_PROXY, ""); /* whatever the environment says */
	(void)curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
	(void)curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)q->head.limit_ms);
	(void)curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
	(void)curl_easy_setopt(c, CURLOPT_ERRORBUFFER, error);
	(void)curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take);
	(void)curl_easy_setopt(c, CURLOPT_WRITEDATA, r);
	set_method(c, q);
}

/* True: it is done, and *ret_result says how. False: the runner wants something else. */
static bool transfer(CURLM *multi, CURLcode *ret_result)
{
	struct curl_waitfd runner = { .fd = DK_HELPER_SOCKET, .events = CURL_WAIT_POLLIN };
	int running = 1, left;

	*ret_result = CURLE_FAILED_INIT;
	while (curl_multi_perform(multi, &running) == CURLM_OK) {
		CURLMsg *m;

		while ((m = curl_multi_info_read(multi, &left)))
			if (m->msg == CURLMSG_DONE) {
				*ret_result = m->data.result;
				return true;
			}
		/* The library wakes up by itself for its own time limits. */
		if (!running || curl_multi_poll(multi, &runner, 1, 60000, NULL) != CURLM_OK)
			return true;
		if (runner.revents)
			return false;
		runner.revents = 0;
	}
	return true;
}

static void answer(CURL *c, const struct request *q, struct reply *r, CURLcode result,
		   const char *error)
{
	long status = 0;

	(void)curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
	if (result == CURLE_OK && status > 0) {
		send_reply(q, (uint32_t)status, r->body.data ? r->body.data : "", r->body.len);
		return;
	}
	if (r->too_long)
		error = "its answer is too long";
	else if (result == CURLE_OPERATION_TIMEDOUT)
		error = "it did not answer in time";
	else if (!*error)
		error = curl_easy_strerror(result);
	send_reply(q, 0, error, strlen(error));
}

static void serve(CURLM *multi, CURL *c, const char *socket)
{
	/* No wait for a permission to send a large body, which a local engine does not need. */
	struct curl_slist *json = curl_slist_append(
		curl_slist_append(NULL, "Content-Type: application/json"), "Expect:");
	struct curl_slist *tar = curl_slist_append(
		curl_slist_append(NULL, "Content-Type: application/x-tar"), "Expect:");
	struct request *q = calloc(1, sizeof(*q));

	while (q && json && tar && read_request(q)) {
		char error[CURL_ERROR_SIZE] = "";
		struct reply r = { .body = SBX_BUF_INIT(DK_BODY_MAX), .tail = q->head.tail };
		CURLcode result;

		set_up(c, socket, q, q->head.tar ? tar : json, &r, error);
		if (curl_multi_add_handle(multi, c) != CURLM_OK)
			break;
		if (transfer(multi, &result))
			answer(c, q, &r, result, error);
		(void)curl_multi_remove_handle(multi, c);
		sbx_buf_free(&r.body);
	}
	if (q)
		free(q->body);
	free(q);
	curl_slist_free_all(json);
	curl_slist_free_all(tar);
}

int main(int argc, char **argv)
{
	struct stat st;
	CURLM *multi;
	CURL *c;

	if (argc != DK_HELPER_ARGS || fstat(DK_HELPER_SOCKET, &st) < 0 || !S_ISSOCK(st.st_mode)) {
		fprintf(stderr, "sandbox-engine is started by sandbox-runner\n");
		return EX_USAGE;
	}
	(void)signal(SIGPIPE, SIG_IGN);
	if (curl_global_init(CURL_GLOBAL_NOTHING) != CURLE_OK)
		return EX_UNAVAILABLE;
	multi = curl_multi_init();
	c = curl_easy_init();
	if (multi && c)
		serve(multi, c, argv[1]);
	curl_easy_cleanup(c);
	(void)curl_multi_cleanup(multi);
	curl_global_cleanup();
	return EX_OK;
}
