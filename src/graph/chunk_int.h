/* SPDX-License-Identifier: MIT
 *
 * Chunk programs: what is kept to run one, and the state of making one.
 *
 * A program is three lists of instructions. While it is made, instructions work
 * on *values*: each is written once, by one instruction, and has no address.
 * Only when all three lists are complete is it known how long each value
 * lives; then mem_plan.c gives every value a space and an offset.
 */
#ifndef ZB_CHUNK_INT_H
#define ZB_CHUNK_INT_H

#include "graph/graph_int.h"

/* Which view of struct zb_emit a slot fills. */
enum zb_role {
    ZB_ROLE_IN,
    ZB_ROLE_OUT = ZB_ROLE_IN + ZB_OP_MAX_IN,
    ZB_ROLE_D_OUT = ZB_ROLE_OUT + ZB_OP_MAX_OUT,
    ZB_ROLE_D_IN,
    ZB_ROLE_ADDEND = ZB_ROLE_D_IN + ZB_OP_MAX_IN,
    ZB_ROLE_TMP
};

enum zb_where {
    ZB_AT_SPACE, /* index: enum zb_space */
    ZB_AT_DATA,  /* index: data field */
    ZB_AT_CONST,
    ZB_AT_PARAM, /* index: parameter */
    ZB_AT_GRAD,  /* index: use */
    ZB_AT_VALUE  /* index: value; only while compiling */
};

struct zb_ref {
    enum zb_where where;
    int index;
    enum zb_dtype dtype;
    size_t offset; /* bytes, in a space */
    struct zb_layout layout;
};

struct zb_slot {
    int role; /* enum zb_role + number */
    enum zb_access_mode mode;
    struct zb_ref ref;
};

struct zb_instr {
    zb_emit_fn emit;
    const struct zb_op *op; /* NULL: a copy, a sum */
    const char *label;
    double loss_coef;
    int loss; /* whose coefficient or sum */
    int accumulate, weight;
    int layer;
    size_t first_slot;
    int n_slots;
};

struct zb_list {
    struct zb_instr *instr;
    size_t n, cap;
};

/* What a pass depends on beside the chunk and the sizes of the microbatch. */
struct zb_reads {
    uint64_t spaces, data; /* bit i: space or field i */
    int has_scale;         /* the loss's */
    int has_random;
};

struct zb_chunk {
    const struct zb_graph *graph;
    struct zb_reads reads[ZB_N_PASSES];
    struct zb_chunk_info info;
    struct zb_list list[ZB_N_PASSES];
    struct zb_slot *slots;
    size_t n_slots, cap_slots;
    struct zb_ref *outputs; /* [n_outputs] in the chunk with the loss */
    int *in;                /* tensors that cross into it */
    int n_in;
    int *params, *uses, *use_done;
};

/* replay.c: fill c->reads, when all lists are there. */
void zb_chunk_find_reads(struct zb_chunk *c);
/* `emit` enqueues a pass; or the backend does it again as it was done before. */
typedef enum zb_status (*zb_pass_fn)(const struct zb_chunk *c,
                                     const struct zb_chunk_run *run);
enum zb_status zb_chunk_replay(const struct zb_chunk *c, enum zb_pass pass,
                               const struct zb_chunk_run *run,
                               zb_pass_fn emit) ZB_CHECKED;

/* exec.c: one instruction of the chunk. */
enum zb_status zb_chunk_run_instr(const struct zb_chunk *c,
                                  const struct zb_instr *instr,
                                  const struct zb_chunk_run *run) ZB_CHECKED;

/* ---- compiling ----------------------------------------------------------- */

struct zb_value {
    enum zb_dtype dtype;
    struct zb_shape shape;
    size_t bytes; /* at the largest microbatch, a multiple of 64 */
    int space;    /* enum zb_space, -1: not decided */
    size_t offset;
    int over; /* value whose memory it may take when that ends here, or -1 */
    int rep;  /* value whose memory it has: itself, or an earlier one */
    int first_pass, first_at, last_pass, last_at; /* -1: never touched */
};

/* A tensor as this chunk sees it. */
struct zb_local {
    int is_here;  /* made or received here */
    int root;     /* tensor in whose value it lies */
    int value;    /* of a root, else -1 */
    int dense;    /* value of its copy without gaps, or -1 */
    struct zb_layout layout;
    int n_grads;  /* contributions to its gradient */
    int n_left;   /* of them still to come */
    int has_acc;  /* acc: the sum so far */
    struct zb_ref acc;
    int grad;     /* value its gradient must end in, or -1 */
};

struct zb_compile {
    const struct zb_graph *g;
    struct zb_chunk *c;
    int first, end; /* layers */
    int has_loss;
    struct zb_bind max;
    enum zb_recompute recompute;
    int layer; /* of the instructions being appended */
    enum zb_status st; /* sticky: out of memory, too large */
    struct zb_value *values;
    size_t n_values, cap_values;
    struct zb_local *local; /* [n_tensors] */
};

/* Bytes of a tensor at the largest microbatch, rounded up to 64. */
size_t zb_compile_bytes(struct zb_compile *cp, enum zb_dtype dtype,
                        const struct zb_shape *shape);
int zb_compile_is_mine(const struct zb_compile *cp, const struct zb_op *op);

/* A new value; `space` and `offset` when they are given already. */
int zb_compile_value(struct zb_compile *cp, enum zb_dtype dtype,
                     const struct zb_shape *shape);
int zb_compile_value_at(struct zb_compile *cp, const struct zb_tensor *t,
                        enum zb_space space, size_t offset);
struct zb_ref zb_compile_ref(const struct zb_compile *cp, int value);

/* Append an instruction, then its slots. The pointer is valid until the next
 * instruction. */
struct zb_instr *zb_compile_instr(struct zb_compile *cp, enum zb_pass pass,
                                  zb_emit_fn emit, const struct zb_op *op,
                                  const char *label);
void zb_compile_slot(struct zb_compile *cp, enum zb_pass pass, int role,
                     enum zb_access_mode mode, const struct zb_ref *ref);
/* Scratch memory for the instruction: tmp[pass] of the op. */
void zb_compile_tmp(struct zb_compile *cp, enum zb_pass pass,
                    const struct zb_op *op);
void zb_compile_copy(struct zb_compile *cp, enum zb_pass pass,
                     const char *label, const struct zb_ref *from,
                     const struct zb_ref *to);

/* Input t as an emitter that needs `need` can take it; in F a copy is made when
 * there is none yet. */
struct zb_ref zb_compile_input(struct zb_compile *cp, enum zb_pass pass, int t,
                               enum zb_need need);

/* The steps, in order. */
void zb_compile_forward(struct zb_compile *cp);
void zb_compile_backward(struct zb_compile *cp);
void zb_compile_recompute(struct zb_compile *cp);
void zb_compile_memory(struct zb_compile *cp);

#endif
