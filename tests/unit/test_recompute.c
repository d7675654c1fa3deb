/* SPDX-License-Identifier: MIT
 *
 * What a chunk keeps and runs again with each way to recompute, against numbers
 * made by hand. That bits stay the same is in test_graph_random, test_run_bits
 * and test_model_golden.
 */
#include "config.h"

#include "zb/mem.h"
#include "zb/model.h"
#include "zbt.h"

#define HIDDEN 32
#define KV 16 /* 2 heads of 8, of keys and of values */
#define HEADS 4
#define INNER 48

/* 16 tokens: a number for each takes 64 bytes, the unit of all memory. */
#define BATCH 2
#define SEQ 8
static const struct zb_bind bind = {{BATCH, SEQ}};
#define UNIT (BATCH * SEQ * sizeof(zb_real))

static struct zb_model *open_model(const char *text)
{
    struct zb_model_opts opts = {.max_seq = SEQ};
    struct zb_model *m;

    ZBT_OK(zb_model_from_json(text, "config.json", &opts, &m));
    return m;
}

/* Layers: embed, 3 blocks, head. */
static struct zb_model *llama(void)
{
    return open_model(
        "{\"model_type\": \"llama\", \"vocab_size\": 64, \"hidden_size\": 32, "
        "\"intermediate_size\": 48, \"num_hidden_layers\": 3, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2}");
}

/* With dropout of the attention's and the feed-forward network's output. */
static struct zb_model *gpt2(void)
{
    return open_model(
        "{\"model_type\": \"gpt2\", \"vocab_size\": 64, \"n_embd\": 32, "
        "\"n_layer\": 3, \"n_head\": 4, \"n_positions\": 16, "
        "\"resid_pdrop\": 0.1, \"embd_pdrop\": 0.1, \"attn_pdrop\": 0.1}");
}

static struct zb_chunk *chunk(const struct zb_model *m, int first, int end,
                              enum zb_recompute recompute)
{
    struct zb_chunk *c;

    ZBT_OK(zb_chunk_new(zb_model_graph(m), first, end, &bind, recompute, &c));
    return c;
}

/* What is expected of two blocks as one chunk. */
struct kept {
    size_t fb, fw, bw; /* numbers per token */
    int n_again;       /* forward launches in B */
};

static void check_blocks(const struct zb_model *m, const struct kept want[3])
{
    struct zb_chunk *none = chunk(m, 1, 3, ZB_RECOMPUTE_NONE);
    struct zb_chunk_info base = zb_chunk_info(none);

    for (int i = 0; i < 3; i++) {
        struct zb_chunk *c = chunk(m, 1, 3, (enum zb_recompute)i);
        struct zb_chunk_info info = zb_chunk_info(c);

        CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_FB], want[i].fb * UNIT);
        CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_FW], want[i].fw * UNIT);
        CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_BW], want[i].bw * UNIT);
        CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_IN], HIDDEN * UNIT);
        CU_ASSERT_EQUAL(info.in_until, ZB_PASS_B);
        CU_ASSERT_EQUAL(info.n_ops[ZB_PASS_F], base.n_ops[ZB_PASS_F]);
        CU_ASSERT_EQUAL(info.n_ops[ZB_PASS_B],
                        base.n_ops[ZB_PASS_B] + want[i].n_again);
        CU_ASSERT_EQUAL(info.n_ops[ZB_PASS_W], base.n_ops[ZB_PASS_W]);
        zb_chunk_free(c);
    }
    zb_chunk_free(none);
}

/* y = x + Wo attention(rope(Wq a), rope(Wk a), Wv a), a = rms(x);
 * z = y + Wd (act(Wg b) * Wu b), b = rms(y).
 * B needs x, y and both rstd, q, k, v, the attention's lse and o, gate, up. W
 * needs a, o, b and the product s, and the gradients of q, k, v, gate, up and
 * y; that of z is DIN in the second block. The first block's x is IN. */
static void llama_blocks_keep_what_is_said(void)
{
    const size_t qkv = HIDDEN + 2 * KV;
    const size_t grads = 2 * (qkv + 2 * INNER + HIDDEN) + HIDDEN;
    const size_t abs = 2 * HIDDEN + INNER;
    const struct kept want[] = {
        {2 * (qkv + HEADS + HIDDEN + 2 * INNER + 2) + HIDDEN,
         2 * (abs + HIDDEN), grads, 0},
        /* Norms and the gated product again. To rotate q and k again, or to
         * add x, would take the same memory for what they are made of. */
        {2 * (qkv + HEADS + HIDDEN + 2 * INNER) + HIDDEN, 2 * HIDDEN,
         grads + 2 * abs, 2 * 3},
        /* All but Wd and the last sum. */
        {HIDDEN, 0, grads + 2 * (abs + HIDDEN), 2 * 13},
    };
    struct zb_model *m = llama();

    check_blocks(m, want);
    zb_model_free(m);
}

/* The same with packed q, k, v, layer norms (mean and rstd), a plain activation
 * and dropout, whose outputs nobody keeps. dY of Wo and Wd comes out of a
 * dropout. */
