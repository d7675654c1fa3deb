/* SPDX-License-Identifier: MIT
 *
 * Words to ids: the pair of lowest rank, leftmost first, is merged until none
 * is left. Short words are searched from left to right for it, long ones keep
 * their pairs in a heap; words seen lately are remembered. */
#include "config.h"
#include "data/tok_int.h"

#include "zb/mem.h"

/* Up to so many symbols a search costs less than a heap. */
#define SHORT 48

enum zb_status zb_tok_words_init(struct tok_words *w, const struct tok_vocab *v)
{
    w->vocab = v;
    w->cache = zb_alloc_array((size_t)1 << TOK_CACHE_BITS, sizeof(*w->cache));
    return w->cache == NULL ? ZB_ENOMEM : ZB_OK;
}

void zb_tok_words_release(struct tok_words *w)
{
    zb_free(w->symbol);
    zb_free(w->heap);
    zb_free(w->cache);
    memset(w, 0, sizeof(*w));
}

enum zb_status zb_tok_flush(struct tok_words *w)
{
    size_t n = w->n_ids;

    w->n_ids = 0;
    return n == 0 ? ZB_OK : w->take(w->arg, w->ids, n);
}

enum zb_status zb_tok_put(struct tok_words *w, const int32_t *ids, size_t n)
{
    while (n > 0) {
        size_t room = ZB_COUNT_OF(w->ids) - w->n_ids;
        size_t part = n < room ? n : room;

        memcpy(w->ids + w->n_ids, ids, part * sizeof(*ids));
        w->n_ids += part;
        ids += part;
        n -= part;
        if (w->n_ids == ZB_COUNT_OF(w->ids)) {
            ZB_TRY(zb_tok_flush(w));
        }
    }
    return ZB_OK;
}

/* ---- characters ---------------------------------------------------------- */

static void add_symbol(struct tok_words *w, int32_t id, size_t n)
{
    int32_t at = (int32_t)w->n_symbols++;

    w->symbol[at] = (struct tok_symbol){
        .id = id, .prev = at - 1, .next = at + 1, .n = (int32_t)n};
}

static int32_t id_of_char(const struct tok_vocab *v, const char *c, size_t n)
{
    return n == 1 && (unsigned char)*c < 128 ? v->char_id[(unsigned char)*c]
                                             : zb_tok_vocab_find(v, c, n);
}

/* All bytes of a character as tokens, if all are there. */
static int add_bytes(struct tok_words *w, const char *c, size_t n)
{
    const struct tok_vocab *v = w->vocab;

    for (size_t i = 0; i < n; i++) {
        if (v->byte_id[(unsigned char)c[i]] < 0) {
            return 0;
        }
    }
    for (size_t i = 0; i < n; i++) {
        add_symbol(w, v->byte_id[(unsigned char)c[i]], 1);
    }
    return 1;
}

/* An unknown character waits: more of them may become one with it. */
static void add_chars(struct tok_words *w, const char *word, size_t n)
{
    const struct tok_vocab *v = w->vocab;
    size_t n_unk = 0, len;

    for (size_t i = 0; i < n; i += len) {
        int32_t id;

        len = v->is_bytes ? 1 : tok_char_bytes((unsigned char)word[i]);
        id = v->is_bytes ? v->byte_id[(unsigned char)word[i]]
                         : id_of_char(v, word + i, len);
        if (id >= 0) {
            if (n_unk > 0) {
                add_symbol(w, v->unk_id, n_unk);
                n_unk = 0;
            }
            add_symbol(w, id, len);
            continue;
        }
        if (v->byte_fallback && !v->is_bytes && add_bytes(w, word + i, len)) {
            continue;
        }
        if (v->unk_id < 0) {
            continue;
        }
        if (n_unk > 0 && !v->fuse_unk) {
            add_symbol(w, v->unk_id, n_unk);
            n_unk = 0;
        }
        n_unk += len;
    }
    if (n_unk > 0) {
        add_symbol(w, v->unk_id, n_unk);
    }
    if (w->n_symbols > 0) {
        w->symbol[w->n_symbols - 1].next = -1;
    }
}

