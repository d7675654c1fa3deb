/* SPDX-License-Identifier: MIT
 *
 * Documents of zbprep: text files, or lines of JSON, as tokens. */
#include "config.h"
#include "cli/zbprep.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"
#include "zb/tokenizer.h"
#include "zb/tokens.h"

#define PART 4096

/* A token as the tokenizer spells it, or its number. */
static enum zb_status find_token(const struct zbprep_docs *d,
                                 const char *option, const char *text,
                                 int32_t *id_out)
{
    int32_t found = d->tok != NULL ? zb_tokenizer_find(d->tok, text) : -1;
    char *end;
    long id;

    if (found >= 0) {
        *id_out = found;
        return ZB_OK;
    }
    errno = 0;
    id = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || id < 0 || id >= 1 << 24) {
        return zb_fail(ZB_EINVAL, "%s %s: no such token, and no id", option,
                       text);
    }
    *id_out = (int32_t)id;
    return ZB_OK;
}

static void include(struct zbprep_docs *d, int32_t id)
{
    d->id_limit = id >= d->id_limit ? (int64_t)id + 1 : d->id_limit;
}

enum zb_status zbprep_docs_open(struct zbprep_docs *d)
{
    d->begin = -1;
    d->append = -1;
    d->id_limit = 256;
    if (d->o->tokenizer != NULL) {
        ZB_TRY(zb_tokenizer_load(d->o->tokenizer, &d->tok));
        ZB_TRY(zb_encoder_new(d->tok, &d->enc));
        d->id_limit = zb_tokenizer_n_ids(d->tok);
    }
    if (d->o->begin != NULL) {
        ZB_TRY(find_token(d, "--begin", d->o->begin, &d->begin));
        include(d, d->begin);
    }
    if (d->o->append != NULL) {
        ZB_TRY(find_token(d, "--append", d->o->append, &d->append));
        include(d, d->append);
    }
    return ZB_OK;
}

enum zb_status zbprep_docs_limit(struct zbprep_docs *d, int32_t *pad_out)
{
    *pad_out = 0;
    if (d->o->pad != NULL) {
        ZB_TRY(find_token(d, "--pad", d->o->pad, pad_out));
        include(d, *pad_out);
    }
    return ZB_OK;
}

void zbprep_docs_close(struct zbprep_docs *d)
{
    zb_encoder_free(d->enc);
    zb_tokenizer_free(d->tok);
}

static enum zb_status put_bytes(struct zbprep_docs *d, const char *text,
                                size_t n)
{
    int32_t ids[PART];

    while (n > 0) {
        size_t part = n < PART ? n : PART;

        for (size_t i = 0; i < part; i++) {
            ids[i] = (unsigned char)text[i];
        }
        ZB_TRY(d->put(d->to, ids, part));
        text += part;
        n -= part;
    }
    return ZB_OK;
}

static enum zb_status put_document(struct zbprep_docs *d, const char *text,
                                   size_t n)
{
    d->n_documents++;
    d->n_bytes += (int64_t)n;
    if (d->begin >= 0) {
        ZB_TRY(d->put(d->to, &d->begin, 1));
    }
    if (d->tok == NULL) {
        ZB_TRY(put_bytes(d, text, n));
    } else {
        ZB_TRY(zb_encode(d->enc, text, n, d->put, d->to));
    }
    if (d->append >= 0) {
        ZB_TRY(d->put(d->to, &d->append, 1));
    }
    return d->end != NULL ? d->end(d->to) : ZB_OK;
}

static enum zb_status put_line(struct zbprep_docs *d, const char *line,
                               size_t n)
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
    text = json_object_get(object, d->o->field);
    st =
        json_is_string(text)
            ? put_document(d, json_string_value(text), json_string_length(text))
            : zb_fail(ZB_ECONFIG, "no text '%s'", d->o->field);
    json_decref(object);
    return st;
}

static enum zb_status put_lines(struct zbprep_docs *d, const char *text,
                                size_t n)
{
    int64_t number = 1;

    for (size_t at = 0; at < n; number++) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end != NULL ? (size_t)(end - text) - at : n - at;
        /* strspn() needs an end; a line is copied once. */
        char *line = zb_strndup(text + at, len);
        enum zb_status st = line == NULL ? ZB_ENOMEM : put_line(d, line, len);

        zb_free(line);
        if (st != ZB_OK) {
            return zb_fail_in(st, "line %" PRId64, number);
        }
        at += len + 1;
    }
    return ZB_OK;
}

static enum zb_status put_file(struct zbprep_docs *d, const char *path)
{
    struct zb_tokens *file;
    const char *text;
    size_t n;
    enum zb_status st;

    ZB_TRY(zb_tokens_open(path, ZB_DATA_TEXT, &file));
    text = zb_tokens_text(file);
    n = (size_t)zb_tokens_info(file).n_tokens;
    st = d->o->field != NULL ? put_lines(d, text, n) : put_document(d, text, n);
    zb_tokens_close(file);
    /* What is wrong with the output is not wrong with this file. */
    return st == ZB_OK || st == ZB_EIO ? st : zb_fail_in(st, "%s", path);
}

enum zb_status zbprep_docs_put(struct zbprep_docs *d)
{
    for (int i = 0; i < d->o->n_files; i++) {
        ZB_TRY(put_file(d, d->o->files[i]));
    }
    return ZB_OK;
}
