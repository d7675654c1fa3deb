/* SPDX-License-Identifier: MIT
 *
 * What the forward and backward pass of attention share.
 *
 * Both work on tiles of queries against blocks of keys, and hold everything
 * that has a query index with the query as the fast (vector) dimension:
 * s[j][i] is the score of key j and query i. So maxima and sums over keys need
 * no step across a vector, and all six products are the one of cpu_tile.h.
 *
 * Numbers of 16 bits are converted where they are read: the rows of a tile, or
 * those of a block. So working memory does not grow with the sequence.
 *
 * Causal blocks on the diagonal are ATTN_DIAG keys wide, and their products
 * begin at the first query that sees any of their keys (`skip`). Where queries
 * and keys are different parts of a sequence, the diagonal may begin anywhere.
 */
#ifndef ZB_CPU_ATTN_H
#define ZB_CPU_ATTN_H

#include "backend/cpu/cpu_int.h"
#include "backend/cpu/cpu_tile.h"

#define ATTN_QUERIES 64 /* queries of a tile */
#define ATTN_KEYS 64    /* keys of a block */
#define ATTN_DIAG 16

/* Rows for the factors of dropout: its blocks of four may begin before a block
 * of keys and end behind it. */
#define ATTN_DRAWN (ATTN_KEYS + 8)

/* The score of a key that a query may not see: far below any true score, but a
 * number, so that no difference of scores is undefined. A query that sees no
 * key at all has a maximum (and lse) below ATTN_NONE. */
#define ATTN_NEVER ZB_R(-1e30)
#define ATTN_NONE ZB_R(-1e29)

/* One tile of queries of one head of one sample. */
struct attn_tile {
    const struct zb_k_attention_fwd *p;
    int64_t b, h, kv;
    int64_t i0, n;  /* its queries */
    int64_t n_pad;  /* n in whole vectors; queries past n hold zeros */
    int64_t n_dead; /* its first n_dead queries see no key by the key mask */
    int64_t n_keys; /* its queries see none of the keys from here on */
    int64_t last;   /* the last key that causality shows to query 0; may be
                       negative, or past the keys */
    int64_t first;  /* no query sees a key before this (a window's first) */
    zb_real slope;  /* of the head, by distance; 0: none */
    const int32_t *mask; /* of the sample's keys, or NULL */
};

/* One block of keys. */
struct attn_block {
    int64_t j0, n; /* keys */
    int64_t skip;  /* first query (in the tile) that the products cover */
    int is_diagonal;
};

/* Where the tile's first query lies: elements of q, out and lse. */
int64_t zb_attn_q_at(const struct attn_tile *t);
int64_t zb_attn_out_at(const struct attn_tile *t);
int64_t zb_attn_lse_at(const struct attn_tile *t);

/* Rows of head_dim elements, `row` elements apart. */
struct attn_rows {
    const zb_real *ptr;
    int64_t row;
};

/* n rows from element `at` of x on: where they are, or, of 16 bits, in `room`.
 * Room for a tile or a block has zb_attn_room_reals(); 0 where nothing is
 * converted. */
struct attn_rows zb_attn_rows(const struct zb_k_attention_fwd *p, const void *x,
                              int64_t at, int64_t row, int64_t n,
                              zb_real *room);
int64_t zb_attn_room_reals(const struct zb_k_attention_fwd *p);
/* The rows of a block of keys, or of their values. */
struct attn_rows zb_attn_keys(const struct attn_tile *t,
                              const struct attn_block *k, zb_real *room);
struct attn_rows zb_attn_values(const struct attn_tile *t,
                                const struct attn_block *k, zb_real *room);
/* The other way: n rows, src_row elements apart, to element `at` of x on. */
void zb_attn_store_rows(const struct zb_k_attention_fwd *p, const zb_real *src,
                        int64_t src_row, int64_t n, void *x, int64_t at,
                        int64_t row);

void zb_attn_tile_init(struct attn_tile *t, const struct zb_k_attention_fwd *p,
                       int64_t b, int64_t h, int64_t i0);

/* The first block of a tile has j0 = 0; 0 when there is no next one. */
int zb_attn_first_block(const struct attn_tile *t, struct attn_block *k);
int zb_attn_next_block(const struct attn_tile *t, struct attn_block *k);

/* Scale of each query's scores: 0 for those without a key, which weigh all keys
 * the same. factor: [ATTN_QUERIES]. */
void zb_attn_query_scales(const struct attn_tile *t, zb_real *factor);

/* The tile's rows as columns dst[d][ATTN_QUERIES]. */
void zb_attn_load_columns(const struct attn_tile *t, struct attn_rows x,
                          zb_real *dst);

/* s = K q and what distance adds, and never where a query may not see a key.
 * qt: [d][ATTN_QUERIES], scaled; s: [ATTN_KEYS][ATTN_QUERIES]. */
void zb_attn_scores(const struct attn_tile *t, const struct attn_block *k,
                    struct attn_rows keys, const zb_real *qt, zb_real *s);

/* The factors, 0 or 1 / (1 - dropout), in drawn[ATTN_DRAWN][ATTN_QUERIES];
 * returns the row of the block's first key. */
int64_t zb_attn_dropout(const struct attn_tile *t, const struct attn_block *k,
                        zb_real *drawn);

#endif
