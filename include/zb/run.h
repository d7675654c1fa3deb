/* SPDX-License-Identifier: MIT
 *
 * Training a model on several devices: a session starts one worker thread per
 * stage, each of which interprets its part of a schedule.
 *
 *     struct zb_session_opts o;
 *     struct zb_session *s;
 *     zb_session_opts_init(&o);
 *     o.n_stages = 4; o.n_micro = 8; o.max_rows = 8; o.max_seq = 128;
 *     ZB_TRY(zb_session_new(model, &o, &s));
 *     for (step = 1; step <= n; step++) {
 *         ZB_TRY(zb_zero_grad(s));
 *         ZB_TRY(zb_forward_backward_step(s, &input, ZB_RETURN_LOSS, &res));
 *         ZB_TRY(zb_optimizer_step(s, lr, &res));
 *     }
 *     zb_session_free(s);
 *
 * Any error of any worker ends the session: the call returns the first one,
 * naming device, stage, node and microbatch, and every later call fails with
 * ZB_EABORT.
 *
 * Threads: one host thread at a time calls the functions of a session. Those
 * that take a struct zb_worker are called by that worker only, from a function
 * given to zb_session_each().
 */
#ifndef ZB_RUN_H
#define ZB_RUN_H

#include <stdint.h>
#include <stdio.h>

#include "zb/model.h"
#include "zb/optim.h"
#include "zb/plan.h"
#include "zb/status.h"

struct zb_gpu_state; /* zb/backend.h */
struct zb_session;
struct zb_worker;
struct zb_ckpt; /* zb/checkpoint.h */
struct zb_ckpt_shot;

enum zb_cut_mode { ZB_CUT_AUTO, ZB_CUT_UNIFORM, ZB_CUT_LIST };

/* Where the planner's times come from. */
enum zb_costs_mode {
    ZB_COSTS_MODEL,    /* operations and bytes over rates */
    ZB_COSTS_MEASURED, /* every layer is run on the devices first */
    ZB_COSTS_GIVEN     /* f_cost, b_cost and w_cost below */
};

enum zb_loss_average {
    ZB_LOSS_PER_TOKEN,     /* sum over counted elements / their number */
    ZB_LOSS_PER_MICROBATCH /* mean of the microbatches' means */
};

/* How messages go from stage to stage: in place where the two share memory,
 * else copied into memory of the receiver, which auto does through the host
 * where a test at the start shows that devices do not reach each other; copied
 * even where memory is shared; over links, which not every backend has (struct
 * zb_link_ops), between GPUs that no other device of the run uses; or always
 * through the host, without any test. */
enum zb_p2p { ZB_P2P_AUTO, ZB_P2P_COPY, ZB_P2P_NCCL, ZB_P2P_HOST };

/* How groups of tensor, sequence and data parallelism exchange what they sum and
 * gather: members read each other's memory; or over links, which not every
 * backend has, between GPUs that no other device of the run uses. Results have
 * the same bits. auto: over links where messages go over links and they can. */
enum zb_collectives {
    ZB_COLLECTIVES_AUTO,
    ZB_COLLECTIVES_COPY,
    ZB_COLLECTIVES_NCCL
};

