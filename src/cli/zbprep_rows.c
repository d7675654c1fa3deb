/* SPDX-License-Identifier: MIT
 *
 * zbprep rows: documents as padded rows, with a mask of what is text: array
 * data for zbrun. */
#include "config.h"
#include "cli/zbprep.h"

#include <inttypes.h>
#include <string.h>

#include "zb/mem.h"

struct rows {
    struct zbprep_out ids, mask;
    int64_t length, n_rows;
    int64_t n; /* of the row that is being filled */
    int32_t pad;
    int32_t *row;
};

static enum zb_status put_row(struct rows *r)
{
    int64_t n = r->n;

    for (int64_t i = n; i < r->length; i++) {
        r->row[i] = r->pad;
    }
    ZB_TRY(zbprep_out_put(&r->ids, r->row, (size_t)r->length));
    for (int64_t i = 0; i < r->length; i++) {
        r->row[i] = i < n;
    }
    ZB_TRY(zbprep_out_put(&r->mask, r->row, (size_t)r->length));
    r->n = 0;
    r->n_rows++;
    return ZB_OK;
}

/* What is longer than a row goes on in the next one. */
static enum zb_status put_ids(void *arg, const int32_t *ids, size_t n)
{
    struct rows *r = arg;

    for (size_t i = 0; i < n; i++) {
        r->row[r->n++] = ids[i];
        if (r->n == r->length) {
            ZB_TRY(put_row(r));
        }
    }
    return ZB_OK;
}

static enum zb_status end_document(void *arg)
{
    struct rows *r = arg;

    return r->n > 0 ? put_row(r) : ZB_OK;
}

static enum zb_status open_field(struct zbprep_out *out, const char *dir,
                                 const char *name, int64_t length,
                                 int64_t limit, char **path_out)
{
    *path_out = zb_format("%s/%s.npy", dir, name);
    if (*path_out == NULL) {
        return ZB_ENOMEM;
    }
    return zbprep_out_open_rows(out, *path_out, limit, length);
}

/* Both files, or none. */
static enum zb_status write_fields(const struct zbprep_opts *o, struct rows *r,
                                   struct zbprep_docs *docs, char *path[2])
{
    enum zb_status st;

    ZB_TRY(zbprep_docs_limit(docs, &r->pad));
    ZB_TRY(zb_make_dir(o->output));
    ZB_TRY(open_field(&r->ids, o->output, "input_ids", r->length,
                      docs->id_limit, &path[0]));
    st = open_field(&r->mask, o->output, "attention_mask", r->length, 2,
                    &path[1]);
    if (st != ZB_OK) {
        return zbprep_out_close(&r->ids, st);
    }
    st = zbprep_docs_put(docs);
    if (st == ZB_OK && r->n_rows == 0) {
        st = zb_fail(ZB_ECONFIG, "the documents have no tokens");
    }
    st = zbprep_out_close(&r->mask, st);
    return zbprep_out_close(&r->ids, st);
}

enum zb_status zbprep_rows(const struct zbprep_opts *o)
{
    struct rows r = {.length = o->length};
    struct zbprep_docs docs = {
        .o = o, .put = put_ids, .end = end_document, .to = &r};
    char *path[2] = {NULL, NULL};
    enum zb_status st;

    r.row = zb_alloc_array((size_t)o->length, sizeof(*r.row));
    st = r.row == NULL ? ZB_ENOMEM : zbprep_docs_open(&docs);
    if (st == ZB_OK) {
        st = write_fields(o, &r, &docs, path);
    }
    if (st == ZB_OK && !o->is_quiet) {
        printf("%s: %" PRId64 " rows of %" PRId64 " tokens from %" PRId64
               " documents (%" PRId64 " bytes)\n",
               o->output, r.n_rows, r.length, docs.n_documents, docs.n_bytes);
    }
    zbprep_docs_close(&docs);
    zb_free(path[0]);
    zb_free(path[1]);
    zb_free(r.row);
    return st;
}
