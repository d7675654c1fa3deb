/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "conf/conf_int.h"

#include <inttypes.h>
#include <stdint.h>

#include "zb/log.h"

/* Chunks on each stage that a schedule is made of; 0: not fixed by its name. */
static int style_chunks(int pp_style)
{
    switch (pp_style) {
    case ZB_CONF_PP_1F1B:
    case ZB_CONF_PP_GPIPE:
    case ZB_CONF_PP_ZB_H1:
    case ZB_CONF_PP_ZB_H2:
        return 1;
    case ZB_CONF_PP_INTERLEAVED:
    case ZB_CONF_PP_AUTO:
    case ZB_CONF_PP_FILE:
        return 0;
    default:
        return 2;
    }
}

static void derive(struct zb_conf *conf)
{
    struct zb_conf_parallel *p = &conf->parallel;

    if (p->num_microbatches == 0) {
        p->num_microbatches = 2 * p->pp_size;
    }
    if (p->num_model_chunks == 0) {
        p->num_model_chunks = p->pp_style == ZB_CONF_PP_INTERLEAVED
                                  ? 2
                                  : style_chunks(p->pp_style);
    }
    if (!zb_conf_is_set(conf, "parallel.enable_sequence_parallelism")) {
        p->enable_sequence_parallelism =
            p->sp_size > 1 ||
            p->sequence_parallelism_mode == ZB_CONF_SP_SPLIT_GATHER;
    }
}

/* The value as it is written, for a message; "" when it can not be. */
static void value_text(const struct zb_conf_opt *opt, const void *field,
                       char *text, size_t size)
{
    FILE *f = fmemopen(text, size, "w");

    text[0] = '\0';
    if (f == NULL) {
        return;
    }
    if (zb_conf_value_print(opt, field, f) != ZB_OK) {
        rewind(f);
    }
    fclose(f);
    text[size - 1] = '\0';
}

/* Refuse the first key that asks for what this version does not have. */
static enum zb_status check_features(const struct zb_conf *conf)
{
    size_t n;
    const struct zb_conf_opt *table = zb_conf_table(&n);

    for (size_t i = 0; i < n; i++) {
        const struct zb_conf_opt *opt = &table[i];
        const char *missing =
            zb_conf_value_missing(opt, zb_conf_field_const(conf, opt));
        char key[128];

        snprintf(key, sizeof(key), "%s.%s", opt->section, opt->name);
        if (missing != NULL && zb_conf_is_set(conf, key)) {
            char value[128];

            value_text(opt, zb_conf_field_const(conf, opt), value,
                       sizeof(value));
            return zb_fail(ZB_ECONFIG,
                           "%s: %s = %s asks for %s, which this version does "
                           "not have yet",
                           zb_conf_where(conf, key), key, value, missing);
        }
    }
    return ZB_OK;
}

static enum zb_status check_model(const struct zb_conf *conf)
{
    const struct zb_conf_model *m = &conf->model;
    char key[128];

    if (m->path != NULL && m->model_type != NULL) {
        return zb_fail(ZB_ECONFIG,
                       "%s: model.model_type can not stand beside model.path "
                       "(%s), whose config.json says the same",
                       zb_conf_where(conf, "model.model_type"),
                       zb_conf_where(conf, "model.path"));
    }
    if (m->path == NULL && m->model_type == NULL && m->n_kv > 0) {
        snprintf(key, sizeof(key), "model.%s", m->kv[0].key);
        return zb_fail(ZB_ECONFIG,
                       "%s: %s needs model.model_type, or model.path",
                       zb_conf_where(conf, key), key);
    }
    if (m->init == ZB_CONF_INIT_PRETRAINED && m->path == NULL) {
        return zb_fail(ZB_ECONFIG,
                       "%s: model.init = pretrained needs model.path",
                       zb_conf_where(conf, "model.init"));
    }
    return ZB_OK;
}

static enum zb_status check_chunks(const struct zb_conf *conf)
{
    const struct zb_conf_parallel *p = &conf->parallel;
    int implied = style_chunks(p->pp_style);
    size_t n_chunks = (size_t)p->pp_size * (size_t)p->num_model_chunks;

