/* SPDX-License-Identifier: MIT
 *
 * Attention, backward, in two kernels of one body, as every sum belongs to one
 * block: of queries (they own q and dout, visit k and v, and sum dq), then of
 * keys (they own k and v, visit q and dout of all heads that read them, and sum
 * dk and dv). Both make the weights again from lse:
 *
 *     s = own[0] visit[0]^T   p = exp(scale s - lse)
 *     d = own[1] visit[1]^T   e = p (d - delta), delta = sum of out dout
 *     sum[0] += e visit[0]    (dq, dk)
 *     sum[1] += p visit[1]    (dv)
 *
 * A warp has 16 owned rows, so p and e go from the first products to the second
 * in registers. Of queries without a key p counts, e does not.
 */
#include "config.h"

#include "backend/cuda/cuda_attn.h"

struct bwd_args {
    struct zb_k_attention_bwd p;
    struct attn_items items;
    int is_fast;
};

/* Visited rows: what registers and 99 KiB of shared memory allow. */
template <class T> struct bwd_visits {
    static constexpr int n = T::has_tensor_cores ? 32 : 16;
};

/* A query's delta, in four parts. */
struct bwd_delta {
    zb_real part[4];
};

/* A head's tensors, from row 0 on: q and dout, or k and v. */
template <class T> struct bwd_pair {
    const typename T::st *x[2];
    int64_t row[2];
    int64_t n; /* rows */
};

/* What does not change during an item. */
struct bwd_item {
    struct attn_item at;
    struct attn_rule rule;
    struct attn_drop drop;
    int64_t kv; /* the key head */
};

/* A block's shared memory. Also the item is there: registers are scarce. */
template <class T, int D, int N, bool OF_KEYS> struct bwd_room {
    static constexpr int n_q = OF_KEYS ? N : (int)ATTN_OWN;
    static constexpr int n_k = OF_KEYS ? (int)ATTN_OWN : N;
    typename T::st own[2][ATTN_OWN * ZB_TILE_LD(T, D)];
    typename T::st visit[2][N * ZB_TILE_LD(T, D)];
    struct bwd_delta delta[n_q];
    zb_real lse[n_q];
    struct bwd_item item;
    unsigned char kept[n_q * ATTN_KEPT_LD(n_k)];
    unsigned char shown[n_k];
};

template <class T> ZB_KERN_FN zb_real bwd_exp(zb_real x)
{
#if defined(__CUDACC__)
    if constexpr (T::has_tensor_cores) {
        return __expf(x);
    }
#endif
    return zb_exp(x);
}

/* Of keys, or of query head h. */
template <class T>
ZB_KERN_FN struct bwd_pair<T> bwd_rows(const struct bwd_args &a,
                                       const struct bwd_item &item, int64_t h,
                                       bool of_keys)
{
    const struct zb_k_attention_fwd &f = a.p.fwd;
    int64_t b = item.at.b, kv = item.kv;
    struct bwd_pair<T> x;

    if (of_keys) {
        x.x[0] = (const typename T::st *)f.k + b * f.k_batch + kv * f.k_head;
        x.x[1] = (const typename T::st *)f.v + b * f.v_batch + kv * f.v_head;
        x.row[0] = f.k_row;
        x.row[1] = f.v_row;
        x.n = f.kv_seq;
    } else {
        x.x[0] = (const typename T::st *)f.q + b * f.q_batch + h * f.q_head;
        x.x[1] =
            (const typename T::st *)a.p.dout + b * f.out_batch + h * f.head_dim;
        x.row[0] = f.q_row;
        x.row[1] = f.q_heads * f.head_dim;
        x.n = f.seq;
    }
    return x;
}

/* Rows from `first` on of both, columns from `col` on. */
template <class T, int ROWS, int D>
ZB_KERN_FN void bwd_load(const struct bwd_args &a, const struct bwd_pair<T> &x,
                         int64_t first, int64_t col,
                         typename T::st (&tile)[2][ROWS * ZB_TILE_LD(T, D)])
{
    struct attn_rows<T> from;

    from.n = attn_clip(x.n - first, 0, ROWS);
    from.n_cols = attn_cols(a.p.fwd.head_dim, col, D);
    ZB_UNROLL
    for (int i = 0; i < 2; i++) {
        from.x = x.x[i] + first * x.row[i] + col;
        from.row = x.row[i];
        attn_load<T, ROWS, D>(from, a.is_fast, tile[i]);
    }
}

