/* SPDX-License-Identifier: MIT
 *
 * Where the table of a run comes from: the cache, the devices, the model. */
#include "config.h"
#include "run/cost_cache.h"
#include "run/costs.h"
#include "run/profile.h"

#include <math.h>
#include <string.h>

#include "zb/log.h"
#include "zb/mem.h"
#include "zb/thread.h"

struct source {
    struct zb_profile_request r;
    struct zb_layer_kinds kinds;
    const char *backend; /* its name, "auto" resolved */
    int may_run;
};

/* Kept numbers, or measured ones where that is allowed. */
static enum zb_status get_numbers(const struct source *s, const char *what,
                                  enum zb_status (*job)(struct zb_seat *seat),
                                  size_t n, double *v, int *is_there_out)
{
    const char *dir = s->r.o->cost_cache;
    int64_t begin = zb_now_ns();
    enum zb_status st;
    char *key;

    ZB_TRY(zb_cost_key(&s->r, s->backend, what, &key));
    ZB_TRY_GOTO(st, zb_cost_cache_load(dir, key, v, n, is_there_out), out);
    if (*is_there_out) {
        zb_log(ZB_LOG_DEBUG, "%s of this model and machine are kept in %s",
               what, dir);
    } else if (s->may_run) {
        ZB_TRY_GOTO(st, zb_profile_run(&s->r, job, n, v), out);
        zb_log(ZB_LOG_DEBUG, "%s measured in %.0f ms", what,
               (double)(zb_now_ns() - begin) * 1e-6);
        *is_there_out = 1;
        st = zb_cost_cache_store(dir, key, v, n);
    }
out:
    zb_free(key);
    return st;
}

static enum zb_status from_profile(const struct source *s,
                                   struct zb_cost_table **t_out)
{
    size_t n = zb_profile_n_layer_results(&s->r);
    double *v = zb_alloc_array(n, sizeof(*v)), message, extra;
    struct zb_cost_table *t;
    enum zb_status st = ZB_ENOMEM;
    int is_there;

    if (v == NULL) {
        return ZB_ENOMEM;
    }
    ZB_TRY_GOTO(st, get_numbers(s, "costs of layers", zb_profile_layers, n, v,
                                &is_there),
                out);
    if (!is_there) {
        goto out;
    }
    ZB_TRY_GOTO(st, zb_costs_new(s->kinds.n_layers, &t), out);
    for (int i = 0; i < t->n_layers; i++) {
        const double *ns = v + (size_t)s->kinds.kind[i] * ZB_N_LAYER_TIMES;

        t->layer[i] = (struct zb_layer_cost){.f_ns = ns[ZB_LAYER_F],
                                             .b_ns = ns[ZB_LAYER_B],
                                             .w_ns = ns[ZB_LAYER_W],
                                             .update_ns = ns[ZB_LAYER_UPDATE]};
    }
    message = v[n - 2];
    extra = v[n - 1];
    t->message_ns = isnan(message) ? 0 : message;
    t->bytes_per_ns =
        extra > 0 ? (double)zb_profile_message_bytes(&s->r) / extra : INFINITY;
    t->source = ZB_COST_MEASURED;
    *t_out = t;
out:
    zb_free(v);
    return st;
}

/* Without a cache every run would measure other rates and plan another way:
 * then nominal ones do. */
static enum zb_status from_model(const struct source *s,
                                 struct zb_cost_table **t_out)
{
    struct zb_rates rates = zb_nominal_rates();
    double v[ZB_N_RATES];
    int is_there = 0;

    if (s->r.o->cost_cache != NULL) {
        ZB_TRY(get_numbers(s, "rates", zb_profile_rates, ZB_N_RATES, v,
                           &is_there));
    }
    for (int i = 0; i < ZB_N_RATES - 1; i++) {
        is_there = is_there && v[i] > 0;
    }
    if (is_there) {
        memcpy(rates.flops_per_ns, v, sizeof(rates.flops_per_ns));
        rates.bytes_per_ns = v[ZB_N_PRODUCTS];
        rates.launch_ns = v[ZB_N_PRODUCTS + 1];
    }
    ZB_TRY(zb_costs_from_model(s->r.g, &s->r.max, &rates, &s->r.o->optim,
                               s->r.o->recompute, t_out));
    (*t_out)->source = is_there ? ZB_COST_RATES : ZB_COST_NOMINAL;
    return ZB_OK;
}

static enum zb_status make(struct source *s, struct zb_cost_table **t_out)
{
    const struct zb_session_opts *o = s->r.o;
    const struct zb_backend_ops *ops;

    *t_out = NULL;
    ZB_TRY(zb_backend_find(o->backend, &ops));
    s->backend = ops->name;
    /* A device that only sleeps can not be measured. */
    if (o->costs == ZB_COSTS_GIVEN || ops->is_simulated) {
        struct zb_rates rates = zb_nominal_rates();

        return zb_costs_from_model(s->r.g, &s->r.max, &rates, &o->optim,
                                   o->recompute, t_out);
    }
    ZB_TRY(zb_layer_kinds_init(&s->kinds, s->r.g, &s->r.max, o->recompute));
    if (o->costs == ZB_COSTS_MEASURED) {
        ZB_TRY(from_profile(s, t_out));
    }
    return *t_out != NULL ? ZB_OK : from_model(s, t_out);
}

enum zb_status zb_costs_make(const struct zb_graph *g,
                             const struct zb_bind *max,
                             const struct zb_session_opts *o, int may_run,
                             struct zb_cost_table **t_out)
{
    struct source s = {.r = {.g = g, .max = *max, .o = o}, .may_run = may_run};
    struct zb_cost_table *t;
    enum zb_status st;

    s.r.kinds = &s.kinds;
    st = make(&s, &t);
    zb_layer_kinds_release(&s.kinds);
    if (st == ZB_OK) {
        *t_out = t;
    }
    return st;
}
