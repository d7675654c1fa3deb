/* SPDX-License-Identifier: MIT
 *
 * Attention, forward: softmax with running maximum and sum over blocks of keys
 * (Dao et al. 2022, "FlashAttention"; Milakov and Gimelshein 2018).
 */
#include "config.h"

#include <string.h>

#include "backend/cpu/cpu_attn.h"
#include "kern/fmath.h"
#include "kern/philox.h"

static int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

int64_t zb_attn_q_at(const struct attn_tile *t)
{
    return t->b * t->p->q_batch + t->i0 * t->p->q_row + t->h * t->p->q_head;
}

int64_t zb_attn_out_at(const struct attn_tile *t)
{
    int64_t row = t->p->q_heads * t->p->head_dim;

    return t->b * t->p->out_batch + t->i0 * row + t->h * t->p->head_dim;
}

int64_t zb_attn_lse_at(const struct attn_tile *t)
{
    return (t->b * t->p->q_heads + t->h) * t->p->lse_row + t->i0;
}

struct attn_rows zb_attn_rows(const struct zb_k_attention_fwd *p, const void *x,
                              int64_t at, int64_t row, int64_t n, zb_real *room)
{
    int64_t bytes = (int64_t)zb_dtype_bytes(p->dtype);

    if (p->dtype == ZB_DTYPE_REAL) {
        return (struct attn_rows){(const zb_real *)x + at, row};
    }
    for (int64_t i = 0; i < n; i++) {
        zb_cpu_load(p->dtype, p->head_dim,
                    (const char *)x + (at + i * row) * bytes,
                    room + i * p->head_dim);
    }
    return (struct attn_rows){room, p->head_dim};
}

int64_t zb_attn_room_reals(const struct zb_k_attention_fwd *p)
{
    return p->dtype == ZB_DTYPE_REAL ? 0 : ATTN_QUERIES * p->head_dim;
}

struct attn_rows zb_attn_keys(const struct attn_tile *t,
                              const struct attn_block *k, zb_real *room)
{
    const struct zb_k_attention_fwd *p = t->p;

    return zb_attn_rows(
        p, p->k, t->b * p->k_batch + k->j0 * p->k_row + t->kv * p->k_head,
        p->k_row, k->n, room);
}

struct attn_rows zb_attn_values(const struct attn_tile *t,
                                const struct attn_block *k, zb_real *room)
{
    const struct zb_k_attention_fwd *p = t->p;

    return zb_attn_rows(
        p, p->v, t->b * p->v_batch + k->j0 * p->v_row + t->kv * p->v_head,
        p->v_row, k->n, room);
}

void zb_attn_store_rows(const struct zb_k_attention_fwd *p, const zb_real *src,
                        int64_t src_row, int64_t n, void *x, int64_t at,
                        int64_t row)
{
    int64_t bytes = (int64_t)zb_dtype_bytes(p->dtype);

    for (int64_t i = 0; i < n; i++) {
        zb_cpu_store(p->dtype, p->head_dim, src + i * src_row,
                     (char *)x + (at + i * row) * bytes);
    }
}

/* How many of the tile's queries, its first ones, have no key in the whole
 * sequence. */
static int64_t count_dead(const struct attn_tile *t)
{
    const struct zb_k_attention_fwd *p = t->p;
    const int32_t *mask = p->key_mask + t->b * p->whole;
    int64_t first = 0;

    while (first < p->whole && mask[first] == 0) {
        first++;
    }
    if (!p->causal) {
        return first == p->whole ? t->n : 0;
    }
    first -= p->q_first + t->i0;
    return min_of(first > 0 ? first : 0, t->n);
}

void zb_attn_tile_init(struct attn_tile *t, const struct zb_k_attention_fwd *p,
                       int64_t b, int64_t h, int64_t i0)
{
    t->p = p;
    t->b = b;
    t->h = h;
    t->kv = h * p->kv_heads / p->q_heads;
    t->i0 = i0;
    t->n = min_of(p->seq - i0, ATTN_QUERIES);
    t->n_pad = zb_vec_round(t->n);
    t->last = p->q_first + i0 - p->k_first;
    t->n_keys = min_of(p->kv_seq, p->whole - p->n_padding - p->k_first);
    if (p->causal) {
        t->n_keys = min_of(t->n_keys, t->last + t->n);
    }
    t->first = 0;
    if (p->window > 0 && t->last - p->window + 1 > 0) {
        t->first = t->last - p->window + 1;
    }
    t->slope = p->slopes != NULL ? p->slopes[p->first_head + h] : ZB_R(0);
    t->mask = NULL;
    t->n_dead = 0;
    if (p->key_mask != NULL) {
        t->mask = p->key_mask + b * p->whole + p->k_first;
        t->n_dead = count_dead(t);
    }
}

