/* SPDX-License-Identifier: MIT
 *
 * What the forward and backward kernels of attention share (Dao 2023,
 * "FlashAttention-2"): a block of four warps owns ATTN_OWN rows, 16 a warp, of
 * queries (out, dq) or of keys (dk and dv) and visits tiles of the other kind.
 * Nothing is summed by two blocks, so every sum has one order.
 *
 * Tiles in shared memory are D columns wide, of a head's columns as many as
 * there are, then zeros. Heads of more than D columns are done in chunks: all
 * of them for the scores, and each block has one chunk of the results.
 *
 * Errors: scores are sums in float of exact products (16-bit types), scaled and
 * exponentiated in float. Weights and the gradients of scores are rounded to
 * the storage type before they enter the second products, as the tensor cores
 * require: a relative error of 2^-9 (bf16) or 2^-12 (fp16) of each, where the
 * CPU keeps floats.
 */
#ifndef ZB_CUDA_ATTN_H
#define ZB_CUDA_ATTN_H

#include "backend/cuda/cuda_launch.h"
#include "backend/cuda/cuda_mma.h"
#include "kern/fmath.h"
#include "kern/philox.h"

enum { ATTN_WARPS = 4, ATTN_THREADS = 32 * ATTN_WARPS };
enum { ATTN_OWN = 16 * ATTN_WARPS };

/* The score of a key that a query may not see, as in cpu/cpu_attn.h. */
#define ATTN_NEVER ZB_R(-1e30)

/* The block's lanes take i from 0 to n - 1, a constant. */
#if defined(__CUDACC__)
#define ATTN_LANE ((int)threadIdx.x % 32)
#define ATTN_LANES 32
#define ATTN_EACH(i, n)                                                        \
    ZB_UNROLL_BY(1)                                                            \
    for (int i = (int)threadIdx.x; i < (n); i += ATTN_THREADS)
#else
#define ATTN_LANE 0
#define ATTN_LANES 1
#define ATTN_EACH(i, n) for (int i = 0; i < (n); i++)
#endif

/* One item of work: a head's ATTN_OWN rows from `first` on, and the chunk of
 * columns of its results. */
struct attn_item {
    int64_t b, head; /* of queries, or of keys where keys are owned */
    int64_t first;
    int n;           /* rows, at most ATTN_OWN */
    int64_t col;     /* first column of the chunk */
};

/* Which items a launch has. */
struct attn_items {
    int64_t rows, heads, n_tiles, n_chunks, n;
    int is_reverse; /* last tiles first: they have the most to do */
};

/* What a head's rows have in common. */
struct attn_rule {
    int64_t shift;  /* causal: query i sees keys up to i + shift */
    int64_t window; /* and of those so many; 0: all */
    int64_t n_keys; /* keys from here on are none */
    int64_t live;   /* queries before this see no key by the key mask */
    const int32_t *mask; /* of key 0 of the sample, or NULL */
};

/* Queries i0 + q and keys j0 + k of a pair of tiles. */
struct attn_pair {
    int diag;   /* q sees k up to q + diag */
    int low;    /* and from q + low on */
    int apart;  /* key j0 is so far behind (positive) query i0, for slopes */
    int n_keys; /* k from here on are none */
    int n_dead; /* q before this see no key by the key mask */
    int is_full; /* every q sees every k */
};

/* Random numbers of one sample. */
struct attn_drop {
    struct zb_philox_key key;
    uint64_t sample;
    uint32_t limit;
    zb_real keep;
};

static inline struct attn_items attn_items_of(int64_t batch, int64_t heads,
                                              int64_t rows, int64_t head_dim,
                                              int64_t chunk)
{
    struct attn_items it;

    it.rows = rows;
    it.heads = heads;
    it.n_tiles = (rows + ATTN_OWN - 1) / ATTN_OWN;
    it.n_chunks = (head_dim + chunk - 1) / chunk;
    it.n = batch * heads * it.n_tiles * it.n_chunks;
    it.is_reverse = 0;
    return it;
}

