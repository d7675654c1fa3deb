/* SPDX-License-Identifier: MIT
 *
 * Inside the graph: tensors, ops, and the table that says what an op is.
 *
 * An op is one row of zb_op_rows (op_table.c). Everything else - builder,
 * autodiff, memory, execution - reads the row and never asks which op it is.
 * doc/graph.md explains the fields with an example.
 */
#ifndef ZB_GRAPH_INT_H
#define ZB_GRAPH_INT_H

#include "zb/graph.h"

#define ZB_OP_MAX_IN 6
#define ZB_OP_MAX_OUT 3
#define ZB_OP_MAX_TMP 3

/* ---- layouts: shapes and strides that may contain symbols ---------------- */

/* coef * B^pow[0] * T^pow[1] */
struct zb_prod {
    int64_t coef;
    int pow[ZB_N_SYMS];
};

/* How a tensor lies in the storage of another: a zb_view before its sizes are
 * known. offset and strides count elements. */
struct zb_layout {
    struct zb_shape shape;
    int64_t offset;
    struct zb_prod stride[ZB_MAX_DIMS];
};

/* What an emitter can work with; anything else is copied first. */
enum zb_need {
    ZB_NEED_DENSE, /* no gaps */
    ZB_NEED_ROWS,  /* rows of contiguous elements, equally spaced */
    ZB_NEED_HEADS, /* [B,T,heads,D], batch stride = T * row stride */
    ZB_NEED_ANY
};

struct zb_prod zb_prod_dim(int64_t dim);
struct zb_prod zb_prod_mul(struct zb_prod a, struct zb_prod b);
int zb_prod_equal(struct zb_prod a, struct zb_prod b);
struct zb_prod zb_shape_prod(const struct zb_shape *s);

struct zb_layout zb_layout_dense(const struct zb_shape *shape);
/* Columns [first, first + n) of the last dimension. */
struct zb_layout zb_layout_slice(const struct zb_layout *l, int64_t first,
                                 int64_t n);
/* The same elements with another shape; 0, or -1 when that needs a copy. */
int zb_layout_reshape(const struct zb_layout *l, const struct zb_shape *shape,
                      struct zb_layout *out);
int zb_layout_is_dense(const struct zb_layout *l);
int zb_layout_fits(const struct zb_layout *l, enum zb_need need);
/* Rows (all dimensions but the last taken as one) are equally spaced. */
int zb_layout_has_even_rows(const struct zb_layout *l);
/* Merge trailing dimensions until the rows are equally spaced, which is what
 * one copy launch can move; -1 when that is not possible. */
int zb_layout_as_rows(const struct zb_layout *l, struct zb_layout *out);
struct zb_view zb_layout_bind(const struct zb_layout *l, void *base,
                              enum zb_dtype dtype,
                              const struct zb_bind *bind);

/* ---- emitting a launch --------------------------------------------------- */

struct zb_op;

/* What one launch works on: the tensors of an op as views. A view that this
 * pass does not touch has data == NULL. `launch` already has its access list
 * when an emitter is called. */
struct zb_emit {
    const struct zb_graph *graph;
    const struct zb_op *op; /* NULL for copies and sums */
    const struct zb_chunk_run *run;
    struct zb_view in[ZB_OP_MAX_IN];
    struct zb_view out[ZB_OP_MAX_OUT];
    struct zb_view d_out;              /* gradient of out[0] */
    struct zb_view d_in[ZB_OP_MAX_IN]; /* gradients to write or add to */
    struct zb_view addend;             /* d_in[0] = addend + gradient */
    struct zb_view tmp[ZB_OP_MAX_TMP]; /* scratch memory of this pass */
    double loss_coef; /* gradient of every element of out[0] / loss_scale */
    int loss;         /* of this one of the losses */
    int accumulate;   /* d_in[0] += gradient instead of = */
    int weight;       /* W: which input's gradient is wanted */
    struct zb_launch launch;
};

typedef enum zb_status (*zb_emit_fn)(struct zb_emit *e);

