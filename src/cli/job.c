/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "cli/job_int.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "zb/backend.h"
#include "zb/file.h"
#include "zb/log.h"
#include "zb/mem.h"

#define CONFIG_JSON_MAX (1 << 20)

/* ---- model --------------------------------------------------------------- */

/* The line of a key for the model's messages. */
static int line_of(const struct zb_conf *conf, const char *key)
{
    const char *where = zb_conf_where(conf, key);
    const char *colon = strrchr(where, ':');

    if (strcmp(where, "--set") == 0) {
        return ZB_MODEL_LINE_SET;
    }
    return colon != NULL ? (int)strtol(colon + 1, NULL, 10) : 0;
}

/* The model's own keys, and model_type first where it is given; [n_out], to be
 * freed. */
static enum zb_status list_keys(const struct zbrun_job *job,
                                struct zb_model_key **key_out, size_t *n_out)
{
    const struct zb_conf_model *cm = &job->conf->model;
    struct zb_model_key *key = zb_alloc_array(cm->n_kv + 1, sizeof(*key));
    size_t n = 0;

    if (key == NULL) {
        return ZB_ENOMEM;
    }
    if (cm->model_type != NULL) {
        key[n++] =
            (struct zb_model_key){"model_type", cm->model_type,
                                  line_of(job->conf, "model.model_type")};
    }
    for (size_t i = 0; i < cm->n_kv; i++) {
        key[n++] = (struct zb_model_key){cm->kv[i].key, cm->kv[i].value,
                                         cm->kv[i].line == 0 ? ZB_MODEL_LINE_SET
                                                             : cm->kv[i].line};
    }
    *key_out = key;
    *n_out = n;
    return ZB_OK;
}

static enum zb_status model_from_path(struct zbrun_job *job,
                                      const struct zb_model_opts *mo)
{
    char *path = zb_format("%s/config.json", job->conf->model.path);
    char *text = NULL;
    enum zb_status st =
        path == NULL ? ZB_ENOMEM : zb_read_text(path, CONFIG_JSON_MAX, &text);

    if (st == ZB_OK) {
        st = zb_model_from_json(text, path, mo, &job->model);
    }
    zb_free(text);
    zb_free(path);
    return st;
}

static enum zb_status model_from_conf(struct zbrun_job *job,
                                      struct zb_model_opts *mo)
{
    struct zb_model_key *key;
    size_t n;
    enum zb_status st;

    ZB_TRY(list_keys(job, &key, &n));
    if (job->conf->model.path != NULL) {
        mo->keys = key;
        mo->n_keys = n;
        mo->keys_where = job->conf->file;
        st = model_from_path(job, mo);
    } else {
        st = zb_model_from_keys(key, n, job->conf->file, mo, &job->model);
    }
    zb_free(key);
    return st;
}

static struct zb_parallel parallel_of(const struct zb_conf_parallel *c)
{
    static const enum zb_seq_mode mode[] = {
        [ZB_CONF_SP_ALL_TO_ALL] = ZB_SEQ_ALL_TO_ALL,
        [ZB_CONF_SP_RING_ATTN] = ZB_SEQ_RING,
        [ZB_CONF_SP_SPLIT_GATHER] = ZB_SEQ_SPLIT_GATHER,
    };
    int n_parts = c->sequence_parallelism_mode == ZB_CONF_SP_SPLIT_GATHER
                      ? c->tp_size
                      : c->sp_size;

    return (struct zb_parallel){
        .tp = c->tp_size,
        .sp = c->sp_size,
        .mode = c->enable_sequence_parallelism && n_parts > 1
                    ? mode[c->sequence_parallelism_mode]
                    : ZB_SEQ_WHOLE,
        .vocab_multiple = c->make_vocab_size_divisible_by,
    };
}

static enum zb_dtype storage_of(const struct zb_conf_precision *c,
                                const struct zb_backend_ops *ops)
{
    const enum zb_dtype storage[] = {
        [ZB_CONF_DTYPE_AUTO] =
            ops->prefers_bf16 ? ZB_DTYPE_BF16 : ZB_DTYPE_REAL,
        [ZB_CONF_FP32] = ZB_DTYPE_REAL,
        [ZB_CONF_BF16] = ZB_DTYPE_BF16,
        [ZB_CONF_FP16] = ZB_DTYPE_F16,
    };

    return storage[c->precision];
}

