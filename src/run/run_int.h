/* SPDX-License-Identifier: MIT
 *
 * The pieces of a run and who may touch them. A session owns everything; each
 * worker thread alone touches its struct zb_worker, apart from the fields
 * marked otherwise. Shared between threads, the full list: the read-only plan
 * and model, the channels, the groups, the abort flag, the command word, and
 * the gradients of parameters that several stages hold.
 *
 * Devices form a grid: stage x column, where a column is one of dp x sp x tp
 * (tp fastest) and is a pipeline of its own, with its own channels. All columns
 * run the same node streams over their part of the batch, and all devices of a
 * stage are laid out alike.
 */
#ifndef ZB_RUN_INT_H
#define ZB_RUN_INT_H

#include "run/costs.h"
#include "run/peers.h"
#include "zb/checkpoint.h"
#include "zb/comm.h"
#include "zb/graph.h"
#include "zb/run.h"
#include "zb/thread.h"

#define ZB_ALIGN 64

/* ---- device memory of a stage, decided before anything is allocated ------ */

/* One block that lives from node `first` to node `last` of a stream. */
struct zb_block {
    size_t first, last;
    size_t bytes;
    size_t offset;
};

/* Give every block an offset so that no two that live at once overlap: first
 * fit in the order of their first node. Returns the bytes needed. */
enum zb_status zb_arena_pack(struct zb_block *blocks, size_t n,
                             size_t *bytes_out) ZB_CHECKED;

/* What the rows of the memory table are. */
enum zb_region {
    ZB_REGION_PARAM,
    ZB_REGION_GRAD,
    ZB_REGION_OPTIM,
    ZB_REGION_UNDO,
    ZB_REGION_CONST,
    ZB_REGION_ACT,     /* FB, FW and BW blocks of microbatches in flight */
    ZB_REGION_SCRATCH, /* within one pass */
    ZB_REGION_MSG,     /* channel buffers given by this stage */
    ZB_REGION_ROOM,    /* what others send in collectives over links */
    ZB_REGION_BATCH,   /* fields of the microbatches */
    ZB_REGION_STREAM,  /* what launches need of their streams */
    ZB_REGION_MISC,    /* loss sums, squared norms */
    ZB_N_REGIONS
};
const char *zb_region_str(enum zb_region r);

#define ZB_NO_OFFSET ((size_t)-1)

/* ---- buckets: gradients that are reduced, updated and gathered together --- */

/* Elements that a shard, and the place of a parameter in a bucket, are multiples
 * of: then kernels cut a parameter only where their vectors end. */
#define ZB_SHARD_ALIGN 64

/* Parameters share a bucket until it has as many bytes: smaller messages would
 * be mostly latency. */
#define ZB_BUCKET_BYTES (4 << 20)

/* Parameters, flat, one after the other, cut into as many equal shards as there
 * are ranks to sum gradients over. Values, gradients and moments of a bucket
 * lie in the same order. */
struct zb_bucket {
    int chunk; /* local. -1: the bucket is a parameter with several uses,
                  complete after all of them */
    int done;  /* launch of the chunk's last W behind which all gradients are
                  complete; see zb_chunk_info.use_done */
    int layer; /* the first one that reads a parameter */
    int owner; /* stage that has the gradients: this one, but for a bucket of
                  a parameter that several stages hold */
    int n_sum; /* copies of the parameters in a tp group whose gradients are
                  added first; 1: none; or ZB_SUM_PARTS */
    int n_params;
    const int *param;     /* [n_params] */
    const int64_t *first; /* [n_params] where each begins, in elements */
    int64_t shard, n;     /* elements of a shard, of all */
    size_t value, grad;   /* offsets of the arrays; grad only of the owner */
    size_t m, v;          /* of this rank's shard, or of all with zero_stage 0 */
    size_t master;        /* likewise: the values that are updated, where those
                             that are computed with have 16 bits */
    size_t undo;          /* copies of its values and moments, as they were
                             before a step that may have to be undone */
};

/* Parts of the parameters have copies: zb_graph_param_copies() */
#define ZB_SUM_PARTS 0

struct zb_buckets {
    struct zb_bucket *bucket;
    int n;
    int *param; /* storage of bucket[].param and .first */
    int64_t *first;
};

struct zb_run_plan;
/* bucket.c: those of a stage with the cut there is; offsets are left unset. */
enum zb_status zb_buckets_init(struct zb_buckets *b,
                               const struct zb_run_plan *p,
                               int stage) ZB_CHECKED;
void zb_buckets_release(struct zb_buckets *b);

/* Elements [*first_out, *first_out + *n_out) of n that are those of a shard,
 * which are of equal size, a multiple of `align`, but for the last ones. */
void zb_shard_range(int64_t n, int64_t align, int n_shards, int shard,
                    int64_t *first_out, int64_t *n_out);

/* The part of parameter i of a bucket that lies in elements [begin, end) of the
 * bucket: elements [*first_out, ..) of the parameter; 0 when there is none. */
