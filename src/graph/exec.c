/* SPDX-License-Identifier: MIT
 *
 * Running a chunk's lists: resolve the slots of an instruction to views on the
 * stack, call its emitter. Nothing is allocated.
 */
#include "config.h"
#include "graph/chunk_int.h"

/* ---- for emitters -------------------------------------------------------- */

enum zb_status zb_emit_launch(struct zb_emit *e, enum zb_kernel kernel,
                              const void *params)
{
    e->launch.kernel = kernel;
    e->launch.params = params;
    return e->run->ops->launch(e->run->stream, &e->launch);
}

/* Ranges that begin at the same address are one range. */
static void add_access(struct zb_launch *launch, const void *ptr, size_t bytes,
                       enum zb_access_mode mode)
{
    struct zb_access *a = launch->access;
    int i = 0;

    while (i < launch->n_access && a[i].ptr != ptr) {
        i++;
    }
    ZB_BUG_IF(i == ZB_MAX_ACCESS, "%s touches too many ranges", launch->label);
    if (i == launch->n_access) {
        a[launch->n_access++] = (struct zb_access){ptr, bytes, mode};
        return;
    }
    a[i].mode = (enum zb_access_mode)(a[i].mode | mode);
    a[i].bytes = a[i].bytes > bytes ? a[i].bytes : bytes;
}

void zb_emit_reads(struct zb_emit *e, const void *ptr, size_t bytes)
{
    add_access(&e->launch, ptr, bytes, ZB_READ);
}

void zb_emit_begin(struct zb_emit *e)
{
    e->launch.n_access = 0;
}

void zb_emit_touch(struct zb_emit *e, const void *ptr, size_t bytes,
                   enum zb_access_mode mode)
{
    add_access(&e->launch, ptr, bytes, mode);
}

void zb_emit_touch_view(struct zb_emit *e, const struct zb_view *v,
                        enum zb_access_mode mode)
{
    if (v->data != NULL) {
        add_access(&e->launch, v->data, zb_view_span_bytes(v), mode);
    }
}

enum zb_status zb_emit_coll(struct zb_emit *e, enum zb_axis axis,
                            struct zb_coll coll)
{
    const struct zb_chunk_run *run = e->run;

    ZB_BUG_IF(run->coll == NULL, "%s: nothing to do collectives with",
              e->launch.label);
    coll.label = e->launch.label;
    return run->coll->run(run->coll_arg, axis, run->stream, &coll);
}

struct zb_k_philox zb_emit_philox(const struct zb_emit *e)
{
    struct zb_k_philox p = {
        .seed = e->run->seed,
        .step = e->run->step,
        .site = (uint32_t)e->op->site,
        .sample = e->run->sample,
    };

    return p;
}

struct zb_k_place zb_emit_place(const struct zb_emit *e, int in)
{
    const struct zb_chunk_run *run = e->run;
    const struct zb_parallel *par = &e->graph->par;
    int64_t dim = zb_op_shape(e->graph, e->op, in)->dim[1];
    struct zb_k_place k = {0, {0, 0}};
    struct zb_seq_place at;

    if (dim == ZB_DIM(ZB_SYM_PART) && par->mode == ZB_SEQ_SPLIT_GATHER) {
        k.first[1] = run->tp_rank * run->bind.value[ZB_SYM_PART];
    } else if (dim == ZB_DIM(ZB_SYM_SEQ) || dim == ZB_DIM(ZB_SYM_PART)) {
        at = zb_parallel_place(par, run->sp_rank, &run->bind);
        k.len = at.first[0] + at.len == at.first[1] ? 0 : at.len;
        k.first[0] = at.first[0];
        k.first[1] = at.first[k.len > 0];
    }
    return k;
}

enum zb_status zb_emit_copy(struct zb_emit *e)
{
    struct zb_k_copy k = {
        .rows = zb_shape_rows(&e->in[0].shape),
        .cols = zb_shape_cols(&e->in[0].shape),
        .ldx = zb_view_row_stride(&e->in[0]),
        .ldy = zb_view_row_stride(&e->out[0]),
        .elem_bytes = (int64_t)zb_dtype_bytes(e->in[0].dtype),
        .x = e->in[0].data,
        .y = e->out[0].data,
    };

    return zb_emit_launch(e, ZB_K_copy, &k);
}

enum zb_status zb_emit_add(struct zb_emit *e)
{
    struct zb_k_add k = {
        .n = zb_shape_elems(&e->in[0].shape),
        .dtype = e->in[0].dtype,
        .a = e->in[0].data,
        .b = e->in[1].data,
        .y = e->out[0].data,
    };

    return zb_emit_launch(e, ZB_K_add, &k);
}

static enum zb_status fill_with(struct zb_emit *e, double value)
{
    struct zb_k_fill k = {
        .n = zb_shape_elems(&e->out[0].shape),
        .value = value,
        .dtype = e->out[0].dtype,
        .y = e->out[0].data,
    };

    return zb_emit_launch(e, ZB_K_fill, &k);
}