/* Enqueue the kernel with its parameters. */
enum zb_status zb_emit_launch(struct zb_emit *e, enum zb_kernel kernel,
                              const void *params);
/* The launch reads memory that is no tensor. */
void zb_emit_reads(struct zb_emit *e, const void *ptr, size_t bytes);
/* For emitters of several launches: forget the access list; add a range. */
void zb_emit_begin(struct zb_emit *e);
void zb_emit_touch(struct zb_emit *e, const void *ptr, size_t bytes,
                   enum zb_access_mode mode);
/* All that a view covers. */
void zb_emit_touch_view(struct zb_emit *e, const struct zb_view *v,
                        enum zb_access_mode mode);
/* Fills in the label. */
enum zb_status zb_emit_coll(struct zb_emit *e, enum zb_axis axis,
                            struct zb_coll coll);
struct zb_k_philox zb_emit_philox(const struct zb_emit *e);
/* Which rows of the whole sequence dimension 1 of input `in` of the op has on
 * the rank that runs: all zeros where it has them all. */
struct zb_k_place zb_emit_place(const struct zb_emit *e, int in);

/* ---- the op table -------------------------------------------------------- */

enum zb_in_flags {
    ZB_IN_GRAD = 1,      /* backward_input writes its gradient */
    ZB_IN_PASS = 2,      /* its gradient is the output's, unchanged */
    ZB_IN_WEIGHT = 4,    /* a parameter; backward_weight adds its gradient */
    ZB_IN_DATA = 8,      /* a field of the batch */
    ZB_IN_CONST = 16,    /* a table */
    ZB_IN_OPTIONAL = 32, /* may be ZB_G_NONE */
    ZB_IN_B = 64,        /* read by backward_input */
    ZB_IN_W = 128,       /* read by backward_weight */
    ZB_IN_OVERWRITE = 256, /* its gradient may be written over it */
    ZB_IN_I32 = 512,
    ZB_IN_ANY = 1024, /* of any type */
    ZB_IN_SPARSE = 2048, /* no more elements than out[0] has are touched */
    ZB_IN_NOT_F = 4096,  /* not read by forward */
    ZB_IN_FLOAT = 8192   /* of the storage type or zb_real: losses too */
};

#define ZB_IN_DIFF (ZB_IN_GRAD | ZB_IN_PASS | ZB_IN_WEIGHT)

enum zb_op_flags {
    ZB_OP_ALIAS = 1,         /* no launch: another view of its input */
    ZB_OP_SLICE = 2,         /* that view is a part of it */
    ZB_OP_ADDEND = 4,        /* backward_input takes an addend */
    ZB_OP_ACCUMULATE = 8,    /* backward_input can add in place */
    ZB_OP_WEIGHT_IN_B = 16,  /* weight gradients are small: run in B */
    ZB_OP_WEIGHT_JOINT = 32, /* one launch for all of them */
    ZB_OP_LOSS = 64,         /* takes the output's gradient as one number */
    ZB_OP_IN_PLACE = 128,    /* d_in[0] may be the addend */
    ZB_OP_CHEAP = 256,       /* its F takes less time than what it is worth in
                                memory: `selective` makes its outputs again */
    ZB_OP_OVER_D_OUT = 512,  /* d_in[0] may be d_out */
    ZB_OP_DRAWS = 1024       /* has a site of its own for random numbers */
};

struct zb_in_row {
    const char *name;
    unsigned flags; /* enum zb_in_flags */
    enum zb_need need;
};

struct zb_spread;

