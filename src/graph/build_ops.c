/* SPDX-License-Identifier: MIT
 *
 * The ops that models are written with: what they add to a graph.
 */
#include "config.h"
#include "graph/graph_int.h"

int zb_g_linear(struct zb_graph *g, int x, int weight, int bias, int in_by_out)
{
    struct zb_op op = {.in = {x, weight, bias}};
    int is_row_parallel = zb_param_is_split(g, weight, in_by_out ? 0 : 1);
    int y;

    op.u.linear.in_by_out = in_by_out;
    if (zb_param_is_split(g, weight, in_by_out ? 1 : 0)) {
        op.in[0] = zb_spread_enter(g, x);
    }
    if (is_row_parallel) {
        op.in[2] = ZB_G_NONE;
    }
    y = zb_spread_reduce(g, zb_graph_add_op(g, ZB_OP_linear, &op));
    return is_row_parallel && bias != ZB_G_NONE ? zb_spread_bias(g, y, bias)
                                                : y;
}

int zb_g_embedding(struct zb_graph *g, int ids, int table, int padding_idx)
{
    struct zb_op op = {.in = {ids, table}};

    op.u.embedding.padding_idx = padding_idx;
    return zb_spread_reduce(g, zb_graph_add_op(g, ZB_OP_embedding, &op));
}

int zb_g_position(struct zb_graph *g, int x, int table, int offset)
{
    struct zb_op op = {.in = {x, table}};

    op.u.position.offset = offset;
    return zb_graph_add_op(g, ZB_OP_position, &op);
}

int zb_g_position_at(struct zb_graph *g, int x, int ids, int table, int offset)
{
    struct zb_op op = {.in = {ids, table}};

    op.u.embedding.padding_idx = -1;
    op.u.embedding.offset = offset;
    return zb_g_add(g, x, zb_graph_add_op(g, ZB_OP_embedding, &op));
}

int zb_g_layernorm(struct zb_graph *g, int x, int gamma, int beta, double eps)
{
    struct zb_op op = {.in = {x, gamma, beta}};

    op.u.norm.eps = eps;
    return zb_graph_add_op(g, ZB_OP_layernorm, &op);
}

int zb_g_rmsnorm(struct zb_graph *g, int x, int gamma, double eps)
{
    struct zb_op op = {.in = {x, gamma}};

    op.u.norm.eps = eps;
    return zb_graph_add_op(g, ZB_OP_rmsnorm, &op);
}

int zb_g_rope(struct zb_graph *g, int x, int cos, int sin, int interleaved)
{
    struct zb_op op = {.in = {x, cos, sin}};

    op.u.rope.interleaved = interleaved;
    return zb_graph_add_op(g, ZB_OP_rope, &op);
}

/* Parts of sequences with all heads to whole sequences with a share of them. */
static int seq_to_heads(struct zb_graph *g, int x, int may_repeat)
{
    struct zb_op op = {.in = {x}};

    op.u.heads.may_repeat = may_repeat;
    return zb_graph_add_op(g, ZB_OP_seq_to_heads, &op);
}

static int heads_to_seq(struct zb_graph *g, int x)
{
    struct zb_op op = {.in = {x}};

    return zb_graph_add_op(g, ZB_OP_heads_to_seq, &op);
}

int zb_g_attention(struct zb_graph *g, int q, int k, int v,
                   const struct zb_attn_opts *opts)
{
    int is_shared = g->par.sp > 1 && g->par.mode == ZB_SEQ_ALL_TO_ALL;
    int is_ring = g->par.sp > 1 && g->par.mode == ZB_SEQ_RING;
    struct zb_op op = {.in = {q, k, v, opts->key_mask,
                              opts->has_slopes ? opts->slopes : ZB_G_NONE}};

    op.u.attention = *opts;
    if (is_shared) {
        op.in[0] = seq_to_heads(g, q, 0);
        op.in[1] = seq_to_heads(g, k, 1);
        op.in[2] = seq_to_heads(g, v, 1);
        return heads_to_seq(g, zb_graph_add_op(g, ZB_OP_attention, &op));
    }
    return zb_graph_add_op(g, is_ring ? ZB_OP_ring_attention : ZB_OP_attention,
                           &op);
}

int zb_g_act(struct zb_graph *g, int x, enum zb_act act)
{
    struct zb_op op = {.in = {x}};

    op.u.act.act = act;
    return zb_graph_add_op(g, ZB_OP_act, &op);
}

int zb_g_gated(struct zb_graph *g, int gate, int up, enum zb_act act)
{
    struct zb_op op = {.in = {gate, up}};

    op.u.act.act = act;
    return zb_graph_add_op(g, ZB_OP_gated, &op);
}

int zb_g_add(struct zb_graph *g, int a, int b)
{
    struct zb_op op = {.in = {a, b}};

    return zb_graph_add_op(g, ZB_OP_add, &op);
}