int zb_attn_first_block(const struct attn_tile *t, struct attn_block *k)
{
    k->j0 = t->first;
    k->n = 0;
    return zb_attn_next_block(t, k);
}

int zb_attn_next_block(const struct attn_tile *t, struct attn_block *k)
{
    int64_t most = ATTN_KEYS;

    k->j0 += k->n;
    k->is_diagonal = t->p->causal && k->j0 >= t->last;
    k->skip = 0;
    if (k->is_diagonal) {
        k->skip = (k->j0 - t->last) / ZB_VEC * ZB_VEC;
        most = ATTN_DIAG;
    } else if (t->p->causal) {
        most = min_of(most, t->last - k->j0);
    }
    k->n = min_of(t->n_keys - k->j0, most);
    return k->n > 0;
}

void zb_attn_query_scales(const struct attn_tile *t, zb_real *factor)
{
    for (int64_t i = 0; i < t->n_pad; i++) {
        factor[i] = i < t->n_dead ? ZB_R(0) : (zb_real)t->p->scale;
    }
}

void zb_attn_load_columns(const struct attn_tile *t, struct attn_rows x,
                          zb_real *dst)
{
    zb_tile_transpose(t->n, t->p->head_dim, x.ptr, x.row, dst, ATTN_QUERIES, 1);
}

static void forbid(const struct attn_tile *t, const struct attn_block *k,
                   zb_real *s)
{
    for (int64_t j = 0; j < k->n; j++) {
        zb_real *row = s + j * ATTN_QUERIES;

        if (t->mask != NULL && t->mask[k->j0 + j] == 0) {
            for (int64_t i = t->n_dead; i < t->n_pad; i++) {
                row[i] = ATTN_NEVER;
            }
        }
        if (k->is_diagonal) {
            int64_t n_before = min_of(k->j0 + j - t->last, t->n_pad);

            for (int64_t i = k->skip; i < n_before; i++) {
                row[i] = ATTN_NEVER;
            }
        }
        if (t->p->window > 0) {
            int64_t end = k->j0 + j - t->last + t->p->window;

            for (int64_t i = max_of(end, k->skip); i < t->n_pad; i++) {
                row[i] = ATTN_NEVER;
            }
        }
    }
}

/* The head's slope times how far a key is behind the query; nothing for queries
 * that weigh all keys the same. */
static void add_slopes(const struct attn_tile *t, const struct attn_block *k,
                       zb_real *s)
{
    int64_t first = max_of(k->skip, t->n_dead);

    for (int64_t j = 0; j < k->n; j++) {
        zb_real *row = s + j * ATTN_QUERIES;

        for (int64_t i = first; i < t->n_pad; i++) {
            row[i] += t->slope * (zb_real)(k->j0 + j - t->last - i);
        }
    }
}

void zb_attn_scores(const struct attn_tile *t, const struct attn_block *k,
                    struct attn_rows keys, const zb_real *qt, zb_real *s)
{
    zb_tile_gemm(k->n, t->n_pad - k->skip, t->p->head_dim,
                 (struct zb_tile_a){keys.ptr, keys.row, 1}, qt + k->skip,
                 ATTN_QUERIES, s + k->skip, ATTN_QUERIES, 0);
    if (t->slope != 0) {
        add_slopes(t, k, s);
    }
    if (t->mask != NULL || k->is_diagonal || t->p->window > 0) {
        forbid(t, k, s);
    }
}

