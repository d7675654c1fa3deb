/* SPDX-License-Identifier: MIT
 *
 * Format svg: the timeline as a drawing, memory over time below it. One file
 * without scripts or references, in plain shapes; each is written once, so that
 * the time and the size are linear in the nodes.
 */
#include "config.h"
#include "plan/plan_format.h"

#include <math.h>
#include <string.h>

#include "zb/mem.h"

/* Pixels. */
#define LEFT 60.0
#define RIGHT 24.0
#define TOP 84.0
#define ROW 22.0      /* a stage's boxes */
#define ROW_STEP 26.0 /* from one stage to the next */
#define AXIS 46.0     /* below the last stage, for the ticks */
#define CURVE 32.0    /* memory of a stage */
#define CURVE_STEP 52.0
#define DIGIT 6.6 /* width of a digit of the numbers in boxes */
#define MARGIN 3.0
#define WIDTH_MIN 760.0
#define WIDTH_MAX 24000.0
#define TICK 80.0

#define N_LEVELS_MAX 6       /* of lightness, for chunks */
#define N_TOOLTIPS_MAX 20000 /* boxes that still get a text of their own */
#define N_COMPUTE (ZB_NODE_BW + 1)

/* Okabe and Ito's blue, orange, green and purple, which colour-blind people can
 * tell apart. */
static const struct {
    const char *what;
    int rgb[3];
} types[N_COMPUTE] = {
    [ZB_NODE_F] = {"F forward", {0x00, 0x72, 0xb2}},
    [ZB_NODE_B] = {"B input gradients", {0xe6, 0x9f, 0x00}},
    [ZB_NODE_W] = {"W weight gradients", {0x00, 0x9e, 0x73}},
    [ZB_NODE_BW] = {"BW both", {0xcc, 0x79, 0xa7}},
};

struct svg {
    FILE *f;
    const struct zb_schedule *s;
    const struct zb_plan_style *style;
    double scale; /* pixels per unit of time */
    double width; /* of the time axis */
    double label; /* pixels that the longest microbatch number needs */
    int n_levels;
    int is_used[N_COMPUTE];
    int has_tooltips;
    double highest; /* of the memory curves */
};

static double axis_y(const struct svg *g)
{
    return TOP + g->s->n_stage * ROW_STEP;
}

/* ---- measures ---- */

struct durations {
    double shortest, sum;
    size_t n;
};

static struct durations measure(struct svg *g)
{
    struct durations d = {.shortest = INFINITY};

    for (int i = 0; i < g->s->n_stage; i++) {
        for (size_t j = 0; j < g->s->stages[i].n; j++) {
            const struct zb_node *node = &g->s->stages[i].node[j];
            double t = node->end - node->start;

            if (zb_node_is_compute(node->type)) {
                g->is_used[node->type] = 1;
                d.n++;
            }
            if (zb_node_is_compute(node->type) && t > 0) {
                d.shortest = fmin(d.shortest, t);
                d.sum += t;
            }
        }
    }
    return d;
}

/* The shortest node has room for its number, unless it is very short or the
 * drawing would be very wide. */
static void set_scale(struct svg *g)
{
    struct durations d = measure(g);
    double makespan = g->s->makespan;
    double short_one = fmax(d.shortest, d.sum / (double)d.n / 3);

    g->label = zb_plan_n_digits(g->s->n_micro - 1) * DIGIT + MARGIN;
    g->n_levels = g->s->n_chunk < N_LEVELS_MAX ? g->s->n_chunk : N_LEVELS_MAX;
    g->has_tooltips = d.n <= N_TOOLTIPS_MAX;
    g->scale = 1;
    if (makespan > 0 && d.sum > 0) {
        g->scale = fmin(fmax(g->label / short_one, WIDTH_MIN / makespan),
                        WIDTH_MAX / makespan);
    }
    g->scale = isfinite(g->scale) ? g->scale : 1;
    g->width = fmax(makespan * g->scale, WIDTH_MIN);
}

/* ---- small pieces ---- */

static void put_xml(FILE *f, const char *s)
{
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;

        if (strchr("<>&\"'", c) != NULL) {
            fprintf(f, "&#%d;", c);
        } else {
            fputc(c < 0x20 || c > 0x7e ? '?' : c, f);
        }
    }
}