/* A quarter of the sum over a row of x y. */
template <class T>
ZB_KERN_FN zb_real bwd_dot(const typename T::st *x, const typename T::st *y,
                           int64_t n, int quarter, int is_fast)
{
    const int n_vec = 16 / (int)sizeof(*x);
    zb_real sum = 0;

    if (!is_fast) {
        ZB_UNROLL_BY(1)
        for (int64_t d = quarter; d < n; d += 4) {
            sum += T::ld(x[d]) * T::ld(y[d]);
        }
        return sum;
    }
    ZB_UNROLL_BY(2)
    for (int64_t d = quarter * n_vec; d < n; d += 4 * n_vec) {
        struct zb_tile_vec<T> vx = zb_tile_read16<T>(x + d);
        struct zb_tile_vec<T> vy = zb_tile_read16<T>(y + d);

        ZB_UNROLL
        for (int i = 0; i < n_vec; i++) {
            sum += T::ld(vx.x[i]) * T::ld(vy.x[i]);
        }
    }
    return sum;
}

/* lse and delta of queries from i0 on; those that are not there get zeros. */
template <class T, int N_Q>
ZB_KERN_FN void bwd_load_stats(const struct bwd_args &a, int64_t b, int64_t h,
                               int64_t i0, zb_real *lse,
                               struct bwd_delta *delta)
{
    const struct zb_k_attention_fwd &f = a.p.fwd;
    int64_t row = f.q_heads * f.head_dim;
    int64_t at = b * f.out_batch + i0 * row + h * f.head_dim;
    const typename T::st *out = (const typename T::st *)f.out + at;
    const typename T::st *dout = (const typename T::st *)a.p.dout + at;
    const zb_real *from = f.lse + (b * f.q_heads + h) * f.lse_row + i0;
    int n = attn_clip(f.seq - i0, 0, N_Q);

    ATTN_EACH(i, N_Q * 4) {
        int q = i / 4;

        delta[q].part[i % 4] = q < n ? bwd_dot<T>(out + q * row, dout + q * row,
                                                  f.head_dim, i % 4, a.is_fast)
                                     : ZB_R(0);
    }
    ATTN_EACH(q, N_Q) {
        lse[q] = q < n ? from[q] : ZB_R(0);
    }
}

/* s and d become p (of dv: where kept) and e. */
template <class T, int D, int N, bool OF_KEYS>
ZB_KERN_FN void bwd_weigh(struct zb_acc<N> &s, struct zb_acc<N> &d, int first,
                          zb_real scale, zb_real slope, zb_real keep,
                          const struct attn_pair &pair, int lead,
                          const struct bwd_room<T, D, N, OF_KEYS> *room)
{
    const int n_k = bwd_room<T, D, N, OF_KEYS>::n_k;

    ZB_UNROLL
    for (int n = 0; n < N / 8; n++) {
        ZB_UNROLL
        for (int c = 0; c < ZB_ACC_COLS; c++) {
            ZB_UNROLL
            for (int r = 0; r < ZB_ACC_ROWS; r++) {
                int mine = first + zb_acc_row(r), other = 8 * n + zb_acc_col(c);
                int q = OF_KEYS ? other : mine, k = OF_KEYS ? mine : other;
                int is_dead = q < pair.n_dead;
                const struct bwd_delta x = room->delta[q];
                zb_real delta = x.part[0] + x.part[1] + (x.part[2] + x.part[3]);
                zb_real p = is_dead ? ZB_R(0) : s.x[n][r][c] * scale;
                zb_real dp = d.x[n][r][c];
                int is_kept = 1;

                if (slope != 0 && !is_dead) {
                    p += slope * (zb_real)(pair.apart + k - q);
                }
                p = bwd_exp<T>(p - room->lse[q]);
                if (!pair.is_full && !attn_sees(&pair, q, k, room->shown)) {
                    p = 0;
                }
                if (lead >= 0) {
                    is_kept = room->kept[q * ATTN_KEPT_LD(n_k) + lead + k];
                    dp = is_kept ? dp * keep : ZB_R(0);
                }
                s.x[n][r][c] = is_kept ? p : ZB_R(0);
                d.x[n][r][c] = is_dead ? ZB_R(0) : p * (dp - delta);
            }
        }
    }
}

