/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "cli/runlog.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "zb/backend.h"
#include "zb/log.h"
#include "zb/trace.h"

/* JSON has no NaN or infinity. */
static void put_number(FILE *f, const char *key, int n_digits, double x)
{
    if (isfinite(x)) {
        fprintf(f, ",\"%s\":%.*g", key, n_digits, x);
    } else {
        fprintf(f, ",\"%s\":null", key);
    }
}

/* A NaN's sign differs from machine to machine and means nothing. */
static void put_hex(FILE *f, const char *key, double x)
{
    if (isnan(x)) {
        fprintf(f, ",\"%s\":\"nan\"", key);
    } else {
        fprintf(f, ",\"%s\":\"%a\"", key, x);
    }
}

/* What is not known is left out. */
static void put_known(FILE *f, const char *key, int n_digits, double x)
{
    if (isfinite(x)) {
        put_number(f, key, n_digits, x);
    }
}

static void put_gpu(FILE *f, const struct zb_gpu_state *g)
{
    const char *comma = "", *name;

    fprintf(f, "{\"gpu\":%d", g->gpu);
    put_known(f, "memory_used", 15, g->used_bytes);
    put_known(f, "power_w", 6, g->power_w);
    put_known(f, "sm_mhz", 6, g->sm_mhz);
    put_known(f, "temperature_c", 6, g->temperature_c);
    if (g->throttle != ZB_THROTTLE_UNKNOWN) {
        fprintf(f, ",\"throttle\":[");
        for (int i = 0; (name = zb_throttle_str(i)) != NULL; i++) {
            if (g->throttle & 1 << i) {
                fprintf(f, "%s\"%s\"", comma, name);
                comma = ",";
            }
        }
        fputc(']', f);
    }
    fputc('}', f);
}

enum zb_status zbrun_log_step(FILE *f, const char *path,
                              const struct zbrun_record *r)
{
    fprintf(f, "{\"step\":%lld", (long long)r->step);
    put_number(f, "loss", 9, r->loss);
    put_hex(f, "loss_hex", r->loss);
    put_number(f, "grad_norm", 9, r->grad_norm);
    put_hex(f, "grad_norm_hex", r->grad_norm);
    put_number(f, "lr", 9, r->lr);
    fprintf(f, ",\"tokens\":%lld", (long long)r->tokens);
    put_number(f, "tokens_per_s", 6, (double)r->tokens / r->step_s);
    put_number(f, "step_ms", 6, 1e3 * r->step_s);
    put_number(f, "bubble", 6, r->bubble);
    put_number(f, "bubble_planned", 6, r->bubble_planned);
    put_number(f, "mfu", 6, r->mfu);
    put_number(f, "scale", 9, r->scale);
    fprintf(f, ",\"skipped\":%s", r->is_skipped ? "true" : "false");
    if (r->has_eval) {
        put_number(f, "eval_loss", 9, r->eval_loss);
        put_hex(f, "eval_loss_hex", r->eval_loss);
    }
    for (int i = 0; i < r->n_gpus; i++) {
        fprintf(f, "%s", i == 0 ? ",\"gpus\":[" : ",");
        put_gpu(f, &r->gpu[i]);
    }
    fprintf(f, "%s}\n", r->n_gpus > 0 ? "]" : "");
    if (fflush(f) != 0 || ferror(f)) {
        return zb_fail(ZB_EIO, "%s: cannot write: %s", path, strerror(errno));
    }
    return ZB_OK;
}

void zbrun_show_step(FILE *f, const struct zbrun_record *r, double eta_s)
{
    int is_tty = isatty(fileno(f));
    int is_last = r->step == r->n_steps;

    fprintf(f,
            "%sstep %lld/%lld  loss %.4f  lr %.2e  norm %.3f  %.0f tok/s  "
            "mfu %.1f%%  bubble %.1f%% (planned %.1f%%)  eta %.0fs",
            is_tty ? "\r\033[K" : "", (long long)r->step,
            (long long)r->n_steps, r->loss, r->lr, r->grad_norm,
            (double)r->tokens / r->step_s, 100 * r->mfu, 100 * r->bubble,
            100 * r->bubble_planned, eta_s);
    if (r->has_eval) {
        fprintf(f, "  eval loss %.4f", r->eval_loss);
    }
    /* A line with an evaluation stays. */
    if (!is_tty || r->has_eval || is_last) {
        fputc('\n', f);
    }
    fflush(f);
}