struct zb_op_row {
    const char *name;
    unsigned flags; /* enum zb_op_flags */
    int n_in;
    struct zb_in_row in[ZB_OP_MAX_IN];
    unsigned out_b, out_w; /* bit i: out[i] is read in B, in W */
    /* Check the inputs and declare the outputs: 0, or -1 after a mistake. */
    int (*shape)(struct zb_graph *g, struct zb_op *op);
    /* How the input lies in memory, for ZB_OP_ALIAS: 0, or -1 if it can't. */
    int (*alias)(const struct zb_op *op, const struct zb_layout *in,
                 struct zb_layout *out);
    /* Whether microbatches up to `max` fit; NULL: always. */
    enum zb_status (*fits)(const struct zb_graph *g, const struct zb_op *op,
                           const struct zb_bind *max);
    /* Factor between the gradient of out[0] and of its inputs when that is
     * the same number for every element; NULL: it is not. */
    double (*uniform)(const struct zb_op *op);
    /* What of its options its kernels' time may depend on; NULL: nothing. */
    int (*variant)(const struct zb_op *op);
    /* The product it is in a pass; NULL: none, or an ordinary one. */
    enum zb_product (*product)(const struct zb_op *op, enum zb_pass pass);
    /* What the ranks of the tp group have of its outputs, their shapes being
     * known: 0, or -1 after a mistake. NULL: what they have of its activations,
     * which must agree. Not asked where tp is 1. */
    int (*spread)(struct zb_graph *g, const struct zb_op *op,
                  struct zb_spread *out);
    zb_emit_fn forward, backward_input, backward_weight;
    /* Operations of F, and of B and W as if every gradient were wanted. */
    struct zb_flops (*flops)(const struct zb_graph *g, const struct zb_op *op,
                             const struct zb_bind *bind);
};

#define ZB_OP_MAP(X)                                                           \
    X(linear)                                                                  \
    X(embedding)                                                               \
    X(position)                                                                \
    X(layernorm)                                                               \
    X(rmsnorm)                                                                 \
    X(rope)                                                                    \
    X(attention)                                                               \
    X(ring_attention)                                                          \
    X(seq_to_heads)                                                            \
    X(heads_to_seq)                                                            \
    X(act)                                                                     \
    X(gated)                                                                   \
    X(add)                                                                     \
    X(scale)                                                                   \
    X(dropout)                                                                 \
    X(dense)                                                                   \
    X(reshape)                                                                 \
    X(slice)                                                                   \
    X(first)                                                                   \
    X(xent)                                                                    \
    X(xent_part)                                                               \
    X(xent_join)                                                               \
    X(mse)                                                                     \
    X(bias)                                                                    \
    X(enter)                                                                   \
    X(gather)                                                                  \
    X(reduce)                                                                  \
    X(scatter)                                                                 \
    X(collect)                                                                 \
    X(part)

enum zb_op_kind {
#define ZB_X(name) ZB_OP_##name,
    ZB_OP_MAP(ZB_X)
#undef ZB_X
    ZB_N_OPS
};

extern const struct zb_op_row zb_op_rows[ZB_N_OPS];

/* ---- the graph ----------------------------------------------------------- */

struct zb_op {
    const struct zb_op_row *row;
    int number; /* in the graph */
    int site; /* for dropout: how many ops before it draw, which is the same in
                 every layout */
    int layer;
    int n_out;
    struct zb_shape tmp[2][ZB_OP_MAX_TMP]; /* of F, of B */
    enum zb_dtype tmp_dtype[2][ZB_OP_MAX_TMP];
    int n_tmp[2];
    int in[ZB_OP_MAX_IN]; /* tensor, or ZB_G_NONE */
    int out[ZB_OP_MAX_OUT];
    int use[ZB_OP_MAX_IN]; /* of a parameter, when it has a gradient, else -1 */
    char *label;           /* "layer/op weight" */
    int is_live;           /* leads to the loss or an output */
    union {
        struct {
            int in_by_out;
        } linear;
        struct {
            int padding_idx, offset;
        } embedding;
        struct {
            int offset;
        } position;
        struct {
            double eps;
        } norm;
        struct {
            int interleaved;
        } rope;
        struct zb_attn_opts attention;
        struct {
            int may_repeat;
        } heads;
        struct {
            enum zb_act act;
        } act;
        struct {
            double alpha;
        } scale;
        struct {
            double p;
        } dropout;
        struct {
            struct zb_shape shape;
        } reshape;
        struct {
            int64_t first, n;
            int n_copies; /* of packed parts: ranks that have the same one */
        } slice;
        struct {
            int dim;
        } collect;
    } u;
};

