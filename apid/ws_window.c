/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows: stretches of a log as bytes of WebSocket frames. There are a few for all runs together;
 * the one that was not used for the longest time is filled anew. The frames that arrive live go
 * into the window that ends before them, where every follower who keeps up finds them.
 */
#include "apid/ws_i.h"

static bool holds(const struct ws_window *v, const struct ws_follow *f, uint64_t seq)
{
	return v->follow == f && seq >= v->first && seq < v->first + v->n;
}

static size_t start_of(const struct ws_window *v, uint64_t seq)
{
	return seq == v->first ? 0 : v->ends[seq - v->first - 1];
}

static void reset(struct ws_window *v, const struct ws_follow *f, uint64_t first)
{
	/* A frame can be larger than a window should be; such a buffer is not kept. */
	if (!v->bytes.limit || v->bytes.failed || v->bytes.size > (size_t)2 * WS_WINDOW_MAX || !f) {
		sbx_buf_free(&v->bytes);
		v->bytes = (struct sbx_buf)SBX_BUF_INIT(16 << 20);
	}
	v->bytes.len = 0;
	v->n = 0;
	v->follow = f;
	v->first = first;
}

/* The window that has the frame or ends just before it and has room, else the oldest, emptied. */
static struct ws_window *choose(struct ws_follow *f, uint64_t seq)
{
	struct ws *w = f->w;
	struct ws_window *oldest = &w->windows[0], *end = NULL;

	for (int i = 0; i < WS_WINDOWS; i++) {
		struct ws_window *v = &w->windows[i];

		if (holds(v, f, seq))
			return v;
		if (v->follow == f && v->first + v->n == seq && v->bytes.len < WS_WINDOW_MAX)
			end = v;
		if (v->used < oldest->used)
			oldest = v;
	}
	if (end)
		return end;
	reset(oldest, f, seq);
	return oldest;
}

static int append(struct ws_follow *f, struct ws_window *v, struct sbx_error *e)
{
	int rc;

	if (v->n == v->size) {
		size_t size = v->size ? v->size * 2 : 64;
		size_t *ends = realloc(v->ends, size * sizeof(*ends));

		if (!ends)
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for frames");
		v->ends = ends;
		v->size = size;
	}
	rc = ws_follow_frame(f, v->first + v->n, &v->bytes, e);
	if (rc == 0 && sbx_buf_failed(&v->bytes))
		rc = sbx_fail(e, SBX_E_NO_MEMORY, "no memory for frames");
	if (rc == 0)
		v->ends[v->n++] = v->bytes.len;
	else
		v->bytes.len = v->n ? v->ends[v->n - 1] : 0; /* no half of a frame */
	return rc;
}

int ws_window_get(struct ws_follow *f, uint64_t seq, size_t off, const char **ret, size_t *ret_len,
		  size_t *ret_one, struct sbx_error *e)
{
	struct ws_window *v = choose(f, seq);
	size_t start;
	int rc = 0;

	v->used = ++f->w->looks;
	start = holds(v, f, seq) ? start_of(v, seq) : v->bytes.len;
	while (rc == 0 && v->first + v->n <= f->frames &&
	       (!holds(v, f, seq) ||
		(v->bytes.len < WS_WINDOW_MAX && v->bytes.len - start < WS_PIECE + off)))
		rc = append(f, v, e);
	if (!holds(v, f, seq)) {
		reset(v, NULL, 0);
		return rc < 0 ? rc : sbx_fail(e, SBX_E_INTERNAL, "no frame to send");
	}
	if (off >= v->ends[seq - v->first] - start) /* of a log that was begun anew */
		return sbx_fail(e, SBX_E_INTERNAL, "the frame has changed");
	*ret_one = v->ends[seq - v->first] - start - off;
	*ret = v->bytes.data + start + off;
	*ret_len = v->bytes.len - start - off;
	if (*ret_len > WS_PIECE)
		*ret_len = WS_PIECE;
	return 0;
}

void ws_window_advance(const struct ws_follow *f, uint64_t *seq, size_t *off, size_t n)
{
	const struct ws_window *v = f->w->windows;
	size_t low, high, at;

	while (!holds(v, f, *seq))
		v++; /* the one that ws_window_get chose is there */
	at = start_of(v, *seq) + *off + n;
	/* The first frame that ends behind `at`. */
	low = *seq - v->first;
	high = v->n;
	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (v->ends[mid] > at)
			high = mid;
		else
			low = mid + 1;
	}
	*seq = v->first + low;
	*off = at - (low == 0 ? 0 : v->ends[low - 1]);
}

void ws_window_forget(struct ws *w, const struct ws_follow *f)
{
	for (int i = 0; i < WS_WINDOWS; i++)
		if (w->windows[i].follow == f)
			reset(&w->windows[i], NULL, 0);
}

void ws_window_free(struct ws *w)
{
	for (int i = 0; i < WS_WINDOWS; i++) {
		sbx_buf_free(&w->windows[i].bytes);
		free(w->windows[i].ends);
	}
}
