/* SPDX-License-Identifier: MIT
 *
 * Attention, forward, and the merge of two parts of keys: a block owns queries
 * and visits keys, with running maximum and sum.
 */
#include "config.h"

#include "backend/cuda/cuda_attn.h"

struct fwd_args {
    struct zb_k_attention_fwd p;
    struct attn_items items;
    int is_fast;
};

/* Keys of a tile: what 99 KiB of shared memory allow. */
template <class T> struct fwd_keys {
    static constexpr int n = T::has_tensor_cores ? 64 : 32;
};

/* A block's shared memory. */
template <class T, int D, int N> struct fwd_room {
    typename T::st q[ATTN_OWN * ZB_TILE_LD(T, D)];
    typename T::st k[N * ZB_TILE_LD(T, D)];
    typename T::st v[N * ZB_TILE_LD(T, D)];
    unsigned char kept[ATTN_OWN * ATTN_KEPT_LD(N)];
    unsigned char shown[N];
};

/* What a warp holds of its 16 queries. sum: of the lane's columns only. */
template <int D> struct fwd_warp {
    struct zb_acc<D> out;
    zb_real top[ZB_ACC_ROWS], sum[ZB_ACC_ROWS];
};

template <class T> ZB_KERN_FN zb_real fwd_exp(zb_real x)
{
#if defined(__CUDACC__)
    if constexpr (T::has_tensor_cores) {
        return __expf(x);
    }
#endif
    return zb_exp(x);
}

template <class T, int D, int N>
ZB_KERN_FN void fwd_load_q(const struct fwd_args &a,
                           const struct attn_item &item, int64_t col,
                           struct fwd_room<T, D, N> *room)
{
    const struct zb_k_attention_fwd &p = a.p;
    struct attn_rows<T> from;

    from.x = (const typename T::st *)p.q + item.b * p.q_batch +
             item.first * p.q_row + item.head * p.q_head + col;
    from.row = p.q_row;
    from.n = item.n;
    from.n_cols = attn_cols(p.head_dim, col, D);
    attn_load<T, ATTN_OWN, D>(from, a.is_fast, room->q);
}

/* Rows of keys (or values) from j0 on. */
template <class T, int D, int N>
ZB_KERN_FN void fwd_load_kv(const struct fwd_args &a, const void *x,
                            int64_t at, int64_t row, int64_t j0, int64_t col,
                            typename T::st *tile)
{
    struct attn_rows<T> from;

    from.x = (const typename T::st *)x + at + j0 * row + col;
    from.row = row;
    from.n = attn_clip(a.p.kv_seq - j0, 0, N);
    from.n_cols = attn_cols(a.p.head_dim, col, D);
    attn_load<T, N, D>(from, a.is_fast, tile);
}

/* s = scaled scores, or never; the new maximum. */
template <class T, int D, int N>
ZB_KERN_FN zb_real fwd_score(struct zb_acc<N> &s, int r, int q, zb_real top,
                             zb_real scale, zb_real slope,
                             const struct attn_pair &pair,
                             const struct fwd_room<T, D, N> *room)
{
    scale = q < pair.n_dead ? ZB_R(0) : scale;
    slope = q < pair.n_dead ? ZB_R(0) : slope;
    ZB_UNROLL
    for (int n = 0; n < N / 8; n++) {
        ZB_UNROLL
        for (int c = 0; c < ZB_ACC_COLS; c++) {
            int k = 8 * n + zb_acc_col(c);
            zb_real x = s.x[n][r][c] * scale;

            if (slope != 0) {
                x += slope * (zb_real)(pair.apart + k - q);
            }
            if (!pair.is_full && !attn_sees(&pair, q, k, room->shown)) {
                x = ATTN_NEVER;
            }
            s.x[n][r][c] = x;
            top = x > top ? x : top;
        }
    }
    return zb_acc_row_max(top);
}

/* s = weights, not yet divided by their sum; what was summed before shrinks to
 * the new maximum. */
template <class T, int D, int N>
ZB_KERN_FN void fwd_weigh(struct fwd_warp<D> &w, struct zb_acc<N> &s, int first,
                          zb_real scale, zb_real slope,
                          const struct attn_pair &pair, int lead,
                          const struct fwd_room<T, D, N> *room)
{
    ZB_UNROLL
    for (int r = 0; r < ZB_ACC_ROWS; r++) {
        int q = first + zb_acc_row(r);
        const unsigned char *kept = room->kept + q * ATTN_KEPT_LD(N) + lead;
        zb_real top =
            fwd_score<T, D, N>(s, r, q, w.top[r], scale, slope, pair, room);
        zb_real shrink = fwd_exp<T>(w.top[r] - top), sum = 0;

        w.top[r] = top;
        ZB_UNROLL
        for (int n = 0; n < N / 8; n++) {
            ZB_UNROLL
            for (int c = 0; c < ZB_ACC_COLS; c++) {
                zb_real x = s.x[n][r][c];

                x = x == ATTN_NEVER ? ZB_R(0) : fwd_exp<T>(x - top);
                sum += x;
                if (lead >= 0 && !kept[8 * n + zb_acc_col(c)]) {
                    x = 0;
                }
                s.x[n][r][c] = x;
            }
        }
        w.sum[r] = w.sum[r] * shrink + sum;
        ZB_UNROLL
        for (int n = 0; n < D / 8; n++) {
            ZB_UNROLL
            for (int c = 0; c < ZB_ACC_COLS; c++) {
                w.out.x[n][r][c] *= shrink;
            }
        }
    }
}

