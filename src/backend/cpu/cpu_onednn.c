/* SPDX-License-Identifier: MIT
 *
 * oneDNN. dnnl_sgemm is the same function in versions 2 and 3, may run in many
 * threads at once, and accumulates at no extra cost. Products of bf16 are
 * matmul primitives. Each has the caller's scratch memory: with the library's
 * own, a primitive that two threads run at once gives wrong numbers.
 */
#include "config.h"

#include <string.h>

#include "zb/mem.h"
#include "backend/cpu/cpu_onednn.h"

#if ZB_USE_ONEDNN

#include <oneapi/dnnl/dnnl.h>

#define MAX_PROGRAMS 64

void zb_onednn_sgemm(const struct zb_k_gemm *p)
{
    /* It fails only for arguments that the checks of zb_cpu_gemm exclude. */
    dnnl_sgemm(p->trans_a ? 'T' : 'N', p->trans_b ? 'T' : 'N', p->m, p->n, p->k,
               1.0f, p->a, p->lda, p->b, p->ldb, p->accumulate ? 1.0f : 0.0f,
               p->c, p->ldc);
}

int zb_onednn_has_bf16(void)
{
    const unsigned want = (unsigned)dnnl_cpu_isa_avx512_core_bf16;

    return ((unsigned)dnnl_get_effective_cpu_isa() & want) == want;
}

static enum zb_status failed(dnnl_status_t st, const char *what)
{
    if (st == dnnl_success) {
        return ZB_OK;
    }
    return zb_fail(st == dnnl_out_of_memory ? ZB_ENOMEM : ZB_EDEVICE,
                   "oneDNN: %s failed with status %d", what, (int)st);
}

/* ---- versions ------------------------------------------------------------ */

enum { SRC, WEIGHTS, BIAS, DST, SCRATCH, N_ARGS };

static const int arg_of[N_ARGS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS,
                                   DNNL_ARG_BIAS, DNNL_ARG_DST,
                                   DNNL_ARG_SCRATCHPAD};

/* A matrix: element (i, j) is at i * stride[0] + j * stride[1]. */
struct matrix {
    dnnl_dims_t dims, stride;
    dnnl_data_type_t type;
};

#if DNNL_VERSION_MAJOR >= 3

typedef dnnl_memory_desc_t desc;
typedef const_dnnl_memory_desc_t const_desc;

static dnnl_status_t desc_new(desc *d, const struct matrix *x)
{
    return dnnl_memory_desc_create_with_strides(d, 2, x->dims, x->type,
                                                x->stride);
}

static void desc_free(desc *d)
{
    if (*d != NULL) {
        dnnl_memory_desc_destroy(*d);
    }
}

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *pd,
                                 dnnl_engine_t engine, const desc d[SCRATCH],
                                 int has_bias, dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(pd, engine, d[SRC], d[WEIGHTS],
                                             has_bias ? d[BIAS] : NULL, d[DST],
                                             attr);
}

static dnnl_status_t memory_new(dnnl_memory_t *mem, const desc *d,
                                dnnl_engine_t engine)
{
    return dnnl_memory_create(mem, *d, engine, DNNL_MEMORY_NONE);
}

#else

typedef dnnl_memory_desc_t desc;
typedef const dnnl_memory_desc_t *const_desc;

static dnnl_status_t desc_new(desc *d, const struct matrix *x)
{
    return dnnl_memory_desc_init_by_strides(d, 2, x->dims, x->type, x->stride);
}

static void desc_free(desc *d)
{
    (void)d;
}

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *pd,
                                 dnnl_engine_t engine, const desc d[SCRATCH],
                                 int has_bias, dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t matmul;
    dnnl_status_t st = dnnl_matmul_desc_init(
        &matmul, &d[SRC], &d[WEIGHTS], has_bias ? &d[BIAS] : NULL, &d[DST]);

    return st != dnnl_success
               ? st
               : dnnl_primitive_desc_create(pd, &matmul, attr, engine, NULL);
}

static dnnl_status_t memory_new(dnnl_memory_t *mem, const desc *d,
                                dnnl_engine_t engine)
{
    return dnnl_memory_create(mem, d, engine, DNNL_MEMORY_NONE);
}

#endif

/* ---- programs ------------------------------------------------------------ */

/* All that a program depends on; compared byte by byte. */
struct key {
    int64_t m, n, k, lda, ldb, ldc;
    int64_t trans_a, trans_b, accumulate, c_is_real, has_bias;
};

struct zb_onednn_bf16 {
    struct key key;
    uint64_t last_use;
    dnnl_primitive_t prim; /* NULL: the library has none */
    size_t scratch_bytes;
    dnnl_memory_t (*mem)[N_ARGS]; /* [n_threads], without data */
};

struct zb_onednn {
    int n_threads;
    dnnl_engine_t engine;
    dnnl_stream_t *stream; /* [n_threads] */
    uint64_t n_uses;
    struct zb_onednn_bf16 *prog[MAX_PROGRAMS];
    int n_progs;
};