/* Hundredths of a pixel, without trailing zeros. */
static void put_px(FILE *f, double x)
{
    char text[32];
    size_t n;

    /* Files may hold times that make no sense. */
    x = isnan(x) ? 0 : fmax(-1e9, fmin(1e9, x));
    n = (size_t)snprintf(text, sizeof(text), "%.2f", x);

    while (n > 1 && text[n - 1] == '0') {
        n--;
    }
    n -= n > 1 && text[n - 1] == '.';
    text[n] = '\0';
    fputs(strcmp(text, "-0") == 0 ? "0" : text, f);
}

static void put_attr(FILE *f, const char *name, double x)
{
    fprintf(f, " %s=\"", name);
    put_px(f, x);
    fputc('"', f);
}

static void put_line(const struct svg *g, const char *class, double x1,
                     double y1, double x2, double y2)
{
    fprintf(g->f, "<line class=\"%s\"", class);
    put_attr(g->f, "x1", x1);
    put_attr(g->f, "y1", y1);
    put_attr(g->f, "x2", x2);
    put_attr(g->f, "y2", y2);
    fputs("/>\n", g->f);
}

/* Begin a text of which the caller writes the rest. */
static void begin_text(const struct svg *g, const char *class, double x,
                       double y)
{
    fprintf(g->f, "<text class=\"%s\"", class);
    put_attr(g->f, "x", x);
    put_attr(g->f, "y", y);
    fputc('>', g->f);
}

static void end_text(const struct svg *g)
{
    fputs("</text>\n", g->f);
}

/* Later chunks are lighter. */
static int level_of(const struct svg *g, int chunk)
{
    return g->s->n_chunk <= g->n_levels
               ? chunk
               : (int)((int64_t)chunk * g->n_levels / g->s->n_chunk);
}

static void shade(const struct svg *g, int type, int level, int rgb_out[3])
{
    double white = g->n_levels > 1 ? 0.6 * level / (g->n_levels - 1) : 0;

    for (int i = 0; i < 3; i++) {
        rgb_out[i] =
            (int)floor(types[type].rgb[i] * (1 - white) + 255 * white + 0.5);
    }
}

static void put_class_style(const struct svg *g, int type, int level)
{
    int rgb[3];

    shade(g, type, level, rgb);
    fprintf(g->f, ".%c%d{fill:#%02x%02x%02x}\n", "fbwx"[type], level, rgb[0],
            rgb[1], rgb[2]);
}

/* White letters on dark boxes, black ones on light boxes. */
static int is_dark(const struct svg *g, int type, int level)
{
    int rgb[3];

    shade(g, type, level, rgb);
    return 299 * rgb[0] + 587 * rgb[1] + 114 * rgb[2] < 128000;
}

/* ---- head ---- */

static void write_style(const struct svg *g)
{
    fputs("<style>\n"
          "text{font-family:'DejaVu Sans',Verdana,sans-serif;font-size:12px;"
          "fill:#222}\n"
          ".n{font-size:10px;text-anchor:middle}\n"
          ".d{fill:#fff}\n"
          ".h{font-size:15px;font-weight:bold}\n"
          ".t{font-size:11px;text-anchor:middle}\n"
          ".s{text-anchor:end}\n"
          ".p{font-size:11px}\n"
          ".idle{fill:#f0f0f0}\n"
          ".grid{stroke:#ddd}\n"
          ".axis{stroke:#666}\n"
          ".bound{stroke:#000;stroke-dasharray:3 3}\n"
          ".limit{stroke:#d55e00;stroke-width:1.5;stroke-dasharray:6 3}\n"
          ".area{fill:#ddd;stroke:#444}\n"
          ".m{stroke:#000;stroke-opacity:.35;stroke-width:.7}\n",
          g->f);
    for (int t = 0; t < N_COMPUTE; t++) {
        for (int l = 0; l < g->n_levels && g->is_used[t]; l++) {
            put_class_style(g, t, l);
        }
    }
    fputs("</style>\n", g->f);
}

