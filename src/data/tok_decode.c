/* SPDX-License-Identifier: MIT
 *
 * Ids to text. Each step rewrites a list of texts, which lie one after the
 * other in one buffer, each with its length. */
#include "config.h"
#include "data/tok_int.h"

#include <stdlib.h>

#include "zb/mem.h"

struct texts {
    struct tok_buf bytes;
    size_t n, cap;
    size_t *length;
};

static enum zb_status texts_end(struct texts *t, size_t begin)
{
    ZB_TRY(zb_grow(&t->length, t->n, &t->cap, sizeof(*t->length)));
    t->length[t->n++] = t->bytes.n - begin;
    return ZB_OK;
}

static enum zb_status texts_add(struct texts *t, const char *p, size_t n)
{
    size_t begin = t->bytes.n;

    ZB_TRY(zb_tok_buf_add(&t->bytes, p, n));
    return texts_end(t, begin);
}

static void texts_release(struct texts *t)
{
    zb_tok_buf_release(&t->bytes);
    zb_free(t->length);
    memset(t, 0, sizeof(*t));
}

/* ---- steps --------------------------------------------------------------- */

#define REPLACEMENT "\xef\xbf\xbd"

/* Bytes as text; what is not UTF-8 becomes U+FFFD, one for each start of a
 * character that breaks off (Unicode's recommendation). */
static enum zb_status add_lossy(struct tok_buf *b, const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + n;

    while (p < end) {
        size_t good = zb_tok_valid((const char *)p, (size_t)(end - p));

        ZB_TRY(zb_tok_buf_add(b, p, good));
        p += good;
        if (p == end) {
            break;
        }
        ZB_TRY(zb_tok_buf_add(b, REPLACEMENT, 3));
        p += zb_tok_broken_bytes(p, end);
    }
    return ZB_OK;
}

static enum zb_status dec_bytes(const struct tok_dec *d, const char *p,
                                const struct texts *in, struct texts *out)
{
    (void)d;
    ZB_TRY(add_lossy(&out->bytes, p, in->bytes.n));
    return texts_end(out, 0);
}

static enum zb_status dec_fuse(const struct tok_dec *d, const char *p,
                               const struct texts *in, struct texts *out)
{
    (void)d;
    return texts_add(out, p, in->bytes.n);
}

static enum zb_status add_replaced(struct tok_buf *b, const char *p, size_t n,
                                   const struct tok_buf *from, const char *to,
                                   size_t n_to)
{
    const char *end = p + n, *hit;

    while (p < end &&
           (hit = memmem(p, (size_t)(end - p), from->at, from->n)) != NULL) {
        ZB_TRY(zb_tok_buf_add(b, p, (size_t)(hit - p)));
        ZB_TRY(zb_tok_buf_add(b, to, n_to));
        p = hit + from->n;
    }
    return zb_tok_buf_add(b, p, (size_t)(end - p));
}

static enum zb_status dec_replace(const struct tok_dec *d, const char *p,
                                  const struct texts *in, struct texts *out)
{
    for (size_t i = 0; i < in->n; p += in->length[i++]) {
        size_t begin = out->bytes.n;

        ZB_TRY(add_replaced(&out->bytes, p, in->length[i], &d->from, d->to.at,
                            d->to.n));
        ZB_TRY(texts_end(out, begin));
    }
    return ZB_OK;
}

