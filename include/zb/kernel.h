/* SPDX-License-Identifier: MIT
 *
 * The kernels every backend has, and their parameters.
 *
 * One row of ZB_KERNEL_MAP is one kernel; its parameters are struct zb_k_<name>
 * below. Pointers are device memory. "[R,C] ld" means R rows of C contiguous
 * elements with ld elements from row to row. "+=" accumulates, "=" overwrites.
 * What a `void` pointer points to is stored in the type `dtype` (zb_real, bf16
 * or fp16; zb_real when it is not set); all else is as the pointer says.
 * Kernels compute in zb_real and round once, when they store; but attention of
 * 16-bit types on tensor cores rounds softmax weights and the gradients of scores
 * before it multiplies them.
 * All reductions have a fixed order that depends on the sizes only: not on the
 * number of threads.
 *
 * Random numbers are Philox4x32-10 (Salmon et al. 2011, "Parallel random
 * numbers: as easy as 1, 2, 3"), so they depend on what is computed, never on
 * where or when.
 */
#ifndef ZB_KERNEL_H
#define ZB_KERNEL_H

#include <stdint.h>

#include "zb/tensor.h"

#define ZB_KERNEL_MAP(X)                                                       \
    X(gemm)                                                                    \
    X(col_sum)                                                                 \
    X(embedding_fwd)                                                           \
    X(embedding_bwd_w)                                                         \
    X(position_fwd)                                                            \
    X(position_bwd_w)                                                          \
    X(layernorm_fwd)                                                           \
    X(layernorm_bwd)                                                           \
    X(layernorm_bwd_w)                                                         \
    X(rmsnorm_fwd)                                                             \
    X(rmsnorm_bwd)                                                             \
    X(rmsnorm_bwd_w)                                                           \
    X(rope)                                                                    \
    X(attention_fwd)                                                           \
    X(attention_bwd)                                                           \
    X(attention_merge)                                                         \
    X(act_fwd)                                                                 \
    X(act_bwd)                                                                 \
    X(gated_fwd)                                                               \
    X(gated_bwd)                                                               \
    X(add)                                                                     \
    X(copy)                                                                    \
    X(reduce)                                                                  \
    X(fill)                                                                    \
    X(convert)                                                                 \
    X(scale)                                                                   \
    X(dropout)                                                                 \
    X(xent_fwd)                                                                \
    X(xent_part)                                                               \
    X(xent_join)                                                               \
    X(xent_bwd)                                                                \
    X(mse_fwd)                                                                 \
    X(mse_bwd)                                                                 \
    X(sum_f64)                                                                 \
    X(sumsq_f64)                                                               \
    X(fill_normal)                                                             \
    X(adamw)                                                                   \
    X(sgd)

enum zb_kernel {
#define ZB_X(name) ZB_K_##name,
    ZB_KERNEL_MAP(ZB_X)
#undef ZB_X
    ZB_N_KERNELS
};

/* C[m,n] = op(A)[m,k] * op(B)[k,n] (+ C when accumulate) (+ bias[n]).
 * op(X) = X or X transposed; ld is the row stride of the matrix as stored. */
struct zb_k_gemm {
    int64_t m, n, k;
    int trans_a, trans_b, accumulate;
    enum zb_dtype dtype; /* of a, b and bias */
    enum zb_dtype c_dtype; /* the same, or zb_real */
    const void *a, *b;
    void *c;
    const void *bias; /* or NULL; not together with accumulate */
    int64_t lda, ldb, ldc;
};

/* y[c] += sum over rows of x[r,c]: the gradient of a bias. */
struct zb_k_col_sum {
    int64_t rows, cols, ldx;
    enum zb_dtype dtype;
    const void *x;
    zb_real *y;
};

/* y[r,:] = table[offset + id[r],:] of a table of `whole` rows. A device may have
 * only the n_ids rows from `first` on: other rows give zeros, so that the sum
 * over devices is the look-up; those outside [0, whole) give a row of NaN. */
