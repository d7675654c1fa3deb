/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "plan/plan_int.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "zb/mem.h"

static const char *const placement_names[] = {"v", "loop", "linear"};

/* ---- nodes ---- */

static void write_nodes(const struct zb_schedule *s, FILE *f)
{
    char start[ZB_PLAN_NUMBER_MAX], end[ZB_PLAN_NUMBER_MAX];

    for (int i = 0; i < s->n_stage; i++) {
        for (size_t j = 0; j < s->stages[i].n; j++) {
            const struct zb_node *node = &s->stages[i].node[j];

            fprintf(f, "%d %s %d %d %s %s %d\n", i,
                    zb_node_type_str(node->type), node->chunk, node->mb,
                    zb_plan_number(node->start, start),
                    zb_plan_number(node->end, end), node->rollback);
        }
    }
}

/* ---- json ---- */

static void put_number(FILE *f, double x)
{
    char text[ZB_PLAN_NUMBER_MAX];

    fputs(isfinite(x) ? zb_plan_number(x, text) : "null", f);
}

static void put_string(FILE *f, const char *s)
{
    fputc('"', f);
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;

        if (c == '"' || c == '\\') {
            fprintf(f, "\\%c", c);
        } else if (c < 0x20 || c > 0x7e) {
            fprintf(f, "\\u%04x", c);
        } else {
            fputc(c, f);
        }
    }
    fputc('"', f);
}

static void write_json_stage(const struct zb_stage_nodes *st, FILE *f)
{
    const char *sep = "";

    for (size_t j = 0; j < st->n; j++) {
        const struct zb_node *node = &st->node[j];

        if (!zb_node_is_compute(node->type)) {
            continue;
        }
        fprintf(f, "%s{\"type\":\"%s\",\"chunk\":%d,\"mb\":%d,\"start\":", sep,
                zb_node_type_str(node->type), node->chunk, node->mb);
        put_number(f, node->start);
        fputs(",\"end\":", f);
        put_number(f, node->end);
        fputc('}', f);
        sep = ",\n  ";
    }
}

static void write_json(const struct zb_schedule *s, FILE *f)
{
    fputs("{\"planner\":", f);
    put_string(f, s->planner);
    fprintf(f,
            ",\"n_stage\":%d,\"n_micro\":%d,\"placement\":\"%s\","
            "\"objective\":\"step\",\n\"makespan\":",
            s->n_stage, s->n_micro, placement_names[s->placement]);
    put_number(f, s->makespan);
    fputs(",\"span\":", f);
    put_number(f, s->span);
    fputs(",\"lower_bound\":", f);
    put_number(f, s->lower_bound);
    fputs(",\"bubble_rate\":", f);
    put_number(f, s->bubble_rate);
    fputs(",\n\"peak_mem\":[", f);
    for (int i = 0; i < s->n_stage; i++) {
        fputs(i > 0 ? "," : "", f);
        put_number(f, s->peak_mem[i]);
    }
    fprintf(f, "],\n\"plan_ms\":%.3f,\n\"stages\":[\n", s->plan_ms);
    for (int i = 0; i < s->n_stage; i++) {
        fputs(" [", f);
        write_json_stage(&s->stages[i], f);
        fputs(i + 1 < s->n_stage ? "],\n" : "]\n", f);
    }
    fputs("]}\n", f);
}

/* ---- text ---- */

#define TEXT_COLUMNS 160       /* labels are shortened to stay within this */
#define TEXT_COLUMNS_MAX 10000 /* time is squeezed to stay within this */

static int n_digits(int x)
{
    int n = 1;

    while (x >= 10) {
        x /= 10;
        n++;
    }
    return n;
}

static double shortest_node(const struct zb_schedule *s)
{
    double shortest = s->makespan;

    for (int i = 0; i < s->n_stage; i++) {
        for (size_t j = 0; j < s->stages[i].n; j++) {
            const struct zb_node *node = &s->stages[i].node[j];
            double t = node->end - node->start;

            if (zb_node_is_compute(node->type) && t > 0) {
                shortest = fmin(shortest, t);
            }
        }
    }
    return shortest;
}

