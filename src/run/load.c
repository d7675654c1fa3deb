/* SPDX-License-Identifier: MIT
 *
 * Fields of a microbatch: from the host's batch to the device. Where a rank has
 * a part of every sequence, or sequences are padded, its rows are put together
 * in host memory first. */
#include "config.h"
#include "run/run_int.h"

#include <string.h>

#include "zb/mem.h"

/* What stands in for tokens that are not there. */
#define PAD_LABEL (-100)

/* ---- shapes of fields ----------------------------------------------------- */

/* Whether sequences of the field run along its second dimension. */
static int has_seq(const struct zb_shape *s)
{
    return s->n_dims > 1 && (s->dim[1] == ZB_DIM(ZB_SYM_SEQ) ||
                             s->dim[1] == ZB_DIM(ZB_SYM_FULL));
}

static size_t field_bytes(const struct zb_run_plan *p, int i,
                          const struct zb_bind *bind)
{
    struct zb_data_info info = zb_graph_data(p->g, i);
    struct zb_shape s = zb_shape_bind(&info.shape, bind);

    return (size_t)zb_shape_elems(&s) * zb_dtype_bytes(info.dtype);
}

/* Bytes of one row as the host has it. */
static size_t host_row_bytes(const struct zb_data_info *info, int64_t seq)
{
    struct zb_bind bind = {{1, seq, seq, seq}};
    struct zb_shape s = zb_shape_bind(&info->shape, &bind);

    return (size_t)zb_shape_elems(&s) * zb_dtype_bytes(info->dtype);
}

size_t zb_staging_bytes(const struct zb_run_plan *p)
{
    size_t sum = 0;

    for (int i = 0; i < p->n_data; i++) {
        sum += zb_round_up(field_bytes(p, i, &p->max));
    }
    return sum + zb_round_up((size_t)p->max.value[ZB_SYM_BATCH] *
                             sizeof(int64_t));
}

int zb_needs_staging(const struct zb_run_plan *p,
                     const struct zb_step_input *in)
{
    return in->micro_len != NULL || p->n_sp > 1 ||
           in->seq_len % zb_parallel_seq_multiple(&p->par) != 0;
}

int zb_worker_stages(const struct zb_worker *w, const struct zb_step_input *in)
{
    return zb_needs_staging(w->s->plan, in) || w->ops->has_host_memory;
}

/* ---- parts of sequences ---------------------------------------------------- */

static void fill_padding(void *dst, size_t bytes, int is_label)
{
    static const int32_t label = PAD_LABEL;

    if (!is_label) {
        memset(dst, 0, bytes);
        return;
    }
    for (size_t i = 0; i < bytes; i += sizeof(label)) {
        memcpy((char *)dst + i, &label, sizeof(label));
    }
}

/* Tokens [first, first + n) of a row that has `len`; the rest is padding. */
static void take_tokens(char *dst, const char *row, int64_t first, int64_t n,
                        int64_t len, size_t token, int is_label)
{
    int64_t there = len - first < n ? len - first : n;

    there = there > 0 ? there : 0;
    if (there > 0) {
        memcpy(dst, row + (size_t)first * token, (size_t)there * token);
    }
    fill_padding(dst + (size_t)there * token, (size_t)(n - there) * token,
                 is_label);
}

static int is_loss_label(const struct zb_graph *g, int field)
{
    for (int k = 0; k < zb_graph_n_losses(g); k++) {
        if (zb_graph_loss_labels(g, k) == field) {
            return 1;
        }
    }
    return 0;
}

/* Put together a field with sequences. */
static void gather_field(struct zb_worker *w, const struct zb_micro *m, int i,
                         char *dst)
{
    const struct zb_run_plan *p = w->s->plan;
    struct zb_data_info info = zb_graph_data(p->g, i);
    struct zb_seq_place at = zb_parallel_place(&p->par, w->sp, &m->bind);
    size_t row = host_row_bytes(&info, w->in->seq_len);
    size_t token = row / (size_t)w->in->seq_len;
    int is_whole = info.shape.dim[1] == ZB_DIM(ZB_SYM_FULL);
    int64_t n = m->bind.value[is_whole ? ZB_SYM_FULL : ZB_SYM_SEQ];
    int is_label = is_loss_label(p->g, i);
    const char *src = (const char *)w->in->field[i];
    int64_t half = is_whole ? n : at.len;

    for (int64_t r = 0; r < m->bind.value[ZB_SYM_BATCH]; r++) {
        const char *from = src + (size_t)(m->first_row + r) * row;

        take_tokens(dst, from, is_whole ? 0 : at.first[0], half, m->len, token,
                    is_label);
        take_tokens(dst + (size_t)half * token, from, at.first[1], n - half,
                    m->len, token, is_label);
        dst += (size_t)n * token;
    }
}

/* Where field i of a microbatch is in the caller's batch. */
static const char *rows_of(const struct zb_worker *w, const struct zb_micro *m,
                           int i)
{
    struct zb_data_info info = zb_graph_data(w->s->plan->g, i);

    return (const char *)w->in->field[i] +
           host_row_bytes(&info, w->in->seq_len) * (size_t)m->first_row;
}

/* Where microbatch mb's field i is put together; behind the last one, its
 * sample indices. */
static char *staged(struct zb_worker *w, int mb, int i)
{
    const struct zb_run_plan *p = w->s->plan;
    char *at = w->staging + (size_t)mb * zb_staging_bytes(p);

    for (int k = 0; k < i; k++) {
        at += zb_round_up(field_bytes(p, k, &p->max));
    }
    return at;
}