struct zb_session_opts {
    const char *backend; /* "auto" */
    int n_stages;        /* pipeline stages */
    int n_dp;            /* replicas; tp and sp are those of the model's graph.
                            Devices: n_stages * n_dp * sp * tp */
    int zero_stage;      /* 1: each rank of dp and sp keeps and updates a shard
                            of moments and parameters (ZeRO-1, Rajbhandari et
                            al. 2020); 0: all of them */
    int overlap_reduce;  /* 1: gradients are summed over ranks as soon as the
                            last W of a chunk is done; 0: at the end */
    int overlap_gather;  /* 1: updated parameters are gathered while the next
                            step begins */
    int post_validation; /* 1: workers update before the norm of all gradients
                            is known, and undo that where it was wrong */
    int n_micro;         /* microbatches of a training step, per replica */
    int64_t max_rows;    /* most rows of the batch of a step, all replicas */
    int64_t max_seq;     /* longest sequence */
    /* "zbv", ...; "file:PATH"; or "auto": the planner with the shortest step of
     * those whose schedules fit. */
    const char *planner;
    int n_chunk; /* chunks per stage of "interleaved"; 0: as the planner has */
    struct zb_plan_opts plan; /* budget < 0: a share of the first steps' time */
    enum zb_cut_mode cut;
    const int *layers_per_chunk; /* ZB_CUT_LIST: [n_virtual], model order */
    int n_layers_per_chunk;      /* its length; 0: as it must be */
    enum zb_costs_mode costs;
    /* Folder for what was measured, made when missing; NULL: nothing is kept,
     * and the model's costs are taken over rates that are the same everywhere.
     */
    const char *cost_cache;
    /* Costs of the planner per virtual stage, model order; NULL: as `costs`
     * says. n_costs is 1 (for all) or n_virtual. Of ZB_COSTS_MODEL and
     * ZB_COSTS_MEASURED the unit is the mean F. */
    const double *f_cost, *b_cost, *w_cost;
    int n_costs;
    double c_cost;
    double max_mem;    /* activations per device; 0: no limit */
    int is_mem_factor; /* 1: max_mem is a multiple of n_virtual * F memory */
    size_t device_mem; /* most bytes a device may need in all; 0: no limit */
    int has_metadata_cache;
    int overlap_p2p; /* 1: more message buffers: a sender may be a node ahead */
    enum zb_p2p p2p;
    enum zb_collectives collectives;
    int threads_per_device;
    const int *gpus; /* cuda: [devices], the GPU of each; NULL: 0, 1, ... */
    uint64_t seed; /* start values and dropout */
    struct zb_optim optim;
    int cuda_graphs; /* cuda: 1: passes that recur are launched as graphs */
    enum zb_loss_average loss_average;
    double watchdog_s;    /* 0: never */
    uint64_t check_seed;  /* check backend */
    int check_delay_us;   /* check backend */
    double sim_ns_per_cost; /* sim backend: the planner's unit of time */
    enum zb_recompute recompute;
    /* 1: "auto" compares all ways to recompute, `recompute` being one of them,
     * where memory is limited to a number of bytes and costs are not given. */
    int may_change_recompute;
    /* sim backend: time of reducing gradients and gathering parameters. */
    double sim_link_ns_per_byte, sim_link_latency_ns;
    /* Start values, as zb_weights_open() takes them: a safetensors file or a
     * Hugging Face directory; NULL: they are drawn. */
    const char *pretrained;
    /* Go on from this, whatever layout, type and number of devices it was made
     * with, instead of start values: parameters, moments, the scale of the loss
     * and counters. Borrowed for the call. ZB_ECONFIG when its tensors are not
     * the model's, or its optimizer is another one. */
    const struct zb_ckpt *resume;
    /* Where the planned memory of all devices is printed when one of them has
     * too little; NULL: nowhere. Open as long as the session. */
    FILE *memory_table;
    /* How the loss is scaled; initial_scale 0: it is not. The type tensors are
     * stored in is that of the model's graph (zb_graph_storage): where it is not
     * zb_real, masters in zb_real are kept with the moments. */
    struct zb_scaler_opts scaler;
};

/* One device, plain AdamW, everything else as documented in zbrun.ini(5). */
void zb_session_opts_init(struct zb_session_opts *o);

/* Plan, build, start the workers, place and fill the parameters. `model` is
 * borrowed for the session's life; strings and arrays of `o` for the call. */
enum zb_status zb_session_new(const struct zb_model *model,
                              const struct zb_session_opts *o,
                              struct zb_session **s_out) ZB_CHECKED;
void zb_session_free(struct zb_session *s);

/* Plan only, and print layout, planned bubble and the memory of each device;
 * touches no device. Refuses what zb_session_new() would refuse; where that is
 * the memory of a device (ZB_EINFEASIBLE), the table has been printed. */
enum zb_status zb_session_dry_run(const struct zb_model *model,
                                  const struct zb_session_opts *o,
                                  FILE *f) ZB_CHECKED;

