/* SPDX-License-Identifier: MIT
 *
 * Checkpoints of a run: folders DIR/step-N that Hugging Face's transformers
 * load, with what it takes to go on beside the weights.
 *
 *     step-120/config.json
 *     step-120/model.safetensors          weights, in the type of the run; or
 *                                         several files with an index
 *     step-120/tokenizer.json             that of the data, if it had one
 *     step-120/state/optim.safetensors    m.NAME, v.NAME, master.NAME: moments,
 *                                         and fp32 masters of 16-bit weights
 *     step-120/state/state.json           counters, and a checksum of each file
 *
 * Of a run that trains adapters (LoRA) the first two are adapter_config.json
 * and adapter_model.safetensors, which PEFT loads; the weights beside them are
 * those that the run began with.
 *
 * All tensors are whole and have the names of the model: any layout can go on
 * from them. Random numbers depend on the seed and on counters alone, which
 * state.json has.
 *
 * A checkpoint is there whole or not at all: it is written to a folder of
 * another name, synchronised, and renamed; only then older ones are removed.
 *
 *     struct zb_saver *saver;              // writes on a thread of its own
 *     ZB_TRY(zb_saver_new(&opts, &saver));
 *     ZB_TRY(zb_session_snapshot(s, &shot));
 *     shot->state.step = step;
 *     ZB_TRY(zb_saver_begin(saver, shot));          // takes it
 *     ... train on ...
 *     st = zb_saver_wait(saver);
 *
 *     struct zb_ckpt *c;
 *     ZB_TRY(zb_ckpt_open_newest(dir, &c));         // NULL: there is none
 *     o.resume = c; ... zb_session_new(...) ...
 *     zb_ckpt_close(c);
 *
 * Threads: an opened checkpoint may be read by any number of threads; a saver
 * belongs to one thread at a time, and only it and its writer touch its folder.
 */
#ifndef ZB_CHECKPOINT_H
#define ZB_CHECKPOINT_H

#include "zb/tensor.h"
#include "zb/weights.h"

/* What a checkpoint has beside tensors. */
struct zb_ckpt_state {
    int64_t step;       /* training steps done */
    int64_t n_samples;  /* places of the order of the data that were used */
    uint64_t seed;      /* start values, order of the data, dropout */
    int64_t n_batches;  /* training batches begun: the counter of dropout */
    int64_t n_updates;  /* steps that the optimizer counts */
    char optimizer[16]; /* "adamw", "sgd" */
    int n_moments;      /* of each trained parameter: 0, m, or m and v */
    int has_scale;      /* 1: the loss is scaled (fp16), with these */
    double scale;
    int64_t n_good, n_overflows;
};

/* What state/optim.safetensors has of a parameter: named by a prefix and its
 * name. */
enum zb_ckpt_part { ZB_CKPT_M, ZB_CKPT_V, ZB_CKPT_MASTER };
extern const char *const zb_ckpt_prefix[]; /* [enum zb_ckpt_part] */

/* A parameter, whole, by its name in the model. */
struct zb_ckpt_param {
    char *name;
    int n_dims;
    int64_t dims[ZB_ST_MAX_DIMS];
    int64_t n;          /* elements */
    int is_trained;     /* 0: it has no moments and no master */
    zb_real *value;     /* the master, where there is one */
    zb_real *moment[2]; /* NULL where there is none */
};

/* All of a checkpoint, in host memory, before it is written. */
struct zb_ckpt_shot {
    struct zb_ckpt_state state;
    char *config_json; /* written with torch_dtype as `storage` says */
    char *adapter_json; /* adapter_config.json instead, where the parameters are
                           adapters; else NULL */
    enum zb_dtype storage; /* of the weights; not zb_real: there are masters */
    size_t n;
    struct zb_ckpt_param *param;
};
void zb_ckpt_shot_free(struct zb_ckpt_shot *c); /* NULL is legal */

/* ---- writing ------------------------------------------------------------- */

struct zb_ckpt_opts {
    const char *dir;        /* made when missing */
    int keep;               /* the newest that stay; 0: all */
    int64_t max_file_bytes; /* of weights in one file, where a tensor fits; 0:
                               no limit */
    const char *tokenizer_json; /* text of a tokenizer.json; NULL: there is none */
};

/* Write DIR/step-N for c->state.step, instead of one of that name, and remove
 * older ones. ZB_EIO names the file and the reason (a full disk); what was in
 * DIR before is still there then. */
enum zb_status zb_ckpt_write(const struct zb_ckpt_opts *o,
                             const struct zb_ckpt_shot *c) ZB_CHECKED;

/* Remove what a run that was killed left half-written in a folder that no other
 * run writes to. A missing folder is legal. */
enum zb_status zb_ckpt_clean(const char *dir) ZB_CHECKED;

/* The same behind the caller: one writer thread, one checkpoint at a time. */
struct zb_saver;
enum zb_status zb_saver_new(const struct zb_ckpt_opts *o,
                            struct zb_saver **s_out) ZB_CHECKED;
/* Begin to write `c`, which it takes in any case. zb_saver_wait() comes
 * between two of them. */
enum zb_status zb_saver_begin(struct zb_saver *s,
                              struct zb_ckpt_shot *c) ZB_CHECKED;
/* 1 when nothing is being written (any more). Never waits. */
int zb_saver_is_done(const struct zb_saver *s);
/* Until the last one is written; what came of it, with its text, once: ZB_OK
 * when nothing was begun since. */
enum zb_status zb_saver_wait(struct zb_saver *s) ZB_CHECKED;
/* Waits. NULL is legal. */
void zb_saver_free(struct zb_saver *s);

/* ---- reading ------------------------------------------------------------- */

/* An open checkpoint: read the fields, change none. */
struct zb_ckpt {
    char *path;
    struct zb_ckpt_state state;
    struct zb_weights *model;
    struct zb_weights *optim;
};

/* Open the checkpoint in this very folder and compare every file with its
 * checksum. ZB_ECONFIG or ZB_EIO: it is not one, or not what was written; the
 * text names the file. */
enum zb_status zb_ckpt_open(const char *path,
                            struct zb_ckpt **c_out) ZB_CHECKED;
/* A part of a parameter; .tensor is NULL where there is none. */
struct zb_weight zb_ckpt_find(const struct zb_ckpt *c, enum zb_ckpt_part part,
                              const char *name);
void zb_ckpt_close(struct zb_ckpt *c); /* NULL is legal */

/* Whether a folder is a checkpoint itself, as it looks. */
int zb_ckpt_is_one(const char *path);

/* The newest good one of DIR/step-N; damaged ones are named in warnings. NULL
 * when the folder has none at all; ZB_ECONFIG when all are damaged. */
enum zb_status zb_ckpt_open_newest(const char *dir,
                                   struct zb_ckpt **c_out) ZB_CHECKED;

/* The steps that DIR has checkpoints of, damaged or not, ascending, to be
 * freed; none when there is no such folder. */
enum zb_status zb_ckpt_list(const char *dir, int64_t **step_out,
                            size_t *n_out) ZB_CHECKED;

/* Rename DIR/step-N to DIR/step-N.damaged (or .damaged-2, ...). */
enum zb_status zb_ckpt_set_aside(const char *dir, int64_t step) ZB_CHECKED;

#endif
