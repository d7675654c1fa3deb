/* SPDX-License-Identifier: MIT
 *
 * Encoding: text is cut at added tokens, normalized, cut at added tokens again,
 * and pushed through the pre-tokenizer's steps, each of which hands its pieces
 * to the next; what comes out of the last one are words. */
#include "config.h"
#include "data/tok_int.h"

#include <inttypes.h>

#include "zb/mem.h"

/* What PCRE2's compiled code may use beyond its own stack. */
#define MAX_JIT_STACK (16 << 20)

struct zb_encoder {
    const struct zb_tokenizer *tok;
    struct tok_words words;
    struct tok_buf norm[2];
    struct tok_buf step[TOK_MAX_STEPS]; /* rewritten pieces, by step */
    struct tok_buf chars;               /* a piece in characters for bytes */
    struct tok_buf word;                /* and the bytes of a part of it */
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    int is_chars; /* pieces are characters that stand for bytes */
};

/* ---- pieces through the steps -------------------------------------------- */

/* A piece of text; is_first: it begins where the text begins. */
struct piece {
    const char *at;
    size_t n;
    int is_first;
};

static enum zb_status run_step(struct zb_encoder *enc, int step,
                               struct piece p);

/* Back from characters to the bytes they stand for. */
static enum zb_status put_chars(struct zb_encoder *enc, struct piece p)
{
    size_t len;

    enc->word.n = 0;
    for (size_t i = 0; i < p.n; i += len) {
        char c = (char)zb_tok_byte_of_char(zb_tok_char(p.at + i, &len));

        ZB_TRY(zb_tok_buf_add(&enc->word, &c, 1));
    }
    return zb_tok_word(&enc->words, enc->word.at, enc->word.n);
}

static enum zb_status put_piece(struct zb_encoder *enc, int step,
                                struct piece p)
{
    if (p.n == 0) {
        return ZB_OK;
    }
    if (step < enc->tok->n_steps) {
        return run_step(enc, step, p);
    }
    return enc->is_chars ? put_chars(enc, p)
                         : zb_tok_text(&enc->words, p.at, p.n);
}

/* ---- splitting ----------------------------------------------------------- */

/* Pieces of a split on their way out: matches and what is between them, joined
 * as the step's behavior says. */
struct joiner {
    struct zb_encoder *enc;
    const struct tok_step *s;
    int step; /* where pieces go */
    struct piece whole;
    size_t begin, end; /* held back */
    int has_held, is_held_match, is_held_joined, was_match;
};

static enum zb_status emit(struct joiner *j, size_t begin, size_t end)
{
    struct piece p = {j->whole.at + begin, end - begin,
                      j->whole.is_first && begin == 0};
    const int is_chars = j->enc->is_chars;
    enum zb_status st;

    if (j->s->kind != TOK_BYTES || j->step == j->enc->tok->n_steps) {
        return put_piece(j->enc, j->step, p);
    }
    /* Further steps see characters instead of bytes. */
    j->enc->chars.n = 0;
    for (size_t i = 0; i < p.n; i++) {
        char c[4];
        size_t n =
            zb_tok_put_char(zb_tok_char_of_byte((unsigned char)p.at[i]), c);

        ZB_TRY(zb_tok_buf_add(&j->enc->chars, c, n));
    }
    p.at = j->enc->chars.at;
    p.n = j->enc->chars.n;
    j->enc->is_chars = 1;
    st = put_piece(j->enc, j->step, p);
    j->enc->is_chars = is_chars;
    return st;
}

static enum zb_status emit_held(struct joiner *j)
{
    if (!j->has_held) {
        return ZB_OK;
    }
    j->has_held = 0;
    return emit(j, j->begin, j->end);
}

/* Whether a piece goes to the one that is held back. */
static int is_joined(const struct joiner *j, int is_match)
{
    switch (j->s->behavior) {
    case TOK_CONTIGUOUS:
        return is_match == j->is_held_match;
    case TOK_WITH_PREVIOUS:
        return is_match && !j->was_match;
    case TOK_WITH_NEXT:
        return !is_match && j->is_held_match && !j->is_held_joined;
    default:
        return 0;
    }
}

static enum zb_status join(struct joiner *j, size_t begin, size_t end,
                           int is_match)
{
    is_match ^= j->s->invert;
    if (j->s->behavior == TOK_ISOLATED) {
        return emit(j, begin, end);
    }
    if (j->s->behavior == TOK_REMOVED) {
        return is_match ? ZB_OK : emit(j, begin, end);
    }
    if (j->has_held && is_joined(j, is_match)) {
        j->end = end;
        j->is_held_joined = 1;
    } else {
        ZB_TRY(emit_held(j));
        j->has_held = 1;
        j->begin = begin;
        j->end = end;
        j->is_held_match = is_match;
        j->is_held_joined = 0;
    }
    j->was_match = is_match;
    return ZB_OK;
}

