/* SPDX-License-Identifier: MIT
 *
 * Attention of 16-bit numbers: one head's keys and values, and one tile's
 * queries, are converted to a problem of their own in zb_real. Gradients of
 * keys and values are summed in zb_real over all queries, and rounded once.
 */
#include "config.h"

#include <string.h>

#include "backend/cpu/cpu_attn.h"

/* A thread's working memory: that of a tile, then rows of head_dim elements. */
struct head {
    void *tile;
    zb_real *k, *v, *dk, *dv;     /* [kv_seq] */
    zb_real *q, *out, *dout, *dq; /* [ATTN_QUERIES] */
};

static size_t round_up(size_t n)
{
    return (n + 63) / 64 * 64;
}

/* Every array is padded as cpu_tile.h reads it. */
static size_t rows_reals(int64_t rows, int64_t head_dim)
{
    return round_up((size_t)(rows * head_dim + ZB_VEC));
}

static size_t head_bytes(const struct zb_k_attention_fwd *p, size_t tile,
                         size_t n_kv, size_t n_q)
{
    return round_up(tile) +
           sizeof(zb_real) * (n_kv * rows_reals(p->kv_seq, p->head_dim) +
                              n_q * rows_reals(ATTN_QUERIES, p->head_dim));
}

static void head_init(struct head *h, const struct zb_k_attention_fwd *p,
                      void *scratch, size_t tile, size_t n_kv)
{
    size_t kv = rows_reals(p->kv_seq, p->head_dim);
    size_t q = rows_reals(ATTN_QUERIES, p->head_dim);

    h->tile = scratch;
    h->k = (zb_real *)(void *)((char *)scratch + round_up(tile));
    h->v = h->k + kv;
    h->dk = h->v + kv;
    h->dv = h->dk + kv;
    h->q = h->k + n_kv * kv;
    h->out = h->q + q;
    h->dout = h->out + q;
    h->dq = h->dout + q;
}

/* n rows of head_dim elements, `row` elements apart from element `at` on. */
static void load_rows(const struct zb_k_attention_fwd *p, const void *x,
                      int64_t at, int64_t row, int64_t n, zb_real *dst)
{
    int64_t bytes = (int64_t)zb_dtype_bytes(p->dtype);

    for (int64_t i = 0; i < n; i++) {
        zb_cpu_load(p->dtype, p->head_dim,
                    (const char *)x + (at + i * row) * bytes,
                    dst + i * p->head_dim);
    }
}

static void store_rows(const struct zb_k_attention_fwd *p, const zb_real *src,
                       void *x, int64_t at, int64_t row, int64_t n)
{
    int64_t bytes = (int64_t)zb_dtype_bytes(p->dtype);

    for (int64_t i = 0; i < n; i++) {
        zb_cpu_store(p->dtype, p->head_dim, src + i * p->head_dim,
                     (char *)x + (at + i * row) * bytes);
    }
}

static void load_keys(const struct zb_k_attention_fwd *p, int64_t b, int64_t kv,
                      struct head *h)
{
    load_rows(p, p->k, b * p->k_batch + kv * p->k_head, p->k_row, p->kv_seq,
              h->k);
    load_rows(p, p->v, b * p->v_batch + kv * p->v_head, p->v_row, p->kv_seq,
              h->v);
}

/* The tile as a problem of its own: one sample, one head, its queries. */
static struct zb_k_attention_fwd problem(const struct attn_tile *t,
                                         const struct head *h)
{
    struct zb_k_attention_fwd p = *t->p;

    p.dtype = ZB_DTYPE_REAL;
    p.batch = p.q_heads = p.kv_heads = 1;
    p.seq = t->n;
    p.q_first += t->i0;
    p.first_head += t->h;
    if (p.dropout > 0) {
        p.philox.sample += t->b;
    }
    p.key_mask = p.key_mask != NULL ? p.key_mask + t->b * p.whole : NULL;
    p.q = h->q;
    p.k = h->k;
    p.v = h->v;
    p.q_row = p.k_row = p.v_row = p.head_dim;
    p.out = h->out;
    p.lse += zb_attn_lse_at(t);
    return p;
}

static void load_queries(const struct attn_tile *t, struct head *h)
{
    load_rows(t->p, t->p->q, zb_attn_q_at(t), t->p->q_row, t->n, h->q);
}

static int64_t n_tiles(const struct zb_k_attention_fwd *p)
{
    return (p->seq + ATTN_QUERIES - 1) / ATTN_QUERIES;
}

static void forward_part(const struct zb_device *dev, const void *arg,
                         int64_t begin, int64_t end, int thread)
{
    const struct zb_k_attention_fwd *p = arg;
    int64_t loaded = -1;
    struct head h;

    head_init(&h, p, dev->scratch[thread].ptr,
              zb_attn_forward_bytes(p->head_dim), 2);
    for (int64_t u = begin; u < end; u++) {
        int64_t bh = u / n_tiles(p), b = bh / p->q_heads;
        struct zb_k_attention_fwd own;
        struct attn_tile t, own_t;

        zb_attn_tile_init(&t, p, b, bh % p->q_heads,
                          u % n_tiles(p) * ATTN_QUERIES);
        if (loaded != b * p->kv_heads + t.kv) {
            loaded = b * p->kv_heads + t.kv;
            load_keys(p, b, t.kv, &h);
        }
        load_queries(&t, &h);
        own = problem(&t, &h);
        zb_attn_tile_init(&own_t, &own, 0, 0, 0);
        zb_attn_forward_tile(&own_t, h.tile);
        store_rows(p, h.out, p->out, zb_attn_out_at(&t),
                   p->q_heads * p->head_dim, t.n);
    }
}