/* What the ranks of the tp group have of a tensor. */
enum zb_spread_kind {
    ZB_SPREAD_SAME, /* each has all of it, and all of its gradient */
    ZB_SPREAD_PART, /* consecutive parts of the sequences (split_gather) */
    ZB_SPREAD_COLS, /* consecutive parts of dimension `dim`: columns, heads */
    ZB_SPREAD_SUM   /* numbers of which it is the sum; only until reduced */
};

struct zb_spread {
    enum zb_spread_kind kind;
    /* Of COLS: */
    int dim;
    int n_copies;    /* so many consecutive ranks have the same part; 0: packed
                        parts differ in that, and are to be sliced first */
    int64_t n_whole; /* size of `dim` in the whole, without padding */
    int param;       /* whose packed parts dimension `dim` consists of, or -1 */
};

enum zb_tensor_kind { ZB_T_DATA, ZB_T_CONST, ZB_T_PARAM, ZB_T_VALUE };

struct zb_tensor {
    enum zb_tensor_kind kind;
    int index; /* among the data, constants or parameters; -1 for values */
    enum zb_dtype dtype;
    struct zb_shape shape;
    int op;    /* that makes it, or -1 */
    int layer; /* of that op, or -1 */
    int root;  /* tensor in whose storage it lies */
    struct zb_layout layout; /* there */
    struct zb_spread spread;
    int entered; /* the same, as the column-parallel ops of layer
                    entered_layer read it; -1: none do */
    int entered_layer;
    /* Set by zb_graph_finish(): */
    int last_use;      /* last layer that reads it, -1: none */
    int last_grad_use; /* last layer that sends a gradient to it, -1: none */
    int has_grad;
    int is_uniform; /* its gradient is `coef` * loss_scale[loss] everywhere */
    double coef;
    int loss;          /* -1: none */
    int is_tiled;      /* its gradient is made of those of disjoint slices */
};

struct zb_param {
    char *name;
    int tensor;
    int layer; /* where it was declared */
    struct zb_param_opts opts;
    struct zb_shape whole; /* of the checkpoint; the tensor's is a shard's */
    int n_copies;
    int is_used;    /* by an op: is_partial is known */
    int is_partial; /* as in zb_param_info */
    int n_uses;
    int *use_ids; /* into zb_graph.use_order */
};

struct zb_const {
    char *name;
    int tensor;
    zb_real *value;
};

struct zb_named {
    char *name;
    int tensor;
};

struct zb_graph {
    struct zb_parallel par;
    enum zb_dtype storage;
    struct zb_tensor *tensors;
    struct zb_op *ops;
    struct zb_param *params;
    struct zb_named *data, *outputs;
    struct zb_const *consts;
    char **layers;
    size_t n_tensors, n_ops, n_params, n_data, n_outputs, n_consts, n_layers;
    size_t cap_tensors, cap_ops, cap_params, cap_data, cap_outputs, cap_consts,
        cap_layers;
    struct {
        int tensor, labels; /* labels -1: all elements count */
    } loss[ZB_LOSS_MAX];
    int n_losses;
    int loss_layer; /* of the first one */
    int *slots; /* hash of parameter names: number + 1, or 0; 2^k places */
    size_t n_slots;
    int n_sites;
    int n_uses;
    int *use_ids; /* storage of zb_param.use_ids, [n_uses] */
    int *use_layer; /* [n_uses] */
    int is_finished;
    enum zb_status status; /* the first mistake */
    char text[512];
};

/* Remember a mistake, the first only: "layer 'x', op: ..." when op != NULL. */
void zb_graph_mistake(struct zb_graph *g, const struct zb_op *op,
                      const char *fmt, ...) ZB_PRINTF(3, 4);
/* For the builder. A shape as given by the caller; symbols only where `symbols`
 * allows. */
