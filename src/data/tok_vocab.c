/* SPDX-License-Identifier: MIT
 *
 * The tokens of a BPE model and their merges. */
#include "config.h"
#include "data/tok_int.h"

#include <stdio.h>

#include "zb/mem.h"

/* Far beyond any real vocabulary. */
#define MAX_IDS (1 << 24)

int32_t zb_tok_max_ids(size_t n_tokens)
{
    return n_tokens < MAX_IDS / 4 - 65536 ? (int32_t)n_tokens * 4 + 65536
                                          : MAX_IDS;
}

static enum zb_status piece_room(struct tok_vocab *v, int32_t id)
{
    int32_t cap = v->cap_ids;
    struct tok_piece *piece;

    if (id >= cap) {
        /* Ids come in any order: not one by one. */
        cap = id + 1 > cap + cap / 2 ? id + 1 : cap + cap / 2;
        piece = zb_realloc_array(v->piece, (size_t)v->cap_ids, (size_t)cap,
                                 sizeof(*piece));
        if (piece == NULL) {
            return ZB_ENOMEM;
        }
        v->piece = piece;
        v->cap_ids = cap;
    }
    if (id >= v->n_ids) {
        v->n_ids = id + 1;
    }
    return ZB_OK;
}

/* The bytes that a token's characters stand for; 0 when one stands for none. */
static int to_bytes(const char *text, size_t n, struct tok_buf *out,
                    enum zb_status *st)
{
    size_t n_before = out->n, len;

    for (size_t i = 0; i < n; i += len) {
        int b = zb_tok_byte_of_char(zb_tok_char(text + i, &len));
        char c = (char)b;

        if (b < 0) {
            out->n = n_before;
            return 0;
        }
        *st = zb_tok_buf_add(out, &c, 1);
        if (*st != ZB_OK) {
            return 0;
        }
    }
    return 1;
}

enum zb_status zb_tok_vocab_add(struct tok_vocab *v, int32_t id,
                                const char *text, size_t n)
{
    enum zb_status st = ZB_OK;
    struct tok_piece *p;
    size_t at = v->bytes.n;
    int is_reachable = 1;

    ZB_TRY(piece_room(v, id));
    p = &v->piece[id];
    if (v->is_bytes) {
        is_reachable = to_bytes(text, n, &v->bytes, &st);
        ZB_TRY(st);
    }
    if (!v->is_bytes || !is_reachable) {
        ZB_TRY(zb_tok_buf_add(&v->bytes, text, n));
    }
    if (v->bytes.n > UINT32_MAX) {
        return zb_fail(ZB_ECONFIG, "the tokens are more than 4 GiB");
    }
    p->at = (uint32_t)at;
    p->n = (uint32_t)(v->bytes.n - at);
    p->is_there = 1;
    p->is_reachable = (uint8_t)is_reachable;
    return ZB_OK;
}

static enum zb_status read_vocab(struct tok_vocab *v, const json_t *vocab,
                                 const char *name)
{
    const char *text;
    json_t *value;

    v->n_tokens = json_object_size(vocab);
    v->max_ids = zb_tok_max_ids(v->n_tokens);
    json_object_foreach((json_t *)(uintptr_t)vocab, text, value)
    {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;

        if (id < 0 || id >= v->max_ids) {
            return zb_fail(ZB_ECONFIG, "%s: vocab: '%.64s' has no usable id",
                           name, text);
        }
        if (id < v->n_ids && v->piece[id].is_there) {
            return zb_fail(ZB_ECONFIG,
                           "%s: vocab: '%.64s' has the id %d of "
                           "another token",
                           name, text, (int)id);
        }
        ZB_TRY(zb_tok_vocab_add(v, (int32_t)id, text, strlen(text)));
    }
    return ZB_OK;
}

static size_t slots_for(size_t n)
{
    size_t slots = 16;

    while (slots < 2 * n) {
        slots *= 2;
    }
    return slots;
}

static enum zb_status index_words(struct tok_vocab *v)
{
    v->n_slots = slots_for((size_t)v->n_ids);
    v->slot = zb_alloc_array(v->n_slots, sizeof(*v->slot));
    if (v->slot == NULL) {
        return ZB_ENOMEM;
    }
    memset(v->slot, 0xff, v->n_slots * sizeof(*v->slot));
    for (int32_t id = 0; id < v->n_ids; id++) {
        const struct tok_piece *p = &v->piece[id];
        size_t i;

        if (!p->is_there || !p->is_reachable) {
            continue;
        }
        i = tok_hash(v->bytes.at + p->at, p->n) & (v->n_slots - 1);
        while (v->slot[i] >= 0) {
            i = (i + 1) & (v->n_slots - 1);
        }
        v->slot[i] = id;
    }
    return ZB_OK;
}