int64_t zb_attn_dropout(const struct attn_tile *t, const struct attn_block *k,
                        zb_real *drawn)
{
    const struct zb_k_attention_fwd *p = t->p;
    struct zb_philox_key key = zb_philox_site_key(
        p->philox.seed, p->philox.step, p->philox.site);
    uint64_t sample = (uint64_t)p->philox.sample[t->b];
    int64_t j0 = p->k_first + k->j0, lead = j0 % 4;
    uint32_t limit = zb_drop_limit(p->dropout);
    zb_real keep = (zb_real)(1.0 / (1.0 - p->dropout));

    for (int64_t j = 0; j < lead + k->n; j += 4) {
        zb_real *row = drawn + j * ATTN_QUERIES;
        uint64_t first =
            zb_attn_block(p->first_head + t->h, p->q_first + t->i0, j0 + j);

        ZB_EACH(i, ATTN_QUERIES) {
            struct zb_philox_out x = zb_philox(
                key, first + (uint64_t)i * ZB_ATTN_BLOCKS_OF_QUERY, sample);

            row[i] = x.x0 >= limit ? keep : ZB_R(0);
            row[i + ATTN_QUERIES] = x.x1 >= limit ? keep : ZB_R(0);
            row[i + 2 * ATTN_QUERIES] = x.x2 >= limit ? keep : ZB_R(0);
            row[i + 3 * ATTN_QUERIES] = x.x3 >= limit ? keep : ZB_R(0);
        }
    }
    return lead;
}

/* One thread's working memory. */
struct fwd_scratch {
    zb_real s[ATTN_KEYS][ATTN_QUERIES];
    zb_real factor[ATTN_DRAWN][ATTN_QUERIES];
    zb_real top[ATTN_QUERIES];   /* running maximum */
    zb_real sum[ATTN_QUERIES];   /* running sum of exponentials */
    zb_real shrink[ATTN_QUERIES];
    zb_real columns[]; /* q, then out: [d][ATTN_QUERIES] each; then room for
                          rows of 16 bits */
};

static zb_real *room_of(struct fwd_scratch *w, int64_t head_dim)
{
    return w->columns + 2 * head_dim * ATTN_QUERIES;
}

/* s = exp(s - maximum), and what was summed before shrinks to the new maximum.
 * Queries before `skip` do not see the block. */
static void weigh(const struct attn_block *k, int64_t n, struct fwd_scratch *w)
{
    for (int64_t i0 = k->skip; i0 < n; i0 += ZB_VEC) {
        zb_real *top = w->top + i0, *sum = w->sum + i0;
        zb_real *shrink = w->shrink + i0;
        zb_real old[ZB_VEC_BYTES / sizeof(zb_real)];

        ZB_EACH(i, ZB_VEC) {
            old[i] = top[i];
        }
        for (int64_t j = 0; j < k->n; j++) {
            const zb_real *s = w->s[j] + i0;

            ZB_EACH(i, ZB_VEC) {
                top[i] = s[i] > top[i] ? s[i] : top[i];
            }
        }
        ZB_EACH(i, ZB_VEC) {
            shrink[i] = zb_exp(old[i] - top[i]);
            sum[i] *= shrink[i];
        }
        for (int64_t j = 0; j < k->n; j++) {
            zb_real *s = w->s[j] + i0;

            ZB_EACH(i, ZB_VEC) {
                s[i] = zb_exp(s[i] - top[i]);
                sum[i] += s[i];
            }
        }
    }
}

static void add_block(const struct attn_tile *t, const struct attn_block *k,
                      const zb_real *qt, zb_real *ot, struct fwd_scratch *w)
{
    const struct zb_k_attention_fwd *p = t->p;
    zb_real *room = room_of(w, p->head_dim);
    int64_t n = t->n_pad - k->skip;
    struct attn_rows values;

    zb_attn_scores(t, k, zb_attn_keys(t, k, room), qt, w->s[0]);
    weigh(k, t->n_pad, w);
    if (p->dropout > 0) {
        int64_t first = zb_attn_dropout(t, k, w->factor[0]);

        for (int64_t j = 0; j < k->n; j++) {
            zb_real *s = w->s[j] + k->skip;
            const zb_real *factor = w->factor[first + j] + k->skip;

            ZB_EACH(i, n) {
                s[i] *= factor[i];
            }
        }
    }
    for (int64_t d = 0; k->j0 > t->first && d < p->head_dim; d++) {
        zb_real *row = ot + d * ATTN_QUERIES + k->skip;
        const zb_real *shrink = w->shrink + k->skip;

        ZB_EACH(i, n) {
            row[i] *= shrink[i];
        }
    }
    values = zb_attn_values(t, k, room);
    zb_tile_gemm(
        p->head_dim, n, k->n, (struct zb_tile_a){values.ptr, 1, values.row},
        w->s[0] + k->skip, ATTN_QUERIES, ot + k->skip, ATTN_QUERIES, 1);
}

