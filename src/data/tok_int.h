/* SPDX-License-Identifier: MIT
 *
 * Inside the tokenizer: what the file says, ready to be used.
 *
 * Pieces and words are bytes. With bytes as characters (`is_bytes`) a token's
 * bytes are those it stands for, not the characters that the file spells them
 * with; else they are the UTF-8 of the file.
 *
 * Threads: all structs but those of an encoder are read-only when loaded.
 */
#ifndef ZB_TOK_INT_H
#define ZB_TOK_INT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "zb/tokenizer.h"

/* ---- growing arrays ------------------------------------------------------ */

struct tok_buf {
    char *at;
    size_t n, cap;
};

/* Append n bytes; also room for a NUL behind them, which is not counted. */
enum zb_status zb_tok_buf_add(struct tok_buf *b, const void *bytes,
                              size_t n) ZB_CHECKED;
void zb_tok_buf_release(struct tok_buf *b);

/* ---- UTF-8 --------------------------------------------------------------- */

/* Bytes of the character that begins with this byte of valid UTF-8. */
static inline size_t tok_char_bytes(unsigned char first)
{
    return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

/* The character at p, of valid UTF-8, and its bytes. */
uint32_t zb_tok_char(const char *p, size_t *n_out);
/* Write a character; returns its bytes. */
size_t zb_tok_put_char(uint32_t c, char *p);
/* How many bytes of the text are valid UTF-8. */
size_t zb_tok_valid(const char *text, size_t n);
/* Bytes of valid character at p (p < end), 0 when there is none. */
size_t zb_tok_valid_char(const unsigned char *p, const unsigned char *end);
/* Bytes of what begins at p and is no character: as many as could still have
 * become one, at least 1. */
size_t zb_tok_broken_bytes(const unsigned char *p, const unsigned char *end);
/* Unicode's White_Space, and what patterns call a word's character. */
int zb_tok_is_space(uint32_t c);
int zb_tok_is_word(uint32_t c);

/* GPT-2's alphabet: the character that stands for a byte, and the byte that a
 * character stands for, or -1. */
uint32_t zb_tok_char_of_byte(unsigned char b);
int zb_tok_byte_of_char(uint32_t c);

/* ---- tokens -------------------------------------------------------------- */

/* The rank and the result of merging two tokens. */
struct tok_merge {
    uint64_t key; /* left << 32 | right */
    int32_t rank; /* -1: a free slot */
    int32_t id;
};

struct tok_piece {
    uint32_t at, n; /* in `bytes` */
    uint8_t is_there, is_special;
    uint8_t is_reachable; /* its bytes are in the table of words */
};

struct tok_vocab {
    int is_bytes;
    struct tok_buf bytes;
    int32_t n_ids; /* all ids are below */
    int32_t cap_ids, max_ids;
    size_t n_tokens;         /* of the model */
    struct tok_piece *piece; /* [cap_ids] */
    size_t n_slots;          /* powers of two */
    int32_t *slot;           /* ids by their bytes; -1: free */
    size_t n_merge_slots;
    struct tok_merge *merge;
    int32_t char_id[128]; /* of single ASCII characters; -1: none */
    int32_t byte_id[256]; /* is_bytes: of single bytes, else <0x00> ... */
    int32_t unk_id;       /* -1: none */
    int fuse_unk, byte_fallback, ignore_merges;
    int has_all_bytes; /* byte_id has all, and no merge takes one */
    /* Pairs of neighbouring characters inside tokens that merges make: text may
     * be cut between two others. */
    size_t n_pair_slots;
    uint64_t *pair; /* first << 32 | second; 0: free */
    uint8_t ascii_pair[128 * 128 / 8];
};

/* From the file's "model" object. `is_bytes` as its pre-tokenizer says. */
enum zb_status zb_tok_vocab_init(struct tok_vocab *v, const json_t *model,
                                 int is_bytes, const char *name) ZB_CHECKED;
void zb_tok_vocab_release(struct tok_vocab *v);

/* Ids of so many tokens must be below this: they are places in arrays, which a
 * small file must not make large. */
int32_t zb_tok_max_ids(size_t n_tokens);

/* Give a token with this id to the vocabulary; the last one stays. */
enum zb_status zb_tok_vocab_add(struct tok_vocab *v, int32_t id,
                                const char *text, size_t n) ZB_CHECKED;

/* The id of a word, or -1. */
int32_t zb_tok_vocab_find(const struct tok_vocab *v, const char *bytes,
                          size_t n);

/* Whether the file spells token `id` so. */
int zb_tok_is_spelt(const struct tok_vocab *v, int32_t id, const char *token);

/* Whether merges can make a token of characters a and b and what is around. */
int zb_tok_may_join(const struct tok_vocab *v, uint32_t a, uint32_t b);

static inline uint64_t tok_mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0x9e3779b97f4a7c15U;
    return x ^ x >> 29;
}