struct zb_k_embedding_fwd {
    int64_t rows, cols, n_ids, first, whole, offset, ldy;
    enum zb_dtype dtype;
    const int32_t *id;
    const void *table; /* [n_ids, cols] */
    void *y;
};

/* dtable[offset + id[r] - first,:] += dy[r,:], rows in order; those of table row
 * padding_idx, or not in this part of the table, contribute nothing.
 * padding_idx -1 is none. */
struct zb_k_embedding_bwd_w {
    int64_t rows, cols, n_ids, first, whole, offset, lddy, padding_idx;
    enum zb_dtype dtype;
    const int32_t *id;
    const void *dy;
    zb_real *dtable;
};

/* Which rows of the whole sequence the rows of a part of it are: `len` rows
 * from first[0] on, then the others from first[1] on. All zeros: row t is row
 * t. */
struct zb_k_place {
    int64_t len, first[2];
};

/* y[b,t,:] = x[b,t,:] + table[offset + row of t,:]. Dense. The table has n_pos
 * rows; what lies past them is padding of sequences and takes the last row (and
 * gives it no gradient). */
struct zb_k_position_fwd {
    int64_t batch, seq, cols, offset, n_pos;
    struct zb_k_place place;
    enum zb_dtype dtype;
    const void *x, *table;
    void *y;
};

/* dtable[offset + row of t,:] += sum over b of dy[b,t,:]. */
struct zb_k_position_bwd_w {
    int64_t batch, seq, cols, offset, n_pos;
    struct zb_k_place place;
    enum zb_dtype dtype;
    const void *dy;
    zb_real *dtable;
};

/* y = (x - mean) * rstd * gamma + beta, per row; beta may be NULL. Population
 * variance; rstd = 1 / sqrt(var + eps). Dense rows (also in the next five).
 * groups > 1 (heads): gamma and beta are [groups, cols], and row r has theirs
 * of r modulo groups. */
struct zb_k_layernorm_fwd {
    int64_t rows, cols, groups;
    double eps;
    enum zb_dtype dtype;
    const void *x, *gamma, *beta;
    void *y;
    zb_real *mean, *rstd; /* [rows] */
};

/* dx = addend + gradient of layernorm_fwd; addend may be NULL, or dx itself. */
struct zb_k_layernorm_bwd {
    int64_t rows, cols, groups;
    enum zb_dtype dtype;
    const void *dy, *x, *gamma, *addend;
    const zb_real *mean, *rstd;
    void *dx;
};

/* dgamma[c] += sum_r dy * xhat, dbeta[c] += sum_r dy (dbeta may be NULL); with
 * groups, which divide the rows, of each group's rows. */
struct zb_k_layernorm_bwd_w {
    int64_t rows, cols, groups;
    enum zb_dtype dtype;
    const void *dy, *x;
    const zb_real *mean, *rstd;
    zb_real *dgamma, *dbeta;
};

/* y = x * rstd * gamma, rstd = 1 / sqrt(mean(x^2) + eps). */
struct zb_k_rmsnorm_fwd {
    int64_t rows, cols;
    double eps;
    enum zb_dtype dtype;
    const void *x, *gamma;
    void *y;
    zb_real *rstd;
};

struct zb_k_rmsnorm_bwd {
    int64_t rows, cols;
    enum zb_dtype dtype;
    const void *dy, *x, *gamma, *addend; /* addend as above */
    const zb_real *rstd;
    void *dx;
};

struct zb_k_rmsnorm_bwd_w {
    int64_t rows, cols;
    enum zb_dtype dtype;
    const void *dy, *x;
    const zb_real *rstd;
    zb_real *dgamma;
};

/* Rotate the first 2*half elements of every head, out of place or in place:
 * pair (j, j + half), or (2j, 2j + 1) when interleaved, by the angle whose
 * cosine and sine are cos[p, j], sin[p, j], p being the row of t in its
 * sequence (past the tables: their last row); inverse != 0 rotates back.
 * Elements past 2*half are copied. */
