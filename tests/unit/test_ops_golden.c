/* SPDX-License-Identifier: MIT
 *
 * Every backend against PyTorch: tests/golden/ops.safetensors and optim.txt,
 * which tests/golden/README.md describes.
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops_rig.h"
#include "zb/ckpt.h"

static const char *backend;
static struct zb_st_file *golden;

/* Of the values of one tensor (the inputs are exact in a float). */
#define TOL OPS_TOL(2e-6, 1e-12)

static double *values(const char *name, int64_t *n_out)
{
    const struct zb_st_tensor *t = zb_st_find(golden, name);
    double *x;

    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    x = ops_zeros(t->n_elems);
    ZBT_OK(zb_st_read_f64(golden, t, x, t->n_elems));
    *n_out = t->n_elems;
    return x;
}

static zb_real *input(const char *name)
{
    int64_t n;
    double *x = values(name, &n);

    return ops_reals(n, x);
}

static int32_t *input_i32(const char *name)
{
    const struct zb_st_tensor *t = zb_st_find(golden, name);
    int32_t x[64];

    CU_ASSERT_FATAL(t != NULL && t->n_elems <= 64);
    ZBT_OK(zb_st_read_i32(golden, t, x, t->n_elems));
    return ops_bytes((size_t)t->n_elems * sizeof(*x), x);
}

static zb_real *zeros(int64_t n)
{
    return ops_reals(n, ops_zeros(n));
}

static void expect(const char *name, const zb_real *buf)
{
    int64_t n;
    double *want = values(name, &n);

    ops_expect(name, buf, n, want, TOL);
}

static void start(void)
{
    ops_open(backend, 1);
    ZBT_OK(zb_st_open(zbt_source_path("tests/golden/ops.safetensors"),
                      &golden));
}

static void finish(void)
{
    zb_st_close(golden);
    ops_close();
}

static void layernorm_agrees_with_pytorch(void)
{
    struct zb_k_layernorm_fwd f = {.rows = 5, .cols = 24, .eps = 1e-5};
    struct zb_k_layernorm_bwd b = {.rows = 5, .cols = 24};
    struct zb_k_layernorm_bwd_w w = {.rows = 5, .cols = 24};

    start();
    w.x = b.x = f.x = input("layernorm.x");
    b.gamma = f.gamma = input("layernorm.weight");
    f.beta = input("layernorm.bias");
    w.dy = b.dy = input("layernorm.dy");
    f.y = ops_blank(120);
    w.mean = b.mean = f.mean = ops_blank(5);
    w.rstd = b.rstd = f.rstd = ops_blank(5);
    b.dx = ops_blank(120);
    w.dgamma = zeros(24);
    w.dbeta = zeros(24);
    ops_run(ZB_K_layernorm_fwd, &f, OPS_OUT(f.y, f.mean, f.rstd),
            OPS_IN(f.x, f.gamma, f.beta));
    ops_run(ZB_K_layernorm_bwd, &b, OPS_OUT(b.dx),
            OPS_IN(b.dy, b.x, b.gamma, b.mean, b.rstd));
    ops_run(ZB_K_layernorm_bwd_w, &w, OPS_OUT(w.dgamma, w.dbeta),
            OPS_IN(w.dy, w.x, w.mean, w.rstd));
    expect("layernorm.y", f.y);
    expect("layernorm.dx", b.dx);
    expect("layernorm.dweight", w.dgamma);
    expect("layernorm.dbias", w.dbeta);
    finish();
}

static void rmsnorm_agrees_with_pytorch(void)
{
    struct zb_k_rmsnorm_fwd f = {.rows = 5, .cols = 24, .eps = 1e-6};
    struct zb_k_rmsnorm_bwd b = {.rows = 5, .cols = 24};
    struct zb_k_rmsnorm_bwd_w w = {.rows = 5, .cols = 24};

    start();
    w.x = b.x = f.x = input("rmsnorm.x");
    b.gamma = f.gamma = input("rmsnorm.weight");
    w.dy = b.dy = input("rmsnorm.dy");
    f.y = ops_blank(120);
    w.rstd = b.rstd = f.rstd = ops_blank(5);
    b.dx = ops_blank(120);
    w.dgamma = zeros(24);
    ops_run(ZB_K_rmsnorm_fwd, &f, OPS_OUT(f.y, f.rstd), OPS_IN(f.x, f.gamma));
    ops_run(ZB_K_rmsnorm_bwd, &b, OPS_OUT(b.dx),
            OPS_IN(b.dy, b.x, b.gamma, b.rstd));
    ops_run(ZB_K_rmsnorm_bwd_w, &w, OPS_OUT(w.dgamma),
            OPS_IN(w.dy, w.x, w.rstd));
    expect("rmsnorm.y", f.y);
    expect("rmsnorm.dx", b.dx);
    expect("rmsnorm.dweight", w.dgamma);
    finish();
}