/* ---- merging a short word ------------------------------------------------ */

static void merge_short(struct tok_words *w)
{
    const struct tok_merge *pair[SHORT];
    struct tok_symbol *s = w->symbol;
    size_t n = w->n_symbols;

    for (size_t i = 0; i + 1 < n; i++) {
        pair[i] = tok_find_merge(w->vocab, s[i].id, s[i + 1].id);
    }
    for (;;) {
        size_t best = n;

        for (size_t i = 0; i + 1 < n; i++) {
            if (pair[i] != NULL &&
                (best == n || pair[i]->rank < pair[best]->rank)) {
                best = i;
            }
        }
        if (best == n) {
            break;
        }
        s[best].id = pair[best]->id;
        n--;
        for (size_t i = best + 1; i < n; i++) {
            s[i].id = s[i + 1].id;
            pair[i - 1] = pair[i];
        }
        if (best + 1 < n) {
            pair[best] = tok_find_merge(w->vocab, s[best].id, s[best + 1].id);
        }
        if (best > 0) {
            pair[best - 1] =
                tok_find_merge(w->vocab, s[best - 1].id, s[best].id);
        }
    }
    w->n_symbols = n;
}

/* ---- merging a long word ------------------------------------------------- */

static int is_before(const struct tok_candidate *a,
                     const struct tok_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_put(struct tok_words *w, struct tok_candidate c)
{
    size_t i = w->n_heap++;

    while (i > 0 && is_before(&c, &w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = c;
}

static struct tok_candidate heap_take(struct tok_words *w)
{
    struct tok_candidate top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= w->n_heap) {
            break;
        }
        if (child + 1 < w->n_heap &&
            is_before(&w->heap[child + 1], &w->heap[child])) {
            child++;
        }
        if (!is_before(&w->heap[child], &last)) {
            break;
        }
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

static void offer(struct tok_words *w, int32_t left)
{
    const struct tok_symbol *s = w->symbol;
    const struct tok_merge *m;

    if (left < 0 || s[left].next < 0) {
        return;
    }
    m = tok_find_merge(w->vocab, s[left].id, s[s[left].next].id);
    if (m != NULL) {
        heap_put(w, (struct tok_candidate){m->rank, left, m->id});
    }
}

/* A candidate is stale when its pair is not the one that was offered. */
static int is_stale(const struct tok_words *w, struct tok_candidate c)
{
    const struct tok_symbol *s = &w->symbol[c.at];
    const struct tok_merge *m;

    if (s->n == 0 || s->next < 0) {
        return 1;
    }
    m = tok_find_merge(w->vocab, s->id, w->symbol[s->next].id);
    return m == NULL || m->id != c.id;
}

/* Each merge takes one candidate and offers two at most. */
static enum zb_status heap_room(struct tok_words *w)
{
    struct tok_candidate *heap;

    if (3 * w->n_symbols <= w->cap_heap) {
        return ZB_OK;
    }
    heap =
        zb_realloc_array(w->heap, w->cap_heap, 3 * w->n_symbols, sizeof(*heap));
    if (heap == NULL) {
        return ZB_ENOMEM;
    }
    w->heap = heap;
    w->cap_heap = 3 * w->n_symbols;
    return ZB_OK;
}

static enum zb_status merge_long(struct tok_words *w)
{
    struct tok_symbol *s = w->symbol;
    size_t n = 0;

    ZB_TRY(heap_room(w));
    w->n_heap = 0;
    for (size_t i = 0; i + 1 < w->n_symbols; i++) {
        offer(w, (int32_t)i);
    }
    while (w->n_heap > 0) {
        struct tok_candidate c = heap_take(w);
        int32_t right;

        if (is_stale(w, c)) {
            continue;
        }
        right = s[c.at].next;
        s[c.at].id = c.id;
        s[c.at].n += s[right].n;
        s[c.at].next = s[right].next;
        s[right].n = 0;
        if (s[right].next >= 0) {
            s[s[right].next].prev = c.at;
        }
        offer(w, s[c.at].prev);
        offer(w, c.at);
    }
    for (size_t i = 0; i < w->n_symbols; i++) {
        if (s[i].n > 0) {
            s[n++].id = s[i].id;
        }
    }
    w->n_symbols = n;
    return ZB_OK;
}

/* ---- words --------------------------------------------------------------- */

static enum zb_status symbol_room(struct tok_words *w, size_t n)
{
    struct tok_symbol *symbol;
    size_t cap = n < 1000 ? 1000 : n;

    if (n <= w->cap_symbols) {
        return ZB_OK;
    }
    if (n > INT32_MAX / 4) {
        return zb_fail(ZB_ECONFIG,
                       "%zu bytes of text that nothing splits are too many", n);
    }
    symbol = zb_realloc_array(w->symbol, w->cap_symbols, cap, sizeof(*symbol));
    if (symbol == NULL) {
        return ZB_ENOMEM;
    }
    w->symbol = symbol;
    w->cap_symbols = cap;
    return ZB_OK;
}

/* The ids are those of the first n_symbols symbols afterwards. */
static enum zb_status merge(struct tok_words *w, const char *word, size_t n)
{
    ZB_TRY(symbol_room(w, n));
    w->n_symbols = 0;
    if (w->vocab->ignore_merges) {
        int32_t id = zb_tok_vocab_find(w->vocab, word, n);

        if (id >= 0) {
            add_symbol(w, id, n);
            return ZB_OK;
        }
    }
    add_chars(w, word, n);
    if (w->n_symbols <= SHORT) {
        merge_short(w);
        return ZB_OK;
    }
    return merge_long(w);
}

enum zb_status zb_tok_word(struct tok_words *w, const char *word, size_t n)
{
    struct tok_cached *c;

    if (n == 0) {
        return ZB_OK;
    }
    c = &w->cache[tok_hash(word, n) >> (64 - TOK_CACHE_BITS)];
    if (n == c->n && memcmp(c->word, word, n) == 0) {
        return zb_tok_put(w, c->ids, c->n_ids);
    }
    ZB_TRY(merge(w, word, n));
    if (n <= sizeof(c->word) && w->n_symbols <= ZB_COUNT_OF(c->ids)) {
        c->n = (uint8_t)n;
        c->n_ids = (uint8_t)w->n_symbols;
        memcpy(c->word, word, n);
        for (size_t i = 0; i < w->n_symbols; i++) {
            c->ids[i] = w->symbol[i].id;
        }
        return zb_tok_put(w, c->ids, c->n_ids);
    }
    for (size_t i = 0; i < w->n_symbols; i++) {
        ZB_TRY(zb_tok_put(w, &w->symbol[i].id, 1));
    }
    return ZB_OK;
}

/* No merge crosses a place between two characters that no token that merges
 * make has side by side: the text's ids are those of its parts. */
enum zb_status zb_tok_text(struct tok_words *w, const char *text, size_t n)
{
    const struct tok_vocab *v = w->vocab;
    size_t begin = 0, at = 0, len;
    uint32_t before = 0;

    if (v->is_bytes || v->ignore_merges) {
        return zb_tok_word(w, text, n);
    }
    while (at < n) {
        uint32_t c = zb_tok_char(text + at, &len);

        if (at > begin && !zb_tok_may_join(v, before, c)) {
            ZB_TRY(zb_tok_word(w, text + begin, at - begin));
            begin = at;
        }
        before = c;
        at += len;
    }
    return zb_tok_word(w, text + begin, n - begin);
}