/* Adapters are nothing without the weights they were trained beside. */
static enum zb_status check_adapters(const struct zbrun_job *job)
{
    if (job->conf->model.lora_rank > 0 &&
        job->conf->model.init != ZB_CONF_INIT_PRETRAINED) {
        return zb_fail(ZB_ECONFIG,
                       "%s: model.lora_rank needs model.init = pretrained",
                       zb_conf_where(job->conf, "model.lora_rank"));
    }
    return ZB_OK;
}

static enum zb_status check_trained(const struct zbrun_job *job)
{
    const struct zb_graph *g = zb_model_graph(job->model);
    int n = 0;

    for (int i = 0; i < zb_graph_n_params(g); i++) {
        n += zb_graph_param(g, i).has_gradient;
    }
    return n > 0 ? ZB_OK
                 : zb_fail(ZB_ECONFIG,
                           "%s: model.freeze leaves no parameter to "
                           "train",
                           zb_conf_where(job->conf, "model.freeze"));
}

static enum zb_status make_model(struct zbrun_job *job)
{
    const struct zb_conf_model *cm = &job->conf->model;
    const struct zb_parallel par = parallel_of(&job->conf->parallel);
    struct zb_model_opts mo = {
        .max_seq = job->conf->data.seq_len,
        .init_std = cm->init_std,
        .freeze = (const char *const *)cm->freeze.item,
        .n_freeze = cm->freeze.n,
        .lora_rank = cm->lora_rank,
        .lora_alpha = cm->lora_alpha,
        .lora_targets = (const char *const *)cm->lora_targets.item,
        .n_lora_targets = cm->lora_targets.n,
        .base_path = cm->path,
        .par = &par,
        .has_key_mask =
            job->opts->action != ZBRUN_GENERATE && zbrun_data_has_mask(job),
        .storage = storage_of(&job->conf->precision, job->ops)};

    ZB_TRY(check_adapters(job));
    if (cm->path == NULL && cm->model_type == NULL) {
        return zb_fail(ZB_ECONFIG,
                       "%s: [model] needs model_type, or path to a Hugging "
                       "Face directory",
                       job->conf->file);
    }
    ZB_TRY(model_from_conf(job, &mo));
    if (cm->init == ZB_CONF_INIT_PRETRAINED) {
        job->pretrained = cm->path;
    }
    return check_trained(job);
}

/* ---- session options ----------------------------------------------------- */

static int n_cores(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

static int default_threads(int n_devices)
{
    return n_cores() > n_devices ? n_cores() / n_devices : 1;
}

static struct zb_optim optim_of(const struct zb_conf_optimizer *c)
{
    return (struct zb_optim){
        .kind = c->name == ZB_CONF_SGD ? ZB_OPTIM_SGD : ZB_OPTIM_ADAMW,
        .beta1 = c->beta1,
        .beta2 = c->beta2,
        .eps = c->eps,
        .momentum = c->momentum,
        .weight_decay = c->weight_decay,
        .max_norm = c->max_norm,
    };
}

static enum zb_status set_planner(struct zbrun_job *job)
{
    const struct zb_conf_parallel *cp = &job->conf->parallel;
    enum zb_placement placement;
    enum zb_status st;
    int n_chunks;

    job->planner = cp->pp_style == ZB_CONF_PP_FILE
                       ? zb_format("file:%s", cp->scheduler_nodes)
                       : zb_strdup(zb_conf_pp_style_str(cp->pp_style));
    if (job->planner == NULL) {
        return ZB_ENOMEM;
    }
    job->session.planner = job->planner;
    if (cp->pp_style == ZB_CONF_PP_AUTO) {
        /* Each planner has its own number; interleaved takes what is said. */
        job->session.n_chunk = cp->num_model_chunks;
        return ZB_OK;
    }
    st = zb_planner_shape(job->planner, &placement, &n_chunks);
    if (st != ZB_OK) {
        /* A file that can not be read is an error of the configuration. */
        return zb_fail_in(
            st == ZB_EIO ? ZB_ECONFIG : st, "%s",
            zb_conf_where(job->conf, cp->pp_style == ZB_CONF_PP_FILE
                                         ? "parallel.scheduler_nodes"
                                         : "parallel.pp_style"));
    }
    if (cp->pp_style == ZB_CONF_PP_INTERLEAVED) {
        n_chunks = cp->num_model_chunks;
        job->session.n_chunk = n_chunks;
    }
    return zb_conf_set_model_chunks(job->conf, n_chunks);
}

static double at(const struct zb_conf_doubles *list, size_t i)
{
    return list->item[list->n == 1 ? 0 : i];
}

/* Where the XDG base directory specification says that caches belong; NULL
 * where there is no such place. */
static enum zb_status default_cache(char **dir_out)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

    *dir_out = NULL;
    if (cache != NULL && cache[0] == '/') {
        *dir_out = zb_format("%s/zbrun", cache);
    } else if (home != NULL && home[0] == '/') {
        *dir_out = zb_format("%s/.cache/zbrun", home);
    } else {
        return ZB_OK;
    }
    return *dir_out == NULL ? ZB_ENOMEM : ZB_OK;
}