/* Plan only, for a runtime of one's own: the schedule, and what the planner was
 * told for it: times, memory and limits of the chunks that the layers were cut
 * into. With `f` not NULL print like a dry run; a device that does not suffice
 * is refused likewise. Release *in_out and free *s_out. */
enum zb_status zb_session_plan(const struct zb_model *model,
                               const struct zb_session_opts *o, FILE *f,
                               struct zb_plan_input *in_out,
                               struct zb_schedule **s_out) ZB_CHECKED;

/* ---- steps --------------------------------------------------------------- */

/* The batch of one step, in host memory, borrowed for the call. */
struct zb_step_input {
    int64_t n_rows; /* >= number of microbatches of all replicas */
    int64_t seq_len;
    /* [n_dp * n_micro] lengths of the sequences of each microbatch, at most
     * seq_len, which is the distance of rows in memory: what is behind is
     * padding that nobody reads. NULL: all have seq_len. */
    const int64_t *micro_len;
    /* [n_data] fields in the order of the model's graph, in the types that
     * zb_graph_data() says (reals in that of zb_graph_storage(); see
     * zb_dtype_store); the first dimension of each is n_rows. */
    const void *const *field;
    const int64_t *sample; /* [n_rows] global sample indices (dropout) */
};

enum zb_step_flags {
    ZB_RETURN_LOSS = 1,
    ZB_RETURN_OUTPUTS = 2 /* into zb_step_result.output */
};

struct zb_step_result {
    double loss; /* average as opts.loss_average says; of several
                    losses the sum of those */
    double loss_sum[ZB_LOSS_MAX];   /* of each loss of the graph: sum of the
                                       elements that count */
    int64_t n_counted[ZB_LOSS_MAX]; /* how many count */
    double grad_norm;     /* before clipping; set by zb_optimizer_step() */
    double scale;         /* of the loss, in this step; set likewise */
    int is_skipped;       /* 1: gradients overflowed, nothing was updated */
    /* Set by the caller for ZB_RETURN_OUTPUTS: room for each output of the
     * graph, rows in batch order. */
    zb_real *const *output;
};

/* Forward and backward over the batch, cut into the session's n_micro
 * microbatches as evenly as possible (the first ones get the rest). Gradients
 * are added to those already there. */
enum zb_status zb_forward_backward_step(struct zb_session *s,
                                        const struct zb_step_input *in,
                                        int flags,
                                        struct zb_step_result *res) ZB_CHECKED;

/* Forward only, without dropout, over n_micro microbatches (any number; 0 takes
 * the session's). */
enum zb_status zb_run_forward_only(struct zb_session *s,
                                   const struct zb_step_input *in, int n_micro,
                                   int flags,
                                   struct zb_step_result *res) ZB_CHECKED;

/* The reference's booster.execute_pipeline: forward and backward when
 * is_training, else forward only. */
enum zb_status zb_execute_pipeline(struct zb_session *s,
                                   const struct zb_step_input *in,
                                   int is_training, int flags,
                                   struct zb_step_result *res) ZB_CHECKED;

/* Sum the uses of shared parameters, clip by the global norm, update.
 * ZB_EDEVICE when gradients overflowed at the least scale of the loss. */
enum zb_status zb_optimizer_step(struct zb_session *s, double lr,
                                 struct zb_step_result *res) ZB_CHECKED;
enum zb_status zb_zero_grad(struct zb_session *s) ZB_CHECKED;

/* zero_grad, forward_backward and optimizer step in one go, without waiting
 * for the host in between. */
enum zb_status zb_train_step(struct zb_session *s,
                             const struct zb_step_input *in, double lr,
                             struct zb_step_result *res) ZB_CHECKED;

/* ---- looking inside ------------------------------------------------------ */

const struct zb_schedule *zb_session_schedule(const struct zb_session *s);
const struct zb_model *zb_session_model(const struct zb_session *s);
/* The costs that were planned with, per chunk, and of a message: in ms and us
 * where they are known. */
void zb_session_print_costs(const struct zb_session *s, FILE *f);
/* Planned time of forward and backward of a step, in ns; 0 with given costs. */
double zb_session_planned_ns(const struct zb_session *s);
/* With ZB_COSTS_MEASURED: how long nodes took against those costs, medians over
 * microbatches and the first training steps behind the very first. */
