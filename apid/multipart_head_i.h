/* SPDX-License-Identifier: Apache-2.0 */
/* The headers of a form. Private to apid/. */
#ifndef SBX_APID_MULTIPART_HEAD_I_H
#define SBX_APID_MULTIPART_HEAD_I_H

#include "apid/multipart_i.h"

/* Of a part; owned. file_name NULL: none. */
struct multipart_head {
	char *name, *file_name;
};
void multipart_head_clear(struct multipart_head *h);

/* From a Content-Type. INVALID_SPEC: it is no form; INVALID_ARGUMENT: without a boundary. */
int multipart_boundary(const char *type, char ret[MULTIPART_BOUNDARY + 1], struct sbx_error *e);
/* Lines that each end in CRLF, without the empty one; the text is cut up. To be cleared also when
 * it fails. */
int multipart_head_read(char *text, struct multipart_head *h, struct sbx_error *e);

#endif