int64_t zb_bucket_part(const struct zb_run_plan *p, const struct zb_bucket *b,
                       int i, int64_t begin, int64_t end, int64_t *first_out);

/* Bytes that collectives of a stage have to do with: the largest source that is
 * given to the groups of tp and of sp; room over links, for those of the compute
 * stream and of the side stream. */
struct zb_coll_room {
    size_t tp, sp;
    size_t room, side_room;
};

/* ---- layout of a device ---------------------------------------------------- */

/* Offsets from the start of the device's one allocation. Blocks are indexed
 * [chunk * n_micro + mb]. */
struct zb_layout {
    size_t total;
    size_t region_offset[ZB_N_REGIONS];
    size_t region_bytes[ZB_N_REGIONS];
    struct zb_buckets buckets;
    size_t *param;    /* [n_params of the graph] or ZB_NO_OFFSET */
    size_t *grad;     /* [n_uses] */
    size_t *konst;    /* [n_consts] */
    size_t *fb, *fw, *bw;
    size_t scratch;
    size_t *field;    /* [n_slots * n_data], batch data of a microbatch */
    size_t *sample;   /* [n_slots] */
    int n_slots;
    size_t compute, side; /* of the two streams */
    size_t loss;      /* doubles [n_micro or more] */
    size_t sumsq;     /* doubles [zb_most_norms()] */
    size_t *msg;      /* [2 * n_boundaries]: this stage's part of a pool */
    int *msg_first, *msg_n; /* which buffers of the pool are its */
    /* Where collectives over links of the two streams receive. */
    size_t room, side_room;
    struct zb_coll_room room_bytes;
};

/* ---- the plan: everything decided before the workers start --------------- */

/* A planner that pp_style = auto looked at. */
struct zb_run_row {
    const char *planner;
    enum zb_recompute recompute;
    int is_possible;
    double step; /* ms; where costs are given, in their unit */
    double bubble, plan_ms;
    size_t device_bytes; /* of the stage that needs most */
    char why_not[160];
};

/* Boundary b lies between virtual stages b and b + 1. Channel 2b goes forward,
 * 2b + 1 backward: n_channels = 2 * (n_virtual - 1). */
struct zb_run_plan {
    const struct zb_model *model;
    const struct zb_graph *g;
    enum zb_dtype storage; /* of the graph */
    struct zb_session_opts o; /* strings and arrays copied or NULL */
    char *planner;
    struct zb_parallel par;
    struct zb_bind max;
    int n_dp, n_sp, n_tp;
    int n_shards;  /* n_dp * n_sp: ranks that gradients are summed over */
    int n_columns; /* n_shards * n_tp */
    int n_devices; /* n_stages * n_columns */
    int n_stages, n_chunk, n_virtual, n_params, n_uses, n_data, n_consts;
    int *first_layer; /* [n_virtual + 1] */
    struct zb_chunk **chunk; /* [n_virtual], model order */
    struct zb_chunk_info *info;
    struct zb_cost_table *costs;
    double unit_ns; /* nanoseconds of one unit of `in`'s costs; 0: given ones */
    struct zb_plan_input in;
    struct zb_plan_opts search; /* how long the planner may search */
    struct zb_schedule *sched;
    struct zb_schedule *eval; /* forward only, as many microbatches */
    double update;            /* of the stage whose update takes longest */
    double plan_ms;           /* cut and schedule, all that was tried */
    int n_tried;              /* schedules that were made for that */
    double share;             /* of the effort for a cut */
    struct zb_layout *layout; /* [n_stages] */
    char **chan_name;         /* [n_channels] */
    /* Device memory of the streams of a worker; 0: they need none. */
    size_t compute_bytes, side_bytes;
    int is_copied; /* messages end in the receiver's memory: by copies, */
    int is_linked; /* or over links */
    int has_group_links; /* collectives are over links */
    int *n_send_bufs, *n_recv_bufs; /* [n_channels] given by each side */
    struct zb_part **part; /* [n_channels][n_parts]: what messages consist of */
    int *n_parts;
    int *use_param;           /* [n_uses] parameter of a use */
    int *owner;               /* [n_params] stage of the first use, or -1 */
    int *name_order;          /* [n_params] parameter numbers sorted by name */
    int has_shared;           /* a parameter is held by several stages */
    struct zb_run_row *row; /* [n_rows] pp_style = auto: what was compared */
    int n_rows;
};

/* Whether a run with these options has messages in the receiver's memory, and
 * buffers of the sender's beside. */
int zb_copies_messages(const struct zb_session_opts *o);

/* 1: there are links of any kind. */
int zb_has_links(const struct zb_run_plan *p);

/* Touches no device. */
enum zb_status zb_run_plan_new(const struct zb_model *model,
                               const struct zb_session_opts *o,
                               struct zb_run_plan **p_out) ZB_CHECKED;
/* The same, but measures on the devices what opts.costs asks for and the cache
 * does not hold. */
enum zb_status zb_run_plan_new_on_devices(const struct zb_model *model,
                                          const struct zb_session_opts *o,
                                          struct zb_run_plan **p_out)
    ZB_CHECKED;
