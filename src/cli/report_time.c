/* SPDX-License-Identifier: MIT
 *
 * What a report shows of a step: the timeline, plan above run, the delays, and
 * the memory of the devices. */
#include "config.h"
#include "cli/report_int.h"

#include <math.h>

/* Pixels. */
#define LEFT 70.0
#define RIGHT 14.0
#define TOP 22.0
#define PLAN_ROW 8.0
#define RAN_ROW 14.0
#define ROW_STEP 29.0
#define NODE_WIDTH 14.0
#define WIDTH_MIN 900.0
#define WIDTH_MAX 12000.0

#define STAGES_MAX 256 /* in the drawing */
#define TITLES_MAX 8000
#define LEAST_WIDTH 0.3 /* bars are joined up to it */
#define N_WORST 15

const char *zbrun_node_class(enum zb_node_type type)
{
    static const char *const name[] = {
        [ZB_NODE_F] = "f", [ZB_NODE_B] = "b", [ZB_NODE_W] = "w",
        [ZB_NODE_BW] = "x"};

    return name[type];
}

/* ---- timeline ------------------------------------------------------------ */

struct timeline {
    const struct zb_schedule *sched;
    const struct zb_node_times *times;
    const struct zb_comparison *c;
    FILE *f;
    double scale; /* pixels per nanosecond */
    double width; /* of the time axis */
    int n_shown;
    int has_titles;
};

static size_t n_compute(const struct zb_stage_nodes *nodes)
{
    size_t n = 0;

    for (size_t k = 0; k < nodes->n; k++) {
        n += zb_node_is_compute(nodes->node[k].type) != 0;
    }
    return n;
}

static void measure(struct timeline *t)
{
    double longest = fmax(t->c->planned_ns, t->c->ran_ns);
    size_t most = 0, all = 0;

    t->n_shown = t->sched->n_stage < STAGES_MAX ? t->sched->n_stage
                                                : STAGES_MAX;
    for (int i = 0; i < t->n_shown; i++) {
        size_t n = n_compute(&t->sched->stages[i]);

        most = n > most ? n : most;
        all += n;
    }
    t->has_titles = all <= TITLES_MAX;
    t->width = fmin(fmax((double)most * NODE_WIDTH, WIDTH_MIN), WIDTH_MAX);
    t->scale = longest > 0 ? t->width / longest : 1;
}

static void planned_bar(const struct timeline *t, int stage, size_t k,
                        double *x_out, double *width_out)
{
    const struct zb_node *nd = &t->sched->stages[stage].node[k];
    double unit = t->c->ns_per_cost * t->scale;

    *x_out = LEFT + nd->start * unit;
    *width_out = (nd->end - nd->start) * unit;
}

static void ran_bar(const struct timeline *t, int stage, size_t k,
                    double *x_out, double *width_out)
{
    const struct zb_node_times *nt = &t->times[stage];

    *x_out = LEFT + (double)(nt->start_ns[k] - t->c->origin_ns) * t->scale;
    *width_out = (double)(nt->end_ns[k] - nt->start_ns[k]) * t->scale;
}

static void put_title(const struct timeline *t, int stage, size_t k)
{
    const struct zb_node *nd = &t->sched->stages[stage].node[k];
    const struct zb_node_delay *d = &t->c->node[stage][k];
    const struct zb_node_times *nt = &t->times[stage];

    fprintf(t->f,
            "<title>%s chunk %d microbatch %d: planned %.3f ms to %.3f ms, ran "
            "%.3f to %.3f, %.3f late",
            zb_node_type_str(nd->type), nd->chunk, nd->mb,
            1e-6 * nd->start * t->c->ns_per_cost,
            1e-6 * nd->end * t->c->ns_per_cost,
            1e-6 * (double)(nt->start_ns[k] - t->c->origin_ns),
            1e-6 * (double)(nt->end_ns[k] - t->c->origin_ns),
            1e-6 * d->delay_ns);
    if (d->cause != ZB_DELAY_NONE) {
        fprintf(t->f, " (%s)", zb_delay_cause_str(d->cause));
    }
    fputs("</title>", t->f);
}

typedef void (*bar_fn)(const struct timeline *t, int stage, size_t k,
                       double *x_out, double *width_out);

static void draw_bars(const struct timeline *t, int stage, bar_fn bar,
                      double y, double height)
{
    const struct zb_stage_nodes *nodes = &t->sched->stages[stage];
    double x, width;

    for (size_t k = 0; k < nodes->n; k++) {
        const struct zb_node *nd = &nodes->node[k];

        if (zb_node_is_compute(nd->type)) {
            bar(t, stage, k, &x, &width);
            fprintf(t->f,
                    "<rect class=\"%s%s\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" "
                    "height=\"%.0f\">",
                    zbrun_node_class(nd->type), nd->chunk > 0 ? " o" : "", x, y,
                    width > 2 ? width - 0.5 : width, height);
            put_title(t, stage, k);
            fputs("</rect>\n", t->f);
        }
    }
}

