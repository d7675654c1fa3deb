/* SPDX-License-Identifier: MIT
 *
 * One invocation of zbrun: the configuration turned into a model, data sets and
 * the options of a session; and the commands that use them.
 *
 * Threads: the main thread only.
 */
#ifndef ZB_CLI_JOB_H
#define ZB_CLI_JOB_H

#include <signal.h>

#include "cli/zbrun_opts.h"
#include "zb/backend.h"
#include "zb/checkpoint.h"
#include "zb/conf.h"
#include "zb/data.h"
#include "zb/model.h"
#include "zb/run.h"
#include "zb/tokenizer.h"

struct zbrun_job {
    const struct zbrun_opts *opts;
    struct zb_conf *conf;
    const struct zb_backend_ops *ops; /* what "auto" is, too */
    struct zb_model *model;
    struct zb_tokenizer *tokenizer; /* NULL: bytes are tokens */
    struct zb_dataset *train, *valid; /* valid: NULL without data.valid */
    int is_arrays;                    /* they are array data, of these files */
    int has_train_files;
    struct zb_field_files train_files, valid_files;
    struct zb_session_opts session;
    char *planner;    /* what session.planner points to */
    const char *pretrained; /* conf's model.path, or NULL: weights are drawn */
    struct zb_ckpt *resume; /* what the run goes on from, or NULL */
    int is_own_resume;      /* 1: it is in checkpoint.dir */
    double *per_chunk_costs;
    char *cost_cache; /* what session.cost_cache points to, or NULL */
    int64_t rows; /* samples of a step */
    int n_devices;
};

/* Load and check everything a run needs; touches no device. Release in any case
 * with zbrun_job_release(). */
enum zb_status zbrun_job_init(struct zbrun_job *job,
                              const struct zbrun_opts *opts) ZB_CHECKED;
void zbrun_job_release(struct zbrun_job *job);

/* The fields of the model's graph from a batch, in its order: `field` has room
 * for zb_graph_n_data() pointers. ZB_ECONFIG for a field the data has not. */
enum zb_status zbrun_job_fields(const struct zbrun_job *job,
                                const struct zb_batch *batch,
                                const void **field) ZB_CHECKED;

/* Mean loss over data.valid (at most max_batches batches; 0: all). ZB_ESTOPPED
 * when *stop becomes non-zero. */
struct zbrun_eval {
    double loss;
    int64_t n_targets;
};
enum zb_status zbrun_evaluate(const struct zbrun_job *job,
                              struct zb_session *s, int64_t max_batches,
                              const volatile sig_atomic_t *stop,
                              struct zbrun_eval *eval_out) ZB_CHECKED;

/* Print the prompt of --generate and what the model writes behind it. */
enum zb_status zbrun_generate(const struct zbrun_job *job) ZB_CHECKED;

/* The training loop. Stops after the step in which *stop becomes non-zero, or
 * before the first one (ZB_ESTOPPED). */
enum zb_status zbrun_train(const struct zbrun_job *job,
                           const volatile sig_atomic_t *stop) ZB_CHECKED;

#endif