enum zb_status zb_emit_zero(struct zb_emit *e)
{
    return fill_with(e, 0);
}

enum zb_status zb_emit_fill(struct zb_emit *e)
{
    return fill_with(e, e->loss_coef * e->run->loss_scale[e->loss]);
}

enum zb_status zb_emit_loss_sum(struct zb_emit *e)
{
    struct zb_k_sum_f64 k = {
        .n = zb_shape_elems(&e->in[0].shape),
        .dtype = e->in[0].dtype,
        .x = e->in[0].data,
        .y = e->run->loss_sum + e->loss,
    };

    add_access(&e->launch, k.y, sizeof(double), ZB_WRITE);
    return zb_emit_launch(e, ZB_K_sum_f64, &k);
}

/* ---- one instruction ----------------------------------------------------- */

static void *base_of(const struct zb_chunk_run *run, const struct zb_ref *ref)
{
    switch (ref->where) {
    case ZB_AT_SPACE:
        return (char *)run->space[ref->index] + ref->offset;
    case ZB_AT_DATA:
        return run->data[ref->index];
    case ZB_AT_CONST:
        return run->consts[ref->index];
    case ZB_AT_PARAM:
        return run->param[ref->index];
    case ZB_AT_GRAD:
        return run->grad[ref->index];
    default:
        zb_bug(__FILE__, __LINE__, "a value without an address");
    }
}

static struct zb_view *view_of(struct zb_emit *e, int role)
{
    if (role < ZB_ROLE_OUT) {
        return &e->in[role];
    }
    if (role < ZB_ROLE_D_OUT) {
        return &e->out[role - ZB_ROLE_OUT];
    }
    if (role == ZB_ROLE_D_OUT) {
        return &e->d_out;
    }
    if (role >= ZB_ROLE_TMP) {
        return &e->tmp[role - ZB_ROLE_TMP];
    }
    return role == ZB_ROLE_ADDEND ? &e->addend : &e->d_in[role - ZB_ROLE_D_IN];
}

enum zb_status zb_chunk_run_instr(const struct zb_chunk *c,
                                  const struct zb_instr *instr,
                                  const struct zb_chunk_run *run)
{
    struct zb_emit e = {
        .graph = c->graph,
        .op = instr->op,
        .run = run,
        .loss_coef = instr->loss_coef,
        .loss = instr->loss,
        .accumulate = instr->accumulate,
        .weight = instr->weight,
        .launch.label = instr->label,
    };

    for (int k = 0; k < instr->n_slots; k++) {
        const struct zb_slot *slot = &c->slots[instr->first_slot + (size_t)k];
        struct zb_view *v = view_of(&e, slot->role);

        *v = zb_layout_bind(&slot->ref.layout, base_of(run, &slot->ref),
                            slot->ref.dtype, &run->bind);
        add_access(&e.launch, v->data, zb_view_span_bytes(v), slot->mode);
    }
    return instr->emit(&e);
}

/* ---- passes -------------------------------------------------------------- */

/* From here on the contents of a space mean nothing. */
static enum zb_status discard(const struct zb_chunk *c,
                              const struct zb_chunk_run *run,
                              enum zb_space space)
{
    if (c->info.bytes[space] == 0 || run->space[space] == NULL) {
        return ZB_OK;
    }
    return run->ops->discard(run->stream, run->space[space],
                             c->info.bytes[space]);
}

static enum zb_status at_layer(const struct zb_chunk_run *run, int layer)
{
    return run->at_layer == NULL ? ZB_OK : run->at_layer(run->at_arg, layer);
}

/* Copies and sums belong to no op; those of F come before the op that needs
 * them and read nothing that layers wait for. */
static int layer_of(const struct zb_instr *instr, int otherwise)
{
    return instr->op != NULL ? instr->op->layer : otherwise;
}

static enum zb_status run_forward(const struct zb_chunk *c,
                                  const struct zb_chunk_run *run)
{
    const struct zb_list *list = &c->list[ZB_PASS_F];
    int next = c->info.first_layer;

    for (size_t i = 0; i < list->n; i++) {
        for (; next <= layer_of(&list->instr[i], next - 1); next++) {
            ZB_TRY(at_layer(run, next));
        }
        ZB_TRY(zb_chunk_run_instr(c, &list->instr[i], run));
    }
    for (; next < c->info.end_layer; next++) {
        ZB_TRY(at_layer(run, next));
    }
    return ZB_OK;
}

static enum zb_status at_launch(const struct zb_chunk_run *run, size_t launch)
{
    return run->at_launch == NULL ? ZB_OK
                                  : run->at_launch(run->at_arg, (int)launch);
}

/* Instructions [*at, ..) of a list of B or W, those of `layer` and above: lists
 * go from the last layer to the first. */
static size_t end_of_layer(const struct zb_list *list, size_t at, int layer)
{
    while (at < list->n && list->instr[at].layer >= layer) {
        at++;
    }
    return at;
}