/* Where microbatch mb's field i is, as the device is to have it. */
static const char *host_field(struct zb_worker *w, const struct zb_micro *m,
                              int mb, int i)
{
    struct zb_data_info info = zb_graph_data(w->s->plan->g, i);

    return w->ops->has_host_memory ||
                   (zb_worker_stages(w, w->in) && has_seq(&info.shape))
               ? staged(w, mb, i)
               : rows_of(w, m, i);
}

static size_t sample_bytes(const struct zb_micro *m)
{
    return (size_t)m->bind.value[ZB_SYM_BATCH] * sizeof(int64_t);
}

/* A microbatch's rows are put together once, however many chunks read them. */
static void stage_fields(struct zb_worker *w, const struct zb_micro *m, int mb)
{
    const struct zb_run_plan *p = w->s->plan;

    if (w->is_staged[mb]) {
        return;
    }
    w->is_staged[mb] = 1;
    for (int i = 0; i < p->n_data; i++) {
        struct zb_data_info info = zb_graph_data(p->g, i);
        char *at = staged(w, mb, i);

        if (has_seq(&info.shape)) {
            gather_field(w, m, i, at);
        } else {
            memcpy(at, rows_of(w, m, i), field_bytes(p, i, &m->bind));
        }
    }
    memcpy(staged(w, mb, p->n_data), w->in->sample + m->first_row,
           sample_bytes(m));
}

/* ---- to the device --------------------------------------------------------- */

/* In training a microbatch's fields have a place for the whole step; a
 * forward-only chunk copies them anew for each node. */
int zb_slot_of(const struct zb_worker *w, int chunk, int mb)
{
    return w->is_training ? mb : chunk;
}

enum zb_status zb_load_micro_batch(struct zb_worker *w, int chunk, int mb)
{
    const struct zb_run_plan *p = w->s->plan;
    const struct zb_layout *l = &p->layout[w->stage];
    const struct zb_micro *m = &w->mb[mb];
    int slot = zb_slot_of(w, chunk, mb);
    const void *sample = w->in->sample + m->first_row;

    if (w->is_training && w->is_loaded[slot]) {
        return ZB_OK;
    }
    w->is_loaded[slot] = 1;
    if (zb_worker_stages(w, w->in)) {
        stage_fields(w, m, mb);
    }
    if (w->ops->has_host_memory) {
        sample = staged(w, mb, p->n_data);
    }
    for (int i = 0; i < p->n_data; i++) {
        ZB_TRY(w->ops->copy_in(w->stream,
                               w->arena + l->field[slot * p->n_data + i],
                               host_field(w, m, mb, i),
                               field_bytes(p, i, &m->bind),
                               zb_graph_data(p->g, i).name));
    }
    return w->ops->copy_in(w->stream, w->arena + l->sample[slot], sample,
                           sample_bytes(m), "sample indices");
}

/* ---- outputs, back to the host --------------------------------------------- */

/* Copy a rank's part [rows, T, columns] of an output into the whole. */
static void spread_output(const struct zb_worker *w, const struct zb_micro *m,
                          const struct zb_view *v, int64_t n_last,
                          const zb_real *part, zb_real *whole)
{
    const struct zb_run_plan *p = w->s->plan;
    struct zb_seq_place at = zb_parallel_place(&p->par, w->sp, &m->bind);
    int64_t cols = v->shape.dim[v->shape.n_dims - 1];
    int64_t all = n_last > 0 ? n_last : cols;
    int64_t first = n_last > 0 ? w->tp * cols : 0;
    int64_t n = all - first < cols ? all - first : cols;
    int has_tokens = v->shape.n_dims > 2;
    int64_t seq = has_tokens ? v->shape.dim[1] : 1;
    int64_t whole_seq = has_tokens ? w->in->seq_len : 1;

    for (int64_t r = 0; n > 0 && r < v->shape.dim[0]; r++) {
        for (int64_t t = 0; t < seq; t++) {
            int64_t to = !has_tokens   ? 0
                         : t < at.len ? at.first[0] + t
                                      : at.first[1] + t - at.len;

            if (!has_tokens || to < m->len) {
                memcpy(whole + ((m->first_row + r) * whole_seq + to) * all +
                           first,
                       part + (r * seq + t) * cols,
                       (size_t)n * sizeof(*whole));
            }
        }
    }
}

enum zb_status zb_return_output(struct zb_worker *w, const struct zb_micro *m,
                                int i, const struct zb_view *v)
{
    const struct zb_run_plan *p = w->s->plan;
    int64_t n = zb_shape_elems(&v->shape);
    int64_t n_last = zb_graph_output(p->g, i).n_last;
    size_t bytes = (size_t)n * zb_dtype_bytes(v->dtype);
    zb_real *part;
    void *stored;
    enum zb_status st;

    if (w->tp > 0 && n_last == 0) {
        return ZB_OK; /* rank 0 has it all */
    }
    if (n_last == 0 && v->dtype == ZB_DTYPE_REAL &&
        !zb_needs_staging(p, w->in)) {
        return w->ops->copy_out(
            w->stream,
            w->output[i] + m->first_row * (n / m->bind.value[ZB_SYM_BATCH]),
            v->data, bytes, "output");
    }
    stored = zb_alloc(bytes);
    part = zb_alloc_array((size_t)n, sizeof(*part));
    st = stored == NULL || part == NULL ? ZB_ENOMEM : ZB_OK;
    if (st == ZB_OK) {
        st = w->ops->copy_out(w->stream, stored, v->data, bytes, "output");
    }
    if (st == ZB_OK) {
        st = w->ops->stream_sync(w->stream);
    }
    if (st == ZB_OK) {
        zb_dtype_load(v->dtype, n, stored, part);
        spread_output(w, m, v, n_last, part, w->output[i]);
    }
    zb_free(part);
    zb_free(stored);
    return st;
}