struct zb_k_rope {
    int64_t batch, seq, heads, head_dim, half, n_pos;
    struct zb_k_place place;
    int interleaved, inverse;
    enum zb_dtype dtype;
    const zb_real *cos, *sin; /* [n_pos, half] */
    const void *x;            /* [batch, seq, heads, head_dim] */
    int64_t x_row, x_head;    /* strides of seq and heads; batch = seq * row */
    void *y;
    int64_t y_row, y_head;
};

/* The key of a dropout mask. An element's random number depends on seed, step,
 * site, the global index of its sample and its place within the sample: the
 * Philox key is the first half of philox(key = seed, counter = step, site), the
 * counter (sample, block); the four numbers of a block belong to elements
 * 4 block to 4 block + 3. Of attention, key j of query i of head h is in block
 * 2^48 h + 2^24 i + j / 4, however long the sequence is. Samples, heads and
 * places are those of the whole model, whatever part of it a device has, so
 * that all layouts drop the same, padded or not. */
struct zb_k_philox {
    uint64_t seed;
    uint64_t step;
    uint32_t site;
    const int64_t *sample; /* [batch], device memory: global sample indices */
};

/* out = softmax(scale * q k^T + mask) v, per batch row and head; query head h
 * reads key head h * kv_heads / q_heads. lse[b,h,t] = log of the sum of
 * exponentials.
 *
 * Queries and keys may be parts of sequences of `whole` rows: query i is row
 * q_first + i, key j is row k_first + j, and what follows is about those. The
 * last n_padding rows are no keys: the sequence was made longer for its layout.
 * Keys j with key_mask[b,j] == 0 are left out, as are j > i when causal; a
 * query with no key left in the whole sequence averages all keys that causality
 * allows, so that q and k get no gradient from it. A query of which no key is
 * in this part gets a finite out and an lse that attention_merge counts as
 * nothing. Softmax weights are dropped with probability `dropout` and the rest
 * divided by 1 - dropout. No matrix of all scores is stored. */
struct zb_k_attention_fwd {
    int64_t batch, seq, kv_seq, q_heads, kv_heads, head_dim;
    int64_t whole, n_padding, q_first, k_first;
    int64_t first_head; /* head 0 is this one of the model: for dropout */
    int causal;
    int64_t window; /* with causal: query i sees no key before i - window + 1;
                       0: it sees all */
    double scale, dropout;
    struct zb_k_philox philox;
    const int32_t *key_mask; /* [batch, whole] or NULL */
    const zb_real *slopes;   /* [heads of the model] or NULL: (j - i) times the
                                slope of the head is added to a scaled score */
    enum zb_dtype dtype;     /* of all but lse */
    const void *q, *k, *v;
    int64_t q_batch, k_batch, v_batch; /* strides of batch */
    int64_t q_row, k_row, v_row;       /* strides of seq */
    int64_t q_head, k_head, v_head;    /* strides of heads */
    void *out;    /* [batch, seq, q_heads, head_dim], samples out_batch apart */
    zb_real *lse; /* [batch, q_heads, seq], heads lse_row apart */
    int64_t out_batch, lse_row;
};

/* dq, dk, dv = gradients, from the tensors of the forward pass and dout. They
 * have strides of their own and may not share memory with q, k and v. Where the
 * keys are a part of the sequence, out and lse are those over all keys; what
 * other parts gave is added to where add_q (dq), add_kv (dk, dv) is set. dk and
 * dv are sums over queries: where they are stored in 16 bits, `sums` is memory
 * to add them up in. */
struct zb_k_attention_bwd {
    struct zb_k_attention_fwd fwd; /* out and lse as forward wrote them */
    const void *dout;              /* like out */
    int add_q, add_kv;
    void *dq, *dk, *dv;
    int64_t dq_batch, dk_batch, dv_batch, dq_row, dk_row, dv_row;
    int64_t dq_head, dk_head, dv_head;
    zb_real *sums; /* [batch, kv_heads, 2, kv_seq, head_dim], or NULL */
};

