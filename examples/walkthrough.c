/* SPDX-License-Identifier: MIT
 *
 * Step by step through what the ColossalAI page on zero-bubble pipelines does,
 * with the names it uses: an 8-layer Llama without head (4 heads of size 4) on
 * 4 devices, costs and memory of the schedule from h, a and s, the V schedule,
 * inputs_embeds as data (8 x 4 tokens in 4 microbatches), the mean of the last
 * hidden state as criterion, Adam with lr 1e-3, 10 steps, loss and outputs
 * returned.
 *
 *     examples/walkthrough tests/golden/walkthrough.safetensors
 *
 * The file holds start weights, inputs and the losses of the same run in
 * PyTorch; the program fails when a loss differs by more than 1e-5.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/ckpt.h"
#include "zb/model.h"
#include "zb/plan.h"
#include "zb/run.h"

#define NUM_BATCH 8
#define NUM_TOK_PER_BATCH 4
#define NUM_LAYERS 8
#define HIDDEN_SIZE_PER_HEAD 4
#define NUM_HEADS 4
#define HIDDEN (HIDDEN_SIZE_PER_HEAD * NUM_HEADS)
#define NUM_MICROBATCHES 4
#define PP_SIZE 4
#define STEPS 10
#define ELEMS (NUM_BATCH * NUM_TOK_PER_BATCH * HIDDEN)

/* Step 3 of the page: lambda x, y: x.last_hidden_state.mean(). */
static void mean_of_hidden(struct zb_graph *g, int hidden, void *arg)
{
    (void)arg;
    zb_g_loss(g, hidden, ZB_G_NONE);
}

static enum zb_status make_model(struct zb_model **m_out)
{
    const struct zb_model_key key[] = {
        {"model_type", "llama", 0},      {"hidden_size", "16", 0},
        {"intermediate_size", "32", 0},  {"num_hidden_layers", "8", 0},
        {"num_attention_heads", "4", 0}, {"num_key_value_heads", "4", 0},
    };
    const struct zb_model_opts opts = {.max_seq = NUM_TOK_PER_BATCH,
                                       .init_std = -1,
                                       .has_embeds = 1,
                                       .no_head = 1,
                                       .criterion = mean_of_hidden};

    return zb_model_from_keys(key, ZB_COUNT_OF(key), "walkthrough", &opts,
                              m_out);
}

/* Step 4: PipelineGraph(...).get_v_schedule(), written to a file for the run as
 * the page hands scheduler_nodes to the plugin. */
static enum zb_status make_schedule(const char *path)
{
    const double h = HIDDEN, a = NUM_HEADS, s = 1024;
    const double mem_f = 34 * h + 5 * a * s, mem_w = -32 * h;
    struct zb_plan_input in;
    struct zb_schedule *sched = NULL;
    enum zb_status st;
    FILE *f;

    ZB_TRY(zb_plan_input_init(&in, PP_SIZE, NUM_MICROBATCHES, ZB_PLACE_V, 2));
    for (int v = 0; v < 2 * PP_SIZE; v++) {
        in.f_mem[v] = mem_f;
        in.w_mem[v] = mem_w;
        in.b_mem[v] = -mem_w - mem_f;
    }
    in.c_cost = 1;
    ZB_TRY_GOTO(st, zb_plan_make("get_v_schedule", &in, NULL, &sched), out);
    printf("schedule: makespan %g, bubble %.1f %%\n", sched->makespan,
           100 * sched->bubble_rate);
    f = fopen(path, "w");
    if (f == NULL) {
        st = zb_fail(ZB_EIO, "cannot write %s", path);
        goto out;
    }
    st = zb_schedule_write(sched, ZB_PLAN_NODES, f);
    if (fclose(f) != 0 && st == ZB_OK) {
        st = zb_fail(ZB_EIO, "cannot write %s", path);
    }
out:
    zb_schedule_free(sched);
    zb_plan_input_release(&in);
    return st;
}

/* Step 5: the plugin's arguments. */
static enum zb_status make_session(const struct zb_model *m,
                                   const char *schedule,
                                   struct zb_session **s_out)
{
    struct zb_session_opts o;
    char planner[600];