int zbrun_warn_slow(const struct zbrun_record *r)
{
    static const int bad = ZB_THROTTLE_HW | ZB_THROTTLE_SW_THERMAL |
                           ZB_THROTTLE_HW_THERMAL | ZB_THROTTLE_POWER_BRAKE;

    for (int i = 0; i < r->n_gpus; i++) {
        const struct zb_gpu_state *g = &r->gpu[i];

        for (int k = 0; g->throttle > 0 && k < ZB_N_THROTTLES; k++) {
            if (g->throttle & bad & 1 << k) {
                zb_log(ZB_LOG_WARN,
                       "step %lld: GPU %d slows itself down (%s): see \"gpus\" "
                       "in the log of steps",
                       (long long)r->step, g->gpu, zb_throttle_str(k));
                return 1;
            }
        }
    }
    return 0;
}

enum zb_status zbrun_trace_rows(struct zb_trace *t, const struct zb_session *s)
{
    int n = zb_session_schedule(s)->n_stage;
    char name[40];

    for (int i = 0; i < 2 * n; i++) {
        snprintf(name, sizeof(name), "stage %d%s", i % n,
                 i < n ? "" : " messages");
        ZB_TRY(zb_trace_name(t, ZB_TRACE_RAN, i, name));
        ZB_TRY(zb_trace_name(t, ZB_TRACE_PLANNED, i, name));
    }
    return ZB_OK;
}

struct extent {
    int64_t first, last;
};

static struct extent step_extent(const struct zb_session *s)
{
    struct extent e = {INT64_MAX, 0};

    for (int i = 0; i < zb_session_schedule(s)->n_stage; i++) {
        struct zb_node_times nt = zb_session_node_times(s, i);

        for (size_t k = 0; k < nt.n; k++) {
            e.first = nt.start_ns[k] < e.first ? nt.start_ns[k] : e.first;
            e.last = nt.end_ns[k] > e.last ? nt.end_ns[k] : e.last;
        }
    }
    return e;
}

/* Post-validation: nothing happens at these nodes. */
static int is_mark(enum zb_node_type type)
{
    return type >= ZB_NODE_POST_VALIDATION;
}

enum zb_status zbrun_trace_step(struct zb_trace *t, const struct zb_session *s,
                                int64_t origin_ns)
{
    const struct zb_schedule *sched = zb_session_schedule(s);
    struct extent e = step_extent(s);
    double first_us = (double)(e.first - origin_ns) * 1e-3;
    double per_unit = sched->makespan > 0
                          ? (double)(e.last - e.first) * 1e-3 / sched->makespan
                          : 0;
    char name[64];

    for (int i = 0; i < sched->n_stage; i++) {
        struct zb_node_times nt = zb_session_node_times(s, i);

        for (size_t k = 0; k < nt.n; k++) {
            const struct zb_node *nd = &nt.node[k];
            int row;

            if (is_mark(nd->type)) {
                continue;
            }
            row = zb_node_is_compute(nd->type) ? i : sched->n_stage + i;
            snprintf(name, sizeof(name), "%s%d mb %d",
                     zb_node_type_str(nd->type), nd->chunk, nd->mb);
            ZB_TRY(zb_trace_span(t, ZB_TRACE_RAN, row, name,
                                 (double)(nt.start_ns[k] - origin_ns) * 1e-3,
                                 (double)(nt.end_ns[k] - nt.start_ns[k]) *
                                     1e-3));
            ZB_TRY(zb_trace_span(t, ZB_TRACE_PLANNED, row, name,
                                 first_us + nd->start * per_unit,
                                 (nd->end - nd->start) * per_unit));
        }
    }
    return ZB_OK;
}
