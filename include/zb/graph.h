/* SPDX-License-Identifier: MIT
 *
 * The model as a graph of ops, and what is derived from it: cuts, forward,
 * backward-input and backward-weight lists, memory, costs.
 *
 * A model family builds a graph once, for the whole model, in model order. The
 * builder never fails in the middle: the first mistake is remembered and
 * zb_graph_finish() reports it, so model code reads like the formula.
 *
 *     struct zb_graph *g;
 *     ZB_TRY(zb_graph_new(&g));
 *     int ids = zb_g_data(g, "input_ids", ZB_DTYPE_I32, 2, bt);
 *     zb_g_layer(g, "embed");
 *     int x = zb_g_embedding(g, ids, zb_g_param(g, "wte", 2, vh, opts), -1);
 *     zb_g_layer(g, "h.0");                  // a legal cut
 *     ...
 *     zb_g_loss(g, zb_g_xent(g, logits, labels), labels);
 *     ZB_TRY(zb_graph_finish(g));
 *
 *     struct zb_chunk *c;                    // layers [0, 3) of the model
 *     ZB_TRY(zb_chunk_new(g, 0, 3, &max_bind, ZB_RECOMPUTE_NONE, &c));
 *     ZB_TRY(zb_chunk_forward(c, &run));     // enqueue on run.stream
 *     ZB_TRY(zb_chunk_backward_input(c, &run));
 *     ZB_TRY(zb_chunk_backward_weight(c, &run));
 *
 * Activations have a symbolic first dimension (ZB_DIM(ZB_SYM_BATCH)) and often
 * a second (ZB_DIM(ZB_SYM_SEQ)); programs are compiled for the largest values
 * and run with any smaller ones.
 *
 * This header knows nothing of schedules or threads. A finished graph is
 * read-only and may be shared; a chunk is read-only once made. Running a chunk
 * touches only what `run` points to.
 */
#ifndef ZB_GRAPH_H
#define ZB_GRAPH_H

#include "zb/backend.h"
#include "zb/coll.h"
#include "zb/status.h"
#include "zb/tensor.h"

struct zb_graph;
struct zb_chunk;

/* ---- layouts --------------------------------------------------------------
 *
 * One graph serves every device of a layout: tensors have the sizes of one
 * shard, and what differs between ranks (which rows of a table, which part of a
 * sequence) is looked up while running. So tp and sp of a graph are fixed when
 * it is made, ranks are given with each pass. */

enum zb_seq_mode {
    ZB_SEQ_WHOLE,        /* no sequence parallelism */
    ZB_SEQ_SPLIT_GATHER, /* between tp regions each rank of the tp group has a
                            part (Korthikanti et al. 2022); sp is 1 */
    ZB_SEQ_ALL_TO_ALL,   /* parts; heads instead of them during attention */
    ZB_SEQ_RING          /* parts, two pieces each (piece r and 2 sp - 1 - r of
                            2 sp, so that causal work is even); keys and values
                            pass around */
};

struct zb_parallel {
    int tp, sp; /* at least 1; sp is an axis of its own */
    enum zb_seq_mode mode;
    int64_t vocab_multiple; /* tables are padded to a multiple of this * tp;
                               nothing is padded when tp is 1 */
};

/* Lengths are cut evenly: a sequence of `seq` tokens is padded to a multiple of
 * this (1: never). */
int64_t zb_parallel_seq_multiple(const struct zb_parallel *par);
/* Sizes of a microbatch of `rows` sequences of `seq` tokens, padded. */
struct zb_bind zb_parallel_bind(const struct zb_parallel *par, int64_t rows,
                                int64_t seq);

/* Where the rows of sp rank's part lie in the whole, padded sequence: `len`
 * rows from first[0] on, then `len` rows from first[1] on. */
struct zb_seq_place {
    int64_t len, first[2];
};
struct zb_seq_place zb_parallel_place(const struct zb_parallel *par,
                                      int sp_rank, const struct zb_bind *bind);

/* ---- building ----------------------------------------------------------
 *
 * Every zb_g_ function returns a tensor id >= 0, or -1 after a mistake (also
 * when an argument is already -1). ZB_G_NONE is an absent optional input. */

#define ZB_G_NONE (-2)

/* For one device, and for a shard of a layout; `par` is copied. Collectives are
 * put in where the splits of parameters ask for them; a model is written as for
 * one device, with whole sizes, but for heads (ZB_DIM_REST). */
