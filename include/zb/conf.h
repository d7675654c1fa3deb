/* SPDX-License-Identifier: MIT
 *
 * The run configuration: an INI file and --set overrides become one struct.
 *
 * Every key is one row of one table (src/conf/conf_table.c): its default, its
 * range, its help text and which of its values this version has. Loading,
 * messages, --print-config and the test of the manual page come from that row.
 *
 *     struct zb_conf *conf;
 *     const char *set[] = { "parallel.pp_size=4" };
 *     ZB_TRY(zb_conf_load("config.ini", set, 1, &conf));
 *     ZB_TRY(zb_conf_layout(conf, n_devices, &dp));
 *     ... conf->parallel.pp_size ...
 *     zb_conf_free(conf);
 *
 * Rules. An unknown section or key, a key given twice, a value that is no
 * number, out of its range or against another key are errors that name
 * file:line (or --set), key and value. A value that asks for a feature this
 * version does not have is refused, naming key, place and feature; a value that
 * asks for nothing (never, false, 0, none, a size of 1) is always accepted. A
 * default that names a missing feature is listed by ZB_CONF_PRINT_NOT_YET, and
 * its field here holds the value without the feature. A key that has no effect
 * beside the other values (optimizer.momentum with adamw) is warned about.
 *
 * The file is untrusted: at most 1 MiB, 64 KiB a line, no NUL bytes.
 *
 * Threads: a loaded configuration is read-only; any thread may read it.
 */
#ifndef ZB_CONF_H
#define ZB_CONF_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "zb/status.h"

enum zb_conf_init { ZB_CONF_INIT_RANDOM, ZB_CONF_INIT_PRETRAINED };

enum zb_conf_format {
    ZB_CONF_FORMAT_AUTO, /* by first bytes and name; else text */
    ZB_CONF_FORMAT_TEXT,
    ZB_CONF_FORMAT_TOKENS,
    ZB_CONF_FORMAT_NPY
};

enum zb_conf_sp_mode {
    ZB_CONF_SP_ALL_TO_ALL,
    ZB_CONF_SP_RING_ATTN,
    ZB_CONF_SP_SPLIT_GATHER
};

/* The name of each is its spelling in the file: zb_conf_pp_style_str(). */
enum zb_conf_pp_style {
    ZB_CONF_PP_ZBV,
    ZB_CONF_PP_1F1B,
    ZB_CONF_PP_INTERLEAVED,
    ZB_CONF_PP_GPIPE,
    ZB_CONF_PP_ZB_H1,
    ZB_CONF_PP_ZB_H2,
    ZB_CONF_PP_V_HALF,
    ZB_CONF_PP_V_MIN,
    ZB_CONF_PP_GET_V_SCHEDULE,
    ZB_CONF_PP_PYTORCH_ZBV,
    ZB_CONF_PP_DUALPIPEV,
    ZB_CONF_PP_AUTO,
    ZB_CONF_PP_FILE
};

enum zb_conf_partition { ZB_CONF_PARTITION_AUTO, ZB_CONF_PARTITION_UNIFORM };

enum zb_conf_p2p {
    ZB_CONF_P2P_AUTO,
    ZB_CONF_P2P_NCCL,
    ZB_CONF_P2P_COPY,
    ZB_CONF_P2P_HOST
};

enum zb_conf_collectives {
    ZB_CONF_COLLECTIVES_AUTO,
    ZB_CONF_COLLECTIVES_NCCL,
    ZB_CONF_COLLECTIVES_COPY
};

enum zb_conf_costs {
    ZB_CONF_COSTS_MODEL,
    ZB_CONF_COSTS_MEASURED,
    ZB_CONF_COSTS_GIVEN
};

enum zb_conf_objective { ZB_CONF_OBJECTIVE_STEP, ZB_CONF_OBJECTIVE_STEADY };

enum zb_conf_optimizer_name { ZB_CONF_ADAMW, ZB_CONF_SGD };

enum zb_conf_lr_schedule {
    ZB_CONF_LR_CONSTANT,
    ZB_CONF_LR_COSINE,
    ZB_CONF_LR_LINEAR,
    ZB_CONF_LR_WSD
};

enum zb_conf_dtype {
    ZB_CONF_DTYPE_AUTO, /* fp32 on cpu, bf16 on cuda */
    ZB_CONF_FP32,
    ZB_CONF_BF16,
    ZB_CONF_FP16
};

enum zb_conf_recompute {
    ZB_CONF_RECOMPUTE_NONE,
    ZB_CONF_RECOMPUTE_SELECTIVE,
    ZB_CONF_RECOMPUTE_FULL
};