template <class T, int D>
ZB_KERN_FN void fwd_finish(const struct fwd_args &a,
                           const struct attn_item &item, int first,
                           zb_real keep, struct fwd_warp<D> &w)
{
    const struct zb_k_attention_fwd &p = a.p;
    zb_real *lse =
        p.lse + (item.b * p.q_heads + item.head) * p.lse_row + item.first;
    struct attn_dest<T> to;

    to.row = p.q_heads * p.head_dim;
    to.x = (typename T::st *)p.out + item.b * p.out_batch +
           item.first * to.row + item.head * p.head_dim + item.col;
    to.n = item.n;
    to.n_cols = attn_cols(p.head_dim, item.col, D);
    to.is_fast = a.is_fast;
    to.add = 0;
    ZB_UNROLL
    for (int r = 0; r < ZB_ACC_ROWS; r++) {
        int q = first + zb_acc_row(r);
        zb_real sum = zb_acc_row_sum(w.sum[r]), f;

        sum = sum == 0 ? ZB_R(1) : sum; /* none of these keys is seen */
        f = keep / sum;
        if (q < item.n && item.col == 0 && zb_acc_col(0) == 0) {
            lse[q] = w.top[r] + zb_log(sum);
        }
        ZB_UNROLL
        for (int n = 0; n < D / 8; n++) {
            ZB_UNROLL
            for (int c = 0; c < ZB_ACC_COLS; c++) {
                w.out.x[n][r][c] *= f;
            }
        }
    }
    attn_store<T, D>(w.out, first, ZB_R(1), to);
}

/* The queries of one item against the keys from j0 on. */
template <class T, int D, int N>
ZB_KERN_FN void fwd_visit(const struct fwd_args &a,
                          const struct attn_item &item,
                          const struct attn_rule &rule,
                          const struct attn_drop &drop, int64_t j0,
                          int is_first, struct fwd_warp<D> *held,
                          struct fwd_room<T, D, N> *room)
{
    const struct zb_k_attention_fwd &p = a.p;
    const int ld = ZB_TILE_LD(T, D);
    int64_t kv = item.head * p.kv_heads / p.q_heads;
    struct attn_pair pair =
        attn_pair_of(&p, &rule, item.first, j0, N > ATTN_OWN ? N : ATTN_OWN);
    int lead = p.dropout > 0 ? attn_lead(&p, j0) : -1;
    int n_used = pair.n_keys < N ? pair.n_keys : N;
    struct zb_acc<N> s[ZB_WARPS_HELD(ATTN_WARPS)];

    ZB_WARP_EACH(w, ATTN_WARPS) {
        zb_acc_zero(s[ZB_WARP_AT(w)]);
    }
    for (int64_t col = 0; col < p.head_dim; col += D) {
        ZB_BLOCK_SYNC();
        if (col == 0) {
            fwd_load_kv<T, D, N>(a, p.v, item.b * p.v_batch + kv * p.v_head,
                                 p.v_row, j0, item.col, room->v);
            if (!pair.is_full) {
                attn_load_shown<N>(&rule, j0, room->shown);
            }
            if (lead >= 0) {
                attn_load_kept<ATTN_OWN, N>(&p, &drop, item.head, item.first,
                                            j0, room->kept);
            }
        }
        if (a.items.n_chunks > 1 || is_first) {
            fwd_load_q<T, D, N>(a, item, col, room);
        }
        fwd_load_kv<T, D, N>(a, p.k, item.b * p.k_batch + kv * p.k_head,
                             p.k_row, j0, col, room->k);
        zb_tile_wait();
        ZB_BLOCK_SYNC();
        ZB_WARP_EACH(w, ATTN_WARPS) {
            if (16 * w < item.n) {
                zb_mma_abt<T, N, D>(s[ZB_WARP_AT(w)], room->q + 16 * w * ld,
                                    room->k, ld, n_used,
                                    attn_cols(p.head_dim, col, D));
            }
        }
    }
    ZB_WARP_EACH(w, ATTN_WARPS) {
        if (16 * w < item.n) {
            fwd_weigh<T, D, N>(held[ZB_WARP_AT(w)], s[ZB_WARP_AT(w)], 16 * w,
                               (zb_real)p.scale, attn_slope(&p, item.head),
                               pair, lead, room);
            zb_mma_pb<T, D, N>(held[ZB_WARP_AT(w)].out, s[ZB_WARP_AT(w)],
                               room->v, ld,
                               attn_cols(p.head_dim, item.col, D), n_used);
        }
    }
}