void zb_session_print_cost_errors(const struct zb_session *s, FILE *f);
const char *zb_session_backend(const struct zb_session *s);
/* One line on how messages go, and why: "messages: copied (peer access)"; ""
 * with one device. */
const char *zb_session_messages(const struct zb_session *s);
/* 1: the devices compute nothing; losses, norms and parameters mean nothing. */
int zb_session_is_simulated(const struct zb_session *s);

/* Copy a parameter's value or gradient (uses summed) to `out`. */
enum zb_status zb_session_get_param(struct zb_session *s, int param,
                                    zb_real *out) ZB_CHECKED;
enum zb_status zb_session_set_param(struct zb_session *s, int param,
                                    const zb_real *value) ZB_CHECKED;
enum zb_status zb_session_get_grad(struct zb_session *s, int param,
                                   zb_real *out) ZB_CHECKED;

/* Copy everything that a run needs to go on into host memory: parameters (or
 * their masters), moments, counters and the model's config.json. The caller
 * adds what the session does not know (state.step, .n_samples) and owns the
 * result; zb_saver_begin() takes it. Takes as long as the copy. */
enum zb_status zb_session_snapshot(struct zb_session *s,
                                   struct zb_ckpt_shot **shot_out) ZB_CHECKED;

/* Write every gradient (uses summed) of parameters that are not frozen, and the
 * loss, to a safetensors file. */
enum zb_status zb_session_dump_grads(struct zb_session *s, const char *path,
                                     double loss) ZB_CHECKED;

/* Bytes of device memory of a stage: as planned, and the most that was ever
 * allocated on one of its devices. */
size_t zb_session_planned_bytes(const struct zb_session *s, int stage);
size_t zb_session_allocated_bytes(const struct zb_session *s, int stage);

/* What the last zb_train_step() enqueued on the device of a stage (of column
 * 0), streams of one name together: i from 0; 0 past the last, and on backends
 * that count nothing. Its name is valid as long as the session. */
int zb_session_step_stats(const struct zb_session *s, int stage, int i,
                          struct zb_stream_stats *stats_out);
/* All of it, a line per stage. */
void zb_session_print_launches(const struct zb_session *s, FILE *f);

/* Part i (from 0) of the planned bytes: its name, NULL behind the last. */
const char *zb_session_memory_part(const struct zb_session *s, int stage, int i,
                                   size_t *bytes_out);

/* Print the layout, as zb_session_dry_run() does. */
void zb_session_print(const struct zb_session *s, FILE *f);

/* When each node of the stage's stream ran in the last training step, in
 * nanoseconds of zb_now_ns(): [n] in stream order, overwritten by the next. */
struct zb_node_times {
    const struct zb_node *node;
    size_t n;
    const int64_t *start_ns, *end_ns;
};
struct zb_node_times zb_session_node_times(const struct zb_session *s,
                                           int stage);
/* 1 - (busiest stage's work) / (last end - first start) of the last step. */
double zb_session_measured_bubble(const struct zb_session *s);
/* Have the GPUs' state read in the next step, while they work; not at all when
 * readings would take more than a twentieth of the time. */
void zb_session_watch_gpus(struct zb_session *s);
/* As it was last asked for: [*n_out], valid until the next step; 0 without
 * GPUs, where nothing is known of them, and when it was not read. */
const struct zb_gpu_state *zb_session_gpus(const struct zb_session *s,
                                           int *n_out);
/* Floating point operations of the products of the last training step. */
double zb_session_step_flops(const struct zb_session *s);

/* Floating point operations per second of large products on all devices at
 * once: what a step's rate is compared with. Takes some 20 ms. */
enum zb_status zb_session_measure_peak(struct zb_session *s,
                                       double *flops_out) ZB_CHECKED;

/* Messages and metadata exchanged so far, summed over all channels. */
struct zb_session_stats {
    uint64_t n_messages, n_meta_writes, n_meta_reads;
};
struct zb_session_stats zb_session_stats(const struct zb_session *s);

/* For tests: the node with this index in the stage's stream fails in the next
 * training step. */