    if (implied != 0 && p->num_model_chunks != implied) {
        return zb_fail(ZB_ECONFIG,
                       "%s: parallel.num_model_chunks = %d, but pp_style = %s "
                       "(%s) has %d on each stage",
                       zb_conf_where(conf, "parallel.num_model_chunks"),
                       p->num_model_chunks, zb_conf_pp_style_str(p->pp_style),
                       zb_conf_where(conf, "parallel.pp_style"), implied);
    }
    if (p->pp_style == ZB_CONF_PP_INTERLEAVED && p->num_model_chunks < 2) {
        return zb_fail(ZB_ECONFIG,
                       "%s: parallel.num_model_chunks = %d, but pp_style = "
                       "interleaved (%s) needs 2 or more",
                       zb_conf_where(conf, "parallel.num_model_chunks"),
                       p->num_model_chunks,
                       zb_conf_where(conf, "parallel.pp_style"));
    }
    if (p->num_layers_per_stage.n != 0 && n_chunks != 0 &&
        p->num_layers_per_stage.n != n_chunks) {
        return zb_fail(ZB_ECONFIG,
                       "%s: parallel.num_layers_per_stage has %zu values, but "
                       "%d stages of %d chunks need %zu",
                       zb_conf_where(conf, "parallel.num_layers_per_stage"),
                       p->num_layers_per_stage.n, p->pp_size,
                       p->num_model_chunks, n_chunks);
    }
    if (p->pp_style == ZB_CONF_PP_FILE && p->scheduler_nodes == NULL) {
        return zb_fail(ZB_ECONFIG,
                       "%s: parallel.pp_style = file needs "
                       "parallel.scheduler_nodes",
                       zb_conf_where(conf, "parallel.pp_style"));
    }
    return ZB_OK;
}

static enum zb_status check_sequence(const struct zb_conf *conf)
{
    const struct zb_conf_parallel *p = &conf->parallel;
    int is_split = p->sequence_parallelism_mode == ZB_CONF_SP_SPLIT_GATHER;

    if (!p->enable_sequence_parallelism && p->sp_size > 1) {
        return zb_fail(
            ZB_ECONFIG,
            "%s: parallel.enable_sequence_parallelism = false, but "
            "sp_size = %d",
            zb_conf_where(conf, "parallel.enable_sequence_parallelism"),
            p->sp_size);
    }
    if (p->enable_sequence_parallelism && is_split &&
        (p->tp_size == 1 || p->sp_size > 1)) {
        return zb_fail(
            ZB_ECONFIG, "%s: split_gather needs tp_size > 1 and sp_size = 1",
            zb_conf_where(conf, "parallel.sequence_parallelism_mode"));
    }
    return ZB_OK;
}

static enum zb_status check_costs(const struct zb_conf *conf, const char *key,
                                  const struct zb_conf_doubles *cost,
                                  int is_needed)
{
    const struct zb_conf_parallel *p = &conf->parallel;
    size_t n_chunks = (size_t)p->pp_size * (size_t)p->num_model_chunks;

    if (cost->n == 0 && is_needed) {
        return zb_fail(ZB_ECONFIG, "%s: schedule.costs = given needs %s",
                       zb_conf_where(conf, "schedule.costs"), key);
    }
    if (cost->n > 1 && n_chunks != 0 && cost->n != n_chunks) {
        return zb_fail(ZB_ECONFIG,
                       "%s: %s has %zu values, but there are %zu chunks",
                       zb_conf_where(conf, key), key, cost->n, n_chunks);
    }
    return ZB_OK;
}

static enum zb_status check_schedule(const struct zb_conf *conf)
{
    const struct zb_conf_schedule *s = &conf->schedule;
    int is_given = s->costs == ZB_CONF_COSTS_GIVEN;

    ZB_TRY(check_costs(conf, "schedule.f_cost", &s->f_cost, is_given));
    ZB_TRY(check_costs(conf, "schedule.b_cost", &s->b_cost, is_given));
    ZB_TRY(check_costs(conf, "schedule.w_cost", &s->w_cost, is_given));
    ZB_TRY(check_costs(conf, "schedule.c_cost", &s->c_cost, 0));
    for (size_t i = 1; i < s->c_cost.n; i++) {
        if (s->c_cost.item[i] != s->c_cost.item[0]) {
            return zb_fail(ZB_ECONFIG,
                           "%s: schedule.c_cost asks for different message "
                           "times, which this version does not have yet",
                           zb_conf_where(conf, "schedule.c_cost"));
        }
    }
    return ZB_OK;
}

/* Where `key` is set, or else `other`. */
static const char *where_set(const struct zb_conf *conf, const char *key,
                             const char *other)
{
    return zb_conf_where(conf, zb_conf_is_set(conf, key) ? key : other);
}