/* Launches [first, end) of W, each for n microbatches. */
static enum zb_status run_weight(const struct zb_chunk *c,
                                 const struct zb_chunk_run *run, int n,
                                 size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        for (int k = 0; k < n; k++) {
            ZB_TRY(zb_chunk_run_instr(c, &c->list[ZB_PASS_W].instr[i], &run[k]));
        }
        ZB_TRY(at_launch(&run[n - 1], i));
    }
    return ZB_OK;
}

static enum zb_status run_backward(const struct zb_chunk *c,
                                   const struct zb_chunk_run *run, size_t first,
                                   size_t end)
{
    for (size_t i = first; i < end; i++) {
        ZB_TRY(zb_chunk_run_instr(c, &c->list[ZB_PASS_B].instr[i], run));
    }
    return ZB_OK;
}

static enum zb_status all_of_b(const struct zb_chunk *c,
                               const struct zb_chunk_run *run)
{
    return run_backward(c, run, 0, c->list[ZB_PASS_B].n);
}

static enum zb_status all_of_w(const struct zb_chunk *c,
                               const struct zb_chunk_run *run)
{
    return run_weight(c, run, 1, 0, c->list[ZB_PASS_W].n);
}

enum zb_status zb_chunk_forward(const struct zb_chunk *c,
                                const struct zb_chunk_run *run)
{
    ZB_TRY(discard(c, run, ZB_SPACE_FB));
    ZB_TRY(discard(c, run, ZB_SPACE_FW));
    ZB_TRY(discard(c, run, ZB_SPACE_OUT));
    ZB_TRY(discard(c, run, ZB_SPACE_SCRATCH));
    return run->at_layer == NULL
               ? zb_chunk_replay(c, ZB_PASS_F, run, run_forward)
               : run_forward(c, run);
}

static enum zb_status begin_backward(const struct zb_chunk *c,
                                     const struct zb_chunk_run *run)
{
    ZB_TRY(discard(c, run, ZB_SPACE_BW));
    ZB_TRY(discard(c, run, ZB_SPACE_DOUT));
    return discard(c, run, ZB_SPACE_SCRATCH);
}

static enum zb_status end_weights(const struct zb_chunk *c,
                                  const struct zb_chunk_run *run, int n)
{
    for (int k = 0; k < n; k++) {
        ZB_TRY(discard(c, &run[k], ZB_SPACE_FW));
        ZB_TRY(discard(c, &run[k], ZB_SPACE_BW));
    }
    return ZB_OK;
}

enum zb_status zb_chunk_backward_input(const struct zb_chunk *c,
                                       const struct zb_chunk_run *run)
{
    ZB_TRY(begin_backward(c, run));
    ZB_TRY(zb_chunk_replay(c, ZB_PASS_B, run, all_of_b));
    return discard(c, run, ZB_SPACE_FB);
}

enum zb_status zb_chunk_backward_weights(const struct zb_chunk *c,
                                         const struct zb_chunk_run *run, int n)
{
    ZB_TRY(discard(c, run, ZB_SPACE_SCRATCH));
    if (n == 1 && run->at_launch == NULL) {
        ZB_TRY(zb_chunk_replay(c, ZB_PASS_W, run, all_of_w));
        return end_weights(c, run, n);
    }
    ZB_TRY(run_weight(c, run, n, 0, c->list[ZB_PASS_W].n));
    ZB_TRY(at_launch(&run[n - 1], c->list[ZB_PASS_W].n));
    return end_weights(c, run, n);
}

enum zb_status zb_chunk_backward_weight(const struct zb_chunk *c,
                                        const struct zb_chunk_run *run)
{
    return zb_chunk_backward_weights(c, run, 1);
}

/* W has nothing in scratch memory, where B keeps what goes from layer to
 * layer. */
enum zb_status zb_chunk_backward_both(const struct zb_chunk *c,
                                      const struct zb_chunk_run *run, int n)
{
    const struct zb_list *list = c->list;
    const struct zb_chunk_run *last = &run[n - 1];
    size_t b = 0, w = 0;

    ZB_TRY(begin_backward(c, last));
    for (int layer = c->info.end_layer; layer-- > c->info.first_layer;) {
        size_t b_end = end_of_layer(&list[ZB_PASS_B], b, layer);
        size_t w_end = end_of_layer(&list[ZB_PASS_W], w, layer);

        ZB_TRY(run_backward(c, last, b, b_end));
        ZB_TRY(run_weight(c, run, n, w, w_end));
        b = b_end;
        w = w_end;
    }
    ZB_TRY(run_backward(c, last, b, list[ZB_PASS_B].n));
    ZB_TRY(run_weight(c, run, n, w, list[ZB_PASS_W].n));
    ZB_TRY(at_launch(last, list[ZB_PASS_W].n));
    ZB_TRY(discard(c, last, ZB_SPACE_FB));
    return end_weights(c, run, n);
}

struct zb_view zb_chunk_output(const struct zb_chunk *c,
                               const struct zb_chunk_run *run, int i)
{
    const struct zb_ref *ref = &c->outputs[i];

    return zb_layout_bind(&ref->layout, base_of(run, ref), ref->dtype,
                          &run->bind);
}