/* All bars of one type as one shape; neighbours too small to see are joined. */
static void draw_shape(const struct timeline *t, int stage, bar_fn bar,
                       enum zb_node_type type, double y, double height)
{
    const struct zb_stage_nodes *nodes = &t->sched->stages[stage];
    double x, width, begin = 0, end = -1;

    fprintf(t->f, "<path class=\"%s\" d=\"", zbrun_node_class(type));
    for (size_t k = 0; k < nodes->n; k++) {
        if (nodes->node[k].type != type) {
            continue;
        }
        bar(t, stage, k, &x, &width);
        if (end < 0 || x > end + LEAST_WIDTH) {
            begin = x;
        }
        end = x + width;
        if (end - begin >= LEAST_WIDTH) {
            fprintf(t->f, "M%.1f %.1fh%.1fv%.0fh%.1fz", begin, y, end - begin,
                    height, begin - end);
            begin = end;
        }
    }
    fputs("\"/>\n", t->f);
}

static void draw_row(const struct timeline *t, int stage, bar_fn bar, double y,
                     double height)
{
    if (t->has_titles) {
        draw_bars(t, stage, bar, y, height);
        return;
    }
    for (int type = ZB_NODE_F; type <= ZB_NODE_BW; type++) {
        draw_shape(t, stage, bar, (enum zb_node_type)type, y, height);
    }
}

static void draw_stage(const struct timeline *t, int stage)
{
    double y = TOP + stage * ROW_STEP;

    fprintf(t->f, "<text class=\"end\" x=\"%.0f\" y=\"%.1f\">stage %d</text>\n",
            LEFT - 8, y + 16, stage);
    fprintf(t->f,
            "<rect class=\"idle\" x=\"%.0f\" y=\"%.1f\" width=\"%.1f\" "
            "height=\"%.0f\"/>\n",
            LEFT, y, t->width, PLAN_ROW + 1 + RAN_ROW);
    draw_row(t, stage, planned_bar, y, PLAN_ROW);
    draw_row(t, stage, ran_bar, y + PLAN_ROW + 1, RAN_ROW);
}

/* Where the plan ends, and the run. */
static void draw_ends(const struct timeline *t)
{
    double bottom = TOP + t->n_shown * ROW_STEP;
    const struct {
        const char *name;
        double x, y;
    } end[] = {
        {"plan", LEFT + t->c->planned_ns * t->scale, 14},
        {"run", LEFT + t->c->ran_ns * t->scale, bottom + 12},
    };

    for (int i = 0; i < 2; i++) {
        fprintf(t->f,
                "<line class=\"mark\" x1=\"%.1f\" y1=\"%.0f\" x2=\"%.1f\" "
                "y2=\"%.0f\"/><text class=\"end\" x=\"%.1f\" y=\"%.1f\">%s ends"
                "</text>\n",
                end[i].x, TOP - 6, end[i].x, bottom, end[i].x, end[i].y,
                end[i].name);
    }
}

void zbrun_report_timeline(const struct zb_schedule *sched,
                           const struct zb_node_times *times,
                           const struct zb_comparison *c, FILE *f)
{
    struct timeline t = {.sched = sched, .times = times, .c = c, .f = f};
    double width, height;

    measure(&t);
    width = LEFT + t.width + RIGHT;
    height = TOP + t.n_shown * ROW_STEP + 18;
    fputs("<p>Thin rows: as planned; thick rows below: as run. "
          "<span class=\"key f\"></span> F <span class=\"key b\"></span> B "
          "<span class=\"key w\"></span> W <span class=\"key x\"></span> BW; "
          "paler: later chunks of the stage.",
          f);
    if (t.n_shown < sched->n_stage) {
        fprintf(f, " The first %d of %d stages.", t.n_shown, sched->n_stage);
    }
    fprintf(f,
            "</p>\n<div class=\"scroll\"><svg width=\"%.0f\" height=\"%.0f\" "
            "viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n<title>Timeline of the "
            "last step</title>\n",
            width, height, width, height);
    for (int i = 0; i < t.n_shown; i++) {
        draw_stage(&t, i);
    }
    draw_ends(&t);
    fputs("</svg></div>\n", f);
}

/* ---- delays -------------------------------------------------------------- */

static void put_ms(FILE *f, double ns)
{
    fprintf(f, "<td>%.3f</td>", 1e-6 * ns);
}

static void put_node(const struct zb_schedule *sched, int stage, size_t k,
                     FILE *f)
{
    const struct zb_node *nd = &sched->stages[stage].node[k];

    fprintf(f, "<td class=\"t\">stage %d %s chunk %d microbatch %d</td>", stage,
            zb_node_type_str(nd->type), nd->chunk, nd->mb);
}