enum zb_status zb_graph_new(struct zb_graph **g_out) ZB_CHECKED;
enum zb_status zb_graph_new_parallel(const struct zb_parallel *par,
                                     struct zb_graph **g_out) ZB_CHECKED;
void zb_graph_free(struct zb_graph *g);

/* The type in which activations, their gradients, messages between chunks,
 * parameters and fields of the batch declared as ZB_DTYPE_REAL are stored:
 * ZB_DTYPE_REAL (when this is not called), BF16 or F16. Before anything else.
 * Always zb_real are constants, statistics of norms and softmax, losses per row
 * or element, and gradients of parameters (zb_chunk_run.grad). */
void zb_g_storage(struct zb_graph *g, enum zb_dtype dtype);

/* Everything from here on belongs to a new layer; any layer boundary is a legal
 * cut. `name` is copied. */
void zb_g_layer(struct zb_graph *g, const char *name);

/* A field of the batch; present on every stage, never sent. */
int zb_g_data(struct zb_graph *g, const char *name, enum zb_dtype dtype,
              int n_dims, const int64_t *dim);

/* A table of reals computed at build time (rope angles); `value` is copied. */
int zb_g_const(struct zb_graph *g, const char *name, int n_dims,
               const int64_t *dim, const zb_real *value);

enum zb_init { ZB_INIT_NORMAL, ZB_INIT_ONES, ZB_INIT_ZEROS };

/* How a parameter is split over the tp group: dimension `dim`, which consists of
 * n_parts packed parts (q, k and v of one matrix) of size[] elements that are
 * split one by one between their unit[] heads (or columns). Where there are
 * fewer heads than ranks, tp / unit consecutive ranks have the same one.
 * n_parts 0: every rank has all of it. */
#define ZB_SPLIT_MAX 3
struct zb_split {
    int dim, n_parts;
    int64_t size[ZB_SPLIT_MAX], unit[ZB_SPLIT_MAX];
    int is_vocab; /* one part, padded as zb_parallel says; padding stays 0 */
};

struct zb_param_opts {
    enum zb_init init;
    double std;    /* of ZB_INIT_NORMAL */
    int no_decay;  /* 1: weight decay does not apply (norms, biases) */
    int is_frozen; /* 1: no gradient, no update */
    /* 1: of an adapter, which is trained and saved instead of the parameters
     * that have no gradient, and which pretrained weights do not have: there it
     * is drawn. */
    int is_adapter;
    int is_new_head; /* 1: drawn, too, where pretrained weights lack it */
    struct zb_split split;
};

/* A parameter of its whole shape. A second call with the same name gives the
 * same parameter (its shape must agree, its options are ignored): that is how
 * weights are tied.
 * `name` is the checkpoint's name. Each op that takes it and sends it a
 * gradient is one *use*, with a gradient of its own. */
int zb_g_param(struct zb_graph *g, const char *name, int n_dims,
               const int64_t *dim, const struct zb_param_opts *opts);

/* y[.., out] = x[.., in] W^T + b; W is [out, in], or [in, out] when
 * `in_by_out` (GPT-2's Conv1D). bias [out] or ZB_G_NONE. */
int zb_g_linear(struct zb_graph *g, int x, int weight, int bias,
                int in_by_out);
/* ids [B,T] i32 -> [B,T,H]; padding_idx -1 is none: its row gets no gradient
 * from the look-up. */
int zb_g_embedding(struct zb_graph *g, int ids, int table, int padding_idx);
/* x [B,T,H] + table[offset + t, :]; table [P,H], P >= offset + largest T. */
int zb_g_position(struct zb_graph *g, int x, int table, int offset);
/* x + table[offset + ids[b,t], :]; ids [B,T] i32. */
int zb_g_position_at(struct zb_graph *g, int x, int ids, int table, int offset);
/* Over the last dimension; beta may be ZB_G_NONE. A layer norm's gamma (and
 * beta) may be [heads,D] for x [..,heads,D]: each head has its own. */
int zb_g_layernorm(struct zb_graph *g, int x, int gamma, int beta, double eps);
int zb_g_rmsnorm(struct zb_graph *g, int x, int gamma, double eps);
/* x [B,T,heads,D]; cos, sin: consts [P, half], 2 * half <= D. */
int zb_g_rope(struct zb_graph *g, int x, int cos, int sin, int interleaved);