    snprintf(planner, sizeof(planner), "file:%s", schedule);
    zb_session_opts_init(&o);
    o.n_stages = PP_SIZE;             /* pp_size = 4 */
    o.n_micro = NUM_MICROBATCHES;     /* num_microbatches = 4 */
    o.planner = planner;              /* scheduler_nodes = zbv_schedule */
    o.cut = ZB_CUT_UNIFORM;
    o.max_rows = NUM_BATCH;
    o.max_seq = NUM_TOK_PER_BATCH;
    o.loss_average = ZB_LOSS_PER_MICROBATCH;
    o.optim.beta2 = 0.999; /* torch.optim.Adam */
    o.optim.weight_decay = 0;
    o.optim.max_norm = 0;
    return zb_session_new(m, &o, s_out);
}

static enum zb_status read_golden(const struct zb_st_file *f, const char *name,
                                  void *out, int64_t n, int is_double)
{
    const struct zb_st_tensor *t = zb_st_find(f, name);

    if (t == NULL) {
        return zb_fail(ZB_ECONFIG, "%s has no tensor %s", f->path, name);
    }
    return is_double ? zb_st_read_f64(f, t, out, n)
                     : zb_st_read_real(f, t, out, n);
}

/* The start weights of the PyTorch run; no parameter is larger than an MLP
 * matrix. */
static enum zb_status load_weights(struct zb_session *s,
                                   const struct zb_st_file *f)
{
    const struct zb_graph *g = zb_model_graph(zb_session_model(s));
    zb_real value[HIDDEN * HIDDEN * 2];

    for (int i = 0; i < zb_graph_n_params(g); i++) {
        struct zb_param_info info = zb_graph_param(g, i);
        char name[128];

        snprintf(name, sizeof(name), "param.%s", info.name);
        ZB_TRY(read_golden(f, name, value, zb_shape_elems(&info.shape), 0));
        ZB_TRY(zb_session_set_param(s, i, value));
    }
    return ZB_OK;
}

/* Step 6: train. */
static enum zb_status train(struct zb_session *s, const struct zb_st_file *f)
{
    static zb_real inputs_embeds[STEPS * ELEMS], last_hidden_state[ELEMS];
    double want[STEPS];
    int64_t sample[NUM_BATCH];
    zb_real *const outputs[] = {last_hidden_state};

    ZB_TRY(read_golden(f, "inputs_embeds", inputs_embeds, STEPS * ELEMS, 0));
    ZB_TRY(read_golden(f, "losses", want, STEPS, 1));
    for (int i = 0; i < NUM_BATCH; i++) {
        sample[i] = i;
    }
    for (int step = 0; step < STEPS; step++) {
        const void *field[] = {inputs_embeds + (size_t)step * ELEMS};
        struct zb_step_input in = {.n_rows = NUM_BATCH,
                                   .seq_len = NUM_TOK_PER_BATCH,
                                   .field = field,
                                   .sample = sample};
        struct zb_step_result res = {.output = outputs};

        ZB_TRY(zb_execute_pipeline(s, &in, 1,
                                   ZB_RETURN_LOSS | ZB_RETURN_OUTPUTS, &res));
        ZB_TRY(zb_optimizer_step(s, 1e-3, &res));
        ZB_TRY(zb_zero_grad(s));
        printf("step %d loss %.7f (PyTorch %.7f), output[0] %.5f\n", step + 1,
               res.loss, want[step], (double)last_hidden_state[0]);
        if (!(fabs(res.loss - want[step]) <= 1e-5)) {
            return zb_fail(ZB_EINVAL, "step %d: the loss is not PyTorch's",
                           step + 1);
        }
    }
    return ZB_OK;
}

static enum zb_status run(const char *golden, const char *schedule)
{
    struct zb_model *m;
    struct zb_session *s = NULL;
    struct zb_st_file *f = NULL;
    enum zb_status st;

    ZB_TRY(make_model(&m));
    ZB_TRY_GOTO(st, make_schedule(schedule), out);
    ZB_TRY_GOTO(st, zb_st_open(golden, &f), out);
    ZB_TRY_GOTO(st, make_session(m, schedule, &s), out);
    ZB_TRY_GOTO(st, load_weights(s, f), out);
    st = train(s, f);
out:
    zb_session_free(s);
    zb_st_close(f);
    zb_model_free(m);
    remove(schedule);
    return st;
}

int main(int argc, char **argv)
{
    const char *schedule = argc > 2 ? argv[2] : "walkthrough-schedule.txt";
    enum zb_status st;

    if (argc < 2) {
        fprintf(stderr, "usage: walkthrough GOLDEN [SCHEDULE-FILE]\n");
        return 2;
    }
    st = run(argv[1], schedule);
    if (st != ZB_OK) {
        fprintf(stderr, "walkthrough: %s\n", zb_error_text());
    }
    return st == ZB_OK ? 0 : 1;
}