int zb_g_scale(struct zb_graph *g, int x, double alpha)
{
    struct zb_op op = {.in = {x}};

    op.u.scale.alpha = alpha;
    return zb_graph_add_op(g, ZB_OP_scale, &op);
}

int zb_g_dropout(struct zb_graph *g, int x, double p)
{
    struct zb_op op = {.in = {x}};

    if (p == 0) {
        return x;
    }
    op.u.dropout.p = p;
    return zb_graph_add_op(g, ZB_OP_dropout, &op);
}

/* The size of the dimension that is ZB_DIM_REST. */
static int fill_rest(struct zb_graph *g, int x, int64_t *rest,
                     struct zb_shape *s)
{
    struct zb_prod want = zb_shape_prod(&g->tensors[x].shape), has;

    *rest = 1;
    has = zb_shape_prod(s);
    *rest = want.coef / has.coef;
    if (!zb_prod_equal(zb_shape_prod(s), want)) {
        *rest = 1;
        zb_graph_mistake(
            g, NULL, "layer '%s', reshape: %s does not divide by %s",
            g->n_layers > 0 ? g->layers[g->n_layers - 1] : "(none)",
            zb_shape_text(&g->tensors[x].shape).s, zb_shape_text(s).s);
        return -1;
    }
    return 0;
}

/* A shape as models write it: whole sequences, and what is left. */
static int read_reshape(struct zb_graph *g, int x, int n_dims,
                        const int64_t *dim, struct zb_shape *out)
{
    int64_t plain[ZB_MAX_DIMS] = {0};
    int rest = -1;

    if (x < 0 || (size_t)x >= g->n_tensors) {
        return zb_graph_read_shape(g, "reshape", "", n_dims, dim, 1, out);
    }
    for (int i = 0; i < n_dims && i < ZB_MAX_DIMS; i++) {
        plain[i] = dim[i];
        if (dim[i] == ZB_DIM_REST && rest < 0) {
            rest = i;
            plain[i] = 1;
        } else if (i == 1 && dim[i] == ZB_DIM(ZB_SYM_SEQ) &&
                   g->tensors[x].spread.kind == ZB_SPREAD_PART) {
            plain[i] = ZB_DIM(ZB_SYM_PART);
        }
    }
    if (zb_graph_read_shape(g, "reshape", "", n_dims, plain, 1, out) != 0) {
        return -1;
    }
    return rest < 0 ? 0 : fill_rest(g, x, &out->dim[rest], out);
}

int zb_g_reshape(struct zb_graph *g, int x, int n_dims, const int64_t *dim)
{
    struct zb_op op = {.in = {x}};

    if (read_reshape(g, x, n_dims, dim, &op.u.reshape.shape) != 0) {
        return -1;
    }
    return zb_graph_add_op(g, ZB_OP_reshape, &op);
}

int zb_g_slice(struct zb_graph *g, int x, int64_t first, int64_t n)
{
    struct zb_op op = {.in = {x}};

    op.u.slice.n_copies = 1;
    if (x >= 0 && (size_t)x < g->n_tensors && g->tensors[x].spread.param >= 0 &&
        zb_shard_slice(g, g->tensors[x].spread.param, &first, &n,
                       &op.u.slice.n_copies) != 0) {
        zb_graph_mistake(g, NULL,
                         "layer '%s', slice: with tp = %d columns [%lld, %lld) "
                         "are no whole part of '%s'",
                         g->layers[g->n_layers - 1], g->par.tp,
                         (long long)first, (long long)(first + n),
                         g->params[g->tensors[x].spread.param].name);
        return -1;
    }
    op.u.slice.first = first;
    op.u.slice.n = n;
    return zb_graph_add_op(g, ZB_OP_slice, &op);
}

int zb_g_dense(struct zb_graph *g, int x)
{
    struct zb_op op = {.in = {x}};

    return zb_graph_add_op(g, ZB_OP_dense, &op);
}

int zb_g_first(struct zb_graph *g, int x)
{
    struct zb_op op = {.in = {zb_g_whole(g, x)}};

    return zb_graph_add_op(g, ZB_OP_first, &op);
}

int zb_g_xent(struct zb_graph *g, int logits, int labels)
{
    struct zb_op op = {.in = {logits, labels}};

    if (logits >= 0 && (size_t)logits < g->n_tensors &&
        g->tensors[logits].spread.kind == ZB_SPREAD_COLS) {
        return zb_spread_xent(g, logits, labels);
    }
    op.in[0] = zb_g_whole(g, logits);
    return zb_graph_add_op(g, ZB_OP_xent, &op);
}

int zb_g_mse(struct zb_graph *g, int x, int target)
{
    struct zb_op op = {.in = {zb_g_whole(g, x), target}};

    return zb_graph_add_op(g, ZB_OP_mse, &op);
}