/* With one planner, not "auto", of checked options. *costs is the table to use,
 * or NULL to have one made; it is taken on success, and else is what there is
 * then. `share`: part of the effort for a cut that this plan may take. */
enum zb_status zb_run_plan_make(const struct zb_model *model,
                                const struct zb_session_opts *o,
                                struct zb_cost_table **costs, double share,
                                struct zb_run_plan **p_out) ZB_CHECKED;
void zb_run_plan_free(struct zb_run_plan *p);
/* ZB_EINFEASIBLE when a stage needs more than opts.device_mem. */
enum zb_status zb_run_plan_check_memory(const struct zb_run_plan *p) ZB_CHECKED;
void zb_run_plan_print(const struct zb_run_plan *p, FILE *f);
void zb_run_plan_print_memory(const struct zb_run_plan *p, FILE *f);
void zb_run_plan_print_costs(const struct zb_run_plan *p, FILE *f);
/* The same as messages of level DEBUG. */
void zb_run_plan_log(const struct zb_run_plan *p);

/* ---- pieces of planning --------------------------------------------------
 *
 * A cut is tried by setting first_layer, chunk and info, filling costs and
 * memory, and making a schedule; then another cut may be tried. */

/* run_plan.c: times of the chunks from those of the layers, or as given. */
void zb_run_fill_costs(struct zb_run_plan *p);

/* run_limits.c: memory of the chunks, and what the user limits it to. */
void zb_run_fill_memory(struct zb_run_plan *p);
/* A schedule within the memory limits. Where nothing fits into device_mem it is
 * one that needs as little as possible; zb_run_plan_check_memory() then
 * fails. */
enum zb_status zb_run_make_schedule(struct zb_run_plan *p) ZB_CHECKED;
/* Most bytes any stage needs with the schedule there is; makes the forward-only
 * schedule, counts the message buffers and lays out the devices. */
enum zb_status zb_run_device_bytes(struct zb_run_plan *p,
                                   size_t *bytes_out) ZB_CHECKED;

/* run_cut.c: decide the cut and the schedule together. */
enum zb_status zb_run_choose_cut(struct zb_run_plan *p) ZB_CHECKED;
/* What a step takes: the schedule there is, and the update after it. */
double zb_run_step_cost(const struct zb_run_plan *p);

/* cut_v.c: cut layers of these costs into the 2 * n_stages chunks of a V so
 * that the busiest stage has the least to do. The last layer is in the last
 * chunk; others may be empty. */
enum zb_status zb_run_cut_v(const double *cost, int n_layers, int n_stages,
                            int *first_out) ZB_CHECKED;

/* run_budget.c: the effort that planning a run may take, so that it is at most
 * ZB_PLAN_SHARE of its first ZB_PLAN_STEPS steps. `step_ns` 0: not known. */
#define ZB_PLAN_SHARE 0.05
#define ZB_PLAN_STEPS 100
/* Moves of the planner's search; -1: its own default, which takes less. */
int64_t zb_run_search_moves(double step_ns);
/* Schedules of n_nodes made without a search, to choose among cuts, where the
 * plan may take `share` of the effort. */
int zb_run_cut_tries(double step_ns, double share, size_t n_nodes);

/* run_auto.c: pp_style = auto. *costs is of o->recompute; where other ways are
 * compared, tables for microbatches of `max` are made for them. */
enum zb_status zb_run_plan_fastest(const struct zb_model *model,
                                   const struct zb_session_opts *o,
                                   const struct zb_bind *max, int may_run,
                                   struct zb_cost_table **costs,
                                   struct zb_run_plan **p_out) ZB_CHECKED;

enum zb_status zb_layout_init(struct zb_layout *l, const struct zb_run_plan *p,
                              int stage) ZB_CHECKED;
/* Bytes of a stage that no schedule changes: all but activations, messages. */
enum zb_status zb_layout_fixed_bytes(const struct zb_run_plan *p, int stage,
                                     size_t *bytes_out) ZB_CHECKED;
void zb_layout_release(struct zb_layout *l);

/* Most messages of a channel that its sender (from computing to sending) and
 * its receiver (from receiving to the last reader) hold at once, in the order
 * of
 * `sched`, which is p->sched or a forward-only schedule. */
int zb_count_held_by_sender(const struct zb_run_plan *p,
                            const struct zb_schedule *sched, int channel);
int zb_count_held_by_receiver(const struct zb_run_plan *p,
                              const struct zb_schedule *sched, int channel);
/* Channel 2b goes from virtual stage b to b + 1, channel 2b + 1 back. */
int zb_n_channels(const struct zb_run_plan *p);
int zb_channel_from(int channel);
int zb_channel_to(int channel);
/* The device of a stage in a column, and the coordinates of a column. */
int zb_device_of(const struct zb_run_plan *p, int stage, int column);
struct zb_column {
    int dp, sp, tp;
};
struct zb_column zb_column_of(const struct zb_run_plan *p, int column);
/* Bytes of one message of a channel. */
size_t zb_channel_bytes(const struct zb_run_plan *p, int channel);
int zb_stage_of(const struct zb_run_plan *p, int virt);
int zb_chunk_of(const struct zb_run_plan *p, int virt);
int zb_virt_of(const struct zb_run_plan *p, int stage, int chunk);