int zb_graph_read_shape(struct zb_graph *g, const char *what, const char *name,
                        int n_dims, const int64_t *dim, int symbols,
                        struct zb_shape *out);
int zb_graph_add_op(struct zb_graph *g, enum zb_op_kind kind, struct zb_op *op);

/* shard.c: parameters. The shape of a shard, and how many consecutive ranks
 * have the same one; 0, or -1 after a mistake. */
int zb_shard_of(struct zb_graph *g, const char *name,
                const struct zb_shape *whole, const struct zb_split *split,
                struct zb_shape *shape_out, int *n_copies_out);
/* Where columns [first, first + n) of a tensor of packed parts are in a shard,
 * and how many consecutive ranks have the same; -1 when they are no whole part.
 */
int zb_shard_slice(const struct zb_graph *g, int param, int64_t *first,
                   int64_t *n, int *n_copies_out);

/* spread.c: what ranks have of activations, and the ops that change it. They
 * return the tensor they make, x where nothing is to be done, -1 after a
 * mistake; with tp = 1 never anything. */
int zb_spread_enter(struct zb_graph *g, int x);  /* a column-parallel region */
int zb_spread_reduce(struct zb_graph *g, int x); /* SUM: leave a region */
int zb_spread_bias(struct zb_graph *g, int x, int bias);
/* The loss of logits of which ranks have columns. */
int zb_spread_xent(struct zb_graph *g, int logits, int labels);
/* What an output may be: columns of which ranks have parts, else whole. */
int zb_spread_output(struct zb_graph *g, int x);
/* Make the activations of an op agree where parts can be taken. */
void zb_spread_inputs(struct zb_graph *g, struct zb_op *op);
/* Of the outputs of an op whose shapes are known, and what follows for its
 * parameters. */
int zb_spread_outputs(struct zb_graph *g, const struct zb_op *op);
/* The parameter that is input `in`, and dimension `dim` of it is split. */
const struct zb_param *zb_op_param(const struct zb_graph *g,
                                   const struct zb_op *op, int in);
int zb_param_is_split(const struct zb_graph *g, int tensor, int dim);
/* The columns from *first on of n_whole that tp rank has of input `in`, without
 * padding. */
int64_t zb_emit_cols(const struct zb_emit *e, int in, int64_t *first_out);

/* For shape rules. */
const struct zb_shape *zb_op_shape(const struct zb_graph *g,
                                   const struct zb_op *op, int in);
int zb_op_has_in(const struct zb_op *op, int in);
/* Declare the next output, of the storage type; of zb_real; of the type of input
 * `in`. -1 when out of memory. */
int zb_op_add_out(struct zb_graph *g, struct zb_op *op,
                  const struct zb_shape *shape);
int zb_op_add_real(struct zb_graph *g, struct zb_op *op,
                   const struct zb_shape *shape);
int zb_op_add_like(struct zb_graph *g, struct zb_op *op,
                   const struct zb_shape *shape, int in);
/* A shape for a message; four may be in use at once. */
struct zb_shape_text {
    char s[64];
};
struct zb_shape_text zb_shape_text(const struct zb_shape *s);
int zb_graph_add_tensor(struct zb_graph *g, const struct zb_tensor *t);
/* Where the name of a parameter is, or belongs, in g->slots (not empty). */
size_t zb_graph_param_slot(const struct zb_graph *g, const char *name);

/* The longest whole sequence of microbatches up to `max`; what it is without
 * the padding that the layout may have added, at least. `dim` is what a tensor
 * has. */
int64_t zb_whole_seq(const struct zb_graph *g, int64_t dim,
                     const struct zb_bind *max);
int64_t zb_least_seq(const struct zb_graph *g, int64_t dim,
                     const struct zb_bind *max);

/* Rows and columns, or all elements, of a symbolic shape once bound. */
int64_t zb_bound_elems(const struct zb_shape *s, const struct zb_bind *bind);
int64_t zb_bound_rows(const struct zb_shape *s, const struct zb_bind *bind);