static void gpt2_blocks_keep_what_is_said(void)
{
    const size_t qkv = 3 * HIDDEN, inner = 4 * HIDDEN;
    const size_t grads = 2 * (qkv + inner + 2 * HIDDEN);
    const size_t abs = 2 * HIDDEN + inner;
    const struct kept want[] = {
        {2 * (qkv + HEADS + HIDDEN + inner + 4) + HIDDEN, 2 * (abs + HIDDEN),
         grads, 0},
        {2 * (qkv + HEADS + HIDDEN + inner) + HIDDEN, 2 * HIDDEN,
         grads + 2 * abs, 2 * 3},
        {HIDDEN, 0, grads + 2 * (abs + HIDDEN), 2 * 9},
    };
    struct zb_model *m = gpt2();

    check_blocks(m, want);
    zb_model_free(m);
}

/* Scratch memory of B has one block's activations, however many blocks. */
static void full_has_one_layer_in_b_at_a_time(void)
{
    struct zb_model *m = llama();
    struct zb_chunk *one = chunk(m, 1, 2, ZB_RECOMPUTE_FULL);
    struct zb_chunk *three = chunk(m, 1, 4, ZB_RECOMPUTE_FULL);

    CU_ASSERT_EQUAL(zb_chunk_info(three).bytes[ZB_SPACE_SCRATCH],
                    zb_chunk_info(one).bytes[ZB_SPACE_SCRATCH]);
    zb_chunk_free(three);
    zb_chunk_free(one);
    zb_model_free(m);
}

/* B of the loss follows its F at once; the embedding has nothing that B or W
 * needs. */
static void ends_are_not_recomputed(void)
{
    struct zb_model *m = llama();

    for (int layer = 0; layer <= 4; layer += 4) {
        struct zb_chunk *none = chunk(m, layer, layer + 1, ZB_RECOMPUTE_NONE);
        struct zb_chunk *full = chunk(m, layer, layer + 1, ZB_RECOMPUTE_FULL);

        CU_ASSERT_EQUAL(zb_chunk_signature(full), zb_chunk_signature(none));
        zb_chunk_free(full);
        zb_chunk_free(none);
    }
    zb_model_free(m);
}

static void estimate(const struct zb_model *m, enum zb_recompute recompute,
                     const struct zb_rates *rates, double ns[ZB_N_PASSES])
{
    struct zb_chunk *c = chunk(m, 1, 2, recompute);

    zb_chunk_estimate(c, &bind, rates, ns);
    zb_chunk_free(c);
}

/* Operations of full's B: those of F again, but for Wd and the last sum. */
static void estimate_has_what_runs_again(void)
{
    const struct zb_rates work = {{1, 1, 1}, 1e18, 0};
    const struct zb_rates launches = {{1e18, 1e18, 1e18}, 1e18, 7};
    const double n = BATCH * SEQ;
    struct zb_model *m = llama();
    double none[ZB_N_PASSES], full[ZB_N_PASSES];

    estimate(m, ZB_RECOMPUTE_NONE, &launches, none);
    estimate(m, ZB_RECOMPUTE_FULL, &launches, full);
    CU_ASSERT_DOUBLE_EQUAL(full[ZB_PASS_B], none[ZB_PASS_B] + 13 * 7, 1e-6);
    estimate(m, ZB_RECOMPUTE_NONE, &work, none);
    estimate(m, ZB_RECOMPUTE_FULL, &work, full);
    CU_ASSERT_DOUBLE_EQUAL(full[ZB_PASS_F], none[ZB_PASS_F], 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(full[ZB_PASS_B] - none[ZB_PASS_B],
                           none[ZB_PASS_F] - 2 * n * INNER * HIDDEN -
                               n * HIDDEN,
                           1e-3);
    CU_ASSERT_DOUBLE_EQUAL(full[ZB_PASS_W], none[ZB_PASS_W], 1e-6);
    zb_model_free(m);
}

static void failing_allocation_unwinds(void)
{
    struct zb_model *m = llama();

    for (uint64_t k = 1;; k++) {
        int64_t before = zb_mem_live();
        struct zb_chunk *c;
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = zb_chunk_new(zb_model_graph(m), 0, 5, &bind, ZB_RECOMPUTE_FULL,
                          &c);
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        if (!failed) {
            ZBT_OK(st);
            CU_ASSERT(k > 20);
            zb_chunk_free(c);
            break;
        }
        CU_ASSERT_EQUAL(st, ZB_ENOMEM);
        CU_ASSERT_EQUAL(zb_mem_live(), before);
    }
    zb_model_free(m);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(llama_blocks_keep_what_is_said),
        ZBT_CASE(gpt2_blocks_keep_what_is_said),
        ZBT_CASE(full_has_one_layer_in_b_at_a_time),
        ZBT_CASE(ends_are_not_recomputed),
        ZBT_CASE(estimate_has_what_runs_again),
        ZBT_CASE(failing_allocation_unwinds),
    };

    return zbt_run("recompute", cases, ZB_COUNT_OF(cases));
}