/* ---- a batch cut into microbatches --------------------------------------- */

struct zb_micro {
    int64_t first_row;
    struct zb_bind bind;
    int64_t len; /* of its sequences, without padding */
    int is_idle; /* 1: no row was left for it; it runs row 0 for nothing */
    double loss_scale[ZB_LOSS_MAX]; /* gradient of each element of a loss */
    int64_t n_counted[ZB_LOSS_MAX]; /* elements that count */
};

/* Rows of microbatch i of n when `n_rows` are cut evenly. */
int64_t zb_micro_rows(int64_t n_rows, int n, int i, int64_t *first_out);

/* Fill mb[0 .. n_dp * n_micro), those of the first replica first. ZB_ECONFIG
 * when the batch does not fit the session. */
enum zb_status zb_cut_batch(const struct zb_run_plan *p,
                            const struct zb_step_input *in, int n_micro,
                            struct zb_micro *mb) ZB_CHECKED;

/* ---- a worker ------------------------------------------------------------ */

/* State of one microbatch in one local chunk. */
struct zb_inflight {
    struct zb_msg *in, *out, *din, *dout;
    struct zb_bind bind;
};

/* ---- the norm of a step ---------------------------------------------------- */

/* Squared norms of all gradients by parameter and column, and who has entered
 * its own. Two tables take turns, so that one may still be read while the next
 * step fills the other. */
struct zb_norms {
    double *table[2];             /* [n_params * n_columns] */
    double loss_scale[2]; /* of those turns; the next one's is written by the
                             host when an update is over */
    _Atomic uint64_t n_published; /* by all devices in all steps */
    struct zb_signal moved;
};

/* What the norm of all gradients decides. */
struct zb_verdict {
    double norm;
    double clip;     /* at most 1 */
    double scale;    /* of gradients: clips and takes the loss scale away */
    int is_overflow; /* fp16: nothing is updated */
};
/* update.c: of step number `turn`, when all have entered theirs. */
struct zb_verdict zb_judge(const struct zb_session *s, uint64_t turn);

/* One group as one member sees it; group == NULL where it would be alone. */
struct zb_member {
    struct zb_coll_group *group;
    int rank;
};

/* The part of a parameter's gradient whose squared norm a device enters. */
struct zb_norm_part {
    int param;
    int64_t first, n; /* elements of the shard */
};
/* The most of them that a device has. */
int zb_most_norms(const struct zb_run_plan *p);

/* The nodes of a chunk that complete its gradients: its last W and those that
 * come right before it, which run together (a BW is alone). In the model's
 * first chunk, where nobody waits for a B, so does the last B if it comes right
 * before them. */
struct zb_tail {
    size_t first, n;
    int has_b;  /* `first` is a B, or a BW, whose W is to run with it */
    char *name; /* for reports */
};

/* What a worker shows of its memory in host memory: bytes [first, first +
 * arena_bytes) of the arena, then a room for sources of the tp and of the sp
 * group. Sizes 0 where all who would read reach its device. */
struct zb_mirror {
    char *host;
    size_t first, arena_bytes, tp_bytes, sp_bytes;
    int has_far_sharer; /* a stage that shares a parameter */
};

/* What a worker does before the first command; how long each took. */
enum zb_lap {
    ZB_LAP_OPEN, /* the device, its streams and events */
    ZB_LAP_MEMORY,
    ZB_LAP_MEET, /* channels, groups, links; waiting for the others */
    ZB_LAP_VALUES,
    ZB_N_LAPS
};

struct zb_worker {
    struct zb_session *s;
    int device, stage, column, dp, sp, tp;
    struct zb_thread thread;
    const struct zb_backend_ops *ops;
    struct zb_device *dev;
    struct zb_stream *stream;
    struct zb_stream *side; /* reduces gradients, gathers parameters */
    struct zb_stream *ring; /* passes blocks round, over links; or NULL */
    /* Read by the streams of stages that share parameters. */
    struct zb_event *grads_done, *sums_done, *opt_done;
    struct zb_event *to_side, *from_side; /* order the two streams */
    struct zb_channel **chan;             /* [n_channels] of its column */
    /* tp and sp groups; those that reduce gradients and gather parameters;
     * those of copies of parameters, [n_copy_sizes] */
    struct zb_member tp_group, sp_group, reduce, gather;
    struct zb_member *copies;
    char *arena;
    struct zb_mirror mirror;
    size_t peak_bytes; /* the most ever allocated, after each command */

    void **konst;   /* [n_consts] */
    void **value;    /* [n_params] as the graph stores them; NULL where not
                        here */
    zb_real **grad;  /* [n_uses] */
    int *mine; /* [n_mine] parameters held here, ascending */
    int n_mine;