/* finish.c: gradients, liveness, uses. */
enum zb_status zb_graph_analyse(struct zb_graph *g);
/* Whether input i of op gets a gradient from it. */
int zb_op_sends_grad(const struct zb_graph *g, const struct zb_op *op, int i);
/* Bytes of a tensor as a message has room for it: a multiple of 64. */
static inline size_t zb_message_bytes(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}
/* Tensor t is made before layer `at` and needed from there on; its gradient
 * comes back over that boundary. */
int zb_tensor_crosses(const struct zb_graph *g, int t, int at);
int zb_tensor_grad_crosses(const struct zb_graph *g, int t, int at);

/* ---- the rows' functions (op_*.c) ---------------------------------------- */

#define ZB_OP_DECLARE_SHAPE(name)                                              \
    int zb_##name##_shape(struct zb_graph *g, struct zb_op *op);               \
    struct zb_flops zb_##name##_flops(const struct zb_graph *g,                \
                                      const struct zb_op *op,                  \
                                      const struct zb_bind *bind);
#define ZB_X(name) ZB_OP_DECLARE_SHAPE(name)
ZB_OP_MAP(ZB_X)
#undef ZB_X

/* The gradient of a bias, which is this input: the column sum of d_out. */
enum zb_status zb_emit_col_sum(struct zb_emit *e, int bias);
enum zb_status zb_linear_forward(struct zb_emit *e);
enum zb_status zb_linear_backward_input(struct zb_emit *e);
enum zb_status zb_linear_backward_weight(struct zb_emit *e);
enum zb_status zb_embedding_forward(struct zb_emit *e);
enum zb_status zb_embedding_backward_weight(struct zb_emit *e);
enum zb_status zb_position_forward(struct zb_emit *e);
enum zb_status zb_position_backward_weight(struct zb_emit *e);
enum zb_status zb_position_fits(const struct zb_graph *g,
                                const struct zb_op *op,
                                const struct zb_bind *max);
enum zb_status zb_layernorm_forward(struct zb_emit *e);
enum zb_status zb_layernorm_backward_input(struct zb_emit *e);
enum zb_status zb_layernorm_backward_weight(struct zb_emit *e);
enum zb_status zb_rmsnorm_forward(struct zb_emit *e);
enum zb_status zb_rmsnorm_backward_input(struct zb_emit *e);
enum zb_status zb_rmsnorm_backward_weight(struct zb_emit *e);
enum zb_status zb_rope_forward(struct zb_emit *e);
enum zb_status zb_rope_backward_input(struct zb_emit *e);
enum zb_status zb_rope_fits(const struct zb_graph *g, const struct zb_op *op,
                            const struct zb_bind *max);
