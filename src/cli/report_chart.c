/* SPDX-License-Identifier: MIT
 *
 * Curves of a report: bounded numbers of points, drawn as SVG. */
#include "config.h"
#include "cli/report_int.h"

#include <math.h>

/* Pixels of a drawing and of the plot in it. */
#define WIDTH 460.0
#define HEIGHT 210.0
#define LEFT 62.0
#define RIGHT 12.0
#define TOP 30.0
#define BOTTOM 26.0
#define TICKS 4.0

/* ---- points -------------------------------------------------------------- */

static void join(struct zbrun_point *a, const struct zbrun_point *b)
{
    if (b->n > 0) {
        a->min = a->n > 0 ? fmin(a->min, b->min) : b->min;
        a->max = a->n > 0 ? fmax(a->max, b->max) : b->max;
        a->sum += b->sum;
        a->n += b->n;
    }
    a->last = b->last;
}

/* Halve the number of points. */
static void thin(struct zbrun_series *se)
{
    for (size_t i = 0; i < se->n / 2; i++) {
        se->point[i] = se->point[2 * i];
        join(&se->point[i], &se->point[2 * i + 1]);
    }
    se->n /= 2;
    se->per_point *= 2;
}

void zbrun_series_add(struct zbrun_series *se, int64_t step, double value)
{
    struct zbrun_point p = {.first = step, .last = step};
    struct zbrun_point *last = se->n > 0 ? &se->point[se->n - 1] : NULL;

    if (isfinite(value)) {
        p.n = 1;
        p.min = p.max = p.sum = value;
    }
    if (se->per_point == 0) {
        se->per_point = 1;
    }
    if (last != NULL && step - last->first < se->per_point) {
        join(last, &p);
        return;
    }
    if (se->n == ZBRUN_POINTS_MAX) {
        thin(se);
        zbrun_series_add(se, step, value);
        return;
    }
    se->point[se->n++] = p;
}

/* ---- drawing ------------------------------------------------------------- */

struct plot {
    double x0, x1, y0, y1; /* ends of the axes, values */
    FILE *f;
};

static double px(const struct plot *p, double x)
{
    double share = p->x1 > p->x0 ? (x - p->x0) / (p->x1 - p->x0) : 0.5;

    return LEFT + share * (WIDTH - LEFT - RIGHT);
}

static double py(const struct plot *p, double y)
{
    double share = (y - p->y0) / (p->y1 - p->y0);

    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
}

/* The ends of the axes; 0 when there is no value. */
static int find_ends(const struct zbrun_series *se, struct plot *p)
{
    int has_any = 0;

    p->y0 = INFINITY;
    p->y1 = -INFINITY;
    for (size_t i = 0; i < se->n; i++) {
        const struct zbrun_point *pt = &se->point[i];

        if (pt->n > 0) {
            p->y0 = fmin(p->y0, pt->min);
            p->y1 = fmax(p->y1, pt->max);
            has_any = 1;
        }
    }
    if (!has_any) {
        return 0;
    }
    p->x0 = (double)se->point[0].first;
    p->x1 = (double)se->point[se->n - 1].last;
    if (!(p->y1 - p->y0 > 1e-9 * fabs(p->y1))) { /* a level line */
        double room = fmax(0.1 * fabs(p->y1), 1e-9);

        p->y0 -= room;
        p->y1 += room;
    }
    return 1;
}

/* 1, 2 or 5 times a power of ten, at most TICKS of them in `range`. */
static double tick_step(double range)
{
    double step = pow(10, floor(log10(range / TICKS)));

    return range / step <= TICKS       ? step
           : range / (2 * step) <= TICKS ? 2 * step
           : range / (5 * step) <= TICKS ? 5 * step
                                         : 10 * step;
}

static void draw_y_axis(const struct plot *p)
{
    double step = tick_step(p->y1 - p->y0);

    for (double i = ceil(p->y0 / step); i * step <= p->y1; i++) {
        double y = py(p, i * step);

        fprintf(p->f,
                "<line class=\"grid\" x1=\"%.0f\" y1=\"%.1f\" x2=\"%.0f\" "
                "y2=\"%.1f\"/><text class=\"end\" x=\"%.0f\" y=\"%.1f\">%.6g"
                "</text>\n",
                LEFT, y, WIDTH - RIGHT, y, LEFT - 6, y + 4, i * step);
    }
}

/* Steps are whole numbers. */
static void draw_x_axis(const struct plot *p)
{
    double step = p->x1 > p->x0 ? fmax(tick_step(p->x1 - p->x0), 1) : 1;

    for (double i = ceil(p->x0 / step); i * step <= p->x1; i++) {
        fprintf(p->f, "<text class=\"mid\" x=\"%.1f\" y=\"%.0f\">%.0f</text>\n",
                px(p, i * step), HEIGHT - 8, i * step);
    }
}

static double middle(const struct zbrun_point *pt)
{
    return 0.5 * (double)(pt->first + pt->last);
}

/* From least to greatest and back. */
static void draw_band(const struct zbrun_series *se, const struct plot *p)
{
    char move = 'M';

    fputs("<path class=\"band\" d=\"", p->f);
    for (size_t i = 0; i < se->n; i++) {
        if (se->point[i].n > 0) {
            fprintf(p->f, "%c%.1f %.1f", move, px(p, middle(&se->point[i])),
                    py(p, se->point[i].max));
            move = 'L';
        }
    }
    for (size_t i = se->n; i-- > 0;) {
        if (se->point[i].n > 0) {
            fprintf(p->f, "L%.1f %.1f", px(p, middle(&se->point[i])),
                    py(p, se->point[i].min));
        }
    }
    fputs("Z\"/>\n", p->f);
}

static void draw_line(const struct zbrun_series *se, const struct plot *p)
{
    char move = 'M';

    fputs("<path class=\"line\" d=\"", p->f);
    for (size_t i = 0; i < se->n; i++) {
        const struct zbrun_point *pt = &se->point[i];

        if (pt->n > 0) {
            /* A point alone shows as a dot: lines have round ends. */
            fprintf(p->f, "%c%.1f %.1f%s", move, px(p, middle(pt)),
                    py(p, pt->sum / (double)pt->n), move == 'M' ? "h0" : "");
            move = 'L';
        }
    }
    fputs("\"/>\n", p->f);
}

void zbrun_series_draw(const struct zbrun_series *se, const char *title,
                       FILE *f)
{
    struct plot p = {.f = f};

    if (!find_ends(se, &p)) {
        return;
    }
    fprintf(f,
            "<svg class=\"chart\" viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n"
            "<title>%s</title><text class=\"head\" x=\"8\" y=\"18\">%s"
            "</text>\n",
            WIDTH, HEIGHT, title, title);
    draw_y_axis(&p);
    draw_x_axis(&p);
    if (se->per_point > 1) {
        draw_band(se, &p);
    }
    draw_line(se, &p);
    fputs("</svg>\n", f);
}