    const struct zb_stage_nodes *nodes;
    /* Sized by the host between commands. */
    struct zb_inflight *fly; /* [n_chunk * n_fly] */
    double *loss_host;       /* [n_fly, n_losses] sums, copied back */
    struct zb_micro *own_mb; /* [n_dp * n_fly] for zb_load_batch() */
    char *staging; /* [n_fly * staging_bytes] fields that are not as the host
                      has them: parts of sequences, padded ones; or NULL */
    int *is_staged; /* [n_fly] in the step under way */
    int n_fly;
    int64_t lap_at_ns, lap_ns[ZB_N_LAPS];

    /* The step under way. */
    const struct zb_step_input *in;
    /* [n_micro] this replica's part of the batch, cut: of own_mb or the
     * host's */
    const struct zb_micro *mb;
    int n_micro;
    int is_training;
    int reduces_early; /* a bucket is reduced once its last W is done */
    int flags;
    zb_real *const *output;
    int *is_loaded;     /* [n_slots] whether the slot holds its microbatch */
    struct zb_tail *tail;          /* [n_chunk] */
    struct zb_chunk_run *tail_run; /* [most of a tail] */
    void **tail_data;              /* [most of a tail * n_data] */
    size_t at_node;     /* of the training stream; ZB_NO_OFFSET: none */
    int is_gathering;   /* parameters of the last update are not all here, */
    int n_gathered;     /* chunks that have begun a pass since */
    void **data;        /* [n_data] addresses of the current microbatch */
    struct zb_norm_part *norm; /* [n_norms] */
    int n_norms;
    double *sumsq_host; /* [n_norms] */
    int64_t t;          /* optimizer steps done */
    uint64_t turn;      /* norms published */
    int has_clipped;    /* the last step's gradients were scaled down */
    /* Post-validation: the last step's norm was not looked at by all; whether
     * this worker went ahead without it, and with which rate. */
    int is_unproven, went_ahead;
    double lr;
    int64_t step;       /* training batches begun: keys dropout */

    /* Times of the nodes of the training schedule; of the host thread, which is
     * the device's own time where a backend works at once. */
    int64_t *start_ns, *end_ns; /* [nodes] */
    int64_t began_ns;           /* when the inputs of the node were there */
    char **node_name;           /* [nodes] for reports */
    size_t fail_node;           /* for tests; ZB_NO_OFFSET: none */

    /* Of its streams by name, before the last training step. */
#define ZB_MAX_STREAM_NAMES 8
    struct zb_stream_stats noted[ZB_MAX_STREAM_NAMES];
    int n_noted;

    /* Read by the watchdog. */
    _Atomic size_t progress; /* counts nodes, waits, parameters read */
    _Atomic(const struct zb_node *) node;
    _Atomic(const char *) waiting_for; /* channel, or NULL */
};

typedef enum zb_status (*zb_command_fn)(struct zb_worker *w, void *arg);

struct zb_session {
    struct zb_run_plan *plan;
    struct zb_backend *be;
    struct zb_abort ab;
    struct zb_peers peers;
    char messages_text[400];     /* what zb_session_messages() says */
    size_t msg_host_bytes;       /* of all channels */
    struct zb_channel **chan; /* [n_columns * n_channels] */
    struct zb_groups *groups;
    struct zb_group *group;   /* of all */
    /* While workers start: where parameters come from, if from a checkpoint or
     * else from files; both NULL: they are drawn. */
    const struct zb_ckpt *resume;
    struct zb_weights *weights;
    struct zb_norms norms;
    struct zb_scaler scaler; /* initial_scale 0: the loss is not scaled. Host
                                only, between commands */
    struct zb_worker *worker; /* [n_devices] */
    int n_running;            /* threads started and not joined */
    int64_t begin_ns, planned_ns, opened_ns; /* when the start had got there */
    struct zb_barrier leave;  /* workers only, on the way out */
    /* After an abort: no link keeps a stream any more; then bumped. */
    _Atomic int has_cut_links;
    struct zb_signal cut;

    /* The command word: written by the host before bumping `go`. */
    zb_command_fn command; /* NULL: leave */
    void *arg;
    struct zb_signal go;
    struct zb_signal done;
    _Atomic uint32_t n_done;

    struct zb_micro *mb; /* [n_dp * n_mb] microbatches of the step under way */
    int n_mb;
    int is_reduced; /* gradients were reduced since they were last cleared */
    struct zb_schedule *eval; /* forward only, when not of plan->o.n_micro */
    double last_flops;
    struct zb_gpu_state *gpu; /* [n_devices] as the last time it was asked */
    int n_gpus;
    int watches_gpus; /* 1: the next command has them read */
    int has_read_gpus;
    int64_t no_reading_until_ns;

    /* With measured costs: what nodes took in the ZB_NOTE_STEPS training steps
     * behind the first, medians over microbatches. Host only. */
    double *note; /* [ZB_NOTE_STEPS * what is noted of a step] */
    double *note_room; /* [n_micro, or ZB_NOTE_STEPS if that is more] */
    int n_noted;       /* steps; -1: the first is not over */
};