/* Tiles of a head are next to each other: they read the same keys. */
ZB_KERN_FN struct attn_item attn_item_of(const struct attn_items *it,
                                         int64_t u, int chunk)
{
    struct attn_item item;
    int64_t tile = u % it->n_tiles, left;

    u /= it->n_tiles;
    item.col = u % it->n_chunks * chunk;
    u /= it->n_chunks;
    item.head = u % it->heads;
    item.b = u / it->heads;
    item.first = (it->is_reverse ? it->n_tiles - 1 - tile : tile) * ATTN_OWN;
    left = it->rows - item.first;
    item.n = left < ATTN_OWN ? (int)left : (int)ATTN_OWN;
    return item;
}

ZB_KERN_FN int attn_clip(int64_t x, int least, int most)
{
    return x < least ? least : x > most ? most : (int)x;
}

/* The first key of the whole sequence that the mask shows; `whole` if none. By
 * every warp for itself, 1024 keys at a time. */
ZB_KERN_FN int64_t attn_first_live(const int32_t *mask, int64_t n_keys,
                                   int64_t whole)
{
    for (int64_t j0 = 0; j0 < n_keys; j0 += 1024) {
        int64_t n = n_keys - j0 < 1024 ? n_keys - j0 : 1024;
        int best = -1024;

        for (int j = ATTN_LANE; j < n; j += ATTN_LANES) {
            best = mask[j0 + j] != 0 && -j > best ? -j : best;
        }
        best = ZB_TEAM_MAX(best);
        if (best > -1024) {
            return j0 - best;
        }
    }
    return whole;
}

ZB_KERN_FN struct attn_rule attn_rule_of(const struct zb_k_attention_fwd *p,
                                         int64_t b)
{
    struct attn_rule rule;
    int64_t n_keys = p->whole - p->n_padding;
    int64_t live;

    rule.shift = p->q_first - p->k_first;
    rule.window = p->causal ? p->window : 0;
    rule.n_keys = n_keys - p->k_first;
    rule.n_keys = rule.n_keys < p->kv_seq ? rule.n_keys : p->kv_seq;
    rule.mask = NULL;
    rule.live = 0;
    if (p->key_mask != NULL) {
        live = attn_first_live(p->key_mask + b * p->whole, n_keys, p->whole);
        rule.mask = p->key_mask + b * p->whole + p->k_first;
        if (p->causal || live == p->whole) {
            rule.live = live - p->q_first;
        }
    }
    return rule;
}

/* The keys that query i sees by order and padding are those before this. */
ZB_KERN_FN int64_t attn_keys_of(const struct zb_k_attention_fwd *p,
                                const struct attn_rule *rule, int64_t i)
{
    int64_t n = i + rule->shift + 1;

    return p->causal && n < rule->n_keys ? n : rule->n_keys;
}

/* The first key that query i sees by its window, in whole tiles of n. */
ZB_KERN_FN int64_t attn_first_key(const struct attn_rule *rule, int64_t i,
                                  int n)
{
    int64_t j = i + rule->shift - rule->window + 1;

    return rule->window > 0 && j > 0 ? j / n * n : 0;
}

/* The slope of query head h by distance; 0: none. */
ZB_KERN_FN zb_real attn_slope(const struct zb_k_attention_fwd *p, int64_t h)
{
    return p->slopes != NULL ? p->slopes[p->first_head + h] : ZB_R(0);
}

ZB_KERN_FN struct attn_pair attn_pair_of(const struct zb_k_attention_fwd *p,
                                         const struct attn_rule *rule,
                                         int64_t i0, int64_t j0, int most)
{
    struct attn_pair t;

    t.diag = p->causal ? attn_clip(i0 + rule->shift - j0, -most, most) : most;
    t.low = -most;
    if (rule->window > 0) {
        t.low =
            attn_clip(i0 + rule->shift - j0 - rule->window + 1, -most, most);
    }
    t.apart = (int)(j0 - i0 - rule->shift);
    t.n_keys = attn_clip(rule->n_keys - j0, 0, most);
    t.n_dead = attn_clip(rule->live - i0, 0, most);
    t.is_full = t.diag >= most && t.low <= -most && t.n_keys >= most &&
                rule->mask == NULL;
    return t;
}

/* shown: by the key mask. */
ZB_KERN_FN int attn_sees(const struct attn_pair *t, int q, int k,
                         const unsigned char *shown)
{
    return k < t->n_keys && k <= q + t->diag && k >= q + t->low &&
           (shown[k] || q < t->n_dead);
}

