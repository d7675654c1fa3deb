/* SPDX-License-Identifier: MIT
 *
 * zbprep text and tokens: documents and token files into one token file. */
#include "config.h"
#include "cli/zbprep.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"
#include "zb/npy.h"
#include "zb/tokenizer.h"
#include "zb/tokens.h"

#define PART 4096

struct job {
    const struct zbprep_opts *o;
    struct zb_tokenizer *tok; /* NULL: bytes */
    struct zb_encoder *enc;
    struct zbprep_out out;
    int32_t append; /* -1: nothing */
    int64_t n_documents, n_bytes;
};

/* ---- text ---------------------------------------------------------------- */

static enum zb_status find_append(struct job *job)
{
    const char *text = job->o->append;
    char *end;
    long id;

    job->append = -1;
    if (text == NULL) {
        return ZB_OK;
    }
    if (job->tok != NULL) {
        job->append = zb_tokenizer_find(job->tok, text);
    }
    if (job->append >= 0) {
        return ZB_OK;
    }
    errno = 0;
    id = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || id < 0 || id >= 1 << 24) {
        return zb_fail(ZB_EINVAL, "--append %s: no such token, and no id",
                       text);
    }
    job->append = (int32_t)id;
    return ZB_OK;
}

static enum zb_status put_bytes(struct job *job, const char *text, size_t n)
{
    int32_t ids[PART];

    while (n > 0) {
        size_t part = n < PART ? n : PART;

        for (size_t i = 0; i < part; i++) {
            ids[i] = (unsigned char)text[i];
        }
        ZB_TRY(zbprep_out_put(&job->out, ids, part));
        text += part;
        n -= part;
    }
    return ZB_OK;
}

static enum zb_status put_document(struct job *job, const char *text, size_t n)
{
    job->n_documents++;
    job->n_bytes += (int64_t)n;
    if (job->tok == NULL) {
        ZB_TRY(put_bytes(job, text, n));
    } else {
        ZB_TRY(zb_encode(job->enc, text, n, zbprep_out_put, &job->out));
    }
    return job->append < 0 ? ZB_OK : zbprep_out_put(&job->out, &job->append, 1);
}

static enum zb_status put_line(struct job *job, const char *line, size_t n)
{
    json_error_t error;
    json_t *object, *text;
    enum zb_status st;

    if (strspn(line, " \t\r") >= n) {
        return ZB_OK;
    }
    object = json_loadb(line, n, JSON_ALLOW_NUL, &error);
    if (object == NULL) {
        return zb_fail(ZB_ECONFIG, "%s", error.text);
    }
    text = json_object_get(object, job->o->field);
    st = json_is_string(text)
             ? put_document(job, json_string_value(text),
                            json_string_length(text))
             : zb_fail(ZB_ECONFIG, "no text '%s'", job->o->field);
    json_decref(object);
    return st;
}

static enum zb_status put_lines(struct job *job, const char *text, size_t n)
{
    int64_t number = 1;

    for (size_t at = 0; at < n; number++) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end != NULL ? (size_t)(end - text) - at : n - at;
        /* strspn() needs an end; a line is copied once. */
        char *line = zb_strndup(text + at, len);
        enum zb_status st = line == NULL ? ZB_ENOMEM : put_line(job, line, len);

        zb_free(line);
        if (st != ZB_OK) {
            return zb_fail_in(st, "line %" PRId64, number);
        }
        at += len + 1;
    }
    return ZB_OK;
}

static enum zb_status put_file(struct job *job, const char *path)
{
    struct zb_tokens *file;
    const char *text;
    size_t n;
    enum zb_status st;

    ZB_TRY(zb_tokens_open(path, ZB_DATA_TEXT, &file));
    text = zb_tokens_text(file);
    n = (size_t)zb_tokens_info(file).n_tokens;
    st = job->o->field != NULL ? put_lines(job, text, n)
                               : put_document(job, text, n);
    zb_tokens_close(file);
    /* What is wrong with the output is not wrong with this file. */
    return st == ZB_OK || st == ZB_EIO ? st : zb_fail_in(st, "%s", path);
}

static enum zb_status put_files(struct job *job)
{
    int64_t limit = job->tok != NULL ? zb_tokenizer_n_ids(job->tok) : 256;
    enum zb_status st = ZB_OK;

    ZB_TRY(find_append(job));
    limit = job->append >= limit ? job->append + 1 : limit;
    ZB_TRY(zbprep_out_open(&job->out, job->o->output, limit));
    for (int i = 0; i < job->o->n_files && st == ZB_OK; i++) {
        st = put_file(job, job->o->files[i]);
    }
    return zbprep_out_close(&job->out, st);
}

enum zb_status zbprep_text(const struct zbprep_opts *o)
{
    struct job job = {.o = o};
    enum zb_status st = ZB_OK;

    if (o->tokenizer != NULL) {
        st = zb_tokenizer_load(o->tokenizer, &job.tok);
        if (st == ZB_OK) {
            st = zb_encoder_new(job.tok, &job.enc);
        }
    }
    if (st == ZB_OK) {
        st = put_files(&job);
    }
    if (st == ZB_OK && !o->is_quiet) {
        printf("%s: %" PRId64 " tokens of %d bytes from %" PRId64
               " documents (%" PRId64 " bytes)\n",
               o->output, job.out.n_tokens, job.out.width, job.n_documents,
               job.n_bytes);
    }
    zb_encoder_free(job.enc);
    zb_tokenizer_free(job.tok);
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
