/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "run/run_int.h"

int64_t zb_micro_rows(int64_t n_rows, int n, int i, int64_t *first_out)
{
    int64_t each = n_rows / n, rest = n_rows % n;

    *first_out = i * each + (i < rest ? i : rest);
    return each + (i < rest ? 1 : 0);
}

static enum zb_status check_size(const struct zb_run_plan *p,
                                 const struct zb_step_input *in, int n_micro)
{
    int64_t first;
    int64_t most = n_micro < 1 ? 0 : zb_micro_rows(in->n_rows, n_micro, 0,
                                                   &first);

    if (n_micro < 1 || in->n_rows < n_micro) {
        return zb_fail(ZB_ECONFIG,
                       "a batch of %lld rows can not be cut into %d "
                       "microbatches",
                       (long long)in->n_rows, n_micro);
    }
    if (most > p->max.value[ZB_SYM_BATCH]) {
        return zb_fail(ZB_ECONFIG,
                       "%lld rows in %d microbatches are %lld rows each, but "
                       "the session was planned for %lld",
                       (long long)in->n_rows, n_micro, (long long)most,
                       (long long)p->max.value[ZB_SYM_BATCH]);
    }
    if (in->seq_len < 1 || in->seq_len > p->max.value[ZB_SYM_SEQ]) {
        return zb_fail(ZB_ECONFIG,
                       "sequence length %lld is not in 1..%lld, which the "
                       "session was planned for",
                       (long long)in->seq_len,
                       (long long)p->max.value[ZB_SYM_SEQ]);
    }
    return ZB_OK;
}

/* Elements of one row of the batch. */
static int64_t row_elems(const struct zb_shape *s, const struct zb_bind *bind)
{
    struct zb_bind one = *bind;
    struct zb_shape bound;

    one.value[ZB_SYM_BATCH] = 1;
    bound = zb_shape_bind(s, &one);
    return zb_shape_elems(&bound);
}

static int64_t count_targets(const struct zb_run_plan *p,
                             const struct zb_step_input *in,
                             const struct zb_micro *mb)
{
    int labels = zb_graph_loss_labels(p->g);
    struct zb_data_info info;
    const int32_t *label;
    int64_t per_row, n = 0;

    if (labels < 0) {
        return zb_graph_loss_elems(p->g, &mb->bind);
    }
    info = zb_graph_data(p->g, labels);
    per_row = row_elems(&info.shape, &mb->bind);
    label = (const int32_t *)in->field[labels] + mb->first_row * per_row;
    for (int64_t i = 0; i < mb->bind.value[ZB_SYM_BATCH] * per_row; i++) {
        n += label[i] != -100;
    }
    return n;
}

enum zb_status zb_cut_batch(const struct zb_run_plan *p,
                            const struct zb_step_input *in, int n_micro,
                            struct zb_micro *mb)
{
    int64_t total = 0;

    ZB_TRY(check_size(p, in, n_micro));
    for (int i = 0; i < n_micro; i++) {
        mb[i].bind.value[ZB_SYM_BATCH] =
            zb_micro_rows(in->n_rows, n_micro, i, &mb[i].first_row);
        mb[i].bind.value[ZB_SYM_SEQ] = in->seq_len;
        mb[i].n_counted = count_targets(p, in, &mb[i]);
        total += mb[i].n_counted;
    }
    for (int i = 0; i < n_micro; i++) {
        double per = p->o.loss_average == ZB_LOSS_PER_TOKEN
                         ? (double)total
                         : (double)mb[i].n_counted * n_micro;

        /* A microbatch without a single target has no loss and no gradient. */
        mb[i].loss_scale = per > 0 ? 1 / per : 0;
    }
    return ZB_OK;
}