static enum zb_status set_cost_cache(struct zbrun_job *job)
{
    const char *dir = job->conf->schedule.cost_cache;

    if (dir != NULL && strcmp(dir, "auto") == 0) {
        ZB_TRY(default_cache(&job->cost_cache));
    } else if (dir != NULL) {
        job->cost_cache = zb_strdup(dir);
        if (job->cost_cache == NULL) {
            return ZB_ENOMEM;
        }
    }
    job->session.cost_cache = job->cost_cache;
    return ZB_OK;
}

/* Costs that the user gave: one value or one per chunk for each of F, B, W. */
static enum zb_status set_costs(struct zbrun_job *job)
{
    const struct zb_conf_schedule *cs = &job->conf->schedule;
    const struct zb_conf_doubles *list[3] = {&cs->f_cost, &cs->b_cost,
                                             &cs->w_cost};
    static const enum zb_costs_mode mode[] = {
        [ZB_CONF_COSTS_MODEL] = ZB_COSTS_MODEL,
        [ZB_CONF_COSTS_MEASURED] = ZB_COSTS_MEASURED,
        [ZB_CONF_COSTS_GIVEN] = ZB_COSTS_GIVEN,
    };
    size_t n = 1;

    ZB_TRY(set_cost_cache(job));
    job->session.costs = mode[cs->costs];
    if (cs->c_cost.n > 0) {
        job->session.c_cost = at(&cs->c_cost, 0);
    }
    if (cs->costs != ZB_CONF_COSTS_GIVEN) {
        return ZB_OK;
    }
    for (int i = 0; i < 3; i++) {
        n = list[i]->n > n ? list[i]->n : n;
    }
    job->per_chunk_costs = zb_alloc_array(3 * n, sizeof(double));
    if (job->per_chunk_costs == NULL) {
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < 3 * n; i++) {
        job->per_chunk_costs[i] = at(list[i / n], i % n);
    }
    job->session.f_cost = job->per_chunk_costs;
    job->session.b_cost = job->per_chunk_costs + n;
    job->session.w_cost = job->per_chunk_costs + 2 * n;
    job->session.n_costs = (int)n;
    return ZB_OK;
}

static enum zb_status check_layers(const struct zbrun_job *job)
{
    const struct zb_conf_ints *list = &job->conf->parallel.num_layers_per_stage;
    int64_t sum = 0;

    for (size_t i = 0; i < list->n; i++) {
        sum += list->item[i];
    }
    if (list->n > 0 && sum != zb_model_n_blocks(job->model)) {
        return zb_fail(
            ZB_ECONFIG,
            "%s: parallel.num_layers_per_stage sums up to %lld, but the model "
            "has %d layers",
            zb_conf_where(job->conf, "parallel.num_layers_per_stage"),
            (long long)sum, zb_model_n_blocks(job->model));
    }
    return ZB_OK;
}

/* What prints or writes values needs devices that have some; there is no use
 * in reading weights either. */
static enum zb_status fit_backend(const struct zbrun_job *job,
                                  struct zb_session_opts *o)
{
    const struct zb_backend_ops *ops = job->ops;
    const char *what = job->opts->action == ZBRUN_EVAL       ? "--eval"
                       : job->opts->action == ZBRUN_GENERATE ? "--generate"
                       : job->opts->dump_grads != NULL       ? "--dump-grads"
                                                             : NULL;

    if (ops->is_simulated && what != NULL) {
        return zb_fail(ZB_ECONFIG,
                       "%s is of no use with the backend %s, which computes "
                       "nothing",
                       what, ops->name);
    }
    o->backend = ops->name;
    o->gpus = job->opts->device;
    o->pretrained = ops->is_simulated ? NULL : job->pretrained;
    o->resume = job->resume;
    return ZB_OK;
}

static enum zb_recompute recompute_of(int choice)
{
    static const enum zb_recompute recompute[] = {
        [ZB_CONF_RECOMPUTE_NONE] = ZB_RECOMPUTE_NONE,
        [ZB_CONF_RECOMPUTE_SELECTIVE] = ZB_RECOMPUTE_SELECTIVE,
        [ZB_CONF_RECOMPUTE_FULL] = ZB_RECOMPUTE_FULL,
    };

    return recompute[choice];
}

