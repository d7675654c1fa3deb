/* SPDX-License-Identifier: MIT
 *
 * zbprep text and tokens: documents and token files into one token file. */
#include "config.h"
#include "cli/zbprep.h"

#include <inttypes.h>

#include "zb/npy.h"
#include "zb/tokens.h"

#define PART 4096

/* ---- text ---------------------------------------------------------------- */

enum zb_status zbprep_text(const struct zbprep_opts *o)
{
    struct zbprep_out out;
    struct zbprep_docs docs = {.o = o, .put = zbprep_out_put, .to = &out};
    enum zb_status st = zbprep_docs_open(&docs);

    if (st == ZB_OK) {
        st = zbprep_out_open(&out, o->output, docs.id_limit);
        if (st == ZB_OK) {
            st = zbprep_out_close(&out, zbprep_docs_put(&docs));
        }
    }
    if (st == ZB_OK && !o->is_quiet) {
        printf("%s: %" PRId64 " tokens of %d bytes from %" PRId64
               " documents (%" PRId64 " bytes)\n",
               o->output, out.n_tokens, out.width, docs.n_documents,
               docs.n_bytes);
    }
    zbprep_docs_close(&docs);
    return st;
}

/* ---- tokens -------------------------------------------------------------- */

typedef enum zb_status (*part_fn)(void *arg, const int32_t *ids, size_t n);

static enum zb_status each_part(const char *path, part_fn fn, void *arg)
{
    struct zb_tokens *file;
    int32_t ids[PART];
    enum zb_status st = ZB_OK;
    int64_t n;

    ZB_TRY(zb_tokens_open(path, ZB_DATA_TOKENS, &file));
    n = zb_tokens_info(file).n_tokens;
    for (int64_t at = 0; at < n && st == ZB_OK; at += PART) {
        int64_t part = n - at < PART ? n - at : PART;

        st = zb_tokens_check(file);
        if (st == ZB_OK) {
            st = zb_tokens_read(file, at, part, INT64_C(1) << 31, ids);
        }
        if (st == ZB_OK) {
            st = fn(arg, ids, (size_t)part);
        }
    }
    zb_tokens_close(file);
    return st;
}

static enum zb_status find_most(void *arg, const int32_t *ids, size_t n)
{
    int32_t *most = arg;

    for (size_t i = 0; i < n; i++) {
        *most = ids[i] > *most ? ids[i] : *most;
    }
    return ZB_OK;
}

enum zb_status zbprep_tokens(const struct zbprep_opts *o)
{
    struct zbprep_out out;
    int32_t most = -1;
    enum zb_status st = ZB_OK;

    for (int i = 0; i < o->n_files; i++) {
        ZB_TRY(each_part(o->files[i], find_most, &most));
    }
    ZB_TRY(zbprep_out_open(&out, o->output, (int64_t)most + 1));
    for (int i = 0; i < o->n_files && st == ZB_OK; i++) {
        st = each_part(o->files[i], zbprep_out_put, &out);
    }
    ZB_TRY(zbprep_out_close(&out, st));
    if (!o->is_quiet) {
        printf("%s: %" PRId64 " tokens of %d bytes, the greatest %d\n",
               o->output, out.n_tokens, out.width, (int)most);
    }
    return ZB_OK;
}

/* ---- info ---------------------------------------------------------------- */

static enum zb_status print_tokens(const char *path, const struct zb_tokens *t)
{
    struct zb_tokens_info info = zb_tokens_info(t);
    int32_t most = -1;

    printf("%s: %s, %" PRId64 " %s%s", path, info.format, info.n_tokens,
           info.is_text ? "bytes" : "tokens of ",
           info.is_text ? "" : info.type);
    if (info.n_sequences >= 0) {
        printf(", %" PRId64 " sequences, %" PRId64 " documents",
               info.n_sequences, info.n_documents);
    }
    if (!info.is_text) {
        printf(", from byte %" PRId64 " on", info.offset);
        ZB_TRY(each_part(path, find_most, &most));
        printf(", greatest id %d", (int)most);
    }
    printf("\n");
    return ZB_OK;
}

/* An array that is no row of tokens. */
static enum zb_status print_array(const char *path)
{
    const struct zb_npy_info *info;
    struct zb_npy *a;

    ZB_TRY(zb_npy_open(path, &a));
    info = zb_npy_info(a);
    printf("%s: npy, an array of type %c%d [", path, info->kind, info->width);
    for (int i = 0; i < info->n_dims; i++) {
        printf("%s%" PRId64, i == 0 ? "" : ", ", info->dim[i]);
    }
    printf("]%s, from byte %" PRId64 " on\n",
           info->is_fortran && info->n_dims > 1 ? ", first dimension fastest"
                                                : "",
           info->offset);
    zb_npy_close(a);
    return ZB_OK;
}

static int is_array(const char *path)
{
    struct zb_npy *a = NULL;
    int is_good = zb_npy_open(path, &a) == ZB_OK;

    zb_npy_close(a);
    return is_good;
}

enum zb_status zbprep_info(const struct zbprep_opts *o)
{
    for (int i = 0; i < o->n_files; i++) {
        struct zb_tokens *t = NULL;
        enum zb_status st = zb_tokens_open(o->files[i], ZB_DATA_AUTO, &t);

        if (st == ZB_OK) {
            st = print_tokens(o->files[i], t);
        } else if (is_array(o->files[i])) {
            st = print_array(o->files[i]);
        } else {
            st = zb_tokens_open(o->files[i], ZB_DATA_AUTO, &t);
        }
        zb_tokens_close(t);
        ZB_TRY(st);
    }
    return ZB_OK;
}
