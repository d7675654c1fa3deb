/* SPDX-License-Identifier: MIT
 *
 * Normalizers. */
#include "config.h"
#include "data/tok_int.h"

#include <utf8proc.h>

#include "zb/mem.h"

/* ---- from the file ------------------------------------------------------- */

static const struct {
    const char *name;
    int form;
    uint32_t first_changed;
} forms[] = {
    /* Nothing before U+0300 is changed by NFC; NFD and NFKC change U+00A0. */
    {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE, 0x300},
    {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, 0x80},
    {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT, 0x80},
    {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, 0x80},
};

static enum zb_status norm_init(struct zb_tokenizer *tok, const json_t *json,
                                struct tok_norm *n)
{
    const char *type = zb_tok_type(json);

    for (size_t i = 0; type != NULL && i < ZB_COUNT_OF(forms); i++) {
        if (strcmp(type, forms[i].name) == 0) {
            n->kind = TOK_UNICODE;
            n->form = forms[i].form;
            n->first_changed = forms[i].first_changed;
            return ZB_OK;
        }
    }
    if (type != NULL && strcmp(type, "Prepend") == 0) {
        n->kind = TOK_PREPEND;
        return zb_tok_get_text(tok, json, "prepend", NULL, &n->to);
    }
    if (type != NULL && strcmp(type, "Replace") == 0) {
        n->kind = TOK_REPLACE;
        ZB_TRY(zb_tok_get_text(tok, json_object_get(json, "pattern"), "String",
                               NULL, &n->from));
        if (n->from.n == 0) {
            return zb_fail(ZB_ECONFIG, "%s: normalizer Replace of nothing",
                           tok->name);
        }
        return zb_tok_get_text(tok, json, "content", NULL, &n->to);
    }
    return zb_fail(ZB_ECONFIG, "%s: normalizer type %.64s is not supported",
                   tok->name, type != NULL ? type : "(none)");
}

static enum zb_status norm_add(struct zb_tokenizer *tok, const json_t *json)
{
    if (tok->n_norms == TOK_MAX_STEPS) {
        return zb_fail(ZB_ECONFIG, "%s: more than %d normalizers", tok->name,
                       TOK_MAX_STEPS);
    }
    return norm_init(tok, json, &tok->norm[tok->n_norms++]);
}

enum zb_status zb_tok_norms_init(struct zb_tokenizer *tok, const json_t *json)
{
    const char *type;
    const json_t *entry;
    size_t i;

    if (json == NULL || json_is_null(json)) {
        return ZB_OK;
    }
    type = zb_tok_type(json);
    if (type == NULL || strcmp(type, "Sequence") != 0) {
        return norm_add(tok, json);
    }
    json_array_foreach(json_object_get(json, "normalizers"), i, entry)
    {
        ZB_TRY(norm_add(tok, entry));
    }
    return ZB_OK;
}

void zb_tok_norms_release(struct zb_tokenizer *tok)
{
    for (int i = 0; i < tok->n_norms; i++) {
        zb_tok_buf_release(&tok->norm[i].from);
        zb_tok_buf_release(&tok->norm[i].to);
    }
    tok->n_norms = 0;
}

/* ---- Unicode's forms ----------------------------------------------------- */

/* A run that may change: from the character before it, which it may compose
 * with, to the next ASCII character, which composes with nothing before. */
static enum zb_status put_form(const struct tok_norm *norm, const char *text,
                               size_t n, struct tok_buf *out)
{
    utf8proc_int32_t *chars;
    utf8proc_ssize_t n_chars, n_bytes;
    const utf8proc_option_t form = (utf8proc_option_t)norm->form;
    enum zb_status st;

    n_chars = utf8proc_decompose((const utf8proc_uint8_t *)text,
                                 (utf8proc_ssize_t)n, NULL, 0, form);
    if (n_chars < 0) {
        return zb_fail(ZB_ECONFIG, "%s", utf8proc_errmsg(n_chars));
    }
    chars = zb_alloc_array((size_t)n_chars + 1, sizeof(*chars));
    if (chars == NULL) {
        return ZB_ENOMEM;
    }
    n_chars = utf8proc_decompose((const utf8proc_uint8_t *)text,
                                 (utf8proc_ssize_t)n, chars, n_chars, form);
    n_bytes = n_chars < 0 ? n_chars : utf8proc_reencode(chars, n_chars, form);
    if (n_bytes < 0) {
        st = zb_fail(ZB_ECONFIG, "%s", utf8proc_errmsg(n_bytes));
    } else {
        st = zb_tok_buf_add(out, chars, (size_t)n_bytes);
    }
    zb_free(chars);
    return st;
}