static enum zb_p2p p2p_of(int choice)
{
    static const enum zb_p2p p2p[] = {
        [ZB_CONF_P2P_AUTO] = ZB_P2P_AUTO,
        [ZB_CONF_P2P_NCCL] = ZB_P2P_NCCL,
        [ZB_CONF_P2P_COPY] = ZB_P2P_COPY,
        [ZB_CONF_P2P_HOST] = ZB_P2P_HOST,
    };

    return p2p[choice];
}

static enum zb_collectives collectives_of(int choice)
{
    static const enum zb_collectives collectives[] = {
        [ZB_CONF_COLLECTIVES_AUTO] = ZB_COLLECTIVES_AUTO,
        [ZB_CONF_COLLECTIVES_NCCL] = ZB_COLLECTIVES_NCCL,
        [ZB_CONF_COLLECTIVES_COPY] = ZB_COLLECTIVES_COPY,
    };

    return collectives[choice];
}

static struct zb_scaler_opts scaler_of(const struct zb_conf_precision *c)
{
    struct zb_scaler_opts o = {
        .initial_scale = c->precision == ZB_CONF_FP16 ? c->initial_scale : 0,
        .min_scale = c->min_scale,
        .max_scale = c->max_scale,
        .growth_factor = c->growth_factor,
        .backoff_factor = c->backoff_factor,
        .growth_interval = c->growth_interval,
        .hysteresis = c->hysteresis,
    };

    return o;
}

static enum zb_status set_session(struct zbrun_job *job)
{
    const struct zb_conf *c = job->conf;
    struct zb_session_opts *o = &job->session;

    zb_session_opts_init(o);
    ZB_TRY(set_planner(job));
    ZB_TRY(fit_backend(job, o));
    o->n_stages = c->parallel.pp_size;
    o->n_dp = job->n_devices / zb_conf_n_model_devices(c);
    o->zero_stage = c->parallel.zero_stage;
    o->post_validation = c->optimizer.post_validation;
    o->overlap_reduce = c->parallel.overlap_communication;
    o->overlap_gather = c->parallel.overlap_allgather;
    o->n_micro = c->parallel.num_microbatches;
    o->max_rows = job->rows;
    o->max_seq = c->data.seq_len;
    o->cut = c->parallel.num_layers_per_stage.n > 0 ? ZB_CUT_LIST
             : c->parallel.partition == ZB_CONF_PARTITION_UNIFORM
                 ? ZB_CUT_UNIFORM
                 : ZB_CUT_AUTO;
    o->layers_per_chunk = c->parallel.num_layers_per_stage.item;
    o->n_layers_per_chunk = (int)c->parallel.num_layers_per_stage.n;
    o->plan.objective = c->schedule.objective == ZB_CONF_OBJECTIVE_STEADY
                            ? ZB_PLAN_STEADY
                            : ZB_PLAN_STEP;
    o->plan.budget = c->schedule.budget;
    o->plan.time_limit_ms = (double)c->schedule.time_limit_ms;
    o->max_mem = c->schedule.max_mem.is_set ? c->schedule.max_mem.value : 0;
    o->is_mem_factor = c->schedule.max_mem.is_multiple;
    o->device_mem = (size_t)c->schedule.device_mem;
    o->has_metadata_cache = c->parallel.enable_metadata_cache;
    o->overlap_p2p = c->parallel.overlap_p2p;
    o->p2p = p2p_of(c->parallel.p2p);
    o->collectives = collectives_of(c->parallel.collectives);
    o->threads_per_device = c->train.threads_per_device > 0
                                ? c->train.threads_per_device
                                : default_threads(job->n_devices);
    o->seed = c->train.seed;
    o->optim = optim_of(&c->optimizer);
    o->scaler = scaler_of(&c->precision);
    o->cuda_graphs = c->train.cuda_graphs;
    o->loss_average = c->train.loss_average == ZB_CONF_LOSS_MICROBATCH
                          ? ZB_LOSS_PER_MICROBATCH
                          : ZB_LOSS_PER_TOKEN;
    o->recompute = recompute_of(c->train.recompute);
    o->may_change_recompute = !zb_conf_is_set(c, "train.recompute");
    o->watchdog_s = c->train.watchdog_s;
    o->memory_table = stderr;
    o->sim_ns_per_cost = 1e3 * c->schedule.sim_unit_us;
    ZB_TRY(check_layers(job));
    return set_costs(job);
}

/* ---- checkpoints --------------------------------------------------------- */