/* Of up to a word's bytes; speed matters, the values do not. */
static inline uint64_t tok_hash(const char *p, size_t n)
{
    uint64_t h = n * 0x9e3779b97f4a7c15U, w;

    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&w, p, 8);
        h = tok_mix((h ^ w) * 0xbf58476d1ce4e5b9U);
    }
    w = 0;
    for (size_t i = 0; i < n; i++) {
        w = w << 8 | (unsigned char)p[i];
    }
    return tok_mix((h ^ w) * 0x94d049bb133111ebU);
}

static inline const struct tok_merge *
tok_find_merge(const struct tok_vocab *v, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t i = tok_mix(key * 0xbf58476d1ce4e5b9U) & (v->n_merge_slots - 1);

    while (v->merge[i].rank >= 0) {
        if (v->merge[i].key == key) {
            return &v->merge[i];
        }
        i = (i + 1) & (v->n_merge_slots - 1);
    }
    return NULL;
}

/* ---- added tokens -------------------------------------------------------- */

struct tok_added {
    char *text; /* what is looked for */
    size_t n;
    int32_t id;
    int single_word, lstrip, rstrip, normalized, special;
};

/* A set of added tokens, in the order of their bytes. */
struct tok_added_set {
    struct tok_added *item;
    size_t n_items;
    uint8_t is_first[256]; /* bytes that one of them begins with */
};

/* The first of the set at or after `from`: the longest at the leftmost place.
 */
const struct tok_added *zb_tok_added_find(const struct tok_added_set *set,
                                          const char *text, size_t n,
                                          size_t from, size_t *at_out);
void zb_tok_added_sort(struct tok_added_set *set);
void zb_tok_added_release(struct tok_added_set *set);

/* ---- steps --------------------------------------------------------------- */

enum tok_norm_kind { TOK_PREPEND, TOK_REPLACE, TOK_UNICODE };

struct tok_norm {
    enum tok_norm_kind kind;
    struct tok_buf from, to; /* Prepend: `to` */
    int form;                /* of utf8proc */
    uint32_t first_changed;  /* characters below it are never changed */
};

enum tok_behavior {
    TOK_ISOLATED,
    TOK_REMOVED,
    TOK_CONTIGUOUS,
    TOK_WITH_PREVIOUS,
    TOK_WITH_NEXT
};

enum tok_step_kind {
    TOK_SPLIT,     /* at matches of `re` */
    TOK_METASPACE, /* spaces become `mark`, then TOK_SPLIT where `re` is */
    TOK_BYTES,     /* ByteLevel: TOK_SPLIT where `re` is; then characters for
                    * bytes, unless it is the last step */
};

enum tok_prefix { TOK_NEVER, TOK_FIRST, TOK_ALWAYS };

struct tok_step {
    enum tok_step_kind kind;
    pcre2_code *re; /* NULL: no split */
    int has_jit;
    enum tok_behavior behavior;
    int invert;
    enum tok_prefix prefix;
    struct tok_buf mark;
};

/* Steps of decoding. */
enum tok_dec_kind {
    TOK_DEC_BYTES,
    TOK_DEC_METASPACE,
    TOK_DEC_REPLACE,
    TOK_DEC_FALLBACK,
    TOK_DEC_FUSE,
    TOK_DEC_STRIP
};