/* What a warp sums: dq, or dk and dv. */
template <int D, bool OF_KEYS> struct bwd_warp {
    struct zb_acc<D> sum[OF_KEYS ? 2 : 1];
};

/* Rows of the other kind from `first` on, of query head h. */
template <class T, int D, int N, bool OF_KEYS>
ZB_KERN_FN void bwd_visit(const struct bwd_args &a,
                          int64_t h, int64_t first,
                          int is_first, struct bwd_warp<D, OF_KEYS> *held,
                          struct bwd_room<T, D, N, OF_KEYS> *room)
{
    const struct zb_k_attention_fwd &f = a.p.fwd;
    const struct bwd_item &item = room->item;
    const int ld = ZB_TILE_LD(T, D);
    const int n_q = bwd_room<T, D, N, OF_KEYS>::n_q;
    const int n_k = bwd_room<T, D, N, OF_KEYS>::n_k;
    int64_t i0 = OF_KEYS ? first : item.at.first;
    int64_t j0 = OF_KEYS ? item.at.first : first;
    struct attn_pair pair = attn_pair_of(&f, &item.rule, i0, j0, ATTN_OWN);
    int lead = f.dropout > 0 ? attn_lead(&f, j0) : -1;
    int n_used = attn_clip((OF_KEYS ? f.seq : f.kv_seq) - first, 0, N);
    int64_t n_chunks = a.items.n_chunks;
    struct zb_acc<N> s[ZB_WARPS_HELD(ATTN_WARPS)];
    struct zb_acc<N> d[ZB_WARPS_HELD(ATTN_WARPS)];

    ZB_WARP_EACH(w, ATTN_WARPS) {
        zb_acc_zero(s[ZB_WARP_AT(w)]);
        zb_acc_zero(d[ZB_WARP_AT(w)]);
    }
    /* The chunk of the results comes last, and so is there for them. */
    for (int64_t c = 1; c <= n_chunks; c++) {
        int64_t col = (item.at.col + c * D) % (n_chunks * D);
        int n_cols = attn_cols(f.head_dim, col, D);

        ZB_BLOCK_SYNC();
        if (c == 1 && (OF_KEYS || is_first)) {
            bwd_load_stats<T, n_q>(a, item.at.b, h, i0, room->lse,
                                         room->delta);
        }
        if (c == 1 && !pair.is_full) {
            attn_load_shown<n_k>(&item.rule, j0, room->shown);
        }
        if (c == 1 && lead >= 0) {
            attn_load_kept<n_q, n_k>(&f, &item.drop, h, i0, j0,
                                                 room->kept);
        }
        if (n_chunks > 1 || is_first) {
            bwd_load<T, ATTN_OWN, D>(a, bwd_rows<T>(a, item, h, OF_KEYS),
                                     item.at.first, col, room->own);
        }
        bwd_load<T, N, D>(a, bwd_rows<T>(a, item, h, !OF_KEYS), first, col,
                          room->visit);
        zb_tile_wait();
        ZB_BLOCK_SYNC();
        ZB_WARP_EACH(w, ATTN_WARPS) {
            if (16 * w < item.at.n) {
                zb_mma_abt<T, N, D>(s[ZB_WARP_AT(w)],
                                    room->own[0] + 16 * w * ld, room->visit[0],
                                    ld, n_used, n_cols);
                zb_mma_abt<T, N, D>(d[ZB_WARP_AT(w)],
                                    room->own[1] + 16 * w * ld, room->visit[1],
                                    ld, n_used, n_cols);
            }
        }
    }
    ZB_WARP_EACH(w, ATTN_WARPS) {
        int n_cols = attn_cols(f.head_dim, item.at.col, D);
        struct bwd_warp<D, OF_KEYS> &mine = held[ZB_WARP_AT(w)];

        if (16 * w < item.at.n) {
            bwd_weigh<T, D, N, OF_KEYS>(s[ZB_WARP_AT(w)], d[ZB_WARP_AT(w)],
                                        16 * w, (zb_real)f.scale,
                                        attn_slope(&f, h), item.drop.keep,
                                        pair, lead, room);
            zb_mma_pb<T, D, N>(mine.sum[0], d[ZB_WARP_AT(w)], room->visit[0],
                               ld, n_cols, n_used);
            if constexpr (OF_KEYS) {
                zb_mma_pb<T, D, N>(mine.sum[1], s[ZB_WARP_AT(w)],
                                   room->visit[1], ld, n_cols, n_used);
            }
        }
    }
}