/* A path that is not there is no folder without checkpoints. */
static enum zb_status open_given(const char *dir, struct zb_ckpt **c_out)
{
    if (zb_ckpt_is_one(dir)) {
        return zb_ckpt_open(dir, c_out);
    }
    ZB_TRY(zb_ckpt_open_newest(dir, c_out));
    return *c_out != NULL
               ? ZB_OK
               : zb_fail(ZB_ECONFIG, "--resume: %s has no checkpoint", dir);
}

static int is_same_folder(const char *a, const char *b)
{
    struct stat x, y;

    return a != NULL && b != NULL && stat(a, &x) == 0 && stat(b, &y) == 0 &&
           x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static enum zb_status open_resume(struct zbrun_job *job)
{
    const struct zb_conf_checkpoint *c = &job->conf->checkpoint;
    const struct zbrun_opts *opts = job->opts;
    enum zb_status st;

    if (opts->wants_resume && opts->resume == NULL && c->dir == NULL) {
        return zb_fail(ZB_ECONFIG, "--resume needs checkpoint.dir, or a folder "
                                   "of its own: --resume=DIR");
    }
    if (job->ops->is_simulated) {
        return opts->wants_resume
                   ? zb_fail(ZB_ECONFIG,
                             "--resume is of no use with the backend %s, which "
                             "computes nothing",
                             job->ops->name)
                   : ZB_OK;
    }
    if (opts->resume != NULL) {
        st = open_given(opts->resume, &job->resume);
        job->is_own_resume = is_same_folder(opts->resume, c->dir);
    } else if (opts->wants_resume) {
        st = open_given(c->dir, &job->resume);
        job->is_own_resume = 1;
    } else if (c->dir != NULL && c->resume == ZB_CONF_RESUME_AUTO) {
        st = zb_ckpt_open_newest(c->dir, &job->resume);
        job->is_own_resume = job->resume != NULL;
    } else {
        return ZB_OK;
    }
    /* A file that can not be read is bad input. */
    return st == ZB_EIO ? zb_fail_in(ZB_ECONFIG, "resume") : st;
}

static void report_resume(const struct zbrun_job *job)
{
    const struct zb_ckpt *c = job->resume;

    if (c == NULL || job->opts->verbosity < 0) {
        return;
    }
    zb_log(ZB_LOG_INFO, "going on from %s", c->path);
    if (c->state.seed != job->conf->train.seed) {
        zb_log(ZB_LOG_WARN,
               "train.seed is %llu, but %s was made with %llu: order of the "
               "data and dropout are others from here on",
               (unsigned long long)job->conf->train.seed, c->path,
               (unsigned long long)c->state.seed);
    }
}

static void report_unused(const struct zbrun_job *job)
{
    const struct zb_graph *g = zb_model_graph(job->model);

    for (int i = 0; i < zb_graph_n_params(g); i++) {
        struct zb_param_info info = zb_graph_param(g, i);

        if (!info.has_gradient && !info.opts.is_frozen) {
            zb_log(ZB_LOG_WARN, "%s has no path to the loss: its gradient is 0",
                   info.name);
        }
    }
}

enum zb_status zbrun_job_init(struct zbrun_job *job,
                              const struct zbrun_opts *opts)
{
    int dp;

    memset(job, 0, sizeof(*job));
    job->opts = opts;
    ZB_TRY(zb_conf_load(opts->config, opts->set, opts->n_set, &job->conf));
    job->n_devices = opts->n_devices > 0 ? opts->n_devices
                                         : zb_conf_n_model_devices(job->conf);
    ZB_TRY(zb_conf_layout(job->conf, job->n_devices, &dp));
    job->rows = (int64_t)dp * job->conf->parallel.num_microbatches *
                job->conf->parallel.microbatch_size;
    ZB_TRY(zb_backend_find(opts->backend, &job->ops));
    ZB_TRY(zbrun_data_find(job));
    ZB_TRY(make_model(job));
    ZB_TRY(zbrun_data_open(job));
    ZB_TRY(open_resume(job));
    report_resume(job);
    if (job->conf->parallel.find_unused_parameters) {
        report_unused(job);
    }
    return set_session(job);
}

void zbrun_job_release(struct zbrun_job *job)
{
    zb_ckpt_close(job->resume);
    zb_free(job->cost_cache);
    zb_free(job->per_chunk_costs);
    zb_free(job->planner);
    zb_dataset_close(job->valid);
    zb_dataset_close(job->train);
    zb_field_files_release(&job->valid_files);
    zb_field_files_release(&job->train_files);
    zb_tokenizer_free(job->tokenizer);
    zb_model_free(job->model);
    zb_conf_free(job->conf);
    memset(job, 0, sizeof(*job));
}