static void program_free(const struct zb_onednn *o, struct zb_onednn_bf16 *prog)
{
    for (int t = 0; prog->mem != NULL && t < o->n_threads; t++) {
        for (int i = 0; i < N_ARGS; i++) {
            if (prog->mem[t][i] != NULL) {
                dnnl_memory_destroy(prog->mem[t][i]);
            }
        }
    }
    if (prog->prim != NULL) {
        dnnl_primitive_destroy(prog->prim);
    }
    zb_free(prog->mem);
    zb_free(prog);
}

void zb_onednn_free(struct zb_onednn *o)
{
    if (o == NULL) {
        return;
    }
    for (int i = 0; i < o->n_progs; i++) {
        program_free(o, o->prog[i]);
    }
    for (int t = 0; o->stream != NULL && t < o->n_threads; t++) {
        if (o->stream[t] != NULL) {
            dnnl_stream_destroy(o->stream[t]);
        }
    }
    if (o->engine != NULL) {
        dnnl_engine_destroy(o->engine);
    }
    zb_free(o->stream);
    zb_free(o);
}

static enum zb_status open_library(struct zb_onednn *o)
{
    ZB_TRY(failed(dnnl_engine_create(&o->engine, dnnl_cpu, 0), "an engine"));
    for (int t = 0; t < o->n_threads; t++) {
        ZB_TRY(failed(dnnl_stream_create(&o->stream[t], o->engine,
                                         dnnl_stream_default_flags),
                      "a stream"));
    }
    return ZB_OK;
}

enum zb_status zb_onednn_new(int n_threads, struct zb_onednn **o_out)
{
    struct zb_onednn *o = zb_alloc(sizeof(*o));
    enum zb_status st;

    if (o == NULL) {
        return ZB_ENOMEM;
    }
    o->n_threads = n_threads;
    o->stream = zb_alloc_array((size_t)n_threads, sizeof(*o->stream));
    st = o->stream == NULL ? ZB_ENOMEM : open_library(o);
    if (st != ZB_OK) {
        zb_onednn_free(o);
        return st;
    }
    *o_out = o;
    return ZB_OK;
}

static struct key key_of(const struct zb_k_gemm *p)
{
    struct key key = {
        .m = p->m,
        .n = p->n,
        .k = p->k,
        .lda = p->lda,
        .ldb = p->ldb,
        .ldc = p->ldc,
        .trans_a = p->trans_a != 0,
        .trans_b = p->trans_b != 0,
        .accumulate = p->accumulate != 0,
        .c_is_real = p->c_dtype == ZB_DTYPE_REAL,
        .has_bias = p->bias != NULL,
    };

    return key;
}

static void make_matrices(const struct key *k, struct matrix x[SCRATCH])
{
    x[SRC] = (struct matrix){{k->m, k->k},
                             {k->trans_a ? 1 : k->lda, k->trans_a ? k->lda : 1},
                             dnnl_bf16};
    x[WEIGHTS] =
        (struct matrix){{k->k, k->n},
                        {k->trans_b ? 1 : k->ldb, k->trans_b ? k->ldb : 1},
                        dnnl_bf16};
    x[BIAS] = (struct matrix){{1, k->n}, {k->n, 1}, dnnl_bf16};
    x[DST] = (struct matrix){
        {k->m, k->n}, {k->ldc, 1}, k->c_is_real ? dnnl_f32 : dnnl_bf16};
}

static dnnl_status_t make_attr(const struct key *k, dnnl_primitive_attr_t *attr)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t st = dnnl_primitive_attr_create(attr);

    if (st == dnnl_success) {
        st = dnnl_primitive_attr_set_scratchpad_mode(*attr,
                                                     dnnl_scratchpad_mode_user);
    }
    if (st != dnnl_success || !k->accumulate) {
        return st;
    }
    st = dnnl_post_ops_create(&ops);
    if (st == dnnl_success) {
        st = dnnl_post_ops_append_sum(ops, 1.0f);
    }
    if (st == dnnl_success) {
        st = dnnl_primitive_attr_set_post_ops(*attr, ops);
    }
    if (ops != NULL) {
        dnnl_post_ops_destroy(ops);
    }
    return st;
}

static dnnl_status_t make_memory(const struct zb_onednn *o,
                                 struct zb_onednn_bf16 *prog,
                                 dnnl_primitive_desc_t pd,
                                 const desc d[SCRATCH])
{
    const_desc scratch =
        dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);

    prog->scratch_bytes = dnnl_memory_desc_get_size(scratch);
    for (int t = 0; t < o->n_threads; t++) {
        dnnl_status_t st = dnnl_memory_create(&prog->mem[t][SCRATCH], scratch,
                                              o->engine, DNNL_MEMORY_NONE);

        for (int i = 0; st == dnnl_success && i < SCRATCH; i++) {
            st = memory_new(&prog->mem[t][i], &d[i], o->engine);
        }
        if (st != dnnl_success) {
            return st;
        }
    }
    return dnnl_success;
}