ZB_KERN_FN struct attn_drop attn_drop_of(const struct zb_k_attention_fwd *p,
                                         int64_t b)
{
    struct attn_drop drop;

    drop.key.k0 = drop.key.k1 = 0;
    drop.sample = 0;
    drop.limit = zb_drop_limit(p->dropout);
    drop.keep = (zb_real)(1.0 / (1.0 - p->dropout));
    if (p->dropout > 0) {
        drop.key = zb_philox_site_key(p->philox.seed, p->philox.step,
                                      p->philox.site);
        drop.sample = (uint64_t)p->philox.sample[b];
    }
    return drop;
}

/* ---- tiles --------------------------------------------------------------- */

/* Rows of a factor tile: random numbers come in blocks of four keys, that may
 * begin before the tile and end behind it. */
#define ATTN_KEPT_LD(n_keys) ((n_keys) + 8)

/* kept[q][lead + k]: 1 where the weight stays; returns lead. */
template <int N_Q, int N_K>
ZB_KERN_FN void attn_load_kept(const struct zb_k_attention_fwd *p,
                               const struct attn_drop *drop, int64_t h,
                               int64_t i0, int64_t j0, unsigned char *kept)
{
    const int n_fours = N_K / 4 + 1;
    int64_t first = (p->k_first + j0) / 4 * 4;

    ATTN_EACH(i, N_Q * n_fours) {
        int q = i / n_fours, k = i % n_fours * 4;
        uint64_t block = zb_attn_block(p->first_head + h, p->q_first + i0 + q,
                                       first + k);
        struct zb_philox_out x = zb_philox(drop->key, block, drop->sample);
        unsigned char *four = kept + q * ATTN_KEPT_LD(N_K) + k;

        four[0] = x.x0 >= drop->limit;
        four[1] = x.x1 >= drop->limit;
        four[2] = x.x2 >= drop->limit;
        four[3] = x.x3 >= drop->limit;
    }
}

ZB_KERN_FN int attn_lead(const struct zb_k_attention_fwd *p, int64_t j0)
{
    return (int)((p->k_first + j0) % 4);
}

template <int N_K>
ZB_KERN_FN void attn_load_shown(const struct attn_rule *rule, int64_t j0,
                                unsigned char *shown)
{
    ATTN_EACH(k, N_K) {
        shown[k] = rule->mask == NULL ||
                   (j0 + k < rule->n_keys && rule->mask[j0 + k] != 0);
    }
}

/* Rows of a tensor that a tile begins with. */
template <class T> struct attn_rows {
    const typename T::st *x; /* row 0, column 0 of the chunk */
    int64_t row;
    int n, n_cols; /* rows and columns there are; the rest is zeros */
};

/* is_fast: rows begin at multiples of 16 bytes, and so do heads. */
template <class T, int ROWS, int D>
ZB_KERN_FN void attn_load(const struct attn_rows<T> &from, int is_fast,
                          typename T::st *tile)
{
    const int ld = ZB_TILE_LD(T, D), n_vec = 16 / (int)sizeof(*tile);

    if (is_fast) {
        ATTN_EACH(i, ROWS * (D / n_vec)) {
            int r = i / (D / n_vec), d = i % (D / n_vec) * n_vec;
            int is_zero = r >= from.n || d >= from.n_cols;

            zb_tile_copy16(tile + r * ld + d,
                           is_zero ? from.x : from.x + r * from.row + d,
                           is_zero);
        }
        return;
    }
    ZB_BLOCK_EACH(i, ROWS * D) {
        int r = (int)i / D, d = (int)i % D;

        tile[r * ld + d] = r < from.n && d < from.n_cols
                               ? from.x[r * from.row + d]
                               : T::to(ZB_R(0));
    }
}

/* Where a tile of results goes. */
template <class T> struct attn_dest {
    typename T::st *x; /* row 0, column 0 of the chunk */
    int64_t row;
    int n, n_cols;
    int is_fast, add; /* add: to what is there */
};