struct zb_attn_opts {
    int causal;
    double scale;
    double dropout;
    int key_mask; /* data [B,T] i32, 0 = padding; or ZB_G_NONE */
    int64_t window; /* > 0, with causal: a query sees itself and so many keys
                       less one before it; 0: all before it */
    int slopes;     /* ALiBi: a const with one number per query head of the
                       whole model, which times (key - query), in tokens, is
                       added to the scaled score. Ignored unless has_slopes */
    int has_slopes;
};

/* q [B,T,nq,D], k and v [B,T,nkv,D] -> [B,T,nq*D]. */
int zb_g_attention(struct zb_graph *g, int q, int k, int v,
                   const struct zb_attn_opts *opts);
int zb_g_act(struct zb_graph *g, int x, enum zb_act act);
/* act(gate) * up */
int zb_g_gated(struct zb_graph *g, int gate, int up, enum zb_act act);
int zb_g_add(struct zb_graph *g, int a, int b);
int zb_g_scale(struct zb_graph *g, int x, double alpha);
/* p = 0 gives x itself. */
int zb_g_dropout(struct zb_graph *g, int x, double p);
/* No copy: the same elements with another shape (same product; one dimension
 * may be ZB_DIM_REST: what is left), and columns [first, first + n) of the last
 * dimension. */
#define ZB_DIM_REST (-100)
int zb_g_reshape(struct zb_graph *g, int x, int n_dims, const int64_t *dim);
int zb_g_slice(struct zb_graph *g, int x, int64_t first, int64_t n);
/* x itself, as one run of memory: what slices must be before some reshapes. */
int zb_g_dense(struct zb_graph *g, int x);
/* x [B,T,..] -> [B,..]: the first token of each sequence. Not where sequences
 * are cut over sp, whose ranks do not all have it. */
int zb_g_first(struct zb_graph *g, int x);
/* logits [..,V], labels [..] i32 (targets, already shifted; -100 = ignored)
 * -> loss per row [..]. Where parameters are trained, the result of xent and
 * mse may reach the loss through add, scale and reshape only, in their layer:
 * its gradient is then one number. */
int zb_g_xent(struct zb_graph *g, int logits, int labels);
/* x as every rank has all of it, for a criterion of one's own: logits of which
 * ranks have columns, hidden states of which they have parts. */
int zb_g_whole(struct zb_graph *g, int x);
/* (x - target)^2 per element; no gradient for target (a data tensor). */
int zb_g_mse(struct zb_graph *g, int x, int target);

/* The training criterion: the sum of the elements of `loss` divided by how many
 * count: all, or those whose entry in `labels` is not -100. In the last layer,
 * once, or up to ZB_LOSS_MAX times: the criterion is the sum of those means. */
#define ZB_LOSS_MAX 2
void zb_g_loss(struct zb_graph *g, int loss, int labels);
/* A tensor the caller may ask to see (return_outputs). In the last layer. */
void zb_g_output(struct zb_graph *g, const char *name, int x);

/* Check the graph and report the first mistake. */
enum zb_status zb_graph_finish(struct zb_graph *g) ZB_CHECKED;

/* ---- looking at a finished graph ----------------------------------------- */

struct zb_param_info {
    const char *name;
    struct zb_shape shape; /* of a rank's shard */
    struct zb_shape whole; /* of the checkpoint's tensor */
    int n_copies;          /* consecutive tp ranks with the same shard: 1, .. tp
                              (replicated) */
    int is_partial;        /* 1: each copy has a part of the gradient, which is
                              the sum over the copies; 0: each has all of it.
                              Of more copies of some parts, see below */
    struct zb_param_opts opts;
    int n_uses;         /* uses with a gradient; 0 where there is none */
    const int *use_ids; /* ascending, numbered graph-wide 0.. in model order:
                           the index of a use's gradient in zb_chunk_run */
    int has_gradient;   /* 0: frozen, or no path to the loss */
};

const struct zb_parallel *zb_graph_parallel(const struct zb_graph *g);
enum zb_dtype zb_graph_storage(const struct zb_graph *g);
int zb_graph_n_layers(const struct zb_graph *g);
const char *zb_graph_layer_name(const struct zb_graph *g, int layer);
int zb_graph_n_params(const struct zb_graph *g);
int zb_graph_n_uses(const struct zb_graph *g);
struct zb_param_info zb_graph_param(const struct zb_graph *g, int param);
/* The layer whose W (or B) makes the gradient of a use. */
int zb_graph_use_layer(const struct zb_graph *g, int use);
int zb_graph_find_param(const struct zb_graph *g, const char *name); /* or -1 */
/* 1: some parameter is_adapter. */
int zb_graph_has_adapters(const struct zb_graph *g);