/* run_costs.c: what is compared with the plan at the end. */
#define ZB_NOTE_STEPS 25
enum zb_status zb_notes_init(struct zb_session *s) ZB_CHECKED;
void zb_notes_release(struct zb_session *s);
/* After each training step. */
void zb_notes_take(struct zb_session *s);

/* launches.c: a training step begins. */
void zb_worker_note_launches(struct zb_worker *w);

/* inspect.c: from the first to the last compute node of the last step, and the
 * work of the busiest stage. */
int64_t zb_session_nodes_ns(const struct zb_session *s, int64_t *busiest_out);

/* The workers leave and are joined; what is left can only be looked at and
 * freed. For tests that ask the backend about the way out. */
void zb_session_stop(struct zb_session *s);

/* command.c: have every worker do `fn` and wait for all; wait for what they are
 * at; take the run's error, once the workers are gone. */
enum zb_status zb_session_command(struct zb_session *s, zb_command_fn fn,
                                  void *arg) ZB_CHECKED;
enum zb_status zb_session_wait(struct zb_session *s) ZB_CHECKED;
enum zb_status zb_session_end(struct zb_session *s) ZB_CHECKED;
void zb_session_join(struct zb_session *s);

/* open.c: room for the microbatches of a step; for what this batch asks for. */
enum zb_status zb_session_reserve(struct zb_session *s, int n_micro) ZB_CHECKED;
enum zb_status
zb_session_reserve_batch(struct zb_session *s,
                         const struct zb_step_input *in) ZB_CHECKED;
/* As the scaler says. */
void zb_session_set_loss_scale(struct zb_session *s);
/* open.c: host memory of a worker for steps of n_micro microbatches; by the
 * worker itself, or by the host while it waits. */
enum zb_status zb_worker_reserve(struct zb_worker *w, int n_micro) ZB_CHECKED;

/* start.c: messages of level DEBUG: how long the parts of the start took, until
 * `end_ns`, and where threads are bound. */
void zb_session_log_start(const struct zb_session *s, int64_t end_ns);

/* worker.c: the thread's function; `arg` is the worker. */
void zb_worker_main(void *arg);

/* groups.c: the groups of all axes, and what a worker sees of them. */
enum zb_status zb_groups_new(struct zb_session *s) ZB_CHECKED;
void zb_groups_free(struct zb_groups *g);
enum zb_status zb_worker_join_groups(struct zb_worker *w) ZB_CHECKED;
void zb_worker_leave_groups(struct zb_worker *w);
/* Groups with links: the step `fn` of all of a worker's, in the order that all
 * share; and their end, before streams are freed. */
enum zb_group_step { ZB_GROUP_OPEN, ZB_GROUP_JOIN, ZB_GROUP_WARM_UP };
enum zb_status zb_worker_link_groups(struct zb_worker *w,
                                     enum zb_group_step step) ZB_CHECKED;
void zb_worker_end_groups(struct zb_worker *w);
/* All groups of all devices; *n_out of them. */
struct zb_coll_group *const *zb_groups_all(const struct zb_session *s,
                                           int *n_out);
/* The group that adds the gradients of `n_sum` copies. */
struct zb_member zb_worker_copies(const struct zb_worker *w, int n_sum);
/* peers_session.c: find out how devices reach each other, and decide how
 * messages and collectives go. Needs the groups; before channels and threads.
 */
enum zb_status zb_session_find_peers(struct zb_session *s) ZB_CHECKED;
/* 1: both of two different stages hold a parameter that is trained. */
int zb_is_shared_by(const struct zb_run_plan *p, int stage, int other,
                    int param);
/* open.c: of a column's channel. */
struct zb_channel_opts zb_channel_opts_of(const struct zb_session *s,
                                          int column, int ch);

/* groups.c: each two members of a group use each other's memory. */
enum zb_status zb_groups_need_peers(struct zb_session *s) ZB_CHECKED;
/* Of which groups of a worker some members do not reach each other. */
struct zb_apart {
    int tp, sp, reduce, gather, copies;
};
struct zb_apart zb_worker_apart(const struct zb_worker *w);

/* mirror.c: decide what to show, by the host before threads start; make and
 * free the memory; how groups are told of it; of parameters that stages share,
 * enqueue to show the gradients of this one's later uses, or the sum, which is
 * that of the first; and where w reads those of `holder`. */
enum zb_status zb_worker_plan_mirrors(struct zb_worker *w) ZB_CHECKED;
size_t zb_worker_mirror_bytes(const struct zb_worker *w);
enum zb_status zb_worker_make_mirrors(struct zb_worker *w) ZB_CHECKED;
void zb_worker_free_mirrors(struct zb_worker *w);
struct zb_coll_mirror zb_worker_arena_mirror(const struct zb_worker *w);
struct zb_coll_mirror zb_worker_room(const struct zb_worker *w,
                                     enum zb_axis axis);
enum zb_status zb_worker_show_grads(struct zb_worker *w,
                                    int is_summed) ZB_CHECKED;