/* Attention over two sets of keys: (out, lse) = that over both, from (out, lse)
 * over one and (more, more_lse) over the other. */
struct zb_k_attention_merge {
    int64_t batch, seq, heads, head_dim;
    enum zb_dtype dtype;
    const void *more;        /* [batch, seq, heads, head_dim] dense */
    const zb_real *more_lse; /* [batch, heads, seq] dense */
    void *out;               /* strides as in attention_fwd */
    zb_real *lse;
    int64_t out_batch, lse_row;
};

enum zb_act {
    ZB_ACT_RELU,
    ZB_ACT_SILU,
    ZB_ACT_GELU_TANH,
    ZB_ACT_GELU_ERF,
    ZB_ACT_TANH,
    ZB_N_ACTS
};

/* y = act(x), and dx = dy * act'(x). */
struct zb_k_act_fwd {
    int64_t n;
    enum zb_act act;
    enum zb_dtype dtype;
    const void *x;
    void *y;
};

struct zb_k_act_bwd {
    int64_t n;
    enum zb_act act;
    enum zb_dtype dtype;
    const void *dy, *x;
    void *dx;
};

/* y = act(gate) * up; dgate = dy * up * act'(gate), dup = dy * act(gate). */
struct zb_k_gated_fwd {
    int64_t rows, cols, ld_gate, ld_up, ld_y;
    enum zb_act act;
    enum zb_dtype dtype;
    const void *gate, *up;
    void *y;
};

struct zb_k_gated_bwd {
    int64_t rows, cols, ld_gate, ld_up, ld_dy, ld_dgate, ld_dup;
    enum zb_act act;
    enum zb_dtype dtype;
    const void *dy, *gate, *up;
    void *dgate, *dup;
};

/* y = a + b; y may be a. */
struct zb_k_add {
    int64_t n;
    enum zb_dtype dtype;
    const void *a, *b;
    void *y;
};

/* y[b,r,:] = x[b,r,:], element size in bytes. Blocks of rows are block_x and
 * block_y elements apart; n_blocks 0 is one block. */
struct zb_k_copy {
    int64_t rows, cols, ldx, ldy, elem_bytes;
    const void *x;
    void *y;
    int64_t n_blocks, block_x, block_y;
};

/* y[b,r,c] = x_0[b,r,c] + x_1[b,r,c] + ..., added in this order; when
 * accumulate, to what is in y. All x have the same strides, as in copy. y may
 * be one of them if it has the same strides, or if there is one row only. */
#define ZB_REDUCE_MAX 16
struct zb_k_reduce {
    enum zb_dtype dtype; /* of all; rounded once, at the end */
    int n_x;             /* from 1 to ZB_REDUCE_MAX */
    int accumulate;
    int64_t n_blocks, rows, cols, block_x, ldx, block_y, ldy;
    const void *x[ZB_REDUCE_MAX];
    void *y;
};

struct zb_k_fill {
    int64_t n;
    double value;
    enum zb_dtype dtype;
    void *y;
};

/* y = x in another type; the types may be equal. */
struct zb_k_convert {
    int64_t n;
    enum zb_dtype x_dtype, y_dtype;
    const void *x;
    void *y;
};

/* y = alpha * x; y may be x. */
struct zb_k_scale {
    int64_t n;
    double alpha;
    enum zb_dtype dtype;
    const void *x;
    void *y;
};

/* y = addend + x * keep / (1 - p), keep drawn per element; also the gradient,
 * with x = dy. addend may be NULL. x, y: [batch, per_sample] dense. When a
 * sample is a part of a sequence, it consists of rows of `cols` elements and `place`
 * says which; cols 0: it is whole. */
