/* SPDX-License-Identifier: MIT
 *
 * Chunks: made, described, freed.
 */
#include "config.h"
#include "graph/chunk_int.h"

#include "zb/mem.h"

const char *zb_recompute_str(enum zb_recompute recompute)
{
    static const char *const text[] = {
        [ZB_RECOMPUTE_NONE] = "none",
        [ZB_RECOMPUTE_SELECTIVE] = "selective",
        [ZB_RECOMPUTE_FULL] = "full",
    };

    return text[recompute];
}

void zb_chunk_free(struct zb_chunk *c)
{
    if (c == NULL) {
        return;
    }
    for (int pass = 0; pass < ZB_N_PASSES; pass++) {
        zb_free(c->list[pass].instr);
    }
    zb_free(c->slots);
    zb_free(c->outputs);
    zb_free(c->in);
    zb_free(c->params);
    zb_free(c->uses);
    zb_free(c->use_done);
    zb_free(c);
}

static enum zb_status check_request(const struct zb_graph *g, int first,
                                    int end, const struct zb_bind *max)
{
    /* The lengths that only layouts have are not asked of others. */
    int n_syms = g->par.tp * g->par.sp > 1 ? ZB_N_SYMS : ZB_SYM_SEQ + 1;

    if (first < 0 || end < first || end > (int)g->n_layers) {
        return zb_fail(ZB_EINVAL, "a chunk of layers [%d, %d) of %zu", first,
                       end, g->n_layers);
    }
    for (int i = 0; i < n_syms; i++) {
        if (max->value[i] < 1 || max->value[i] > INT32_MAX) {
            return zb_fail(ZB_EINVAL, "a microbatch of %lld samples of %lld",
                           (long long)max->value[ZB_SYM_BATCH],
                           (long long)max->value[ZB_SYM_SEQ]);
        }
    }
    for (size_t i = 0; i < g->n_ops; i++) {
        const struct zb_op *op = &g->ops[i];

        if (op->row->fits != NULL && op->layer >= first && op->layer < end) {
            ZB_TRY(op->row->fits(g, op, max));
        }
    }
    return ZB_OK;
}

static int is_here(const struct zb_chunk *c, int layer)
{
    return layer >= c->info.first_layer && layer < c->info.end_layer;
}

/* Parameters belong to the layers that read them, live or not; one that no op
 * reads to the layer that declared it. */
static enum zb_status list_params(struct zb_chunk *c)
{
    enum { UNREAD, ELSEWHERE, HERE };
    const struct zb_graph *g = c->graph;
    char *where = zb_alloc_array(g->n_params, 1);

    if (where == NULL) {
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < g->n_ops; i++) {
        const struct zb_op *op = &g->ops[i];

        for (int k = 0; k < op->row->n_in; k++) {
            if (op->in[k] >= 0 && g->tensors[op->in[k]].kind == ZB_T_PARAM) {
                char *w = &where[g->tensors[op->in[k]].index];

                *w = is_here(c, op->layer) || *w == HERE ? HERE : ELSEWHERE;
            }
        }
    }
    for (size_t i = 0; i < g->n_params; i++) {
        if (where[i] == HERE ||
            (where[i] == UNREAD && is_here(c, g->params[i].layer))) {
            c->params[c->info.n_params++] = (int)i;
        }
    }
    zb_free(where);
    c->info.params = c->params;
    return ZB_OK;
}

static void list_uses(struct zb_chunk *c)
{
    const struct zb_graph *g = c->graph;

    for (size_t i = 0; i < g->n_ops; i++) {
        const struct zb_op *op = &g->ops[i];

        for (int k = 0; k < op->row->n_in; k++) {
            if (op->use[k] >= 0 && is_here(c, op->layer)) {
                c->uses[c->info.n_uses++] = op->use[k];
            }
        }
    }
    c->info.uses = c->uses;
}

/* The last launch that adds to the gradient of a use, or -1. */
static int find_launch(const struct zb_chunk *c, int use)
{
    const struct zb_list *list = &c->list[ZB_PASS_W];
    int found = -1;

    for (size_t i = 0; i < list->n; i++) {
        const struct zb_slot *slot = &c->slots[list->instr[i].first_slot];

        for (int k = 0; k < list->instr[i].n_slots; k++) {
            if (slot[k].ref.where == ZB_AT_GRAD && slot[k].ref.index == use) {
                found = (int)i;
            }
        }
    }
    return found;
}

/* What B makes is there when W comes to the end of the layer, also where each
 * layer's W follows its B. */
static int end_of_layer(const struct zb_chunk *c, int layer)
{
    const struct zb_list *list = &c->list[ZB_PASS_W];
    int i = 0, last = -1;

    for (; i < (int)list->n && list->instr[i].layer >= layer; i++) {
        last = list->instr[i].layer == layer ? i : last;
    }
    return last >= 0 ? last : i;
}

static void find_done(struct zb_chunk *c)
{
    for (int i = 0; i < c->info.n_uses; i++) {
        int launch = find_launch(c, c->uses[i]);

        c->use_done[i] = launch >= 0
                             ? launch
                             : end_of_layer(c, c->graph->use_layer[c->uses[i]]);
    }
    c->info.use_done = c->use_done;
}