int32_t zb_tok_vocab_find(const struct tok_vocab *v, const char *bytes,
                          size_t n)
{
    size_t i = tok_hash(bytes, n) & (v->n_slots - 1);

    for (; v->slot[i] >= 0; i = (i + 1) & (v->n_slots - 1)) {
        const struct tok_piece *p = &v->piece[v->slot[i]];

        if (p->n == n && memcmp(v->bytes.at + p->at, bytes, n) == 0) {
            return v->slot[i];
        }
    }
    return -1;
}

int zb_tok_is_spelt(const struct tok_vocab *v, int32_t id, const char *token)
{
    const struct tok_piece *p = &v->piece[id];
    const char *bytes = v->bytes.at + p->at;
    size_t n = strlen(token), at = 0, len;

    if (!p->is_there) {
        return 0;
    }
    if (!v->is_bytes || !p->is_reachable) {
        return p->n == n && memcmp(bytes, token, n) == 0;
    }
    for (size_t i = 0; i < p->n; i++, at += len) {
        if (at == n ||
            zb_tok_valid_char((const unsigned char *)token + at,
                              (const unsigned char *)token + n) == 0 ||
            zb_tok_char(token + at, &len) !=
                zb_tok_char_of_byte((unsigned char)bytes[i])) {
            return 0;
        }
    }
    return at == n;
}

/* Tables of what is one character long. */
static void index_chars(struct tok_vocab *v)
{
    v->has_all_bytes = 1;
    for (int b = 0; b < 256; b++) {
        char c = (char)b, text[8];

        if (b < 128) {
            v->char_id[b] = zb_tok_vocab_find(v, &c, 1);
        }
        snprintf(text, sizeof(text), "<0x%02X>", (unsigned)b);
        v->byte_id[b] = v->is_bytes ? zb_tok_vocab_find(v, &c, 1)
                                    : zb_tok_vocab_find(v, text, 6);
        v->has_all_bytes = v->has_all_bytes && v->byte_id[b] >= 0;
    }
}

/* ---- which characters can meet in a token -------------------------------- */

static void pair_put(struct tok_vocab *v, uint32_t a, uint32_t b)
{
    uint64_t key = (uint64_t)a << 32 | b;
    size_t i = tok_mix(key) & (v->n_pair_slots - 1);

    if (a < 128 && b < 128) {
        v->ascii_pair[(a << 7 | b) >> 3] |= (uint8_t)(1U << (b & 7));
        return;
    }
    while (v->pair[i] != 0 && v->pair[i] != key) {
        i = (i + 1) & (v->n_pair_slots - 1);
    }
    v->pair[i] = key;
}

static void pairs_put(struct tok_vocab *v, const struct tok_piece *p)
{
    const char *text = v->bytes.at + p->at;
    uint32_t before = 0;
    size_t len;

    for (size_t i = 0; i < p->n; i += len) {
        uint32_t c = zb_tok_char(text + i, &len);

        if (i > 0) {
            pair_put(v, before, c);
        }
        before = c;
    }
}

/* Of all tokens that merges make. Tokens of bytes are not valid UTF-8, and are
 * cut by patterns anyway. */
static enum zb_status index_pairs(struct tok_vocab *v)
{
    size_t n_chars = 0;

    if (v->is_bytes) {
        return ZB_OK;
    }
    for (size_t i = 0; i < v->n_merge_slots; i++) {
        if (v->merge[i].rank >= 0) {
            n_chars += v->piece[v->merge[i].id].n;
        }
    }
    v->n_pair_slots = slots_for(n_chars);
    v->pair = zb_alloc_array(v->n_pair_slots, sizeof(*v->pair));
    if (v->pair == NULL) {
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < v->n_merge_slots; i++) {
        if (v->merge[i].rank >= 0) {
            pairs_put(v, &v->piece[v->merge[i].id]);
        }
    }
    return ZB_OK;
}

/* Text that is not in the vocabulary becomes unknown or bytes, which may merge
 * with anything unless it is known that they do not. */