static void write_legend(const struct svg *g, double y)
{
    double x = LEFT;

    for (int t = 0; t < N_COMPUTE; t++) {
        for (int l = 0; l < g->n_levels && g->is_used[t]; l++) {
            fprintf(g->f, "<rect class=\"%c%d\"", "fbwx"[t], l);
            put_attr(g->f, "x", x);
            put_attr(g->f, "y", y - 11);
            fputs(" width=\"14\" height=\"14\"/>\n", g->f);
            x += 14;
        }
        if (g->is_used[t]) {
            begin_text(g, "p", x + 5, y);
            fputs(types[t].what, g->f);
            end_text(g);
            x += 22 + 6.6 * (double)strlen(types[t].what);
        }
    }
    begin_text(g, "p", x, y);
    fprintf(g->f, "%snumber: microbatch",
            g->s->n_chunk == 1   ? ""
            : g->s->n_chunk == 2 ? "dark: chunk 0, light: chunk 1; "
                                 : "lighter: later chunks; ");
    end_text(g);
}

static void write_head(const struct svg *g, double width, double height)
{
    const struct zb_schedule *s = g->s;
    char a[ZB_PLAN_NUMBER_MAX], b[ZB_PLAN_NUMBER_MAX];

    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
          "<svg xmlns=\"http://www.w3.org/2000/svg\" version=\"1.1\"",
          g->f);
    put_attr(g->f, "width", width);
    put_attr(g->f, "height", height);
    fputs(" viewBox=\"0 0 ", g->f);
    put_px(g->f, width);
    fputc(' ', g->f);
    put_px(g->f, height);
    fputs("\">\n<title>", g->f);
    put_xml(g->f, s->planner);
    fprintf(g->f, ", %d stages, %d microbatches</title>\n", s->n_stage,
            s->n_micro);
    write_style(g);
    fputs("<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n", g->f);
    begin_text(g, "h", LEFT, 24);
    put_xml(g->f, s->planner);
    fprintf(g->f, ": %d stages, %d microbatches, placement %s", s->n_stage,
            s->n_micro, zb_placement_str(s->placement));
    end_text(g);
    begin_text(g, "p", LEFT, 44);
    fprintf(g->f, "makespan %s, span %s", zb_plan_number(s->makespan, a),
            zb_plan_number(s->span, b));
    zb_plan_put_bound(g->f, s);
    fprintf(g->f, ", bubble %.1f %%, objective %s", 100 * s->bubble_rate,
            zb_plan_objective_str(s->objective));
    end_text(g);
    write_legend(g, 66);
}

/* ---- axis ---- */

/* 1, 2 or 5 times a power of ten, at least TICK pixels. */
static double tick_step(const struct svg *g)
{
    double step = pow(10, floor(log10(TICK / g->scale)));

    while (step * g->scale < TICK) {
        double first = step / pow(10, floor(log10(step) + 1e-9));

        step *= first > 1.5 && first < 3 ? 2.5 : 2;
    }
    return step;
}

static void write_axis(const struct svg *g, double bottom)
{
    double step = tick_step(g), y = axis_y(g);

    for (int i = 0; i * step * g->scale <= g->width + 0.5; i++) {
        double x = LEFT + i * step * g->scale;

        put_line(g, "grid", x, TOP - 4, x, bottom);
        begin_text(g, "t", x, y + 16);
        fprintf(g->f, "%.10g", i * step);
        end_text(g);
    }
    put_line(g, "axis", LEFT, y, LEFT + g->width, y);
    begin_text(g, "p", LEFT, y + 32);
    fputs("time; rows are stages", g->f);
    if (isfinite(g->s->lower_bound) && g->s->objective == ZB_PLAN_STEP) {
        fputs("; dashed line: lower bound", g->f);
    }
    end_text(g);
}

static void write_marks(const struct svg *g)
{
    const struct zb_schedule *s = g->s;
    double end = LEFT + s->makespan * g->scale;

    put_line(g, "axis", end, TOP - 4, end, axis_y(g));
    if (isfinite(s->lower_bound) && s->objective == ZB_PLAN_STEP) {
        double x = LEFT + s->lower_bound * g->scale;

        put_line(g, "bound", x, TOP - 8, x, axis_y(g));
    }
}

/* ---- stages ---- */