template <class T, int D, int N>
static __global__ void ZB_CUDA_BOUNDS(ATTN_THREADS)
    attention_fwd(const struct fwd_args a)
{
    ZB_SHARED_ROOM(shared);
    struct fwd_room<T, D, N> *room = (struct fwd_room<T, D, N> *)shared;

    ZB_ITEM_EACH(u, a.items.n) {
        struct attn_item item = attn_item_of(&a.items, u, D);
        struct attn_rule rule = attn_rule_of(&a.p, item.b);
        struct attn_drop drop = attn_drop_of(&a.p, item.b);
        int64_t n_keys = attn_keys_of(&a.p, &rule, item.first + item.n - 1);
        int64_t first = attn_first_key(&rule, item.first, N);
        struct fwd_warp<D> held[ZB_WARPS_HELD(ATTN_WARPS)];

        ZB_WARP_EACH(w, ATTN_WARPS) {
            zb_acc_zero(held[ZB_WARP_AT(w)].out);
            ZB_UNROLL
            for (int r = 0; r < ZB_ACC_ROWS; r++) {
                held[ZB_WARP_AT(w)].top[r] = ATTN_NEVER;
                held[ZB_WARP_AT(w)].sum[r] = 0;
            }
        }
        for (int64_t j0 = first; j0 < n_keys; j0 += N) {
            fwd_visit<T, D, N>(a, item, rule, drop, j0, j0 == first, held,
                               room);
        }
        ZB_WARP_EACH(w, ATTN_WARPS) {
            fwd_finish<T, D>(a, item, 16 * w, drop.keep, held[ZB_WARP_AT(w)]);
        }
    }
}

template <class T, int D>
static enum zb_status fwd_launch(struct zb_stream *stream,
                                 const struct zb_k_attention_fwd *p)
{
    const int n = fwd_keys<T>::n;
    struct fwd_args a;

    static_assert(sizeof(struct fwd_room<T, D, n>) <=
                      ZB_CUDA_ROOM_MAX * sizeof(zb_real) / sizeof(float),
                  "shared memory of a block");
    a.p = *p;
    a.items = attn_items_of(p->batch, p->q_heads, p->seq, p->head_dim, D);
    a.items.is_reverse = p->causal;
    a.is_fast = attn_fwd_is_aligned(p);
    return attn_launch(stream, attention_fwd<T, D, n>, a, a.items.n,
                       (int)sizeof(struct fwd_room<T, D, n>), "attention_fwd");
}

template <class T> struct fwd_run {
    static enum zb_status run(struct zb_stream *stream,
                              const struct zb_k_attention_fwd *p)
    {
        return p->head_dim <= 64 ? fwd_launch<T, 64>(stream, p)
                                 : fwd_launch<T, 128>(stream, p);
    }
};

enum zb_status zb_cuda_attention_fwd(struct zb_stream *stream,
                                     const void *params)
{
    const struct zb_k_attention_fwd p =
        attn_params((const struct zb_k_attention_fwd *)params);

    return attn_for_type<fwd_run>(p.dtype, stream, &p);
}

/* ---- merge --------------------------------------------------------------- */

/* A team per query and head. */
template <class T>
static __global__ void attention_merge(const struct zb_k_attention_merge p)
{
    ZB_TEAM_EACH(u, p.batch * p.seq * p.heads) {
        int64_t h = u % p.heads, i = u / p.heads % p.seq;
        int64_t b = u / p.heads / p.seq, row = p.heads * p.head_dim;
        typename T::st *out = (typename T::st *)p.out + b * p.out_batch +
                              i * row + h * p.head_dim;
        const typename T::st *more =
            (const typename T::st *)p.more + u * p.head_dim;
        zb_real *lse = p.lse + (b * p.heads + h) * p.lse_row + i;
        zb_real x = p.more_lse[(b * p.heads + h) * p.seq + i];
        zb_real y = ZB_TEAM_MAX(*lse); /* every lane has read it */
        zb_real top = y > x ? y : x;
        zb_real mine = zb_exp(y - top), other = zb_exp(x - top);
        zb_real share = ZB_R(1) / (mine + other);

        ZB_ONCE {
            *lse = top + zb_log(mine + other);
        }
        mine *= share;
        other *= share;
        ZB_EACH(d, p.head_dim) {
            out[d] = T::to(mine * T::ld(out[d]) + other * T::ld(more[d]));
        }
    }
}

template <class T> struct merge_run {
    static enum zb_status run(struct zb_stream *stream,
                              const struct zb_k_attention_merge *p)
    {
        void (*kernel)(const struct zb_k_attention_merge) = attention_merge<T>;
        int64_t n = p->batch * p->seq * p->heads;

        return ZB_CUDA_LAUNCH(kernel, zb_cuda_team_grid(stream, n),
                              ZB_CUDA_BLOCK, stream, *p);
    }
};

enum zb_status zb_cuda_attention_merge(struct zb_stream *stream,
                                       const void *params)
{
    const struct zb_k_attention_merge *p =
        (const struct zb_k_attention_merge *)params;

    return attn_for_type<merge_run>(p->dtype, stream, p);
}