struct zb_k_dropout {
    int64_t batch, per_sample, cols;
    struct zb_k_place place;
    double p;
    struct zb_k_philox philox;
    enum zb_dtype dtype;
    const void *x, *addend;
    void *y;
};

/* loss[r] = lse(logits[r,:]) - logits[r, label[r]], 0 where label == -100;
 * lse[r] as computed. Labels outside [0, cols) other than -100 give NaN. */
struct zb_k_xent_fwd {
    int64_t rows, cols, ld;
    enum zb_dtype dtype;
    const void *logits;
    const int32_t *label;
    zb_real *loss, *lse;
};

/* The same in two steps where devices have parts of the columns, this one
 * `cols` (0: none) from `first` on. stats[r,:] of a part: its largest logit,
 * the sum of exp(logit - largest), the label's logit (0 where it is not here).
 */
struct zb_k_xent_part {
    int64_t rows, cols, ld, first;
    enum zb_dtype dtype;
    const void *logits;
    const int32_t *label;
    zb_real *stats; /* [rows, 3] */
};

/* loss and lse from the stats of all parts, in order; n_class columns in the
 * whole. */
struct zb_k_xent_join {
    int64_t rows, n_parts, n_class;
    const zb_real *stats; /* [rows, n_parts, 3] */
    const int32_t *label;
    zb_real *loss, *lse;
};

/* dlogits = scale * (softmax(logits) - onehot(label)), 0 rows where -100;
 * dlogits may be logits. The columns are those from `first` on of n_class;
 * after them come n_pad that are padding and get 0. */
struct zb_k_xent_bwd {
    int64_t rows, cols, ld, ld_d, first, n_class, n_pad;
    double scale;
    enum zb_dtype dtype;
    const void *logits;
    const zb_real *lse;
    const int32_t *label;
    void *dlogits;
};

/* loss[i] = (x - target)^2; dx = 2 * scale * (x - target). */
struct zb_k_mse_fwd {
    int64_t n;
    enum zb_dtype dtype;
    const void *x, *target;
    zb_real *loss;
};

struct zb_k_mse_bwd {
    int64_t n;
    double scale;
    enum zb_dtype dtype;
    const void *x, *target;
    void *dx;
};

/* *y = sum of x[i] (or of x[i]^2), in double, in blocks of 4096 elements whose
 * sums are added in order. */
struct zb_k_sum_f64 {
    int64_t n;
    enum zb_dtype dtype;
    const void *x;
    double *y;
};

struct zb_k_sumsq_f64 {
    int64_t n;
    enum zb_dtype dtype;
    const void *x;
    double *y;
};

/* y[i] = mean + std * z(seed, key, first + i), z standard normal (Box-Muller on
 * Philox): a parameter's start value depends on its name and element only. */
struct zb_k_fill_normal {
    int64_t n, first;
    uint64_t seed, key;
    double mean, std;
    enum zb_dtype dtype;
    void *y;
};

/* AdamW (Loshchilov and Hutter 2019): g = grad_scale * grad;
 * m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr * weight_decay * p;
 * p -= lr * (m / c1) / (sqrt(v / c2) + eps), c1 = 1 - b1^t, c2 = 1 - b2^t.
 * `stored`, when it is not NULL, becomes p in type dtype: p itself is then the
 * master that no other kernel reads. */
struct zb_k_adamw {
    int64_t n, t;
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
    enum zb_dtype dtype;
    const zb_real *grad;
    zb_real *param, *m, *v;
    void *stored;
};

/* SGD with momentum as in PyTorch, but decoupled decay:
 * p -= lr * weight_decay * p first; g = grad_scale * grad;
 * buf = t == 1 ? g : momentum * buf + g; p -= lr * buf (p -= lr * g when
 * momentum is 0; buf may then be NULL). `stored` as above. */
struct zb_k_sgd {
    int64_t n, t;
    double lr, momentum, weight_decay, grad_scale;
    enum zb_dtype dtype;
    const zb_real *grad;
    zb_real *param, *buf;
    void *stored;
};

#endif