static void write_box(const struct svg *g, const struct zb_node *node)
{
    double x = node->start * g->scale;
    double width = (node->end - node->start) * g->scale;
    int level = level_of(g, node->chunk);
    char a[ZB_PLAN_NUMBER_MAX], b[ZB_PLAN_NUMBER_MAX];

    fprintf(g->f, "<rect class=\"%c%d\"", "fbwx"[node->type], level);
    put_attr(g->f, "x", x);
    put_attr(g->f, "width", width > 3 ? width - 0.6 : width);
    put_attr(g->f, "height", ROW);
    if (g->has_tooltips) {
        fprintf(g->f, "><title>%s chunk %d mb %d: %s to %s</title></rect>\n",
                zb_node_type_str(node->type), node->chunk, node->mb,
                zb_plan_number(node->start, a), zb_plan_number(node->end, b));
    } else {
        fputs("/>\n", g->f);
    }
    if (zb_plan_n_digits(node->mb) * DIGIT + MARGIN <= width * 1.001) {
        begin_text(g, is_dark(g, (int)node->type, level) ? "n d" : "n",
                   x + width / 2, ROW / 2 + 3.6);
        fprintf(g->f, "%d", node->mb);
        end_text(g);
    }
}

static void begin_group(const struct svg *g, double y)
{
    fputs("<g transform=\"translate(", g->f);
    put_px(g->f, LEFT);
    fputc(' ', g->f);
    put_px(g->f, y);
    fputs(")\">\n", g->f);
}

static void write_stage(const struct svg *g, int stage)
{
    const struct zb_stage_nodes *st = &g->s->stages[stage];

    begin_group(g, TOP + stage * ROW_STEP);
    begin_text(g, "s", -8, ROW / 2 + 4);
    fprintf(g->f, "%d", stage);
    end_text(g);
    fputs("<rect class=\"idle\"", g->f);
    put_attr(g->f, "width", g->s->makespan * g->scale);
    put_attr(g->f, "height", ROW);
    fputs("/>\n", g->f);
    for (size_t j = 0; j < st->n; j++) {
        if (zb_node_is_compute(st->node[j].type)) {
            write_box(g, &st->node[j]);
        }
    }
    fputs("</g>\n", g->f);
}

/* ---- messages ---- */

/* start[type][virtual stage * n_micro + mb] of F, and of B or BW. */
static void collect_starts(const struct zb_schedule *s, double *start[2])
{
    for (int i = 0; i < s->n_stage; i++) {
        for (size_t j = 0; j < s->stages[i].n; j++) {
            const struct zb_node *node = &s->stages[i].node[j];
            int virt =
                zb_virtual_stage(s->placement, s->n_stage, i, node->chunk);
            size_t at = (size_t)virt * (size_t)s->n_micro + (size_t)node->mb;

            if (node->type == ZB_NODE_F) {
                start[0][at] = node->start;
            } else if (node->type == ZB_NODE_B || node->type == ZB_NODE_BW) {
                start[1][at] = node->start;
            }
        }
    }
}

/* From the end of the node that sends to the start of the one that needs it. */
static void write_message(const struct svg *g, int stage,
                          const struct zb_node *node, double *start[2])
{
    const struct zb_schedule *s = g->s;
    int is_back = node->type == ZB_NODE_SEND_BACKWARD;
    struct zb_plan_peer peer;
    int virt;

    if ((node->type != ZB_NODE_SEND_FORWARD && !is_back) ||
        !zb_plan_find_peer(s, stage, node->type, node->chunk, &peer)) {
        return;
    }
    virt = zb_virtual_stage(s->placement, s->n_stage, peer.stage, peer.chunk);
    put_line(g, "m", LEFT + node->start * g->scale,
             TOP + stage * ROW_STEP + (peer.stage > stage ? ROW : 0),
             LEFT + start[is_back][(size_t)virt * (size_t)s->n_micro +
                                   (size_t)node->mb] *
                        g->scale,
             TOP + peer.stage * ROW_STEP + (peer.stage > stage ? 0 : ROW));
}

static enum zb_status write_messages(const struct svg *g)
{
    const struct zb_schedule *s = g->s;
    size_t cells = (size_t)s->n_stage * (size_t)s->n_chunk * (size_t)s->n_micro;
    double *all = zb_alloc_array(cells, 2 * sizeof(double));
    double *start[2] = {all, all == NULL ? NULL : all + cells};

    if (all == NULL) {
        return ZB_ENOMEM;
    }
    collect_starts(s, start);
    for (int i = 0; i < s->n_stage; i++) {
        for (size_t j = 0; j < s->stages[i].n; j++) {
            write_message(g, i, &s->stages[i].node[j], start);
        }
    }
    zb_free(all);
    return ZB_OK;
}

/* ---- memory ---- */