/* All that the item's rows have to do with query head h. */
template <class T, int D, int N, bool OF_KEYS>
ZB_KERN_FN void bwd_head(const struct bwd_args &a, int64_t h, int is_first,
                         struct bwd_warp<D, OF_KEYS> *held,
                         struct bwd_room<T, D, N, OF_KEYS> *room)
{
    const struct zb_k_attention_fwd &f = a.p.fwd;
    const struct bwd_item &item = room->item;
    int64_t own = item.at.first, i = 0, end;

    if (OF_KEYS) {
        end = own < item.rule.n_keys ? f.seq : 0;
        if (f.causal && own > item.rule.shift) {
            i = (own - item.rule.shift) / N * N;
        }
        if (item.rule.window > 0 &&
            own + item.at.n - item.rule.shift + item.rule.window - 1 < end) {
            end = own + item.at.n - item.rule.shift + item.rule.window - 1;
        }
    } else {
        end = attn_keys_of(&f, &item.rule, own + item.at.n - 1);
        i = attn_first_key(&item.rule, own, N);
    }
    for (; i < end; i += N) {
        bwd_visit<T, D, N, OF_KEYS>(a, h, i, is_first, held, room);
        is_first = 0;
    }
}

/* Where the item's rows of a gradient go. */
template <class T, int D>
ZB_KERN_FN struct attn_dest<T> bwd_dest(const struct bwd_args &a,
                                        const struct attn_item &at, void *x,
                                        int64_t batch, int64_t row,
                                        int64_t head, int add)
{
    struct attn_dest<T> to;

    to.x = (typename T::st *)x + at.b * batch + at.first * row +
           at.head * head + at.col;
    to.row = row;
    to.n = at.n;
    to.n_cols = attn_cols(a.p.fwd.head_dim, at.col, D);
    to.is_fast = a.is_fast;
    to.add = add;
    return to;
}

template <class T, int D, bool OF_KEYS>
ZB_KERN_FN void bwd_store(const struct bwd_args &a,
                          const struct bwd_item &item, int first,
                          struct bwd_warp<D, OF_KEYS> &w)
{
    const struct zb_k_attention_bwd &p = a.p;
    zb_real scale = (zb_real)p.fwd.scale;

    if constexpr (OF_KEYS) {
        attn_store<T, D>(w.sum[0], first, scale,
                         bwd_dest<T, D>(a, item.at, p.dk, p.dk_batch, p.dk_row,
                                        p.dk_head, p.add_kv));
        attn_store<T, D>(w.sum[1], first, item.drop.keep,
                         bwd_dest<T, D>(a, item.at, p.dv, p.dv_batch, p.dv_row,
                                        p.dv_head, p.add_kv));
    } else {
        attn_store<T, D>(w.sum[0], first, scale,
                         bwd_dest<T, D>(a, item.at, p.dq, p.dq_batch, p.dq_row,
                                        p.dq_head, p.add_q));
    }
}

/* The block's next item, for all its lanes. */
template <bool OF_KEYS>
ZB_KERN_FN void bwd_begin(const struct bwd_args &a, int64_t u, int chunk,
                          struct bwd_item *item_out)
{
    const struct zb_k_attention_fwd &f = a.p.fwd;
    struct bwd_item item;

    item.at = attn_item_of(&a.items, u, chunk);
    item.rule = attn_rule_of(&f, item.at.b);
    item.drop = attn_drop_of(&f, item.at.b);
    item.kv = OF_KEYS ? item.at.head : item.at.head * f.kv_heads / f.q_heads;
    ZB_BLOCK_SYNC();
    ZB_BLOCK_ONCE {
        *item_out = item;
    }
    ZB_BLOCK_SYNC();
}