struct tok_dec {
    enum tok_dec_kind kind;
    struct tok_buf from, to;
    int64_t start, stop; /* Strip; Metaspace: start = 1 with a prefix */
};

#define TOK_MAX_STEPS 16

struct zb_tokenizer {
    char *name;
    struct tok_vocab vocab;
    struct tok_added_set raw, normalized;
    int n_norms, n_steps, n_decs;
    struct tok_norm norm[TOK_MAX_STEPS];
    struct tok_step step[TOK_MAX_STEPS];
    struct tok_dec dec[TOK_MAX_STEPS];
    int has_decoder;
    char *bad_decoder; /* its name; NULL: supported */
    pcre2_general_context *pcre;
};

enum zb_status zb_tok_norms_init(struct zb_tokenizer *tok,
                                 const json_t *json) ZB_CHECKED;
enum zb_status zb_tok_steps_init(struct zb_tokenizer *tok,
                                 const json_t *json) ZB_CHECKED;
enum zb_status zb_tok_decs_init(struct zb_tokenizer *tok,
                                const json_t *json) ZB_CHECKED;
void zb_tok_norms_release(struct zb_tokenizer *tok);
void zb_tok_steps_release(struct zb_tokenizer *tok);
void zb_tok_decs_release(struct zb_tokenizer *tok);

/* Whether the last ByteLevel of the pre-tokenizer is there at all. */
int zb_tok_has_bytes(const json_t *pre);

/* Rewrite a pattern of the library's engine for PCRE2. */
enum zb_status zb_tok_pattern(const char *from, size_t n, const char *name,
                              struct tok_buf *to) ZB_CHECKED;

/* Normalize; *text_out and *n_out are the arguments themselves when nothing
 * changes, else in one of the two buffers, which are overwritten. */
enum zb_status zb_tok_normalize(const struct zb_tokenizer *tok,
                                const char *text, size_t n,
                                struct tok_buf buf[2], const char **text_out,
                                size_t *n_out) ZB_CHECKED;

/* A member of a JSON object with a default; ZB_ECONFIG when its type is another
 * or, without a default, it is missing. null is missing. */
enum zb_status zb_tok_get_bool(const struct zb_tokenizer *tok, const json_t *o,
                               const char *key, int def, int *value) ZB_CHECKED;
enum zb_status zb_tok_get_text(const struct zb_tokenizer *tok, const json_t *o,
                               const char *key, const char *def,
                               struct tok_buf *value) ZB_CHECKED;
const char *zb_tok_type(const json_t *o);

/* ---- encoding words ------------------------------------------------------ */

struct tok_symbol {
    int32_t id;
    int32_t prev, next; /* places; -1: none */
    int32_t n;          /* 0: merged into the one before */
};

struct tok_candidate {
    int32_t rank, at, id;
};

struct tok_cached {
    uint8_t n, n_ids;
    char word[22];
    int32_t ids[10];
};

#define TOK_CACHE_BITS 16

struct tok_words {
    const struct tok_vocab *vocab;
    struct tok_symbol *symbol;
    size_t n_symbols, cap_symbols;
    struct tok_candidate *heap;
    size_t n_heap, cap_heap;
    struct tok_cached *cache; /* [1 << TOK_CACHE_BITS] */
    zb_ids_fn take;
    void *arg;
    size_t n_ids;
    int32_t ids[4096];
};

enum zb_status zb_tok_words_init(struct tok_words *w,
                                 const struct tok_vocab *v) ZB_CHECKED;
void zb_tok_words_release(struct tok_words *w);
/* A word, or text that may be cut by zb_tok_may_join(). */
enum zb_status zb_tok_word(struct tok_words *w, const char *word,
                           size_t n) ZB_CHECKED;
enum zb_status zb_tok_text(struct tok_words *w, const char *text,
                           size_t n) ZB_CHECKED;
enum zb_status zb_tok_put(struct tok_words *w, const int32_t *ids,
                          size_t n) ZB_CHECKED;
enum zb_status zb_tok_flush(struct tok_words *w) ZB_CHECKED;

#endif
