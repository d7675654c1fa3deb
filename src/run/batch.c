/* SPDX-License-Identifier: MIT
 *
 * The batch of a step, cut into microbatches. */
#include "config.h"
#include "run/run_int.h"

int64_t zb_micro_rows(int64_t n_rows, int n, int i, int64_t *first_out)
{
    int64_t each = n_rows / n, rest = n_rows % n;

    *first_out = i * each + (i < rest ? i : rest);
    return each + (i < rest ? 1 : 0);
}

static int64_t len_of(const struct zb_step_input *in, int i)
{
    return in->micro_len == NULL ? in->seq_len : in->micro_len[i];
}

/* Whether padding can be left out of every loss. */
static int all_losses_have_labels(const struct zb_graph *g)
{
    for (int k = 0; k < zb_graph_n_losses(g); k++) {
        if (zb_graph_loss_labels(g, k) < 0) {
            return 0;
        }
    }
    return 1;
}

static enum zb_status check_lengths(const struct zb_run_plan *p,
                                    const struct zb_step_input *in, int n)
{
    int64_t most = p->o.max_seq;

    if (in->seq_len < 1 || in->seq_len > most) {
        return zb_fail(ZB_ECONFIG,
                       "sequence length %lld is not in 1..%lld, which the "
                       "session was planned for",
                       (long long)in->seq_len, (long long)most);
    }
    for (int i = 0; i < n; i++) {
        int64_t len = len_of(in, i);
        int64_t all = zb_parallel_bind(&p->par, 1, len).value[ZB_SYM_FULL];

        if (len < 1 || len > in->seq_len) {
            return zb_fail(ZB_ECONFIG,
                           "microbatch %d has sequences of %lld, in rows of "
                           "%lld",
                           i, (long long)len, (long long)in->seq_len);
        }
        if (all != len && !all_losses_have_labels(p->g)) {
            return zb_fail(ZB_ECONFIG,
                           "sequences of %lld can not be cut into equal parts "
                           "by this layout, and the loss has no labels that "
                           "would leave padding out",
                           (long long)len);
        }
    }
    return ZB_OK;
}

/* A last batch of an evaluation may leave replicas without a row. */
static enum zb_status check_size(const struct zb_run_plan *p,
                                 const struct zb_step_input *in, int n_micro)
{
    int64_t first, most;

    if (n_micro < 1 || in->n_rows < n_micro) {
        return zb_fail(ZB_ECONFIG,
                       "a batch of %lld rows can not be cut into %d "
                       "microbatches",
                       (long long)in->n_rows, n_micro);
    }
    most = zb_micro_rows(in->n_rows, p->n_dp, 0, &first);
    most = zb_micro_rows(most, n_micro, 0, &first);
    if (most > p->max.value[ZB_SYM_BATCH]) {
        return zb_fail(ZB_ECONFIG,
                       "%lld rows in %d microbatches are %lld rows each, but "
                       "the session was planned for %lld",
                       (long long)in->n_rows, n_micro * p->n_dp,
                       (long long)most,
                       (long long)p->max.value[ZB_SYM_BATCH]);
    }
    return check_lengths(p, in, n_micro * p->n_dp);
}

/* The shape of a field as the host has it, for `rows` rows. */
static struct zb_shape host_shape(const struct zb_shape *s, int64_t rows,
                                  int64_t seq)
{
    struct zb_bind bind = {{rows, seq, seq, seq}};

    return zb_shape_bind(s, &bind);
}

/* Labels of one row that are not padding and not ignored. */
static int64_t count_row(const int32_t *label, int64_t n)
{
    int64_t count = 0;

    for (int64_t i = 0; i < n; i++) {
        count += label[i] != -100;
    }
    return count;
}

/* Elements of a loss of the microbatch that count, in all its parts. */
static int64_t count_targets(const struct zb_run_plan *p, int loss,
                             const struct zb_step_input *in,
                             const struct zb_micro *mb)
{
    int labels = zb_graph_loss_labels(p->g, loss);
    struct zb_data_info info;
    struct zb_shape row, used;
    int64_t n = 0, per_row;

    if (mb->is_idle) {
        return 0;
    }
    if (labels < 0) {
        return zb_graph_loss_elems(p->g, loss, &mb->bind) * p->n_sp;
    }
    info = zb_graph_data(p->g, labels);
    row = host_shape(&info.shape, 1, in->seq_len);
    used = host_shape(&info.shape, 1, mb->len);
    per_row = zb_shape_elems(&row);
    for (int64_t r = 0; r < mb->bind.value[ZB_SYM_BATCH]; r++) {
        n += count_row((const int32_t *)in->field[labels] +
                           (mb->first_row + r) * per_row,
                       zb_shape_elems(&used));
    }
    return n;
}

static void cut_one(const struct zb_run_plan *p, const struct zb_step_input *in,
                    int n_micro, int dp, int i, struct zb_micro *mb)
{
    int64_t first, rows, all = zb_micro_rows(in->n_rows, p->n_dp, dp, &first);

    rows = zb_micro_rows(all, n_micro, i, &mb->first_row);
    mb->first_row += first;
    mb->is_idle = rows == 0;
    if (mb->is_idle) {
        mb->first_row = 0;
        rows = 1;
    }
    mb->len = len_of(in, dp * n_micro + i);
    mb->bind = zb_parallel_bind(&p->par, rows, mb->len);
    for (int k = 0; k < zb_graph_n_losses(p->g); k++) {
        mb->n_counted[k] = count_targets(p, k, in, mb);
    }
}

enum zb_status zb_cut_batch(const struct zb_run_plan *p,
                            const struct zb_step_input *in, int n_micro,
                            struct zb_micro *mb)
{
    int n = n_micro * p->n_dp, n_losses = zb_graph_n_losses(p->g);
    int64_t total[ZB_LOSS_MAX] = {0};

    ZB_TRY(check_size(p, in, n_micro));
    for (int i = 0; i < n; i++) {
        cut_one(p, in, n_micro, i / n_micro, i % n_micro, &mb[i]);
        for (int k = 0; k < n_losses; k++) {
            total[k] += mb[i].n_counted[k];
        }
    }
    for (int i = 0; i < n * n_losses; i++) {
        struct zb_micro *m = &mb[i / n_losses];
        int k = i % n_losses;
        double per = p->o.loss_average == ZB_LOSS_PER_TOKEN
                         ? (double)total[k]
                         : (double)m->n_counted[k] * n;

        /* A microbatch without a single target has no loss and no gradient. */
        m->loss_scale[k] = per > 0 ? 1 / per : 0;
    }
    return ZB_OK;
}