/* A rectangle that a shard and the whole tensor have in common: `rows` rows of
 * `cols` contiguous elements. Offsets and row strides count elements. */
struct zb_piece {
    int64_t rows, cols;
    int64_t shard_first, shard_ld, whole_first, whole_ld;
};
/* The pieces of tp rank's shard; returns how many (<= ZB_SPLIT_MAX). What they
 * do not cover of a shard is padding. */
int zb_graph_param_pieces(const struct zb_graph *g, int param, int tp_rank,
                          struct zb_piece piece[ZB_SPLIT_MAX]);

/* A run of a shard's elements of which so many consecutive tp ranks have the
 * same. */
struct zb_copies {
    int64_t first, n;
    int n_copies;
};
/* The runs that a shard consists of, in order; returns how many. More than one
 * where heads packed in rows are repeated, and others beside them are not: the
 * gradient of what is repeated is the sum over its copies, as if is_partial. */
int zb_graph_param_copies(const struct zb_graph *g, int param,
                          struct zb_copies copies[ZB_SPLIT_MAX]);

/* Dimensions with ZB_SYM_SEQ are split over sp (zb_parallel_place), those with
 * ZB_SYM_FULL are given whole to every rank. n_last: how many columns of the
 * last dimension an output has in the whole, where tp ranks have parts of it in
 * order (0: they have all of it; also for fields of the batch). */
struct zb_data_info {
    const char *name;
    enum zb_dtype dtype;
    struct zb_shape shape;
    int64_t n_last;
};

int zb_graph_n_data(const struct zb_graph *g);
struct zb_data_info zb_graph_data(const struct zb_graph *g, int i);

int zb_graph_n_consts(const struct zb_graph *g);
struct zb_data_info zb_graph_const(const struct zb_graph *g, int i);
const zb_real *zb_graph_const_value(const struct zb_graph *g, int i);

int zb_graph_n_outputs(const struct zb_graph *g);
struct zb_data_info zb_graph_output(const struct zb_graph *g, int i);

/* Losses that the criterion is the sum of. */
int zb_graph_n_losses(const struct zb_graph *g);
/* Index of the data field that decides which elements of loss k count; -1: all.
 */
int zb_graph_loss_labels(const struct zb_graph *g, int k);
/* Number of elements of loss k of a microbatch when all count. */
int64_t zb_graph_loss_elems(const struct zb_graph *g, int k,
                            const struct zb_bind *bind);

/* Floating point operations of one microbatch through layers [first, end): the
 * model's, also where B runs parts of F again. */
struct zb_flops {
    double f, b, w;
};
struct zb_flops zb_graph_flops(const struct zb_graph *g, int first, int end,
                               const struct zb_bind *bind);

/* The number of values an int field of the batch may take: 0 .. n - 1 are rows
 * of every table that it indexes; 0 where it indexes none. */
int64_t zb_graph_data_range(const struct zb_graph *g, int i);

/* ---- cutting ------------------------------------------------------------- */

/* Cut the layers into n_chunks runs: first_out[c] .. first_out[c+1] - 1 belong
 * to chunk c (n_chunks + 1 entries). `block_first` and `n_blocks` say which
 * layers are the repeated ones: uniform distributes only those as models of the
 * V placement do (the extra ones to the middle), leaving what is before to
 * chunk 0 and what is after to the last; balanced looks at the cost of every
 * layer (>= 0): the least maximum, and within it each chunk, from the first on,
 * as near to the mean of what is left as can be; auto is balanced on flops of
 * F + B + W. Chunks may be empty, but the last layer is always in the last
 * chunk. */
void zb_cut_uniform(int n_before, int n_blocks, int n_after, int n_chunks,
                    int *first_out);
void zb_cut_balanced(const double *layer_cost, int n_layers, int n_chunks,
                     int *first_out);
enum zb_status zb_cut_auto(const struct zb_graph *g, const struct zb_bind *bind,
                           int n_chunks, int *first_out) ZB_CHECKED;
/* `per_chunk` counts of blocks; their sum must be n_blocks. ZB_ECONFIG. */
enum zb_status zb_cut_list(int n_before, int n_blocks, int n_after,
                           int n_chunks, const int *per_chunk,
                           int *first_out) ZB_CHECKED;

/* ---- a chunk: compiled layers -------------------------------------------- */

/* What B makes again instead of F keeping it. W never does: what it needs goes
 * from B to W. Bits do not depend on it. The layer with the loss, whose B
 * follows its F at once, keeps everything. */