enum zb_conf_loss_average { ZB_CONF_LOSS_TOKEN, ZB_CONF_LOSS_MICROBATCH };

enum zb_conf_resume { ZB_CONF_RESUME_AUTO, ZB_CONF_RESUME_NEVER };
enum zb_conf_on_error { ZB_CONF_SAVE_CONTINUE, ZB_CONF_SAVE_STOP };

/* One key of [model] that is not in the table: a key of the family's
 * config.json. The model builder checks names and values. */
struct zb_conf_kv {
    char *key;
    char *value; /* a JSON scalar or JSON text, as written */
    int line;    /* in the file; 0 when it came from --set */
};

/* Lists: `n` entries, NULL when n is 0. */
struct zb_conf_strings {
    size_t n;
    char **item;
};
struct zb_conf_ints {
    size_t n;
    int *item;
};
struct zb_conf_doubles {
    size_t n;
    double *item;
};

/* schedule.max_mem. Unset: the planner's own default. */
struct zb_conf_mem {
    int is_set;
    int is_multiple; /* `value` counts 2p * f_mem; otherwise bytes */
    double value;
};

struct zb_conf_model {
    char *path;       /* Hugging Face directory; NULL when inline */
    char *model_type; /* inline family; NULL with path */
    int init;         /* enum zb_conf_init */
    double init_std;  /* -1: the family's initializer_range, else 0.02 */
    struct zb_conf_strings freeze; /* patterns of names */
    int lora_rank;                 /* 0: no adapters */
    double lora_alpha;
    struct zb_conf_strings lora_targets;
    size_t n_kv;      /* other keys of [model], in file order */
    struct zb_conf_kv *kv;
};

struct zb_conf_data {
    struct zb_conf_strings train; /* resolved paths */
    struct zb_conf_strings valid;
    int format;      /* enum zb_conf_format */
    char *tokenizer; /* "byte" or a resolved path; NULL: "byte" */
    int seq_len;
    int shuffle;
    /* Array data: one file per field, or NULL. */
    char *input_ids, *attention_mask, *token_type_ids, *position_ids,
        *inputs_embeds, *decoder_input_ids, *pixel_values, *input_features,
        *labels, *next_sentence_label;
};

struct zb_conf_parallel {
    int pp_size, tp_size, sp_size;
    int enable_sequence_parallelism; /* resolved: 0 or 1 */
    int sequence_parallelism_mode;   /* enum zb_conf_sp_mode */
    int zero_stage;
    int pp_style;          /* enum zb_conf_pp_style */
    char *scheduler_nodes; /* resolved path; set with pp_style = file */
    int num_model_chunks;  /* resolved from pp_style; 0: the file says */
    int num_microbatches;  /* resolved: 2 * pp_size unless given */
    int microbatch_size;
    int partition;                            /* enum zb_conf_partition */
    struct zb_conf_ints num_layers_per_stage; /* n = 0: by `partition` */
    int enable_metadata_cache;
    int overlap_p2p;
    int p2p; /* enum zb_conf_p2p */
    int collectives; /* enum zb_conf_collectives */
    int overlap_communication;
    int overlap_allgather;
    int find_unused_parameters;
    int make_vocab_size_divisible_by;
};

struct zb_conf_schedule {
    int costs; /* enum zb_conf_costs */
    char *cost_cache; /* resolved path; "auto"; NULL: none */
    /* costs = given: 1 entry or one per chunk in model order; c_cost 1. */
    struct zb_conf_doubles f_cost, b_cost, w_cost, c_cost;
    struct zb_conf_mem max_mem;
    int64_t device_mem; /* bytes; 0: no limit */
    double sim_unit_us;
    int objective;      /* enum zb_conf_objective */
    int64_t budget;        /* moves; -1: auto */
    int64_t time_limit_ms; /* 0: none */
};

struct zb_conf_optimizer {
    int name; /* enum zb_conf_optimizer_name */
    double lr, beta1, beta2, eps, weight_decay, momentum;
    double max_norm; /* 0: no clipping */
    int lr_schedule; /* enum zb_conf_lr_schedule */
    int64_t warmup_steps;
    double min_lr;
    int post_validation; /* what is done, not the default: see "Rules" */
};

struct zb_conf_precision {
    int precision; /* enum zb_conf_dtype */
    double initial_scale, min_scale, growth_factor, backoff_factor;
    int64_t growth_interval, hysteresis;
    double max_scale;
};