/* Columns per unit of time: a letter and the microbatch in the shortest node
 * if that stays readable. */
static double text_scale(const struct zb_schedule *s)
{
    double shortest = shortest_node(s);
    int width = 1 + n_digits(s->n_micro - 1);

    if (!(s->makespan > 0)) {
        return 1;
    }
    while (width > 1 && s->makespan / shortest * width > TEXT_COLUMNS) {
        width--;
    }
    return fmin(width / shortest, TEXT_COLUMNS_MAX / s->makespan);
}

/* "F12" in as many columns as there are. */
static void draw_node(const struct zb_node *node, double scale, char *row)
{
    size_t from = (size_t)floor(node->start * scale + 0.5);
    size_t to = (size_t)floor(node->end * scale + 0.5);
    const char *name = zb_node_type_str(node->type);
    char label[24];
    size_t n;

    snprintf(label, sizeof(label), "%s%d", name, node->mb);
    if (node->chunk % 2 == 1) {
        label[0] = (char)tolower((unsigned char)label[0]);
        label[1] = (char)tolower((unsigned char)label[1]);
    }
    n = strlen(label);
    for (size_t i = from; i < to; i++) {
        row[i] = i - from < n ? label[i - from] : '-';
    }
}

static void write_text_head(const struct zb_schedule *s, double scale, FILE *f)
{
    char a[ZB_PLAN_NUMBER_MAX];

    fprintf(f,
            "%s: %d stages, %d microbatches, placement %s, %d chunk%s per "
            "stage\n",
            s->planner, s->n_stage, s->n_micro, placement_names[s->placement],
            s->n_chunk, s->n_chunk == 1 ? "" : "s");
    fprintf(f, "makespan %s", zb_plan_number(s->makespan, a));
    fprintf(f, ", span %s", zb_plan_number(s->span, a));
    if (!isnan(s->lower_bound)) {
        fprintf(f, ", lower bound %s", zb_plan_number(s->lower_bound, a));
    }
    fprintf(f, ", bubble %.1f %%, planned in %.1f ms\n", 100 * s->bubble_rate,
            s->plan_ms);
    fprintf(f,
            "F forward, B input gradients, W weight gradients, BW both; "
            "small letters: %s; number: microbatch\n",
            s->n_chunk == 2 ? "chunk 1" : "odd chunks");
    fprintf(f, "one column = %.6g\n", 1 / scale);
}

static enum zb_status write_text(const struct zb_schedule *s, FILE *f)
{
    double scale = text_scale(s);
    size_t n = (size_t)ceil(s->makespan * scale) + 2;
    char *row = zb_alloc(n + 1);
    char mem[ZB_PLAN_NUMBER_MAX];

    if (row == NULL) {
        return ZB_ENOMEM;
    }
    write_text_head(s, scale, f);
    for (int i = 0; i < s->n_stage; i++) {
        memset(row, '.', n);
        for (size_t j = 0; j < s->stages[i].n; j++) {
            if (zb_node_is_compute(s->stages[i].node[j].type)) {
                draw_node(&s->stages[i].node[j], scale, row);
            }
        }
        row[n - 2] = '\0';
        fprintf(f, "%*d |%s|", n_digits(s->n_stage - 1), i, row);
        if (!isnan(s->peak_mem[i])) {
            fprintf(f, " peak %s", zb_plan_number(s->peak_mem[i], mem));
        }
        fputc('\n', f);
    }
    zb_free(row);
    return ZB_OK;
}

enum zb_status zb_schedule_write(const struct zb_schedule *s,
                                 enum zb_plan_format format, FILE *f)
{
    switch (format) {
    case ZB_PLAN_TEXT:
        ZB_TRY(write_text(s, f));
        break;
    case ZB_PLAN_JSON:
        write_json(s, f);
        break;
    case ZB_PLAN_NODES:
        write_nodes(s, f);
        break;
    default:
        return zb_fail(ZB_EINVAL, "unknown schedule format %d", (int)format);
    }
    if (fflush(f) != 0 || ferror(f)) {
        return zb_fail(ZB_EIO, "cannot write the schedule: %s",
                       strerror(errno));
    }
    return ZB_OK;
}