enum zb_recompute {
    ZB_RECOMPUTE_NONE,
    ZB_RECOMPUTE_SELECTIVE, /* what is cheap and worth it: norms, activations,
                               dropout, rope, sums; products and attention are
                               kept */
    ZB_RECOMPUTE_FULL,      /* all but what enters a layer, one layer at a time,
                               right before its backward */
    ZB_N_RECOMPUTES
};

/* "none", "selective", "full" */
const char *zb_recompute_str(enum zb_recompute recompute);

/* Compile layers [first, end) for microbatches up to `max`. An empty range is
 * legal: it passes its input on. The graph is borrowed. ZB_EINVAL when `max` is
 * more than a table of positions holds. For every cut of a graph, loss and
 * gradients have the same bits. */
enum zb_status zb_chunk_new(const struct zb_graph *g, int first, int end,
                            const struct zb_bind *max,
                            enum zb_recompute recompute,
                            struct zb_chunk **c_out) ZB_CHECKED;
void zb_chunk_free(struct zb_chunk *c);

/* Where a chunk's tensors live. Each is one block of memory that the caller
 * provides, of the size and for the time given here. */
enum zb_space {
    ZB_SPACE_IN,      /* forward message received: from F until `in_until` */
    ZB_SPACE_OUT,     /* forward message to send: written by F, handed on */
    ZB_SPACE_DIN,     /* gradient of OUT, received: from B until `din_until` */
    ZB_SPACE_DOUT,    /* gradient of IN, to send: written by B */
    ZB_SPACE_FB,      /* F to B */
    ZB_SPACE_FW,      /* F to W */
    ZB_SPACE_BW,      /* B to W */
    ZB_SPACE_SCRATCH, /* within one pass (outputs: until the next one begins);
                         the largest of the three passes */
    ZB_N_SPACES
};

enum zb_pass { ZB_PASS_F, ZB_PASS_B, ZB_PASS_W, ZB_N_PASSES };

struct zb_chunk_info {
    int first_layer, end_layer;
    size_t bytes[ZB_N_SPACES]; /* at the largest microbatch, multiples of 64 */
    enum zb_pass in_until;     /* last pass that reads IN */
    enum zb_pass din_until;    /* last pass that reads DIN (B or W) */
    int has_loss;              /* has the last layer: F writes the loss sum */
    int n_ops[ZB_N_PASSES];    /* launches per pass */
    int n_params;
    /* Graph-wide parameter numbers used here, ascending; every parameter is in
     * at least one chunk, also one that no op reads. */
    const int *params;
    int n_uses;
    const int *uses; /* graph-wide use numbers made here, ascending */
    /* [n_uses] the launch of W behind which a use's gradient is complete, if
     * all of B was before it: 0 to n_ops[ZB_PASS_W]; the last stands for the
     * end of W. */
    const int *use_done;
};
struct zb_chunk_info zb_chunk_info(const struct zb_chunk *c);

/* Which factors of a product lie transposed in memory: libraries are not as
 * fast with each. */
enum zb_product { ZB_PRODUCT_NN, ZB_PRODUCT_NT, ZB_PRODUCT_TN, ZB_N_PRODUCTS };

/* What a device does, for estimates: operations (of products; others count as
 * NN) and bytes per nanosecond, and what it takes to launch a kernel that has
 * nothing to do. */
struct zb_rates {
    double flops_per_ns[ZB_N_PRODUCTS], bytes_per_ns, launch_ns;
};

/* Time of each pass over one microbatch: every launch takes as long as its
 * operations or its bytes do, whichever is longer. */
void zb_chunk_estimate(const struct zb_chunk *c, const struct zb_bind *bind,
                       const struct zb_rates *rates, double ns[ZB_N_PASSES]);

/* Who looks at what passes do: at launches, at collectives over an axis, at the
 * rings that each member gives `bytes` to. NULL: not at those. */
struct zb_visitor {
    void (*launch)(void *arg, const struct zb_launch *launch);
    void (*coll)(void *arg, enum zb_axis axis, const struct zb_coll *coll);
    void (*ring)(void *arg, enum zb_axis axis, size_t bytes);
    void *arg;
};

/* Show all that the three passes over one microbatch do, without a device:
 * addresses mean nothing, and collectives and rings launch nothing. */
enum zb_status zb_chunk_visit(const struct zb_chunk *c,
                              const struct zb_bind *bind,
                              const struct zb_visitor *v) ZB_CHECKED;