static void gelu_new_agrees_with_transformers(void)
{
    struct zb_k_act_fwd f = {.n = 120, .act = ZB_ACT_GELU_TANH};
    struct zb_k_act_bwd b = {.n = 120, .act = ZB_ACT_GELU_TANH};

    start();
    b.x = f.x = input("gelu_new.x");
    b.dy = input("gelu_new.dy");
    f.y = ops_blank(120);
    b.dx = ops_blank(120);
    ops_run(ZB_K_act_fwd, &f, OPS_OUT(f.y), OPS_IN(f.x));
    ops_run(ZB_K_act_bwd, &b, OPS_OUT(b.dx), OPS_IN(b.x, b.dy));
    expect("gelu_new.y", f.y);
    expect("gelu_new.dx", b.dx);
    finish();
}

static void silu_gate_agrees_with_pytorch(void)
{
    struct zb_k_gated_fwd f = {.rows = 6, .cols = 20, .ld_gate = 20,
                               .ld_up = 20, .ld_y = 20, .act = ZB_ACT_SILU};
    struct zb_k_gated_bwd b = {.rows = 6, .cols = 20, .ld_gate = 20,
                               .ld_up = 20, .ld_dy = 20, .ld_dgate = 20,
                               .ld_dup = 20, .act = ZB_ACT_SILU};

    start();
    b.gate = f.gate = input("silu_mul.gate");
    b.up = f.up = input("silu_mul.up");
    b.dy = input("silu_mul.dy");
    f.y = ops_blank(120);
    b.dgate = ops_blank(120);
    b.dup = ops_blank(120);
    ops_run(ZB_K_gated_fwd, &f, OPS_OUT(f.y), OPS_IN(f.gate, f.up));
    ops_run(ZB_K_gated_bwd, &b, OPS_OUT(b.dgate, b.dup),
            OPS_IN(b.dy, b.gate, b.up));
    expect("silu_mul.y", f.y);
    expect("silu_mul.dgate", b.dgate);
    expect("silu_mul.dup", b.dup);
    finish();
}

/* The tables of transformers hold each angle twice. */
static zb_real *half_table(const char *name)
{
    int64_t n;
    double *x = values(name, &n);

    for (int64_t i = 0; i < n / 2; i++) {
        x[i] = x[i / 4 * 8 + i % 4];
    }
    return ops_reals(n / 2, x);
}

static void check_rope(const char *which, int64_t heads)
{
    struct zb_k_rope p = {.batch = 2, .seq = 7, .heads = heads, .head_dim = 8,
                          .n_pos = 7,
                          .half = 4, .x_row = heads * 8, .x_head = 8,
                          .y_row = heads * 8, .y_head = 8};
    char name[64];

    p.cos = half_table("rope_half.cos");
    p.sin = half_table("rope_half.sin");
    p.y = ops_blank(14 * heads * 8);
    snprintf(name, sizeof(name), "rope_half.%s", which);
    p.x = input(name);
    ops_run(ZB_K_rope, &p, OPS_OUT(p.y), OPS_IN(p.x, p.cos, p.sin));
    snprintf(name, sizeof(name), "rope_half.%s_out", which);
    expect(name, p.y);
    p.inverse = 1;
    snprintf(name, sizeof(name), "rope_half.d%s_out", which);
    p.x = input(name);
    ops_run(ZB_K_rope, &p, OPS_OUT(p.y), OPS_IN(p.x, p.cos, p.sin));
    snprintf(name, sizeof(name), "rope_half.d%s", which);
    expect(name, p.y);
}

static void rope_agrees_with_transformers(void)
{
    start();
    check_rope("q", 4);
    check_rope("k", 2);
    finish();
}

static const char *named(const char *op, const char *tensor)
{
    static char name[64];

    snprintf(name, sizeof(name), "%s.%s", op, tensor);
    return name;
}

