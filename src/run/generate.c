/* SPDX-License-Identifier: MIT
 *
 * Tokens from a model. Only the public side of a session is used here. */
#include "config.h"
#include "zb/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "zb/hash.h"
#include "zb/mem.h"

/* A target that is none. */
#define NO_LABEL (-100)

/* ---- one token ----------------------------------------------------------- */

static enum zb_status check_sampling(const struct zb_sampling *how)
{
    if (!(how->temperature >= 0) || !isfinite(how->temperature)) {
        return zb_fail(ZB_EINVAL, "a temperature of %g", how->temperature);
    }
    if (!(how->top_p > 0 && how->top_p <= 1)) {
        return zb_fail(ZB_EINVAL, "a top_p of %g", how->top_p);
    }
    return ZB_OK;
}

/* The first of the largest logits. */
static enum zb_status find_best(const zb_real *logits, int64_t n,
                                int64_t *best_out)
{
    int64_t best = 0;

    for (int64_t i = 0; i < n; i++) {
        if (isnan(logits[i]) || logits[i] == (zb_real)INFINITY) {
            return zb_fail(ZB_EDEVICE, "the logit of token %lld is %g",
                           (long long)i, (double)logits[i]);
        }
        best = logits[i] > logits[best] ? i : best;
    }
    if (!isfinite(logits[best])) {
        return zb_fail(ZB_EDEVICE, "no token of %lld has a finite logit",
                       (long long)n);
    }
    *best_out = best;
    return ZB_OK;
}