static int is_apart(const struct tok_vocab *v, uint32_t c)
{
    char text[4];

    if (c < 128 ? v->char_id[c] >= 0
                : zb_tok_vocab_find(v, text, zb_tok_put_char(c, text)) >= 0) {
        return 1;
    }
    return v->byte_fallback && v->has_all_bytes;
}

int zb_tok_may_join(const struct tok_vocab *v, uint32_t a, uint32_t b)
{
    uint64_t key = (uint64_t)a << 32 | b;
    size_t i = tok_mix(key) & (v->n_pair_slots - 1);

    if (a < 128 && b < 128) {
        if ((v->ascii_pair[(a << 7 | b) >> 3] >> (b & 7) & 1) != 0) {
            return 1;
        }
    } else {
        for (; v->pair[i] != 0; i = (i + 1) & (v->n_pair_slots - 1)) {
            if (v->pair[i] == key) {
                return 1;
            }
        }
    }
    return !is_apart(v, a) || !is_apart(v, b);
}

/* ---- merges -------------------------------------------------------------- */

/* The two tokens of an entry: ["a", "b"] or "a b". */
static int get_sides(const json_t *entry, const char *side[2], size_t n[2])
{
    if (json_is_string(entry)) {
        const char *text = json_string_value(entry);
        const char *blank = strchr(text, ' ');

        if (blank == NULL || strchr(blank + 1, ' ') != NULL) {
            return 0;
        }
        side[0] = text;
        n[0] = (size_t)(blank - text);
        side[1] = blank + 1;
        n[1] = strlen(blank + 1);
        return 1;
    }
    if (!json_is_array(entry) || json_array_size(entry) != 2) {
        return 0;
    }
    for (size_t i = 0; i < 2; i++) {
        const json_t *s = json_array_get(entry, i);

        if (!json_is_string(s)) {
            return 0;
        }
        side[i] = json_string_value(s);
        n[i] = json_string_length(s);
    }
    return 1;
}

/* The ids of both sides and of what they make; a bad one is -1. */
static enum zb_status get_ids(const struct tok_vocab *v, const char *side[2],
                              const size_t n[2], struct tok_buf *buf,
                              int32_t ids[3])
{
    size_t n_left;
    enum zb_status st = ZB_OK;

    ids[0] = ids[1] = ids[2] = -1;
    buf->n = 0;
    for (int i = 0; i < 2; i++) {
        size_t at = buf->n;

        if (!v->is_bytes) {
            ZB_TRY(zb_tok_buf_add(buf, side[i], n[i]));
        } else if (!to_bytes(side[i], n[i], buf, &st)) {
            return st;
        }
        if (buf->n > at) {
            ids[i] = zb_tok_vocab_find(v, buf->at + at, buf->n - at);
        }
    }
    n_left = buf->n;
    ids[2] = n_left > 0 ? zb_tok_vocab_find(v, buf->at, n_left) : -1;
    return ZB_OK;
}

static void merge_put(struct tok_vocab *v, const int32_t ids[3], int32_t rank)
{
    uint64_t key = (uint64_t)(uint32_t)ids[0] << 32 | (uint32_t)ids[1];
    size_t i = tok_mix(key * 0xbf58476d1ce4e5b9U) & (v->n_merge_slots - 1);

    while (v->merge[i].rank >= 0 && v->merge[i].key != key) {
        i = (i + 1) & (v->n_merge_slots - 1);
    }
    v->merge[i] = (struct tok_merge){.key = key, .rank = rank, .id = ids[2]};
}

static int is_byte_token(const struct tok_vocab *v, int32_t id)
{
    const struct tok_piece *p = &v->piece[id];
    const char *text = v->bytes.at + p->at;

    return p->n == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>';
}

static enum zb_status merge_add(struct tok_vocab *v, const json_t *entry,
                                int32_t rank, struct tok_buf *buf,
                                const char *name)
{
    const char *side[2];
    size_t n[2];
    int32_t ids[3];

    if (!get_sides(entry, side, n)) {
        return zb_fail(ZB_ECONFIG, "%s: merges[%d] is no pair of tokens", name,
                       (int)rank);
    }
    ZB_TRY(get_ids(v, side, n, buf, ids));
    if (ids[0] < 0 || ids[1] < 0 || ids[2] < 0) {
        return zb_fail(ZB_ECONFIG,
                       "%s: merges[%d] ('%.*s' and '%.*s') is not in the vocab",
                       name, (int)rank, n[0] < 64 ? (int)n[0] : 64, side[0],
                       n[1] < 64 ? (int)n[1] : 64, side[1]);
    }
    if (!v->is_bytes &&
        (is_byte_token(v, ids[0]) || is_byte_token(v, ids[1]))) {
        v->has_all_bytes = 0;
    }
    merge_put(v, ids, rank);
    return ZB_OK;
}