const zb_real *zb_seen_grad(const struct zb_worker *w,
                            const struct zb_worker *holder,
                            const zb_real *grad);
/* coll_room.c: with the cut there is, and the stage's buckets. */
enum zb_status zb_find_coll_room(const struct zb_run_plan *p, int stage,
                                 const struct zb_buckets *buckets,
                                 struct zb_coll_room *room_out) ZB_CHECKED;

/* How passes reach the groups; the argument is the worker. */
extern const struct zb_coll_ops zb_worker_coll_ops;
/* Tell the watchdog what this worker may be waiting for. */
void zb_wait_begin(struct zb_worker *w, const char *what);
void zb_wait_end(struct zb_worker *w);

/* watch.c: called by the waiting host between turns. */
#define ZB_WATCH_TURN_NS 200000000
struct zb_watch {
    uint64_t progress;
    int64_t moved_ns;
};
void zb_watch_init(struct zb_watch *watch, const struct zb_session *s);
void zb_watch_look(struct zb_watch *watch, struct zb_session *s);

/* node.c. Begin a step over `in`, already cut into mb[0..n_micro); both stay
 * valid and unchanged until its work is done. */
enum zb_status zb_worker_begin(struct zb_worker *w,
                               const struct zb_step_input *in,
                               const struct zb_micro *mb, int n_micro,
                               int is_training) ZB_CHECKED;
enum zb_status zb_worker_run_nodes(struct zb_worker *w,
                                   const struct zb_stage_nodes *nodes)
    ZB_CHECKED;

/* The worker of the same column on another stage. */
struct zb_worker *zb_worker_at(const struct zb_worker *w, int stage);

/* load.c: fields of a microbatch from the host's batch. Bytes of staging for
 * one microbatch; what is not the host's memory is put there. */
/* Output i of a microbatch, or this rank's part of it, to the caller. */
enum zb_status zb_return_output(struct zb_worker *w, const struct zb_micro *m,
                                int i, const struct zb_view *v) ZB_CHECKED;
int zb_slot_of(const struct zb_worker *w, int chunk, int mb);
size_t zb_staging_bytes(const struct zb_run_plan *p);
int zb_needs_staging(const struct zb_run_plan *p,
                     const struct zb_step_input *in);
/* The same, or because the device copies slowly from the caller's memory. */
int zb_worker_stages(const struct zb_worker *w, const struct zb_step_input *in);

/* Elements [first, first + n) of a shard, as memory of a type. */
struct zb_shard_part {
    enum zb_dtype dtype;
    void *y; /* element `first` */
    int64_t first, n;
};

/* params.c, grads.c, update.c: y = value; part of a shard = its start values,
 * of which neither stage nor layout nor type matter; *y = sum of x^2. Only
 * enqueued. */
enum zb_status zb_fill(const struct zb_backend_ops *ops,
                       struct zb_stream *stream, enum zb_dtype dtype, void *y,
                       int64_t n, double value, const char *label) ZB_CHECKED;
enum zb_status zb_fill_normal(const struct zb_backend_ops *ops,
                              struct zb_stream *stream, uint64_t seed,
                              const char *name, int64_t first, double std,
                              enum zb_dtype dtype, void *y,
                              int64_t n) ZB_CHECKED;
enum zb_status zb_fill_param(const struct zb_backend_ops *ops,
                             struct zb_stream *stream, const struct zb_graph *g,
                             int param, int tp_rank, uint64_t seed,
                             const struct zb_shard_part *to) ZB_CHECKED;
enum zb_status zb_sum_squares(const struct zb_backend_ops *ops,
                              struct zb_stream *stream, const zb_real *x,
                              int64_t n, double *y,
                              const char *label) ZB_CHECKED;

/* bytes of n elements of parameters, and element `at` of an array of them. */
size_t zb_stored_bytes(const struct zb_run_plan *p, int64_t n);
void *zb_stored_at(const struct zb_run_plan *p, void *array, int64_t at);

/* update.c: this rank's master of a parameter: elements [*first_out, ..) of it;
 * how many, 0 where it has none. */
int64_t zb_worker_master(struct zb_worker *w, int param, zb_real **at_out,
                         int64_t *first_out);
/* Enqueue dst = src in another type. */
enum zb_status zb_worker_convert(struct zb_worker *w, enum zb_dtype from,
                                 const void *src, enum zb_dtype to, void *dst,
                                 int64_t n, const char *label) ZB_CHECKED;
/* Elements between a file or a snapshot and a device at once. */
#define ZB_STAGE_ELEMS (1 << 18)

/* params.c: start values of one parameter, by the session's seed. */
enum zb_status zb_worker_draw_param(struct zb_worker *w, int param) ZB_CHECKED;

/* load_params.c: a shard from host memory becomes the value, and the master. */
enum zb_status zb_worker_put_param(struct zb_worker *w, int param,
                                   const zb_real *shard) ZB_CHECKED;

/* load_params.c: elements [first, first + n) of tp rank's shard of a parameter,
 * from the whole tensor in a file; zeros where the shard is padded. */