/* The likeliest first, of equals that with the smaller id. */
static int by_probability(const void *a, const void *b)
{
    const struct zb_choice *x = a, *y = b;

    if (x->p != y->p) {
        return x->p > y->p ? -1 : 1;
    }
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Keep the likeliest that have top_p together; their probability in all. */
static double keep_likeliest(struct zb_choice *c, int64_t *n, double top_p)
{
    double sum = 0;
    int64_t kept = 0;

    qsort(c, (size_t)*n, sizeof(*c), by_probability);
    while (kept < *n && (kept == 0 || sum < top_p)) {
        sum += c[kept++].p;
    }
    *n = kept;
    return sum;
}

enum zb_status zb_sample(const zb_real *logits, int64_t n,
                         const struct zb_sampling *how, double u,
                         struct zb_choice *room, int32_t *id_out)
{
    double sum = 0, at;
    int64_t best = 0;

    ZB_TRY(check_sampling(how));
    ZB_TRY(find_best(logits, n, &best));
    if (how->temperature == 0) {
        *id_out = (int32_t)best;
        return ZB_OK;
    }
    for (int64_t i = 0; i < n; i++) {
        double x = (double)logits[i] - (double)logits[best];

        room[i] = (struct zb_choice){exp(x / how->temperature), (int32_t)i};
        sum += room[i].p;
    }
    for (int64_t i = 0; i < n; i++) {
        room[i].p /= sum;
    }
    sum = how->top_p < 1 ? keep_likeliest(room, &n, how->top_p) : 1;
    at = u * sum;
    /* Rounding may leave a rest behind the last, which is the last that can
     * be drawn then. */
    best = 0;
    for (int64_t i = 0; i < n; i++) {
        best = room[i].p > 0 ? i : best;
        if (at < room[i].p) {
            break;
        }
        at -= room[i].p;
    }
    *id_out = room[best].id;
    return ZB_OK;
}

/* ---- a sequence ---------------------------------------------------------- */

/* What a prefix is run with. */
struct prefix {
    struct zb_session *s;
    const void **field;
    int32_t *labels, *mask; /* [n_max] */
    zb_real **output;       /* [n_outputs] */
    int logits;             /* which of them */
    int64_t vocab;
    struct zb_choice *room;
};

/* Numbers in a row of an output, of all ranks together. */
static int64_t columns(const struct zb_data_info *info)
{
    return info->n_last > 0 ? info->n_last
                            : info->shape.dim[info->shape.n_dims - 1];
}

static enum zb_status take_fields(struct prefix *p, const int32_t *ids)
{
    const struct zb_graph *g = zb_model_graph(zb_session_model(p->s));
    const struct {
        const char *name;
        const int32_t *value;
    } known[] = {
        {"input_ids", ids}, {"labels", p->labels}, {"attention_mask", p->mask}};

    for (int i = 0; i < zb_graph_n_data(g); i++) {
        struct zb_data_info info = zb_graph_data(g, i);

        p->field[i] = NULL;
        for (size_t k = 0; k < ZB_COUNT_OF(known); k++) {
            if (strcmp(info.name, known[k].name) == 0) {
                p->field[i] = known[k].value;
            }
        }
        if (p->field[i] == NULL) {
            return zb_fail(ZB_EUNSUPPORTED,
                           "%s needs %s, which a prompt has not: text can not "
                           "be generated",
                           zb_model_type(zb_session_model(p->s)), info.name);
        }
    }
    return ZB_OK;
}

static enum zb_status take_outputs(struct prefix *p, int64_t n_max)
{
    const struct zb_graph *g = zb_model_graph(zb_session_model(p->s));

    for (int i = 0; i < zb_graph_n_outputs(g); i++) {
        struct zb_data_info info = zb_graph_output(g, i);
        const struct zb_bind one = {{1, n_max, n_max, n_max}};
        struct zb_shape shape = zb_shape_bind(&info.shape, &one);
        int64_t rest = zb_shape_elems(&shape) / shape.dim[shape.n_dims - 1];

        p->output[i] =
            zb_alloc_array((size_t)(rest * columns(&info)), sizeof(zb_real));
        if (p->output[i] == NULL) {
            return ZB_ENOMEM;
        }
        if (strcmp(info.name, "logits") == 0 && info.shape.n_dims == 3) {
            p->logits = i;
            p->vocab = columns(&info);
        }
    }
    return p->logits >= 0
               ? ZB_OK
               : zb_fail(ZB_EUNSUPPORTED,
                         "%s has no logits of every token: text can not be "
                         "generated",
                         zb_model_type(zb_session_model(p->s)));
}

static enum zb_status prefix_init(struct prefix *p, const int32_t *ids,
                                  int64_t n_max)
{
    const struct zb_graph *g = zb_model_graph(zb_session_model(p->s));
    size_t n = (size_t)n_max;

    p->field = zb_alloc_array((size_t)zb_graph_n_data(g), sizeof(*p->field));
    p->output =
        zb_alloc_array((size_t)zb_graph_n_outputs(g) + 1, sizeof(*p->output));
    p->labels = zb_alloc_array(n, sizeof(*p->labels));
    p->mask = zb_alloc_array(n, sizeof(*p->mask));
    if (p->field == NULL || p->output == NULL || p->labels == NULL ||
        p->mask == NULL) {
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        p->labels[i] = NO_LABEL;
        p->mask[i] = 1;
    }
    ZB_TRY(take_fields(p, ids));
    ZB_TRY(take_outputs(p, n_max));
    p->room = zb_alloc_array((size_t)p->vocab, sizeof(*p->room));
    return p->room != NULL ? ZB_OK : ZB_ENOMEM;
}

static void prefix_release(struct prefix *p)
{
    const struct zb_graph *g = zb_model_graph(zb_session_model(p->s));

    zb_free(p->room);
    for (int i = 0; p->output != NULL && i < zb_graph_n_outputs(g); i++) {
        zb_free(p->output[i]);
    }
    zb_free(p->output);
    zb_free(p->mask);
    zb_free(p->labels);
    zb_free(p->field);
}

/* Of seed and place, in [0, 1). */
static double uniform(uint64_t seed, int64_t place)
{
    return (double)(zb_mix(zb_mix(seed) ^ (uint64_t)place) >> 11) * 0x1p-53;
}

/* The token behind the first n. */
static enum zb_status next_token(struct prefix *p,
                                 const struct zb_sampling *how, int64_t n,
                                 int32_t *id_out)
{
    const int64_t sample = 0;
    const struct zb_step_input in = {
        .n_rows = 1, .seq_len = n, .field = p->field, .sample = &sample};
    struct zb_step_result res = {.output = p->output};

    ZB_TRY(zb_run_forward_only(p->s, &in, 1, ZB_RETURN_OUTPUTS, &res));
    return zb_sample(p->output[p->logits] + (n - 1) * p->vocab, p->vocab, how,
                     uniform(how->seed, n), p->room, id_out);
}

static enum zb_status check_prompt(const struct prefix *p, const int32_t *ids,
                                   int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= p->vocab) {
            return zb_fail(ZB_ECONFIG,
                           "token %lld of the prompt is %d, but the model's "
                           "vocabulary is %lld",
                           (long long)i, ids[i], (long long)p->vocab);
        }
    }
    return ZB_OK;
}

static enum zb_status go_on(struct prefix *p, const struct zb_sampling *how,
                            int64_t n_prompt, int64_t n_max, int32_t *ids,
                            int64_t *n_out)
{
    int64_t n = n_prompt;

    ZB_TRY(check_prompt(p, ids, n_prompt));
    while (n < n_max) {
        ZB_TRY(next_token(p, how, n, &ids[n]));
        if (zb_model_is_end(zb_session_model(p->s), ids[n++])) {
            break;
        }
    }
    *n_out = n;
    return ZB_OK;
}

enum zb_status zb_generate(struct zb_session *s, const struct zb_sampling *how,
                           int64_t n_prompt, int64_t n_max, int32_t *ids,
                           int64_t *n_out)
{
    struct prefix p = {.s = s, .logits = -1};
    enum zb_status st;

    if (n_prompt < 1 || n_max < n_prompt) {
        return zb_fail(ZB_EINVAL, "%lld tokens from a prompt of %lld",
                       (long long)n_max, (long long)n_prompt);
    }
    ZB_TRY(check_sampling(how));
    st = prefix_init(&p, ids, n_max);
    if (st == ZB_OK) {
        st = go_on(&p, how, n_prompt, n_max, ids, n_out);
    }
    prefix_release(&p);
    return st;
}