static enum zb_status more_than(const char *where, const char *low_key,
                                double low, const char *high_key, double high)
{
    return zb_fail(ZB_ECONFIG, "%s: precision.%s = %g is more than %s = %g",
                   where, low_key, low, high_key, high);
}

static enum zb_status check_scales(const struct zb_conf *conf)
{
    const struct zb_conf_precision *fp = &conf->precision;

    if (fp->min_scale > fp->initial_scale) {
        return more_than(
            where_set(conf, "precision.min_scale", "precision.initial_scale"),
            "min_scale", fp->min_scale, "initial_scale", fp->initial_scale);
    }
    if (fp->initial_scale > fp->max_scale) {
        return more_than(
            where_set(conf, "precision.max_scale", "precision.initial_scale"),
            "initial_scale", fp->initial_scale, "max_scale", fp->max_scale);
    }
    return ZB_OK;
}

static enum zb_status check_numbers(const struct zb_conf *conf)
{
    const struct zb_conf_optimizer *o = &conf->optimizer;
    int64_t targets =
        (int64_t)conf->parallel.microbatch_size * conf->data.seq_len;

    if (o->warmup_steps > conf->train.steps) {
        return zb_fail(ZB_ECONFIG,
                       "%s: optimizer.warmup_steps = %" PRId64 " is more than "
                       "train.steps = %" PRId64 " (%s)",
                       zb_conf_where(conf, "optimizer.warmup_steps"),
                       o->warmup_steps, conf->train.steps,
                       zb_conf_where(conf, "train.steps"));
    }
    if (o->min_lr > o->lr) {
        return zb_fail(ZB_ECONFIG,
                       "%s: optimizer.min_lr = %g is more than lr = %g (%s)",
                       zb_conf_where(conf, "optimizer.min_lr"), o->min_lr,
                       o->lr, zb_conf_where(conf, "optimizer.lr"));
    }
    ZB_TRY(check_scales(conf));
    if (targets > INT32_MAX) {
        return zb_fail(ZB_ECONFIG,
                       "%s: parallel.microbatch_size * data.seq_len = %" PRId64
                       " is more than %" PRId32,
                       zb_conf_where(conf, "data.seq_len"), targets, INT32_MAX);
    }
    if (conf->checkpoint.interval > 0 && conf->checkpoint.dir == NULL) {
        return zb_fail(ZB_ECONFIG,
                       "%s: checkpoint.interval needs checkpoint.dir",
                       zb_conf_where(conf, "checkpoint.interval"));
    }
    if (conf->train.eval_interval > 0 && conf->data.valid.n == 0) {
        return zb_fail(ZB_ECONFIG, "%s: train.eval_interval needs data.valid",
                       zb_conf_where(conf, "train.eval_interval"));
    }
    return ZB_OK;
}

static int is_sgd(const struct zb_conf *conf)
{
    return conf->optimizer.name == ZB_CONF_SGD;
}

static int is_adamw(const struct zb_conf *conf)
{
    return conf->optimizer.name == ZB_CONF_ADAMW;
}

static int is_lr_constant(const struct zb_conf *conf)
{
    return conf->optimizer.lr_schedule == ZB_CONF_LR_CONSTANT;
}

static int is_not_file(const struct zb_conf *conf)
{
    return conf->parallel.pp_style != ZB_CONF_PP_FILE;
}

static int are_costs_not_given(const struct zb_conf *conf)
{
    return conf->schedule.costs != ZB_CONF_COSTS_GIVEN;
}

static int are_layers_listed(const struct zb_conf *conf)
{
    return conf->parallel.num_layers_per_stage.n > 0;
}

static int is_eval_off(const struct zb_conf *conf)
{
    return conf->data.valid.n == 0;
}

static int is_pretrained(const struct zb_conf *conf)
{
    return conf->model.init == ZB_CONF_INIT_PRETRAINED;
}

static int is_dir_unset(const struct zb_conf *conf)
{
    return conf->checkpoint.dir == NULL;
}

static int is_not_fp16(const struct zb_conf *conf)
{
    return conf->precision.precision != ZB_CONF_FP16;
}