/* Row r of what the lane holds, row `i` of the tile. */
template <class T, int D>
ZB_KERN_FN void attn_store_row(const struct zb_acc<D> &acc, int r, int i,
                               const struct attn_dest<T> &to)
{
    typename T::st *x = to.x + i * to.row;

    ZB_UNROLL
    for (int n = 0; n < D / 8; n++) {
        int d = 8 * n + zb_acc_col(0);

        if (to.is_fast && !to.add && d + ZB_ACC_COLS <= to.n_cols) {
            zb_acc_put<T>(x + d, acc.x[n][r]);
            continue;
        }
        ZB_UNROLL
        for (int c = 0; c < ZB_ACC_COLS; c++) {
            if (d + c < to.n_cols) {
                zb_real y = acc.x[n][r][c];

                x[d + c] = T::to(to.add ? y + T::ld(x[d + c]) : y);
            }
        }
    }
}

/* A warp's 16 rows, those from `first` on of the tile, times f. */
template <class T, int D>
ZB_KERN_FN void attn_store(struct zb_acc<D> &acc, int first, zb_real f,
                           const struct attn_dest<T> &to)
{
    ZB_UNROLL
    for (int r = 0; r < ZB_ACC_ROWS; r++) {
        int i = first + zb_acc_row(r);

        ZB_UNROLL
        for (int n = 0; n < D / 8; n++) {
            ZB_UNROLL
            for (int c = 0; c < ZB_ACC_COLS; c++) {
                acc.x[n][r][c] *= f;
            }
        }
        if (i < to.n) {
            attn_store_row<T, D>(acc, r, i, to);
        }
    }
}

/* Columns of a chunk. */
ZB_KERN_FN int attn_cols(int64_t head_dim, int64_t col, int most)
{
    return head_dim - col < most ? (int)(head_dim - col) : most;
}

/* ---- host ---------------------------------------------------------------- */

/* Do rows, heads and samples of x begin at multiples of 16 bytes? */
static inline int attn_is_aligned(enum zb_dtype dtype, const void *x,
                                  int64_t batch, int64_t row, int64_t head)
{
    int64_t n = 16 / (int64_t)zb_dtype_bytes(dtype);

    return (uintptr_t)x % 16 == 0 && batch % n == 0 && row % n == 0 &&
           head % n == 0;
}

static inline int attn_fwd_is_aligned(const struct zb_k_attention_fwd *p)
{
    int64_t row = p->q_heads * p->head_dim;
    enum zb_dtype t = p->dtype;

    return attn_is_aligned(t, p->q, p->q_batch, p->q_row, p->q_head) &&
           attn_is_aligned(t, p->k, p->k_batch, p->k_row, p->k_head) &&
           attn_is_aligned(t, p->v, p->v_batch, p->v_row, p->v_head) &&
           attn_is_aligned(t, p->out, p->out_batch, row, p->head_dim);
}

/* kernel: of blocks of ATTN_THREADS that take items in turn. */
template <class P>
static inline enum zb_status attn_launch(struct zb_stream *stream,
                                         void (*kernel)(P), const P &params,
                                         int64_t n_items, int n_bytes,
                                         const char *what)
{
    int64_t most = (int64_t)1 << 30;
    unsigned grid = (unsigned)(n_items < most ? n_items : most);

    if (grid == 0) {
        return ZB_OK;
    }
    stream->stats.kernels++;
    return zb_cuda_check(stream->dev,
                         ZB_CUDA_CALL_ROOM(kernel, grid, ATTN_THREADS, n_bytes,
                                           stream->cuda, params),
                         what);
}

/* Without addresses that kernels have no use for. */
static inline struct zb_k_attention_fwd
attn_params(const struct zb_k_attention_fwd *params)
{
    struct zb_k_attention_fwd p = *params;

    p.philox.sample = p.dropout > 0 ? p.philox.sample : NULL;
    return p;
}

/* attn_for_type<F>(dtype, ...): F<T>::run(...) for its type. */
template <template <class> class F, class... A>
static inline enum zb_status attn_for_type(enum zb_dtype dtype, A... args)
{
#ifndef ZB_REAL_IS_DOUBLE
    if (dtype == ZB_DTYPE_BF16) {
        return F<zb_mma_bf16>::run(args...);
    }
    if (dtype == ZB_DTYPE_F16) {
        return F<zb_mma_f16>::run(args...);
    }
#endif
    (void)dtype;
    return F<zb_mma_real>::run(args...);
}

#endif