/* dnnl_unimplemented is an answer: prog->prim stays NULL. */
static dnnl_status_t compile(const struct zb_onednn *o,
                             struct zb_onednn_bf16 *prog, desc d[SCRATCH])
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    struct matrix x[SCRATCH];
    dnnl_status_t st = make_attr(&prog->key, &attr);

    make_matrices(&prog->key, x);
    for (int i = 0; st == dnnl_success && i < SCRATCH; i++) {
        st = desc_new(&d[i], &x[i]);
    }
    if (st == dnnl_success) {
        st = matmul_desc(&pd, o->engine, d, prog->key.has_bias != 0, attr);
    }
    if (st == dnnl_success) {
        st = make_memory(o, prog, pd, d);
    }
    if (st == dnnl_success) {
        st = dnnl_primitive_create(&prog->prim, pd);
    }
    if (pd != NULL) {
        dnnl_primitive_desc_destroy(pd);
    }
    if (attr != NULL) {
        dnnl_primitive_attr_destroy(attr);
    }
    return st == dnnl_unimplemented ? dnnl_success : st;
}

static enum zb_status program_new(const struct zb_onednn *o,
                                  const struct key *key,
                                  struct zb_onednn_bf16 **prog_out)
{
    struct zb_onednn_bf16 *prog = zb_alloc(sizeof(*prog));
    desc d[SCRATCH];
    dnnl_status_t st;

    memset(d, 0, sizeof(d));
    if (prog == NULL) {
        return ZB_ENOMEM;
    }
    prog->key = *key;
    prog->mem = zb_alloc_array((size_t)o->n_threads, sizeof(*prog->mem));
    if (prog->mem == NULL) {
        program_free(o, prog);
        return ZB_ENOMEM;
    }
    st = compile(o, prog, d);
    for (int i = 0; i < SCRATCH; i++) {
        desc_free(&d[i]);
    }
    if (st != dnnl_success) {
        program_free(o, prog);
        return failed(st, "a product of bf16");
    }
    *prog_out = prog;
    return ZB_OK;
}

/* Where the program for `key` is, or belongs: a free place, or that of the one
 * whose last use is longest ago. */
static int find_program(const struct zb_onednn *o, const struct key *key)
{
    int oldest = 0;

    for (int i = 0; i < o->n_progs; i++) {
        if (memcmp(&o->prog[i]->key, key, sizeof(*key)) == 0) {
            return i;
        }
        if (o->prog[i]->last_use < o->prog[oldest]->last_use) {
            oldest = i;
        }
    }
    return o->n_progs < MAX_PROGRAMS ? o->n_progs : oldest;
}

enum zb_status zb_onednn_bf16(struct zb_onednn *o, const struct zb_k_gemm *p,
                              struct zb_onednn_bf16 **prog_out)
{
    struct key key = key_of(p);
    int i = find_program(o, &key);
    struct zb_onednn_bf16 *prog = i < o->n_progs ? o->prog[i] : NULL;

    if (prog == NULL || memcmp(&prog->key, &key, sizeof(key)) != 0) {
        struct zb_onednn_bf16 *old = prog;

        ZB_TRY(program_new(o, &key, &prog));
        if (old != NULL) {
            program_free(o, old);
        } else {
            o->n_progs++;
        }
        o->prog[i] = prog;
    }
    prog->last_use = ++o->n_uses;
    *prog_out = prog->prim != NULL ? prog : NULL;
    return ZB_OK;
}

size_t zb_onednn_scratch_bytes(const struct zb_onednn_bf16 *prog)
{
    return prog->scratch_bytes;
}

enum zb_status zb_onednn_run(struct zb_onednn *o, struct zb_onednn_bf16 *prog,
                             const struct zb_k_gemm *p, int thread,
                             void *scratch)
{
    /* The library's interface has no const; it reads its inputs only. */
    void *ptr[N_ARGS] = {(void *)(uintptr_t)p->a, (void *)(uintptr_t)p->b,
                         (void *)(uintptr_t)p->bias, p->c, scratch};
    dnnl_exec_arg_t args[N_ARGS];
    int n = 0;

    for (int i = 0; i < N_ARGS; i++) {
        if (i == BIAS && p->bias == NULL) {
            continue;
        }
        ZB_TRY(failed(dnnl_memory_set_data_handle(prog->mem[thread][i], ptr[i]),
                      "an argument"));
        args[n].arg = arg_of[i];
        args[n++].memory = prog->mem[thread][i];
    }
    return failed(
        dnnl_primitive_execute(prog->prim, o->stream[thread], n, args),
        "a product of bf16");
}

#else

int zb_onednn_has_bf16(void)
{
    return 0;
}

void zb_onednn_free(struct zb_onednn *o)
{
    ZB_BUG_IF(o != NULL, "oneDNN is not in this build");
}

#endif