/* Keys that say nothing beside certain values of others. */
static const struct idle_rule {
    const char *section, *name;
    int (*is_idle)(const struct zb_conf *conf);
    const char *beside;
} idle_rules[] = {
    {"optimizer", "momentum", is_adamw, "optimizer.name = adamw"},
    {"optimizer", "beta1", is_sgd, "optimizer.name = sgd"},
    {"optimizer", "beta2", is_sgd, "optimizer.name = sgd"},
    {"optimizer", "eps", is_sgd, "optimizer.name = sgd"},
    {"optimizer", "min_lr", is_lr_constant, "lr_schedule = constant"},
    {"parallel", "scheduler_nodes", is_not_file, "this pp_style"},
    {"parallel", "partition", are_layers_listed, "num_layers_per_stage"},
    {"schedule", "f_cost", are_costs_not_given, "these schedule.costs"},
    {"schedule", "b_cost", are_costs_not_given, "these schedule.costs"},
    {"schedule", "w_cost", are_costs_not_given, "these schedule.costs"},
    {"train", "eval_batches", is_eval_off, "an unset data.valid"},
    {"model", "init_std", is_pretrained, "model.init = pretrained"},
    {"checkpoint", "keep", is_dir_unset, "an unset checkpoint.dir"},
    {"checkpoint", "on_error", is_dir_unset, "an unset checkpoint.dir"},
    {"precision", "initial_scale", is_not_fp16, "a precision without fp16"},
    {"precision", "min_scale", is_not_fp16, "a precision without fp16"},
    {"precision", "max_scale", is_not_fp16, "a precision without fp16"},
    {"precision", "growth_factor", is_not_fp16, "a precision without fp16"},
    {"precision", "backoff_factor", is_not_fp16, "a precision without fp16"},
    {"precision", "growth_interval", is_not_fp16, "a precision without fp16"},
    {"precision", "hysteresis", is_not_fp16, "a precision without fp16"},
};

static void warn_idle(const struct zb_conf *conf)
{
    for (size_t i = 0; i < ZB_COUNT_OF(idle_rules); i++) {
        const struct idle_rule *rule = &idle_rules[i];
        const struct zb_conf_opt *opt =
            zb_conf_opt_find(rule->section, rule->name);
        const void *field = zb_conf_field_const(conf, opt);
        char key[128];

        snprintf(key, sizeof(key), "%s.%s", rule->section, rule->name);
        if (zb_conf_is_set(conf, key) && rule->is_idle(conf) &&
            !zb_conf_value_is(opt, field, opt->def)) {
            zb_log(ZB_LOG_WARN, "%s: %s has no effect beside %s",
                   zb_conf_where(conf, key), key, rule->beside);
        }
    }
}

enum zb_status zb_conf_check(struct zb_conf *conf)
{
    derive(conf);
    ZB_TRY(check_features(conf));
    ZB_TRY(check_model(conf));
    ZB_TRY(check_sequence(conf));
    ZB_TRY(check_chunks(conf));
    ZB_TRY(check_schedule(conf));
    ZB_TRY(check_numbers(conf));
    warn_idle(conf);
    return ZB_OK;
}

enum zb_status zb_conf_set_model_chunks(struct zb_conf *conf, int n_chunks)
{
    struct zb_conf_parallel *p = &conf->parallel;

    if (p->num_model_chunks != 0 && p->num_model_chunks != n_chunks) {
        return zb_fail(ZB_ECONFIG,
                       "%s: parallel.num_model_chunks = %d, but the schedule "
                       "has %d on each stage",
                       zb_conf_where(conf, "parallel.num_model_chunks"),
                       p->num_model_chunks, n_chunks);
    }
    p->num_model_chunks = n_chunks;
    ZB_TRY(check_chunks(conf));
    return check_schedule(conf);
}

int zb_conf_n_model_devices(const struct zb_conf *conf)
{
    const struct zb_conf_parallel *p = &conf->parallel;
    int64_t n = (int64_t)p->pp_size * p->tp_size * p->sp_size;

    return n > INT32_MAX ? INT32_MAX : (int)n;
}

enum zb_status zb_conf_layout(const struct zb_conf *conf, int n_devices,
                              int *dp_out)
{
    const struct zb_conf_parallel *p = &conf->parallel;
    int n_model = zb_conf_n_model_devices(conf);

    if (n_devices < n_model || n_devices % n_model != 0) {
        return zb_fail(ZB_ECONFIG,
                       "pp_size * tp_size * sp_size = %d * %d * %d = %d (%s) "
                       "must divide the number of devices, %d",
                       p->pp_size, p->tp_size, p->sp_size, n_model,
                       zb_conf_where(conf, "parallel.pp_size"), n_devices);
    }
    *dp_out = n_devices / n_model;
    return ZB_OK;
}