enum zb_status zb_read_shard(const struct zb_run_plan *p, int param,
                             int tp_rank, struct zb_weight src, int64_t first,
                             int64_t n, zb_real *out) ZB_CHECKED;
/* Copy elements [first, first + n) of tp rank's shard to where they are in the
 * whole tensor, both in host memory. */
void zb_write_shard(const struct zb_run_plan *p, int param, int tp_rank,
                    int64_t first, int64_t n, const zb_real *x, zb_real *whole);
/* Values of the parameters held here, from the session's weights, or all that
 * its checkpoint has. */
enum zb_status zb_worker_load_params(struct zb_worker *w) ZB_CHECKED;
/* Open weights and refuse those that are not the model's. With adapters those
 * of a checkpoint are the adapters', and pretrained ones need not have them; nor
 * the head of another task, which is drawn with a warning. */
enum zb_status zb_check_weights(const struct zb_graph *g, int is_resume,
                                const struct zb_weights *weights) ZB_CHECKED;
enum zb_status zb_open_weights(const struct zb_model *model, const char *path,
                               struct zb_weights **w_out) ZB_CHECKED;
/* snapshot.c: refuse a checkpoint that a session can not go on from. */
enum zb_status zb_check_resume(const struct zb_graph *g,
                               const struct zb_session_opts *o) ZB_CHECKED;
const char *zb_optim_name(const struct zb_optim *o);
/* update.c: the elements [*begin_out, *end_out) of a bucket that this rank
 * updates; its moments and masters begin with the first. */
void zb_worker_part(const struct zb_worker *w, const struct zb_bucket *b,
                    int64_t *begin_out, int64_t *end_out);

/* params.c: values of the parameters held here. */
enum zb_status zb_worker_fill_params(struct zb_worker *w) ZB_CHECKED;
enum zb_status zb_worker_fill(struct zb_worker *w, zb_real *y, int64_t n,
                              double value, const char *label) ZB_CHECKED;
/* Copy a shard out of the whole tensor, both in host memory. */
void zb_shard_from_whole(const struct zb_run_plan *p, int param, int tp_rank,
                         const zb_real *whole, zb_real *shard);

/* grads.c: later work of the side stream comes after what the compute stream
 * has; and the other way round. */
enum zb_status zb_worker_to_side(struct zb_worker *w) ZB_CHECKED;
enum zb_status zb_worker_from_side(struct zb_worker *w) ZB_CHECKED;

/* grads.c: in the order of a step. Clear; reduce the buckets of a chunk that a
 * launch of its last W completed (ZB_ALL_LAUNCHES: all of the chunk, which may
 * be -1); advance what is under way, without waiting; add the uses of shared
 * parameters (may be repeated); reduce what is left and wait: then each rank
 * has its shard (with zero_stage 0: all) of the sums. */
enum zb_status zb_worker_zero_grad(struct zb_worker *w) ZB_CHECKED;
#define ZB_ALL_LAUNCHES (-1)
enum zb_status zb_worker_reduce_chunk(struct zb_worker *w, int chunk,
                                      int launch) ZB_CHECKED;
enum zb_status zb_worker_progress(struct zb_worker *w) ZB_CHECKED;
enum zb_status zb_worker_sum_uses(struct zb_worker *w) ZB_CHECKED;
enum zb_status zb_worker_reduce_grads(struct zb_worker *w) ZB_CHECKED;
/* The gradient of a use as this worker reads it, wherever in the column it
 * lies. */
const zb_real *zb_worker_use_grad(struct zb_worker *w, int use);

/* update.c: list_norms() once, when groups and tensors are there. Clip, step,
 * and begin to gather what other ranks updated. With
 * post-validation a worker does not wait for the norm of all: it goes ahead as
 * if nothing had to be clipped, and validate(), when all are done with the
 * step, undoes and repeats what was wrong (Qi et al. 2023, "Zero Bubble
 * Pipeline Parallelism", section 4). need() waits for the parameters of the
 * local chunks before this one and of its layers up to this one, settle() until
 * all are here and nobody reads this rank's any more. */
enum zb_status zb_worker_list_norms(struct zb_worker *w) ZB_CHECKED;
enum zb_status zb_worker_update(struct zb_worker *w, double lr) ZB_CHECKED;
enum zb_status zb_worker_validate(struct zb_worker *w) ZB_CHECKED;
enum zb_status zb_worker_need(struct zb_worker *w, int chunk,
                              int layer) ZB_CHECKED;
enum zb_status zb_worker_settle(struct zb_worker *w) ZB_CHECKED;

/* Whether the loss is scaled; whether steps keep what undoing them needs. */
int zb_scales_loss(const struct zb_run_plan *p);
int zb_keeps_undo(const struct zb_run_plan *p);

/* Elements of a rank's shard of a parameter, and of the whole. */
int64_t zb_param_elems(const struct zb_run_plan *p, int param);
int64_t zb_param_whole_elems(const struct zb_run_plan *p, int param);
size_t zb_round_up(size_t bytes);

#endif