static enum zb_status match_error(const struct zb_encoder *enc, int error)
{
    unsigned char text[128];

    pcre2_get_error_message(error, text, sizeof(text));
    return zb_fail(ZB_ECONFIG, "%s: a pattern can not split the text: %s",
                   enc->tok->name, (char *)text);
}

/* The next match from `from` on: 1, 0 when there is none, or an error. */
static int find(struct zb_encoder *enc, const struct tok_step *s,
                struct piece p, size_t from)
{
    const unsigned char *text = (const unsigned char *)p.at;
    int n = s->has_jit
                ? pcre2_jit_match(s->re, text, p.n, from, PCRE2_NO_UTF_CHECK,
                                  enc->match, enc->context)
                : pcre2_match(s->re, text, p.n, from, PCRE2_NO_UTF_CHECK,
                              enc->match, enc->context);

    return n == PCRE2_ERROR_NOMATCH ? 0 : n < 0 ? n : 1;
}

static enum zb_status split(struct zb_encoder *enc, int step, struct piece p)
{
    struct joiner j = {
        .enc = enc, .s = &enc->tok->step[step], .step = step + 1, .whole = p};
    size_t done = 0, from = 0;

    while (from < p.n) {
        int found = find(enc, j.s, p, from);
        const size_t *at = pcre2_get_ovector_pointer(enc->match);
        size_t begin = at[0], end = at[1];

        if (found < 0) {
            return match_error(enc, found);
        }
        if (!found || begin >= p.n) {
            break;
        }
        if (begin > done) {
            ZB_TRY(join(&j, done, begin, 0));
        }
        if (end > begin) {
            ZB_TRY(join(&j, begin, end, 1));
        }
        done = end;
        /* After an empty match the next one begins a character further. */
        from =
            end > begin ? end : end + tok_char_bytes((unsigned char)p.at[end]);
    }
    if (done < p.n) {
        ZB_TRY(join(&j, done, p.n, 0));
    }
    return emit_held(&j);
}

/* ---- steps that rewrite -------------------------------------------------- */

static int needs_prefix(const struct tok_step *s, struct piece p)
{
    if (s->prefix == TOK_NEVER || (s->prefix == TOK_FIRST && !p.is_first)) {
        return 0;
    }
    return p.n < s->mark.n || memcmp(p.at, s->mark.at, s->mark.n) != 0;
}

static enum zb_status add_marks(const struct tok_step *s, struct piece p,
                                struct tok_buf *b)
{
    const char *end = p.at + p.n, *at = p.at;

    if (s->kind != TOK_METASPACE) {
        return zb_tok_buf_add(b, p.at, p.n);
    }
    while (at < end) {
        const char *blank = memchr(at, ' ', (size_t)(end - at));

        if (blank == NULL) {
            return zb_tok_buf_add(b, at, (size_t)(end - at));
        }
        ZB_TRY(zb_tok_buf_add(b, at, (size_t)(blank - at)));
        ZB_TRY(zb_tok_buf_add(b, s->mark.at, s->mark.n));
        at = blank + 1;
    }
    return ZB_OK;
}

static enum zb_status rewrite(struct zb_encoder *enc, int step, struct piece *p)
{
    const struct tok_step *s = &enc->tok->step[step];
    struct tok_buf *b = &enc->step[step];
    const int is_blank_first = p->n > 0 && p->at[0] == ' ';
    const int has_prefix =
        needs_prefix(s, *p) && !(s->kind == TOK_METASPACE && is_blank_first);

    if (!has_prefix && s->kind != TOK_METASPACE) {
        return ZB_OK;
    }
    b->n = 0;
    if (has_prefix) {
        ZB_TRY(zb_tok_buf_add(b, s->mark.at, s->mark.n));
    }
    ZB_TRY(add_marks(s, *p, b));
    p->at = b->at;
    p->n = b->n;
    return ZB_OK;
}

static enum zb_status run_step(struct zb_encoder *enc, int step, struct piece p)
{
    const struct tok_step *s = &enc->tok->step[step];
    struct joiner whole = {.enc = enc, .s = s, .step = step + 1};

    if (s->kind != TOK_SPLIT) {
        ZB_TRY(rewrite(enc, step, &p));
    }
    if (s->re != NULL) {
        return split(enc, step, p);
    }
    whole.whole = p;
    return emit(&whole, 0, p.n);
}

/* ---- added tokens -------------------------------------------------------- */

static uint32_t char_before(const char *text, size_t at)
{
    size_t len;

    do {
        at--;
    } while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80);
    return zb_tok_char(text + at, &len);
}

static int is_single(const char *text, size_t n, size_t begin, size_t end)
{
    size_t len;

    return (begin == 0 || !zb_tok_is_word(char_before(text, begin))) &&
           (end == n || !zb_tok_is_word(zb_tok_char(text + end, &len)));
}