static void finish(const struct attn_tile *t, zb_real *ot,
                   struct fwd_scratch *w)
{
    const struct zb_k_attention_fwd *p = t->p;
    int64_t row = p->q_heads * p->head_dim, at = zb_attn_out_at(t);
    zb_real *lse = p->lse + zb_attn_lse_at(t);
    zb_real *room = room_of(w, p->head_dim);

    /* Queries that see none of these keys. */
    ZB_EACH(i, t->n_pad)
    {
        w->sum[i] = w->sum[i] == 0 ? ZB_R(1) : w->sum[i];
    }
    ZB_EACH(i, t->n) {
        lse[i] = w->top[i] + zb_log(w->sum[i]);
    }
    ZB_EACH(i, t->n_pad) {
        w->shrink[i] = w->top[i] < ATTN_NONE ? ZB_R(0) : ZB_R(1) / w->sum[i];
    }
    for (int64_t d = 0; d < p->head_dim; d++) {
        ZB_EACH(i, t->n_pad) {
            ot[d * ATTN_QUERIES + i] *= w->shrink[i];
        }
    }
    if (p->dtype == ZB_DTYPE_REAL) {
        zb_tile_transpose(p->head_dim, t->n, ot, ATTN_QUERIES,
                          (zb_real *)p->out + at, row, 0);
    } else {
        zb_tile_transpose(p->head_dim, t->n, ot, ATTN_QUERIES, room,
                          p->head_dim, 0);
        zb_attn_store_rows(p, room, p->head_dim, t->n, p->out, at, row);
    }
}

static void forward_tile(const struct attn_tile *t, struct fwd_scratch *w)
{
    const struct zb_k_attention_fwd *p = t->p;
    zb_real *qt = w->columns, *ot = qt + p->head_dim * ATTN_QUERIES;
    struct attn_block k;

    zb_attn_load_columns(t,
                         zb_attn_rows(p, p->q, zb_attn_q_at(t), p->q_row, t->n,
                                      room_of(w, p->head_dim)),
                         qt);
    zb_attn_query_scales(t, w->shrink);
    for (int64_t d = 0; d < p->head_dim; d++) {
        ZB_EACH(i, t->n_pad) {
            qt[d * ATTN_QUERIES + i] *= w->shrink[i];
        }
    }
    memset(ot, 0, (size_t)p->head_dim * ATTN_QUERIES * sizeof(zb_real));
    for (int64_t i = 0; i < t->n_pad; i++) {
        w->top[i] = ATTN_NEVER;
        w->sum[i] = 0;
    }
    for (int ok = zb_attn_first_block(t, &k); ok;
         ok = zb_attn_next_block(t, &k)) {
        add_block(t, &k, qt, ot, w);
    }
    finish(t, ot, w);
}

static size_t scratch_bytes(const struct zb_k_attention_fwd *p)
{
    int64_t columns = 2 * p->head_dim * ATTN_QUERIES;

    return sizeof(struct fwd_scratch) +
           (size_t)(columns + zb_attn_room_reals(p)) * sizeof(zb_real);
}

static int64_t n_tiles(const struct zb_k_attention_fwd *p)
{
    return (p->seq + ATTN_QUERIES - 1) / ATTN_QUERIES;
}

static void forward_part(const struct zb_device *dev, const void *arg,
                         int64_t begin, int64_t end, int thread)
{
    const struct zb_k_attention_fwd *p = arg;
    struct attn_tile t;

    for (int64_t u = begin; u < end; u++) {
        int64_t bh = u / n_tiles(p), tile = u % n_tiles(p);

        zb_attn_tile_init(&t, p, bh / p->q_heads, bh % p->q_heads,
                          tile * ATTN_QUERIES);
        forward_tile(&t, dev->scratch[thread].ptr);
    }
}

enum zb_status zb_cpu_attention_fwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_attention_fwd *p = params;

    ZB_TRY(zb_cpu_check_type(p->dtype));
    ZB_TRY(zb_cpu_scratch_reserve(dev, scratch_bytes(p)));
    zb_cpu_for(dev, p->batch * p->q_heads * n_tiles(p), 1,
               0.1 * ATTN_QUERIES * (double)(p->kv_seq * p->head_dim),
               forward_part, p);
    return ZB_OK;
}