template <class T, int D, int N, bool OF_KEYS>
static __global__ void ZB_CUDA_BOUNDS(ATTN_THREADS)
    attention_bwd(const struct bwd_args a)
{
    ZB_SHARED_ROOM(shared);
    struct bwd_room<T, D, N, OF_KEYS> *room =
        (struct bwd_room<T, D, N, OF_KEYS> *)shared;
    int64_t group = OF_KEYS ? a.p.fwd.q_heads / a.p.fwd.kv_heads : 1;

    ZB_ITEM_EACH(u, a.items.n) {
        struct bwd_warp<D, OF_KEYS> held[ZB_WARPS_HELD(ATTN_WARPS)];

        bwd_begin<OF_KEYS>(a, u, D, &room->item);
        ZB_WARP_EACH(w, ATTN_WARPS) {
            ZB_UNROLL
            for (int i = 0; i < (OF_KEYS ? 2 : 1); i++) {
                zb_acc_zero(held[ZB_WARP_AT(w)].sum[i]);
            }
        }
        for (int64_t g = 0; g < group; g++) {
            bwd_head<T, D, N, OF_KEYS>(a, room->item.at.head * group + g,
                                       g == 0, held, room);
        }
        ZB_WARP_EACH(w, ATTN_WARPS) {
            bwd_store<T, D, OF_KEYS>(a, room->item, 16 * w,
                                     held[ZB_WARP_AT(w)]);
        }
    }
}

static int is_aligned(const struct zb_k_attention_bwd *p)
{
    const struct zb_k_attention_fwd *f = &p->fwd;
    int64_t row = f->q_heads * f->head_dim;
    enum zb_dtype t = f->dtype;

    return attn_fwd_is_aligned(f) &&
           attn_is_aligned(t, p->dout, f->out_batch, row, f->head_dim) &&
           attn_is_aligned(t, p->dq, p->dq_batch, p->dq_row, p->dq_head) &&
           attn_is_aligned(t, p->dk, p->dk_batch, p->dk_row, p->dk_head) &&
           attn_is_aligned(t, p->dv, p->dv_batch, p->dv_row, p->dv_head);
}

template <class T, int D, bool OF_KEYS>
static enum zb_status bwd_launch(struct zb_stream *stream,
                                 const struct zb_k_attention_bwd *p)
{
    const int n = bwd_visits<T>::n;
    const struct zb_k_attention_fwd *f = &p->fwd;
    struct bwd_args a;

    static_assert(sizeof(struct bwd_room<T, D, n, OF_KEYS>) <=
                      ZB_CUDA_ROOM_MAX * sizeof(zb_real) / sizeof(float),
                  "shared memory of a block");
    a.p = *p;
    a.items = attn_items_of(f->batch, OF_KEYS ? f->kv_heads : f->q_heads,
                            OF_KEYS ? f->kv_seq : f->seq, f->head_dim, D);
    a.items.is_reverse = f->causal && !OF_KEYS;
    a.is_fast = is_aligned(p);
    return attn_launch(stream, attention_bwd<T, D, n, OF_KEYS>, a, a.items.n,
                       (int)sizeof(struct bwd_room<T, D, n, OF_KEYS>),
                       "attention_bwd");
}

template <class T, int D>
static enum zb_status bwd_both(struct zb_stream *stream,
                               const struct zb_k_attention_bwd *p)
{
    ZB_TRY((bwd_launch<T, D, false>(stream, p)));
    return bwd_launch<T, D, true>(stream, p);
}

template <class T> struct bwd_run {
    static enum zb_status run(struct zb_stream *stream,
                              const struct zb_k_attention_bwd *p)
    {
        return p->fwd.head_dim <= 64 ? bwd_both<T, 64>(stream, p)
                                     : bwd_both<T, 128>(stream, p);
    }
};

enum zb_status zb_cuda_attention_bwd(struct zb_stream *stream,
                                     const void *params)
{
    struct zb_k_attention_bwd p = *(const struct zb_k_attention_bwd *)params;

    p.fwd = attn_params(&p.fwd);
    return attn_for_type<bwd_run>(p.fwd.dtype, stream, &p);
}