static enum zb_status read_merges(struct tok_vocab *v, const json_t *merges,
                                  const char *name)
{
    size_t n = json_array_size(merges);
    struct tok_buf buf = {0};
    enum zb_status st = ZB_OK;

    if (n > 4 * (size_t)MAX_IDS) {
        return zb_fail(ZB_ECONFIG, "%s: %zu merges are too many", name, n);
    }
    v->n_merge_slots = slots_for(n);
    v->merge = zb_alloc_array(v->n_merge_slots, sizeof(*v->merge));
    if (v->merge == NULL) {
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < v->n_merge_slots; i++) {
        v->merge[i].rank = -1;
    }
    for (size_t i = 0; i < n && st == ZB_OK; i++) {
        st = merge_add(v, json_array_get(merges, i), (int32_t)i, &buf, name);
    }
    zb_tok_buf_release(&buf);
    return st;
}

/* ---- the model ----------------------------------------------------------- */

/* Keys that change the ids and are not supported. */
static enum zb_status check_options(const json_t *model, const char *name)
{
    static const char *const texts[] = {"continuing_subword_prefix",
                                        "end_of_word_suffix"};
    const char *type = zb_tok_type(model);
    const json_t *dropout = json_object_get(model, "dropout");

    if (type != NULL && strcmp(type, "BPE") != 0) {
        return zb_fail(ZB_ECONFIG,
                       "%s: model type %.64s is not supported, only BPE", name,
                       type);
    }
    if (json_is_number(dropout) && json_number_value(dropout) != 0) {
        return zb_fail(ZB_ECONFIG, "%s: model.dropout is not supported", name);
    }
    for (size_t i = 0; i < ZB_COUNT_OF(texts); i++) {
        const json_t *v = json_object_get(model, texts[i]);

        if (json_is_string(v) && json_string_length(v) > 0) {
            return zb_fail(ZB_ECONFIG, "%s: model.%s is not supported", name,
                           texts[i]);
        }
    }
    return ZB_OK;
}

static enum zb_status read_unk(struct tok_vocab *v, const json_t *model,
                               const char *name)
{
    const json_t *unk = json_object_get(model, "unk_token");
    const char *text = json_string_value(unk);

    v->unk_id = -1;
    if (text == NULL) {
        return ZB_OK;
    }
    for (int32_t id = 0; id < v->n_ids && v->unk_id < 0; id++) {
        const struct tok_piece *p = &v->piece[id];

        if (p->is_there && p->n == json_string_length(unk) &&
            memcmp(v->bytes.at + p->at, text, p->n) == 0) {
            v->unk_id = id;
        }
    }
    return v->unk_id >= 0
               ? ZB_OK
               : zb_fail(ZB_ECONFIG,
                         "%s: model.unk_token '%.64s' is not in the vocab",
                         name, text);
}

enum zb_status zb_tok_vocab_init(struct tok_vocab *v, const json_t *model,
                                 int is_bytes, const char *name)
{
    const json_t *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges");

    ZB_TRY(check_options(model, name));
    if (!json_is_object(vocab) || !json_is_array(merges)) {
        return zb_fail(ZB_ECONFIG,
                       "%s: model has no object 'vocab' and array 'merges'",
                       name);
    }
    v->is_bytes = is_bytes;
    v->fuse_unk = json_is_true(json_object_get(model, "fuse_unk"));
    v->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
    v->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    ZB_TRY(read_vocab(v, vocab, name));
    ZB_TRY(index_words(v));
    index_chars(v);
    ZB_TRY(read_unk(v, model, name));
    ZB_TRY(read_merges(v, merges, name));
    return index_pairs(v);
}

void zb_tok_vocab_release(struct tok_vocab *v)
{
    zb_tok_buf_release(&v->bytes);
    zb_free(v->piece);
    zb_free(v->slot);
    zb_free(v->merge);
    zb_free(v->pair);
    memset(v, 0, sizeof(*v));
}