void zb_session_fail_node(struct zb_session *s, int stage, size_t node);

/* For tests: the device's k-th collective of a kind from now (from 1) fails in
 * phase 0 (start), 1 (work) or 2 (finish) as zb_coll_fail_at() says; 0 when the
 * device has no such group. Devices are numbered by stage, then dp, sp, tp. */
enum zb_group_kind {
    ZB_GROUP_TP,     /* tensor parallelism */
    ZB_GROUP_SP,     /* sequence parallelism */
    ZB_GROUP_REDUCE, /* gradients of the ranks of dp and sp */
    ZB_GROUP_GATHER, /* parameters that other ranks updated */
    ZB_N_GROUP_KINDS
};
int zb_session_fail_coll(struct zb_session *s, int device,
                         enum zb_group_kind kind, int k, int phase);

/* ---- inside a worker: the parts the reference exposes --------------------
 *
 * A scheduler of one's own is a function run by every worker at once. The
 * worker has a batch after zb_load_batch(); nodes must come in an order that
 * zb_schedule_check() accepts. `chunk` is local to the stage. */

enum zb_status zb_session_each(struct zb_session *s,
                               enum zb_status (*fn)(struct zb_worker *w,
                                                    void *arg),
                               void *arg) ZB_CHECKED;

/* The loss of a batch that such a function has run forward. */
enum zb_status zb_session_loss(struct zb_session *s,
                               const struct zb_step_input *in, int n_micro,
                               struct zb_step_result *res) ZB_CHECKED;

int zb_worker_stage(const struct zb_worker *w);
const struct zb_stage_nodes *zb_worker_nodes(const struct zb_worker *w);

/* Which local chunk the i-th forward (or backward) of an interleaved order
 * belongs to. */
int zb_get_model_chunk_id(const struct zb_worker *w, int i, int is_forward);

/* Begin a step over `in`, which stays valid until its work is done; every
 * worker does so once per step (training steps count for dropout). n_micro is
 * that of the session, and forward only at most what it has run before:
 * ZB_EINVAL otherwise. No outputs are returned. Then enqueue the copy of one
 * microbatch's fields; the nodes below do that themselves. */
enum zb_status zb_load_batch(struct zb_worker *w,
                             const struct zb_step_input *in, int n_micro,
                             int is_training) ZB_CHECKED;
enum zb_status zb_load_micro_batch(struct zb_worker *w, int chunk,
                                   int mb) ZB_CHECKED;

/* Receive and send one boundary; without effect at the ends of the model and at
 * the turn of the V. Receiving waits for the message; a pass that finds it not
 * yet received does so itself. */
enum zb_status zb_recv_forward(struct zb_worker *w, int chunk,
                               int mb) ZB_CHECKED;
enum zb_status zb_send_forward(struct zb_worker *w, int chunk,
                               int mb) ZB_CHECKED;
enum zb_status zb_recv_backward(struct zb_worker *w, int chunk,
                                int mb) ZB_CHECKED;
enum zb_status zb_send_backward(struct zb_worker *w, int chunk,
                                int mb) ZB_CHECKED;

/* The compute of a node, over a microbatch that was loaded. The output is there
 * to be sent after it. */
enum zb_status zb_forward_step(struct zb_worker *w, int chunk,
                               int mb) ZB_CHECKED;
enum zb_status zb_backward_b_step(struct zb_worker *w, int chunk,
                                  int mb) ZB_CHECKED;
enum zb_status zb_backward_w_step(struct zb_worker *w, int chunk,
                                  int mb) ZB_CHECKED;

/* A whole F, B or W node, but for its sends: loads, receives, computes. */
enum zb_status zb_schedule_f(struct zb_worker *w, int chunk,
                             int mb) ZB_CHECKED;
enum zb_status zb_schedule_b(struct zb_worker *w, int chunk,
                             int mb) ZB_CHECKED;
enum zb_status zb_schedule_w(struct zb_worker *w, int chunk,
                             int mb) ZB_CHECKED;

/* The worker's whole stream. */
enum zb_status zb_run_forward_backward(struct zb_worker *w) ZB_CHECKED;

#endif