struct zb_conf_train {
    int64_t steps;
    uint64_t seed;
    int64_t eval_interval;  /* steps; 0: never */
    int64_t eval_batches;   /* 0: all of data.valid */
    int64_t log_interval;   /* steps between progress lines; 0: none */
    int recompute;          /* enum zb_conf_recompute */
    int threads_per_device; /* 0: max(1, cores / devices) */
    int cuda_graphs;
    int loss_average;       /* enum zb_conf_loss_average */
    int deterministic;
    int watchdog_s; /* 0: off */
};

struct zb_conf_checkpoint {
    char *dir; /* resolved path; NULL: nothing is saved */
    int64_t interval;
    int keep;
    int resume; /* enum zb_conf_resume */
    int on_error;           /* enum zb_conf_on_error */
    int64_t max_file_bytes; /* of weights; 0: no limit */
};

struct zb_conf_output {
    char *dir;    /* resolved path */
    char *log;    /* resolved path; NULL: none */
    char *trace;  /* resolved path; NULL: none */
    char *report; /* resolved path; NULL: none */
};

struct zb_conf_places; /* where each key was set; private */

/* Everything in it belongs to it. Paths are absolute (or, when no file was
 * loaded, relative to the working directory). */
struct zb_conf {
    struct zb_conf_model model;
    struct zb_conf_data data;
    struct zb_conf_parallel parallel;
    struct zb_conf_schedule schedule;
    struct zb_conf_optimizer optimizer;
    struct zb_conf_precision precision;
    struct zb_conf_train train;
    struct zb_conf_checkpoint checkpoint;
    struct zb_conf_output output;
    char *file; /* as given to zb_conf_load(); NULL: none */
    struct zb_conf_places *places;
};

/* Load `path` (NULL: defaults only), apply the `n` overrides
 * "section.key=value" in order (the last one of a key wins), check, resolve.
 * Relative paths, those of overrides too, are relative to the folder of the
 * file, those in [output] to output.dir. ZB_ECONFIG for everything the user can
 * put right, missing features included; ZB_EIO when reading fails midway;
 * ZB_ENOMEM. Warnings go to zb_log(). Free with zb_conf_free(). */
enum zb_status zb_conf_load(const char *path, const char *const *overrides,
                            size_t n, struct zb_conf **conf_out) ZB_CHECKED;

/* Release it; NULL is legal. */
void zb_conf_free(struct zb_conf *conf);

/* Where a key ("section.key", keys of config.json in [model] included) got its
 * value: "config.ini:12", "--set" or "default". The text lives as long as
 * `conf`. */
const char *zb_conf_where(const struct zb_conf *conf, const char *key);

/* 1 when the file or an override gave the key a value. */
int zb_conf_is_set(const struct zb_conf *conf, const char *key);

/* How many devices the layout needs at least: pp_size * tp_size * sp_size. */
int zb_conf_n_model_devices(const struct zb_conf *conf);

/* The data parallel size on `n_devices` devices. ZB_ECONFIG when the model's
 * devices do not divide them, or when the result asks for a missing feature. */
enum zb_status zb_conf_layout(const struct zb_conf *conf, int n_devices,
                              int *dp_out) ZB_CHECKED;

/* How many chunks a stage of the schedule has, where pp_style does not say: in
 * a schedule file. ZB_ECONFIG when num_model_chunks or the length of a list
 * (layers or costs of each chunk) says otherwise. */
enum zb_status zb_conf_set_model_chunks(struct zb_conf *conf,
                                        int n_chunks) ZB_CHECKED;

enum zb_conf_print_what {
    ZB_CONF_PRINT_ALL,    /* every key with its value, meaning and range */
    ZB_CONF_PRINT_NOT_YET /* one line per default that is not built yet */
};

/* ZB_CONF_PRINT_ALL writes a valid INI file that loads back to the same
 * configuration from any folder; defaults that name a missing feature are
 * comments marked "(not yet)". ZB_ECONFIG when a path can not be written in
 * an INI file (a comma in a list, " ;"); ZB_EIO when writing fails. */
enum zb_status zb_conf_print(const struct zb_conf *conf, FILE *f,
                             enum zb_conf_print_what what) ZB_CHECKED;

/* The entry of `list` nearest to `name` by edit distance, or NULL when none is
 * near enough to be what was meant. For "did you mean" in messages. */
const char *zb_conf_nearest(const char *name, const char *const *list,
                            size_t n);

/* The spelling of a pp_style in the file, which is also its planner's name. */
const char *zb_conf_pp_style_str(int pp_style);

#endif