static size_t strip_left(const char *text, size_t at, size_t least)
{
    while (at > least && zb_tok_is_space(char_before(text, at))) {
        do {
            at--;
        } while (((unsigned char)text[at] & 0xc0) == 0x80);
    }
    return at;
}

static size_t strip_right(const char *text, size_t n, size_t at)
{
    size_t len;

    while (at < n && zb_tok_is_space(zb_tok_char(text + at, &len))) {
        at += len;
    }
    return at;
}

/* Hand what is between the tokens of the set to `between`. */
static enum zb_status
cut(struct zb_encoder *enc, const struct tok_added_set *set, struct piece p,
    enum zb_status (*between)(struct zb_encoder *enc, struct piece p))
{
    size_t done = 0, from = 0, begin, end;
    const struct tok_added *a;

    while ((a = zb_tok_added_find(set, p.at, p.n, from, &begin)) != NULL) {
        end = from = begin + a->n;
        if (a->single_word && !is_single(p.at, p.n, begin, end)) {
            continue;
        }
        if (a->lstrip) {
            begin = strip_left(p.at, begin, done);
        }
        if (a->rstrip) {
            end = strip_right(p.at, p.n, end);
        }
        if (done < begin) {
            ZB_TRY(between(enc, (struct piece){p.at + done, begin - done,
                                               p.is_first && done == 0}));
        }
        ZB_TRY(zb_tok_put(&enc->words, &a->id, 1));
        done = end;
    }
    if (done >= p.n) {
        return ZB_OK;
    }
    return between(
        enc, (struct piece){p.at + done, p.n - done, p.is_first && done == 0});
}

static enum zb_status to_steps(struct zb_encoder *enc, struct piece p)
{
    return put_piece(enc, 0, p);
}

static enum zb_status to_normalized(struct zb_encoder *enc, struct piece p)
{
    ZB_TRY(zb_tok_normalize(enc->tok, p.at, p.n, enc->norm, &p.at, &p.n));
    return cut(enc, &enc->tok->normalized, p, to_steps);
}

/* ---- the encoder --------------------------------------------------------- */

static enum zb_status encoder_init(struct zb_encoder *enc,
                                   const struct zb_tokenizer *tok)
{
    enc->tok = tok;
    ZB_TRY(zb_tok_words_init(&enc->words, &tok->vocab));
    enc->match = pcre2_match_data_create(1, tok->pcre);
    enc->context = pcre2_match_context_create(tok->pcre);
    if (enc->match == NULL || enc->context == NULL) {
        return ZB_ENOMEM;
    }
    /* Without it, compiled code has the 32 KiB of its caller's stack. */
    enc->stack = pcre2_jit_stack_create(32 << 10, MAX_JIT_STACK, tok->pcre);
    if (enc->stack != NULL) {
        pcre2_jit_stack_assign(enc->context, NULL, enc->stack);
    }
    return ZB_OK;
}

enum zb_status zb_encoder_new(const struct zb_tokenizer *tok,
                              struct zb_encoder **enc_out)
{
    struct zb_encoder *enc = zb_alloc(sizeof(*enc));
    enum zb_status st;

    if (enc == NULL) {
        return ZB_ENOMEM;
    }
    st = encoder_init(enc, tok);
    if (st != ZB_OK) {
        zb_encoder_free(enc);
        return st;
    }
    *enc_out = enc;
    return ZB_OK;
}

void zb_encoder_free(struct zb_encoder *enc)
{
    if (enc == NULL) {
        return;
    }
    zb_tok_words_release(&enc->words);
    for (int i = 0; i < TOK_MAX_STEPS; i++) {
        zb_tok_buf_release(&enc->step[i]);
    }
    zb_tok_buf_release(&enc->norm[0]);
    zb_tok_buf_release(&enc->norm[1]);
    zb_tok_buf_release(&enc->chars);
    zb_tok_buf_release(&enc->word);
    pcre2_match_data_free(enc->match);
    pcre2_match_context_free(enc->context);
    pcre2_jit_stack_free(enc->stack);
    zb_free(enc);
}

enum zb_status zb_encode(struct zb_encoder *enc, const char *text, size_t n,
                         zb_ids_fn take, void *arg)
{
    size_t n_valid;

    if (n == 0) {
        return ZB_OK; /* an empty file is not mapped: no text at all */
    }
    n_valid = zb_tok_valid(text, n);
    if (n_valid < n) {
        return zb_fail(ZB_ECONFIG, "byte %zu: 0x%02x is not UTF-8", n_valid,
                       (unsigned char)text[n_valid]);
    }
    enc->words.take = take;
    enc->words.arg = arg;
    enc->words.n_ids = 0;
    enc->is_chars = 0;
    ZB_TRY(cut(enc, &enc->tok->raw, (struct piece){text, n, 1}, to_normalized));
    return zb_tok_flush(&enc->words);
}