/* Marks become blanks, those of the first text vanish if it has a prefix. */
static enum zb_status dec_metaspace(const struct tok_dec *d, const char *p,
                                    const struct texts *in, struct texts *out)
{
    for (size_t i = 0; i < in->n; p += in->length[i++]) {
        size_t begin = out->bytes.n;

        ZB_TRY(add_replaced(&out->bytes, p, in->length[i], &d->from, " ",
                            i > 0 || d->start == 0));
        ZB_TRY(texts_end(out, begin));
    }
    return ZB_OK;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* The byte that <0xNN> stands for, or -1. */
static int byte_of(const char *p, size_t n)
{
    if (n != 6 || memcmp(p, "<0x", 3) != 0 || p[5] != '>' || hex(p[3]) < 0 ||
        hex(p[4]) < 0) {
        return -1;
    }
    return hex(p[3]) << 4 | hex(p[4]);
}

/* A run of bytes is text if it is valid as a whole, else all of it is broken.
 */
static enum zb_status end_run(struct texts *out, const struct tok_buf *run)
{
    if (run->n == 0) {
        return ZB_OK;
    }
    if (zb_tok_valid(run->at, run->n) == run->n) {
        return texts_add(out, run->at, run->n);
    }
    for (size_t i = 0; i < run->n; i++) {
        ZB_TRY(texts_add(out, REPLACEMENT, 3));
    }
    return ZB_OK;
}

static enum zb_status fallback(const char *p, const struct texts *in,
                               struct texts *out, struct tok_buf *run)
{
    for (size_t i = 0; i < in->n; p += in->length[i++]) {
        int b = byte_of(p, in->length[i]);
        char c = (char)b;

        if (b >= 0) {
            ZB_TRY(zb_tok_buf_add(run, &c, 1));
            continue;
        }
        ZB_TRY(end_run(out, run));
        run->n = 0;
        ZB_TRY(texts_add(out, p, in->length[i]));
    }
    return end_run(out, run);
}

static enum zb_status dec_fallback(const struct tok_dec *d, const char *p,
                                   const struct texts *in, struct texts *out)
{
    struct tok_buf run = {0};
    enum zb_status st = fallback(p, in, out, &run);

    (void)d;
    zb_tok_buf_release(&run);
    return st;
}

static enum zb_status dec_strip(const struct tok_dec *d, const char *p,
                                const struct texts *in, struct texts *out)
{
    const struct tok_buf *c = &d->from;

    for (size_t i = 0; i < in->n; p += in->length[i++]) {
        const char *begin = p, *end = p + in->length[i];

        for (int64_t k = 0; k < d->start && (size_t)(end - begin) >= c->n &&
                            memcmp(begin, c->at, c->n) == 0;
             k++) {
            begin += c->n;
        }
        for (int64_t k = 0; k < d->stop && (size_t)(end - begin) >= c->n &&
                            memcmp(end - c->n, c->at, c->n) == 0;
             k++) {
            end -= c->n;
        }
        ZB_TRY(texts_add(out, begin, (size_t)(end - begin)));
    }
    return ZB_OK;
}

/* ---- from the file ------------------------------------------------------- */

static enum zb_status init_replace(struct zb_tokenizer *tok, const json_t *json,
                                   struct tok_dec *d)
{
    const json_t *pattern = json_object_get(json, "pattern");

    ZB_TRY(zb_tok_get_text(tok, pattern, "String", NULL, &d->from));
    ZB_TRY(zb_tok_get_text(tok, json, "content", NULL, &d->to));
    return d->from.n > 0 ? ZB_OK
                         : zb_fail(ZB_ECONFIG, "%s: decoder Replace of nothing",
                                   tok->name);
}

static enum zb_status init_metaspace(struct zb_tokenizer *tok,
                                     const json_t *json, struct tok_dec *d)
{
    const char *scheme =
        json_string_value(json_object_get(json, "prepend_scheme"));
    int has_prefix;

    ZB_TRY(zb_tok_get_bool(tok, json, "add_prefix_space", 1, &has_prefix));
    d->start = scheme != NULL ? strcmp(scheme, "never") != 0 : has_prefix;
    ZB_TRY(zb_tok_get_text(tok, json, "replacement", "\xe2\x96\x81", &d->from));
    return d->from.n > 0
               ? ZB_OK
               : zb_fail(ZB_ECONFIG, "%s: decoder Metaspace of nothing",
                         tok->name);
}

static enum zb_status init_strip(struct zb_tokenizer *tok, const json_t *json,
                                 struct tok_dec *d)
{
    ZB_TRY(zb_tok_get_text(tok, json, "content", NULL, &d->from));
    d->start = json_integer_value(json_object_get(json, "start"));
    d->stop = json_integer_value(json_object_get(json, "stop"));
    return d->from.n > 0
               ? ZB_OK
               : zb_fail(ZB_ECONFIG, "%s: decoder Strip of nothing", tok->name);
}

static const struct {
    const char *type;
    enum tok_dec_kind kind;
    enum zb_status (*init)(struct zb_tokenizer *tok, const json_t *json,
                           struct tok_dec *d); /* NULL: no parameters */
    enum zb_status (*run)(const struct tok_dec *d, const char *p,
                          const struct texts *in, struct texts *out);
} kinds[] = {
    {"ByteLevel", TOK_DEC_BYTES, NULL, dec_bytes},
    {"Metaspace", TOK_DEC_METASPACE, init_metaspace, dec_metaspace},
    {"Replace", TOK_DEC_REPLACE, init_replace, dec_replace},
    {"ByteFallback", TOK_DEC_FALLBACK, NULL, dec_fallback},
    {"Fuse", TOK_DEC_FUSE, NULL, dec_fuse},
    {"Strip", TOK_DEC_STRIP, init_strip, dec_strip},
};

/* A decoder that is not supported matters when something is decoded. */
static enum zb_status dec_add(struct zb_tokenizer *tok, const json_t *json)
{
    const char *type = zb_tok_type(json);

    for (size_t i = 0; type != NULL && i < ZB_COUNT_OF(kinds); i++) {
        if (strcmp(type, kinds[i].type) == 0 && tok->n_decs < TOK_MAX_STEPS) {
            struct tok_dec *d = &tok->dec[tok->n_decs++];

            d->kind = kinds[i].kind;
            return kinds[i].init == NULL ? ZB_OK : kinds[i].init(tok, json, d);
        }
    }
    if (tok->bad_decoder == NULL) {
        tok->bad_decoder = zb_strndup(type != NULL ? type : "(no type)", 64);
    }
    return tok->bad_decoder == NULL ? ZB_ENOMEM : ZB_OK;
}

enum zb_status zb_tok_decs_init(struct zb_tokenizer *tok, const json_t *json)
{
    const char *type;
    const json_t *entry;
    size_t i;

    if (json == NULL || json_is_null(json)) {
        return ZB_OK;
    }
    tok->has_decoder = 1;
    type = zb_tok_type(json);
    if (type == NULL || strcmp(type, "Sequence") != 0) {
        return dec_add(tok, json);
    }
    json_array_foreach(json_object_get(json, "decoders"), i, entry)
    {
        ZB_TRY(dec_add(tok, entry));
    }
    return ZB_OK;
}

void zb_tok_decs_release(struct zb_tokenizer *tok)
{
    for (int i = 0; i < tok->n_decs; i++) {
        zb_tok_buf_release(&tok->dec[i].from);
        zb_tok_buf_release(&tok->dec[i].to);
    }
    tok->n_decs = 0;
    zb_free(tok->bad_decoder);
    tok->bad_decoder = NULL;
}

/* ---- decoding ------------------------------------------------------------ */

/* The tokens as the decoder's first step takes them. Without a decoder they are
 * joined by blanks. */
static enum zb_status add_tokens(const struct zb_tokenizer *tok,
                                 const int32_t *ids, size_t n, int skip_special,
                                 struct texts *t)
{
    const struct tok_vocab *v = &tok->vocab;

    for (size_t i = 0; i < n; i++) {
        const struct tok_piece *p;

        if (ids[i] < 0 || ids[i] >= v->n_ids || !v->piece[ids[i]].is_there) {
            continue;
        }
        p = &v->piece[ids[i]];
        if (skip_special && p->is_special) {
            continue;
        }
        if (!tok->has_decoder && t->n > 0) {
            ZB_TRY(texts_add(t, " ", 1));
        }
        ZB_TRY(texts_add(t, v->bytes.at + p->at, p->n));
    }
    return ZB_OK;
}

static enum zb_status decode(const struct zb_tokenizer *tok,
                             struct texts pair[2], char **text_out)
{
    int from = 0;

    for (int i = 0; i < tok->n_decs; i++) {
        struct texts *out = &pair[1 - from];

        out->n = out->bytes.n = 0;
        ZB_TRY(zb_tok_buf_add(&pair[from].bytes, "", 0));
        ZB_TRY(kinds[tok->dec[i].kind].run(&tok->dec[i], pair[from].bytes.at,
                                           &pair[from], out));
        from = 1 - from;
    }
    /* The buffer becomes the caller's. */
    ZB_TRY(zb_tok_buf_add(&pair[from].bytes, "", 0));
    *text_out = pair[from].bytes.at;
    memset(&pair[from].bytes, 0, sizeof(pair[from].bytes));
    return ZB_OK;
}

enum zb_status zb_decode(const struct zb_tokenizer *tok, const int32_t *ids,
                         size_t n, int skip_special, char **text_out)
{
    struct texts pair[2];
    enum zb_status st;

    if (tok->bad_decoder != NULL) {
        return zb_fail(ZB_ECONFIG, "%s: decoder %s is not supported", tok->name,
                       tok->bad_decoder);
    }
    memset(pair, 0, sizeof(pair));
    st = add_tokens(tok, ids, n, skip_special, &pair[0]);
    if (st == ZB_OK) {
        st = decode(tok, pair, text_out);
    }
    texts_release(&pair[0]);
    texts_release(&pair[1]);
    return st;
}