enum zb_status zb_attn_forward16(struct zb_device *dev,
                                 const struct zb_k_attention_fwd *p)
{
    size_t tile = zb_attn_forward_bytes(p->head_dim);

    ZB_TRY(zb_cpu_scratch_reserve(dev, head_bytes(p, tile, 2, 2)));
    zb_cpu_for(dev, p->batch * p->q_heads * n_tiles(p), 1,
               0.1 * ATTN_QUERIES * (double)(p->kv_seq * p->head_dim),
               forward_part, p);
    return ZB_OK;
}

/* ---- backward ------------------------------------------------------------ */

static void backward_tile(const struct attn_tile *t,
                          const struct zb_k_attention_bwd *bwd, struct head *h)
{
    const struct zb_k_attention_fwd *p = t->p;
    int64_t out_row = p->q_heads * p->head_dim, out_at = zb_attn_out_at(t);
    int64_t dq_at =
        t->b * bwd->dq_batch + t->i0 * bwd->dq_row + t->h * bwd->dq_head;
    struct zb_k_attention_bwd own = *bwd;
    struct attn_tile own_t;

    load_queries(t, h);
    load_rows(p, p->out, out_at, out_row, t->n, h->out);
    load_rows(p, bwd->dout, out_at, out_row, t->n, h->dout);
    if (bwd->add_q) {
        load_rows(p, bwd->dq, dq_at, bwd->dq_row, t->n, h->dq);
    }
    own.fwd = problem(t, h);
    own.dout = h->dout;
    own.dq = h->dq;
    own.dk = h->dk;
    own.dv = h->dv;
    own.dq_row = own.dk_row = own.dv_row = p->head_dim;
    zb_attn_tile_init(&own_t, &own.fwd, 0, 0, 0);
    zb_attn_backward_tile(&own_t, &own, h->tile);
    store_rows(p, h->dq, bwd->dq, dq_at, bwd->dq_row, t->n);
}

static void backward_head(const struct zb_k_attention_bwd *bwd, int64_t b,
                          int64_t kv, struct head *h)
{
    const struct zb_k_attention_fwd *p = &bwd->fwd;
    int64_t group = p->q_heads / p->kv_heads;
    int64_t dk_at = b * bwd->dk_batch + kv * bwd->dk_head;
    int64_t dv_at = b * bwd->dv_batch + kv * bwd->dv_head;
    struct attn_tile t;

    load_keys(p, b, kv, h);
    if (bwd->add_kv) {
        load_rows(p, bwd->dk, dk_at, bwd->dk_row, p->kv_seq, h->dk);
        load_rows(p, bwd->dv, dv_at, bwd->dv_row, p->kv_seq, h->dv);
    } else {
        size_t bytes = (size_t)(p->kv_seq * p->head_dim) * sizeof(zb_real);

        memset(h->dk, 0, bytes);
        memset(h->dv, 0, bytes);
    }
    for (int64_t q = kv * group; q < (kv + 1) * group; q++) {
        for (int64_t i = 0; i < p->seq; i += ATTN_QUERIES) {
            zb_attn_tile_init(&t, p, b, q, i);
            backward_tile(&t, bwd, h);
        }
    }
    store_rows(p, h->dk, bwd->dk, dk_at, bwd->dk_row, p->kv_seq);
    store_rows(p, h->dv, bwd->dv, dv_at, bwd->dv_row, p->kv_seq);
}

static void backward_part(const struct zb_device *dev, const void *arg,
                          int64_t begin, int64_t end, int thread)
{
    const struct zb_k_attention_bwd *bwd = arg;
    const struct zb_k_attention_fwd *p = &bwd->fwd;
    struct head h;

    head_init(&h, p, dev->scratch[thread].ptr,
              zb_attn_backward_bytes(p->head_dim), 4);
    for (int64_t u = begin; u < end; u++) {
        backward_head(bwd, u / p->kv_heads, u % p->kv_heads, &h);
    }
}

enum zb_status zb_attn_backward16(struct zb_device *dev,
                                  const struct zb_k_attention_bwd *bwd)
{
    const struct zb_k_attention_fwd *p = &bwd->fwd;
    size_t tile = zb_attn_backward_bytes(p->head_dim);

    ZB_TRY(zb_cpu_scratch_reserve(dev, head_bytes(p, tile, 4, 4)));
    zb_cpu_for(dev, p->batch * p->kv_heads, 1,
               0.1 * (double)(p->seq * p->kv_seq * p->head_dim), backward_part,
               bwd);
    return ZB_OK;
}