static void worst_nodes(const struct zb_schedule *sched,
                        const struct zb_comparison *c, FILE *f)
{
    struct zb_worst_delay worst[N_WORST];
    size_t n = zb_comparison_worst(c, sched, worst, N_WORST);

    if (n == 0) {
        return;
    }
    fputs("<h3>Where delay arose</h3>\n<div class=\"scroll\"><table>\n<tr><th "
          "class=\"t\">node</th><th class=\"t\">cause</th><th>ms</th><th "
          "class=\"t\">waited for</th></tr>\n",
          f);
    for (size_t i = 0; i < n; i++) {
        const struct zb_worst_delay *w = &worst[i];
        const struct zb_node_delay *d = &c->node[w->stage][w->node];

        fputs("<tr>", f);
        put_node(sched, w->stage, w->node, f);
        fprintf(f, "<td class=\"t\">%s</td>", zb_delay_cause_str(w->cause));
        put_ms(f, w->ns);
        if (w->cause == ZB_DELAY_INPUT && d->input_stage >= 0) {
            put_node(sched, d->input_stage, d->input_node, f);
        } else {
            fputs("<td></td>", f);
        }
        fputs("</tr>\n", f);
    }
    fputs("</table></div>\n", f);
}

void zbrun_report_delays(const struct zb_schedule *sched,
                         const struct zb_comparison *c, FILE *f)
{
    fprintf(f,
            "<p>Planned %.3f ms, ran %.3f ms (a cost of 1 is %.6g ms%s). A "
            "stage's delay at its last node is the sum of its causes: late "
            "input (it waited longer than planned for messages), order (it "
            "began later than device and message allowed), own time (nodes ran "
            "longer than planned).</p>\n<div class=\"scroll\"><table>\n<tr><th "
            "class=\"t\">stage</th><th>delay ms</th><th>late input</th>"
            "<th>order</th><th>own time</th></tr>\n",
            1e-6 * c->planned_ns, 1e-6 * c->ran_ns, 1e-6 * c->ns_per_cost,
            c->is_fitted ? ", so that all nodes together ran as long as planned"
                         : "");
    for (int i = 0; i < c->n_stage; i++) {
        fprintf(f, "<tr><td class=\"t\">%d</td>", i);
        put_ms(f, c->stage[i].delay_ns);
        put_ms(f, c->stage[i].input_ns);
        put_ms(f, c->stage[i].order_ns);
        put_ms(f, c->stage[i].own_ns);
        fputs("</tr>\n", f);
    }
    fputs("</table></div>\n", f);
    worst_nodes(sched, c, f);
}

/* ---- memory -------------------------------------------------------------- */

static void memory_bar(const struct zb_session *s, int stage, double scale,
                       FILE *f)
{
    double x = LEFT, y = 4 + 20.0 * stage;
    const char *name;
    size_t bytes;

    fprintf(f, "<text class=\"end\" x=\"%.0f\" y=\"%.0f\">stage %d</text>\n",
            LEFT - 8, y + 12, stage);
    for (int i = 0;
         (name = zb_session_memory_part(s, stage, i, &bytes)) != NULL; i++) {
        double width = (double)bytes * scale;

        if (width > 0) {
            fprintf(f,
                    "<rect class=\"m%d\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" "
                    "height=\"16\"><title>%s: %zu bytes</title></rect>\n",
                    i, x, y, width, name, bytes);
        }
        x += width;
    }
}

static void memory_bars(const struct zb_session *s, int n_stages, FILE *f)
{
    double most = 1;
    int n = n_stages < STAGES_MAX ? n_stages : STAGES_MAX;

    for (int i = 0; i < n; i++) {
        most = fmax(most, (double)zb_session_planned_bytes(s, i));
    }
    fprintf(f,
            "<svg class=\"wide\" viewBox=\"0 0 %.0f %d\" role=\"img\">\n"
            "<title>Memory of the devices</title>\n",
            LEFT + WIDTH_MIN + RIGHT, 8 + 20 * n);
    for (int i = 0; i < n; i++) {
        memory_bar(s, i, WIDTH_MIN / most, f);
    }
    fputs("</svg>\n", f);
}

void zbrun_report_memory(const struct zb_session *s, FILE *f)
{
    int n_stages = zb_session_schedule(s)->n_stage;
    const char *name;
    size_t bytes;

    memory_bars(s, n_stages, f);
    fputs("<div class=\"scroll\"><table>\n<tr><th class=\"t\">bytes</th>", f);
    for (int i = 0; (name = zb_session_memory_part(s, 0, i, &bytes)) != NULL;
         i++) {
        fprintf(f, "<th><span class=\"key m%d\"></span> ", i);
        zbrun_html_text(f, name);
        fputs("</th>", f);
    }
    fputs("<th>planned</th><th>allocated</th></tr>\n", f);
    for (int stage = 0; stage < n_stages; stage++) {
        fprintf(f, "<tr><td class=\"t\">stage %d</td>", stage);
        for (int i = 0; zb_session_memory_part(s, stage, i, &bytes) != NULL;
             i++) {
            fprintf(f, "<td>%zu</td>", bytes);
        }
        fprintf(f, "<td>%zu</td><td>%zu</td></tr>\n",
                zb_session_planned_bytes(s, stage),
                zb_session_allocated_bytes(s, stage));
    }
    fputs("</table></div>\n", f);
}