static void check_attention(const char *op, int has_mask)
{
    struct zb_k_attention_fwd f = {
        .batch = 2, .seq = 13, .kv_seq = 13, .whole = 13, .q_heads = 4,
        .kv_heads = 2, .head_dim = 8, .causal = 1, .scale = 1 / sqrt(8),
        .q_batch = 13 * 32, .k_batch = 13 * 16, .v_batch = 13 * 16,
        .q_row = 32, .k_row = 16, .v_row = 16, .q_head = 8, .k_head = 8,
        .v_head = 8, .out_batch = 13 * 32, .lse_row = 13};
    struct zb_k_attention_bwd b = {.dq_batch = 13 * 32, .dk_batch = 13 * 16,
                                   .dv_batch = 13 * 16,
                                   .dq_row = 32, .dk_row = 16, .dv_row = 16,
                                   .dq_head = 8, .dk_head = 8, .dv_head = 8};

    f.q = input(named(op, "q"));
    f.k = input(named(op, "k"));
    f.v = input(named(op, "v"));
    f.key_mask = has_mask ? input_i32(named(op, "mask")) : NULL;
    f.out = ops_blank(2 * 13 * 32);
    f.lse = ops_blank(2 * 13 * 4);
    b.fwd = f;
    b.dout = input(named(op, "dy"));
    b.dq = ops_blank(2 * 13 * 32);
    b.dk = ops_blank(2 * 13 * 16);
    b.dv = ops_blank(2 * 13 * 16);
    ops_run(ZB_K_attention_fwd, &f, OPS_OUT(f.out, f.lse),
            OPS_IN(f.q, f.k, f.v, f.key_mask));
    ops_run(ZB_K_attention_bwd, &b, OPS_OUT(b.dq, b.dk, b.dv),
            OPS_IN(f.q, f.k, f.v, f.out, f.lse, b.dout, f.key_mask));
    expect(named(op, "y"), f.out);
    expect(named(op, "dq"), b.dq);
    expect(named(op, "dk"), b.dk);
    expect(named(op, "dv"), b.dv);
}

static void attention_agrees_with_pytorch(void)
{
    start();
    check_attention("attention", 0);
    check_attention("attention_mask", 1);
    finish();
}

static void xent_agrees_with_pytorch(void)
{
    struct zb_k_xent_fwd f = {.rows = 6, .cols = 11, .ld = 11};
    struct zb_k_xent_bwd b = {
        .rows = 6, .cols = 11, .ld = 11, .ld_d = 11, .n_class = 11};
    int32_t label[6];
    double loss[6], *want, sum = 0;
    int64_t n;
    int n_valid = 0;

    start();
    b.logits = f.logits = input("xent.logits");
    b.label = f.label = input_i32("xent.labels");
    f.loss = ops_blank(6);
    b.lse = f.lse = ops_blank(6);
    b.dlogits = ops_blank(66);
    ops_get_bytes(f.label, sizeof(label), label);
    for (int i = 0; i < 6; i++) {
        n_valid += label[i] != -100;
    }
    b.scale = 1.0 / n_valid;
    ops_run(ZB_K_xent_fwd, &f, OPS_OUT(f.loss, f.lse),
            OPS_IN(f.logits, f.label));
    ops_run(ZB_K_xent_bwd, &b, OPS_OUT(b.dlogits),
            OPS_IN(b.logits, b.lse, b.label));
    ops_get(f.loss, 6, loss);
    for (int i = 0; i < 6; i++) {
        sum += loss[i] / n_valid;
    }
    want = values("xent.loss", &n);
    CU_ASSERT_DOUBLE_EQUAL(sum, want[0], TOL * want[0]);
    expect("xent.dlogits", b.dlogits);
    finish();
}

static void embedding_agrees_with_pytorch(void)
{
    struct zb_k_embedding_fwd f = {
        .rows = 12, .cols = 5, .n_ids = 7, .whole = 7, .ldy = 5};
    struct zb_k_embedding_bwd_w w = {.rows = 12,
                                     .cols = 5,
                                     .n_ids = 7,
                                     .whole = 7,
                                     .lddy = 5,
                                     .padding_idx = 3};

    start();
    w.id = f.id = input_i32("embedding.ids");
    f.table = input("embedding.table");
    f.y = ops_blank(60);
    w.dy = input("embedding.dy");
    w.dtable = zeros(35);
    ops_run(ZB_K_embedding_fwd, &f, OPS_OUT(f.y), OPS_IN(f.id, f.table));
    ops_run(ZB_K_embedding_bwd_w, &w, OPS_OUT(w.dtable), OPS_IN(w.id, w.dy));
    expect("embedding.y", f.y);
    expect("embedding.dtable", w.dtable);
    finish();
}