/* The end of the characters from `at` on that are not ASCII, and whether one of
 * them may change. */
static size_t run_end(const struct tok_norm *norm, const char *text, size_t n,
                      size_t at, int *may_change)
{
    size_t len;

    *may_change = 0;
    while (at < n && (unsigned char)text[at] >= 0x80) {
        *may_change |= zb_tok_char(text + at, &len) >= norm->first_changed;
        at += len;
    }
    return at;
}

static enum zb_status unicode(const struct tok_norm *norm, const char *text,
                              size_t n, struct tok_buf *out, int *is_changed)
{
    size_t done = 0, at = 0;

    *is_changed = 0;
    while (at < n) {
        size_t first, end;
        int may_change;

        while (at < n && (unsigned char)text[at] < 0x80) {
            at++;
        }
        first = at > done ? at - 1 : at;
        end = run_end(norm, text, n, at, &may_change);
        if (may_change) {
            ZB_TRY(zb_tok_buf_add(out, text + done, first - done));
            ZB_TRY(put_form(norm, text + first, end - first, out));
            done = end;
            *is_changed = 1;
        }
        at = end;
    }
    return *is_changed ? zb_tok_buf_add(out, text + done, n - done) : ZB_OK;
}

/* ---- Replace and Prepend ------------------------------------------------- */

static enum zb_status replace(const struct tok_norm *norm, const char *text,
                              size_t n, struct tok_buf *out, int *is_changed)
{
    const char *end = text + n, *hit;

    *is_changed = 0;
    while (text < end && (hit = memmem(text, (size_t)(end - text),
                                       norm->from.at, norm->from.n)) != NULL) {
        ZB_TRY(zb_tok_buf_add(out, text, (size_t)(hit - text)));
        ZB_TRY(zb_tok_buf_add(out, norm->to.at, norm->to.n));
        text = hit + norm->from.n;
        *is_changed = 1;
    }
    return *is_changed ? zb_tok_buf_add(out, text, (size_t)(end - text))
                       : ZB_OK;
}

static enum zb_status prepend(const struct tok_norm *norm, const char *text,
                              size_t n, struct tok_buf *out, int *is_changed)
{
    *is_changed = n > 0 && norm->to.n > 0;
    if (!*is_changed) {
        return ZB_OK;
    }
    ZB_TRY(zb_tok_buf_add(out, norm->to.at, norm->to.n));
    return zb_tok_buf_add(out, text, n);
}

enum zb_status zb_tok_normalize(const struct zb_tokenizer *tok,
                                const char *text, size_t n,
                                struct tok_buf buf[2], const char **text_out,
                                size_t *n_out)
{
    static enum zb_status (*const apply[])(
        const struct tok_norm *, const char *, size_t, struct tok_buf *,
        int *) = {[TOK_PREPEND] = prepend,
                  [TOK_REPLACE] = replace,
                  [TOK_UNICODE] = unicode};
    int to = 0;

    for (int i = 0; i < tok->n_norms; i++) {
        int is_changed;

        buf[to].n = 0;
        ZB_TRY(apply[tok->norm[i].kind](&tok->norm[i], text, n, &buf[to],
                                        &is_changed));
        if (is_changed) {
            text = buf[to].at;
            n = buf[to].n;
            to = 1 - to;
        }
    }
    *text_out = text;
    *n_out = n;
    return ZB_OK;
}
