/* SPDX-License-Identifier: MIT
 *
 * What a chunk does, looked at without a device: its lists are run on a backend
 * and on groups that only hand on what they are told.
 */
#include "config.h"
#include "graph/chunk_int.h"

#include "zb/mem.h"

/* What instructions take for a stream. */
struct zb_stream {
    const struct zb_visitor *v;
    const void *block; /* the ring's */
};

/* Addresses that nothing lies at: `i` of kind `kind`, far from all others. */
static void *nowhere(int kind, int i)
{
    return (void *)(((uintptr_t)kind + 1) << 56 | ((uintptr_t)i + 1) << 36);
}

enum { AT_DATA = ZB_N_SPACES, AT_CONST, AT_PARAM, AT_GRAD, AT_OTHER };

static enum zb_status launch(struct zb_stream *stream,
                             const struct zb_launch *l)
{
    const struct zb_visitor *v = stream->v;

    if (v->launch != NULL) {
        v->launch(v->arg, l);
    }
    return ZB_OK;
}

static const struct zb_backend_ops visiting = {.launch = launch};

/* ---- groups: what they launch is not the chunk's --------------------------
 */

static enum zb_status coll_run(void *arg, enum zb_axis axis,
                               struct zb_stream *stream,
                               const struct zb_coll *c)
{
    const struct zb_visitor *v = stream->v;

    (void)arg;
    if (v->coll != NULL) {
        v->coll(v->arg, axis, c);
    }
    return ZB_OK;
}

static enum zb_status ring_begin(void *arg, enum zb_axis axis,
                                 struct zb_stream *stream, const void *src,
                                 size_t bytes, const char *label)
{
    const struct zb_visitor *v = stream->v;

    (void)arg, (void)label;
    if (v->ring != NULL) {
        v->ring(v->arg, axis, bytes);
    }
    stream->block = src;
    return ZB_OK;
}

static enum zb_status ring_step(void *arg, enum zb_axis axis,
                                struct zb_stream *stream, int step,
                                const void **block_out)
{
    (void)arg, (void)axis, (void)step;
    *block_out = stream->block;
    return ZB_OK;
}

static enum zb_status ring_end(void *arg, enum zb_axis axis,
                               struct zb_stream *stream)
{
    (void)arg, (void)axis, (void)stream;
    return ZB_OK;
}

static const struct zb_coll_ops watched = {coll_run, ring_begin, ring_step,
                                           ring_end};

/* ---- the lists ------------------------------------------------------------
 */

static void **addresses(int kind, size_t n)
{
    void **a = zb_alloc_array(n + 1, sizeof(*a));

    for (size_t i = 0; a != NULL && i < n; i++) {
        a[i] = nowhere(kind, (int)i);
    }
    return a;
}

static enum zb_status visit_lists(const struct zb_chunk *c,
                                  const struct zb_chunk_run *run)
{
    for (int pass = 0; pass < ZB_N_PASSES; pass++) {
        const struct zb_list *list = &c->list[pass];

        for (size_t i = 0; i < list->n; i++) {
            ZB_TRY(zb_chunk_run_instr(c, &list->instr[i], run));
        }
    }
    return ZB_OK;
}

enum zb_status zb_chunk_visit(const struct zb_chunk *c,
                              const struct zb_bind *bind,
                              const struct zb_visitor *v)
{
    const struct zb_graph *g = c->graph;
    struct zb_stream stream = {.v = v};
    void **data = addresses(AT_DATA, (size_t)zb_graph_n_data(g));
    void **consts = addresses(AT_CONST, (size_t)zb_graph_n_consts(g));
    void **param = addresses(AT_PARAM, (size_t)zb_graph_n_params(g));
    void **grad = addresses(AT_GRAD, (size_t)zb_graph_n_uses(g));
    struct zb_chunk_run run = {
        .ops = &visiting,
        .stream = &stream,
        .bind = *bind,
        .data = data,
        .consts = consts,
        .param = param,
        .grad = (zb_real *const *)grad,
        .loss_sum = nowhere(AT_OTHER, 0),
        .sample = nowhere(AT_OTHER, 1),
        .loss_scale = {1, 1},
        .is_training = 1,
        .coll = &watched,
    };
    enum zb_status st = ZB_ENOMEM;

    for (int s = 0; s < ZB_N_SPACES; s++) {
        run.space[s] = nowhere(s, 0);
    }
    if (data != NULL && consts != NULL && param != NULL && grad != NULL) {
        st = visit_lists(c, &run);
    }
    zb_free(grad);
    zb_free(param);
    zb_free(consts);
    zb_free(data);
    return st;
}