enum zb_status zb_attention_forward(struct zb_emit *e);
enum zb_status zb_attention_backward_input(struct zb_emit *e);
struct zb_k_attention_fwd zb_attention_params(const struct zb_emit *e);
enum zb_status zb_ring_attention_forward(struct zb_emit *e);
enum zb_status zb_ring_attention_backward_input(struct zb_emit *e);
enum zb_status zb_seq_to_heads_forward(struct zb_emit *e);
enum zb_status zb_seq_to_heads_backward_input(struct zb_emit *e);
enum zb_status zb_heads_to_seq_forward(struct zb_emit *e);
enum zb_status zb_heads_to_seq_backward_input(struct zb_emit *e);
enum zb_status zb_act_forward(struct zb_emit *e);
enum zb_status zb_act_backward_input(struct zb_emit *e);
enum zb_status zb_gated_forward(struct zb_emit *e);
enum zb_status zb_gated_backward_input(struct zb_emit *e);
enum zb_status zb_add_forward(struct zb_emit *e);
enum zb_status zb_scale_forward(struct zb_emit *e);
enum zb_status zb_dense_forward(struct zb_emit *e);
enum zb_status zb_first_forward(struct zb_emit *e);
enum zb_status zb_first_backward_input(struct zb_emit *e);
enum zb_status zb_scale_backward_input(struct zb_emit *e);
enum zb_status zb_dropout_forward(struct zb_emit *e);
enum zb_status zb_dropout_backward_input(struct zb_emit *e);
enum zb_status zb_xent_forward(struct zb_emit *e);
enum zb_status zb_xent_backward_input(struct zb_emit *e);
enum zb_status zb_xent_part_forward(struct zb_emit *e);
enum zb_status zb_xent_join_forward(struct zb_emit *e);
enum zb_status zb_xent_join_backward_input(struct zb_emit *e);
enum zb_status zb_bias_forward(struct zb_emit *e);
enum zb_status zb_bias_backward_weight(struct zb_emit *e);
enum zb_status zb_enter_backward_input(struct zb_emit *e);
enum zb_status zb_gather_forward(struct zb_emit *e);
enum zb_status zb_gather_backward_input(struct zb_emit *e);
enum zb_status zb_reduce_forward(struct zb_emit *e);
enum zb_status zb_scatter_forward(struct zb_emit *e);
enum zb_status zb_scatter_backward_input(struct zb_emit *e);
enum zb_status zb_collect_forward(struct zb_emit *e);
enum zb_status zb_collect_backward_input(struct zb_emit *e);
enum zb_status zb_part_forward(struct zb_emit *e);
enum zb_status zb_part_backward_input(struct zb_emit *e);
int zb_enter_alias(const struct zb_op *op, const struct zb_layout *in,
                   struct zb_layout *out);
int zb_linear_spread(struct zb_graph *g, const struct zb_op *op,
                     struct zb_spread *out);
int zb_embedding_spread(struct zb_graph *g, const struct zb_op *op,
                        struct zb_spread *out);
int zb_rows_spread(struct zb_graph *g, const struct zb_op *op,
                   struct zb_spread *out);
int zb_dropout_spread(struct zb_graph *g, const struct zb_op *op,
                      struct zb_spread *out);
int zb_attention_spread(struct zb_graph *g, const struct zb_op *op,
                        struct zb_spread *out);
int zb_whole_spread(struct zb_graph *g, const struct zb_op *op,
                    struct zb_spread *out);
int zb_reshape_spread(struct zb_graph *g, const struct zb_op *op,
                      struct zb_spread *out);
int zb_slice_spread(struct zb_graph *g, const struct zb_op *op,
                    struct zb_spread *out);
int zb_stats_spread(struct zb_graph *g, const struct zb_op *op,
                    struct zb_spread *out);
int zb_to_same_spread(struct zb_graph *g, const struct zb_op *op,
                      struct zb_spread *out);
int zb_to_part_spread(struct zb_graph *g, const struct zb_op *op,
                      struct zb_spread *out);
enum zb_status zb_mse_forward(struct zb_emit *e);
enum zb_status zb_mse_backward_input(struct zb_emit *e);
double zb_pass_uniform(const struct zb_op *op);
double zb_scale_uniform(const struct zb_op *op);
enum zb_product zb_linear_product(const struct zb_op *op,
                                  enum zb_pass pass);
int zb_linear_variant(const struct zb_op *op);
int zb_rope_variant(const struct zb_op *op);
int zb_attention_variant(const struct zb_op *op);
int zb_act_variant(const struct zb_op *op);
int zb_reshape_alias(const struct zb_op *op, const struct zb_layout *in,
                     struct zb_layout *out);
int zb_slice_alias(const struct zb_op *op, const struct zb_layout *in,
                   struct zb_layout *out);

/* Launches that belong to no op: out[0] = in[0]; out[0] = in[0] + in[1];
 * out[0] = 0; out[0] = loss_coef * loss_scale[loss]; loss_sum[loss] = sum of
 * in[0]. */
enum zb_status zb_emit_copy(struct zb_emit *e);
enum zb_status zb_emit_add(struct zb_emit *e);
enum zb_status zb_emit_zero(struct zb_emit *e);
enum zb_status zb_emit_fill(struct zb_emit *e);
enum zb_status zb_emit_loss_sum(struct zb_emit *e);

#endif