static void list_inputs(struct zb_chunk *c)
{
    for (size_t t = 0; t < c->graph->n_tensors; t++) {
        if (zb_tensor_crosses(c->graph, (int)t, c->info.first_layer)) {
            c->in[c->n_in++] = (int)t;
        }
    }
}

static enum zb_status alloc_chunk(const struct zb_graph *g, int first, int end,
                                  struct zb_chunk **c_out)
{
    struct zb_chunk *c = zb_alloc(sizeof(*c));

    if (c == NULL) {
        return ZB_ENOMEM;
    }
    c->graph = g;
    c->info.first_layer = first;
    c->info.end_layer = end;
    c->info.has_loss = first < end && end == (int)g->n_layers;
    c->outputs = zb_alloc_array(g->n_outputs, sizeof(*c->outputs));
    c->in = zb_alloc_array(g->n_tensors, sizeof(*c->in));
    c->params = zb_alloc_array(g->n_params, sizeof(*c->params));
    c->uses = zb_alloc_array((size_t)g->n_uses, sizeof(*c->uses));
    c->use_done = zb_alloc_array((size_t)g->n_uses, sizeof(*c->use_done));
    if (c->outputs == NULL || c->in == NULL || c->params == NULL ||
        c->uses == NULL || c->use_done == NULL) {
        zb_chunk_free(c);
        return ZB_ENOMEM;
    }
    *c_out = c;
    return ZB_OK;
}

static enum zb_status compile(struct zb_chunk *c, const struct zb_bind *max,
                              enum zb_recompute recompute)
{
    struct zb_compile cp = {
        .g = c->graph,
        .c = c,
        .first = c->info.first_layer,
        .end = c->info.end_layer,
        .has_loss = c->info.has_loss,
        .max = *max,
        .recompute = recompute,
        .cap_values = 8,
    };

    cp.local = zb_alloc_array(c->graph->n_tensors, sizeof(*cp.local));
    cp.values = zb_alloc_array(cp.cap_values, sizeof(*cp.values));
    for (int pass = 0; pass < ZB_N_PASSES && cp.st == ZB_OK; pass++) {
        cp.st = zb_grow(&c->list[pass].instr, 0, &c->list[pass].cap,
                        sizeof(*c->list[pass].instr));
    }
    if (cp.local == NULL || cp.values == NULL) {
        cp.st = ZB_ENOMEM;
    }
    for (size_t t = 0; cp.st == ZB_OK && t < c->graph->n_tensors; t++) {
        cp.local[t].value = -1;
        cp.local[t].dense = -1;
        cp.local[t].grad = -1;
    }
    if (cp.st == ZB_OK) {
        zb_compile_forward(&cp);
    }
    if (cp.st == ZB_OK) {
        zb_compile_backward(&cp);
    }
    if (cp.st == ZB_OK) {
        zb_compile_recompute(&cp);
    }
    if (cp.st == ZB_OK) {
        zb_compile_memory(&cp);
    }
    zb_free(cp.values);
    zb_free(cp.local);
    return cp.st;
}

/* zb_chunk_backward_both() relies on it. */
static void check_order(const struct zb_list *list)
{
    for (size_t i = 1; i < list->n; i++) {
        ZB_BUG_IF(list->instr[i].layer > list->instr[i - 1].layer,
                  "%s: layers of a backward pass in disorder",
                  list->instr[i].label);
    }
}

enum zb_status zb_chunk_new(const struct zb_graph *g, int first, int end,
                            const struct zb_bind *max,
                            enum zb_recompute recompute,
                            struct zb_chunk **c_out)
{
    struct zb_chunk *c;
    enum zb_status st;

    ZB_BUG_IF(!g->is_finished, "a graph is cut before zb_graph_finish()");
    ZB_TRY(check_request(g, first, end, max));
    ZB_TRY(alloc_chunk(g, first, end, &c));
    list_uses(c);
    list_inputs(c);
    st = list_params(c);
    if (st == ZB_OK) {
        st = compile(c, max, recompute);
    }
    if (st != ZB_OK) {
        zb_chunk_free(c);
        return st;
    }
    for (int pass = 0; pass < ZB_N_PASSES; pass++) {
        c->info.n_ops[pass] = (int)c->list[pass].n;
    }
    check_order(&c->list[ZB_PASS_B]);
    check_order(&c->list[ZB_PASS_W]);
    find_done(c);
    zb_chunk_find_reads(c);
    *c_out = c;
    return ZB_OK;
}

struct zb_chunk_info zb_chunk_info(const struct zb_chunk *c)
{
    return c->info;
}

int zb_chunk_n_in(const struct zb_chunk *c)
{
    return c->n_in;
}

struct zb_data_info zb_chunk_in(const struct zb_chunk *c, int i)
{
    const struct zb_tensor *t = &c->graph->tensors[c->in[i]];
    struct zb_data_info info = {
        .name = c->graph->ops[t->op].label,
        .dtype = t->dtype,
        .shape = t->shape,
    };

    return info;
}