/* Equal for chunks that take the same time: the same launches on tensors of the
 * same shapes, and parameters of the same sizes. The same in every process that
 * runs the same program. */
uint64_t zb_chunk_signature(const struct zb_chunk *c);

/* What the message over the boundary before layer `at` consists of, in chunks
 * for microbatches of at most `max`: tensors, or gradients coming back. Returns
 * how many there are and writes the first n of them. */
int zb_graph_message(const struct zb_graph *g, int at, int is_grad,
                     const struct zb_bind *max, struct zb_part *part, int n);

/* A tensor that crosses a boundary, for metadata and tests. */
int zb_chunk_n_in(const struct zb_chunk *c);
struct zb_data_info zb_chunk_in(const struct zb_chunk *c, int i);

/* What one pass over one microbatch works on. All pointers are device memory of
 * the device that runs it, unless said otherwise. */
struct zb_chunk_run {
    const struct zb_backend_ops *ops;
    struct zb_stream *stream;
    struct zb_bind bind;          /* sizes of this microbatch, <= max */
    void *space[ZB_N_SPACES];     /* NULL where bytes is 0 */
    void *const *data;            /* [n_data] batch fields of the microbatch */
    void *const *consts;          /* [n_consts] */
    void *const *param;           /* [n_params] of the type zb_graph_storage();
                                     NULL where not used here */
    zb_real *const *grad;         /* [n_uses]; accumulated; NULL as above */
    double *loss_sum; /* F: [n_losses] sums of the elements of each loss */
    double loss_scale[ZB_LOSS_MAX]; /* B: gradient of each element of a loss */
    int is_training;              /* 0: no dropout, F keeps what it must */
    int tp_rank, sp_rank;
    int64_t n_padding; /* so many rows at the end of whole sequences are padding
                          of the layout's; no query sees them */
    const struct zb_coll_ops *coll; /* may be NULL when tp = sp = 1 */
    void *coll_arg;
    /* NULL, or called by F for each layer of the chunk before it enqueues the
     * layer's work, first layer first: its parameters must be there then. */
    enum zb_status (*at_layer)(void *arg, int layer);
    /* NULL, or called by W behind each of its launches, and once more with
     * n_ops[ZB_PASS_W] at its end: the gradients of uses with that use_done
     * are complete. */
    enum zb_status (*at_launch)(void *arg, int launch);
    void *at_arg;                 /* of both */
    /* 1: passes that would do the same again may be replayed by the backend
     * (replay_begin): consts, param and grad hold the same addresses in every
     * run, and nothing is enqueued beside a pass. Passes with collectives or
     * with one of the functions above are not. */
    int may_replay;
    uint64_t seed, step;          /* dropout */
    const int64_t *sample;        /* [batch] global sample indices */
};

/* Enqueue one pass. The only errors are the backend's. Each space is discarded
 * (zb_backend_ops.discard) where its time begins, FB, FW and BW also where it
 * ends; IN and DIN are left to the caller. B and W of a chunk may have nothing
 * to do (n_ops 0). */
enum zb_status zb_chunk_forward(const struct zb_chunk *c,
                                const struct zb_chunk_run *run) ZB_CHECKED;
enum zb_status zb_chunk_backward_input(const struct zb_chunk *c,
                                       const struct zb_chunk_run *run)
    ZB_CHECKED;
enum zb_status zb_chunk_backward_weight(const struct zb_chunk *c,
                                        const struct zb_chunk_run *run)
    ZB_CHECKED;

/* W of n >= 1 microbatches together: each launch for all of them, in the order
 * given, before the next launch. Every gradient is the same sum in the same
 * order as by n passes, but one after the other is complete, not all in the
 * last pass. The last run's at_launch is called. */
enum zb_status zb_chunk_backward_weights(const struct zb_chunk *c,
                                         const struct zb_chunk_run *run,
                                         int n) ZB_CHECKED;

/* B of the last of n microbatches and W of all, layer by layer: W of a layer,
 * as above, follows its B, so that gradients are complete from early on. DOUT
 * is complete at the end. */
enum zb_status zb_chunk_backward_both(const struct zb_chunk *c,
                                      const struct zb_chunk_run *run,
                                      int n) ZB_CHECKED;

/* After zb_chunk_forward() with the same run: where output i of the graph lies
 * (only in the chunk that has the loss). */
struct zb_view zb_chunk_output(const struct zb_chunk *c,
                               const struct zb_chunk_run *run, int i);

#endif