/* ---- optim.txt ---------------------------------------------------------- */

#define N_PARAM 8

struct trajectory {
    struct zb_k_adamw adamw;
    struct zb_k_sgd sgd;
    int is_sgd, n_steps;
    zb_real *param, *grad, *state[2];
};

static double key_value(const char *line, const char *key)
{
    const char *at = strstr(line, key);

    return at == NULL ? 0 : strtod(at + strlen(key), NULL);
}

static void begin_trajectory(struct trajectory *t, const char *line)
{
    t->is_sgd = strstr(line, " sgd") != NULL;
    t->adamw = (struct zb_k_adamw){
        .n = N_PARAM, .lr = key_value(line, " lr "),
        .beta1 = key_value(line, " beta1 "),
        .beta2 = key_value(line, " beta2 "),
        .eps = key_value(line, " eps "), .grad_scale = 1,
        .weight_decay = key_value(line, " weight_decay ")};
    t->sgd = (struct zb_k_sgd){.n = N_PARAM, .lr = key_value(line, " lr "),
                               .momentum = key_value(line, " momentum "),
                               .grad_scale = 1};
}

static void read_numbers(const char *line, double *x)
{
    char *at = strchr(line, ' ') + 1;

    strtol(at, &at, 10);
    for (int i = 0; i < N_PARAM; i++) {
        x[i] = strtod(at, &at);
    }
}

static void update(struct trajectory *t)
{
    t->adamw.t = t->sgd.t = ++t->n_steps;
    t->adamw.grad = t->sgd.grad = t->grad;
    t->adamw.param = t->sgd.param = t->param;
    t->adamw.m = t->sgd.buf = t->state[0];
    t->adamw.v = t->state[1];
    ops_run(t->is_sgd ? ZB_K_sgd : ZB_K_adamw,
            t->is_sgd ? (void *)&t->sgd : (void *)&t->adamw,
            OPS_OUT(t->param, t->state[0], t->state[1]), OPS_IN(t->grad));
}

static void follow_line(struct trajectory *t, const char *line)
{
    double x[N_PARAM];

    if (strncmp(line, "optimizer ", 10) == 0) {
        begin_trajectory(t, line);
    } else if (strncmp(line, "w 0 ", 4) == 0) {
        read_numbers(line, x);
        t->n_steps = 0;
        t->param = ops_reals(N_PARAM, x);
        t->grad = ops_blank(N_PARAM);
        t->state[0] = zeros(N_PARAM);
        t->state[1] = zeros(N_PARAM);
    } else if (strncmp(line, "grad ", 5) == 0) {
        read_numbers(line, x);
        ops_set(t->grad, N_PARAM, x);
        update(t);
    } else if (strncmp(line, "w ", 2) == 0) {
        read_numbers(line, x);
        ops_expect(line, t->param, N_PARAM, x, OPS_TOL(1e-6, 1e-13));
    }
}

static void optimizers_agree_with_pytorch(void)
{
    FILE *file = fopen(zbt_source_path("tests/golden/optim.txt"), "r");
    struct trajectory t;
    char line[1024];
    int n_lines = 0;

    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    memset(&t, 0, sizeof(t));
    ops_open(backend, 1);
    while (fgets(line, sizeof(line), file) != NULL) {
        follow_line(&t, line);
        n_lines++;
    }
    CU_ASSERT(n_lines > 50);
    ops_close();
    fclose(file);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(layernorm_agrees_with_pytorch),
        ZBT_CASE(rmsnorm_agrees_with_pytorch),
        ZBT_CASE(gelu_new_agrees_with_transformers),
        ZBT_CASE(silu_gate_agrees_with_pytorch),
        ZBT_CASE(rope_agrees_with_transformers),
        ZBT_CASE(attention_agrees_with_pytorch),
        ZBT_CASE(xent_agrees_with_pytorch),
        ZBT_CASE(embedding_agrees_with_pytorch),
        ZBT_CASE(optimizers_agree_with_pytorch),
    };
    int bad = 0;

    for (size_t i = 0; (backend = ops_backend(i)) != NULL; i++) {
        printf("backend %s\n", backend);
        bad |= zbt_run("ops_golden", cases, ZB_COUNT_OF(cases));
    }
    return bad;
}