/* The limits are drawn where they are in sight of the curves. */
static double highest_memory(const struct svg *g)
{
    const struct zb_plan_input *in = g->style->in;
    double peak = 0, limit = 0;

    for (int i = 0; i < g->s->n_stage; i++) {
        double mem = 0;

        for (size_t j = 0; j < g->s->stages[i].n; j++) {
            const struct zb_node *node = &g->s->stages[i].node[j];

            peak = fmax(peak, mem + zb_plan_node_need(g->s, in, i, node));
            mem += zb_plan_node_mem(g->s, in, i, node);
        }
        if (isfinite(in->max_mem[i])) {
            limit = fmax(limit, in->max_mem[i]);
        }
    }
    return limit <= 2 * peak ? fmax(peak, limit) : peak;
}

static double curve_y(const struct svg *g, double mem)
{
    return g->highest > 0 ? CURVE * (1 - fmax(mem, 0) / g->highest) : CURVE;
}

/* What a node needs it takes at its start, what it frees it gives back at its
 * end. */
static void step_to(const struct svg *g, double time, double mem)
{
    fputc('H', g->f);
    put_px(g->f, time * g->scale);
    fputc('V', g->f);
    put_px(g->f, curve_y(g, mem));
}

static double write_curve(const struct svg *g, int stage)
{
    const struct zb_stage_nodes *st = &g->s->stages[stage];
    double mem = 0, peak = 0, need, change;

    fputs("<path class=\"area\" d=\"M0 ", g->f);
    put_px(g->f, CURVE);
    for (size_t j = 0; j < st->n; j++) {
        const struct zb_node *node = &st->node[j];

        if (!zb_node_is_compute(node->type)) {
            continue;
        }
        need = zb_plan_node_need(g->s, g->style->in, stage, node);
        change = zb_plan_node_mem(g->s, g->style->in, stage, node);
        peak = fmax(peak, mem + need);
        if (need > 0) {
            step_to(g, node->start, mem + need);
        }
        mem += change;
        if (need != change) {
            step_to(g, node->end, mem);
        }
    }
    fputc('V', g->f);
    put_px(g->f, CURVE);
    fputs("Z\"/>\n", g->f);
    return peak;
}

static void write_memory(const struct svg *g, int stage, double y)
{
    double limit = g->style->in->max_mem[stage], peak;
    char text[ZB_PLAN_NUMBER_MAX];

    begin_group(g, y);
    peak = write_curve(g, stage);
    put_line(g, "axis", 0, CURVE, g->s->makespan * g->scale, CURVE);
    if (limit <= g->highest * 1.001) {
        put_line(g, "limit", 0, curve_y(g, limit), g->s->makespan * g->scale,
                 curve_y(g, limit));
    }
    begin_text(g, "s", -8, CURVE);
    fprintf(g->f, "%d", stage);
    end_text(g);
    begin_text(g, "p", 0, -4);
    fprintf(g->f, "peak %s, ", zb_plan_number(peak, text));
    fprintf(g->f, isfinite(limit) ? "limit %s" : "no limit",
            zb_plan_number(limit, text));
    end_text(g);
    fputs("</g>\n", g->f);
}

static void write_all_memory(struct svg *g)
{
    double y = axis_y(g) + AXIS;

    g->highest = highest_memory(g);
    begin_text(g, "p", LEFT, y + 10);
    fputs("memory held by each stage; dashed line: its limit", g->f);
    end_text(g);
    for (int i = 0; i < g->s->n_stage; i++) {
        write_memory(g, i, y + 32 + i * CURVE_STEP);
    }
}

/* ---- all ---- */

enum zb_status zb_plan_write_svg(const struct zb_schedule *s,
                                 const struct zb_plan_style *style, FILE *f)
{
    struct svg g = {.f = f, .s = s, .style = style};
    double height;

    if (style->in != NULL) {
        ZB_TRY(zb_plan_input_fits(style->in, s));
    }
    set_scale(&g);
    height = axis_y(&g) + AXIS;
    if (style->in != NULL) {
        height += 32 + s->n_stage * CURVE_STEP;
    }
    write_head(&g, LEFT + g.width + RIGHT, height);
    write_axis(&g, height - 8);
    for (int i = 0; i < s->n_stage; i++) {
        write_stage(&g, i);
    }
    write_marks(&g);
    if (style->has_messages) {
        ZB_TRY(write_messages(&g));
    }
    if (style->in != NULL) {
        write_all_memory(&g);
    }
    fputs("</svg>\n", f);
    return ZB_OK;
}
