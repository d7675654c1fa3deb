/* SPDX-License-Identifier: MIT
 *
 * Format text: a timeline in letters, one row per stage, for people.
 */
#include "config.h"
#include "plan/plan_format.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#include "zb/mem.h"

#define TEXT_COLUMNS 160       /* labels are shortened to stay within this */
#define TEXT_COLUMNS_MAX 10000 /* time is squeezed to stay within this */
#define TEXT_COLUMNS_MIN 20    /* of a terminal that is too narrow for more */

/* A row while it is drawn. */
struct row {
    char *text;           /* [n] letters */
    unsigned char *color; /* [n] 0: idle, else 1 + color_of() */
    size_t n;
    double scale; /* columns per unit of time */
    int has_color;
};

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

/* Columns that are left beside "12 |...| peak 2424832". */
static double room_of(const struct zb_schedule *s, int n_columns)
{
    char mem[ZB_PLAN_NUMBER_MAX];
    int n = n_columns - zb_plan_n_digits(s->n_stage - 1) - 3;
    int n_peak = 0;

    for (int i = 0; i < s->n_stage; i++) {
        if (!isnan(s->peak_mem[i])) {
            int len = (int)strlen(zb_plan_number(s->peak_mem[i], mem)) + 6;

            n_peak = len > n_peak ? len : n_peak;
        }
    }
    n -= n_peak;
    return n < TEXT_COLUMNS_MIN ? TEXT_COLUMNS_MIN : n;
}

/* Columns per unit of time: a letter and the microbatch in the shortest node
 * if that stays readable. */
static double text_scale(const struct zb_schedule *s, int n_columns)
{
    double shortest = shortest_node(s);
    double good = n_columns > 0 ? room_of(s, n_columns) : TEXT_COLUMNS;
    double most = n_columns > 0 ? good : TEXT_COLUMNS_MAX;
    int width = 1 + zb_plan_n_digits(s->n_micro - 1);

    if (!(s->makespan > 0)) {
        return 1;
    }
    while (width > 1 && s->makespan / shortest * width > good) {
        width--;
    }
    good = fmin(width / shortest, most / s->makespan);
    return isfinite(good) ? good : 1; /* times may be denormal */
}

/* ---- colours ---- */

/* Okabe and Ito's colours, which colour-blind people can tell apart, in a
 * terminal's palette of 256; odd chunks are lighter. */
static const struct {
    int fore, back;
} colors[] = {
    {231, 25},  {16, 117}, /* F: blue */
    {16, 172},  {16, 222}, /* B: orange */
    {231, 29},  {16, 115}, /* W: green */
    {231, 132}, {16, 218}, /* BW: purple */
};

static unsigned char color_of(enum zb_node_type t, int chunk)
{
    return (unsigned char)(2 * (int)t + chunk % 2);
}

/* Print text whose letters have colours. */
static void put_colored(FILE *f, const char *text, const unsigned char *color,
                        size_t n)
{
    unsigned char now = 0;

    for (size_t i = 0; i < n; i++) {
        if (color[i] != now) {
            now = color[i];
            if (now == 0) {
                fputs("\033[0m", f);
            } else {
                fprintf(f, "\033[38;5;%d;48;5;%dm", colors[now - 1].fore,
                        colors[now - 1].back);
            }
        }
        fputc(text[i], f);
    }
    if (now != 0) {
        fputs("\033[0m", f);
    }
}

/* "F" in the colour of F. */
static void put_type(FILE *f, enum zb_node_type t, int has_color)
{
    unsigned char color[2] = {0};
    const char *name = zb_node_type_str(t);

    if (has_color) {
        color[0] = color[1] = (unsigned char)(1 + color_of(t, 0));
    }
    put_colored(f, name, color, strlen(name));
}

/* ---- rows ---- */

/* Files may hold times outside the row. */
static size_t column_of(const struct row *row, double time)
{
    return (size_t)fmin((double)row->n, floor(time * row->scale + 0.5));
}

/* "F12" in as many columns as there are. */
static void draw_node(const struct zb_node *node, struct row *row)
{
    size_t from = column_of(row, node->start), to = column_of(row, node->end);
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
        row->text[i] = i - from < n     ? label[i - from]
                       : row->has_color ? ' '
                                        : '-';
        row->color[i] = (unsigned char)(1 + color_of(node->type, node->chunk));
    }
}

static void write_row(const struct zb_schedule *s, int stage, struct row *row,
                      FILE *f)
{
    char mem[ZB_PLAN_NUMBER_MAX];

    memset(row->text, '.', row->n);
    memset(row->color, 0, row->n);
    for (size_t j = 0; j < s->stages[stage].n; j++) {
        if (zb_node_is_compute(s->stages[stage].node[j].type)) {
            draw_node(&s->stages[stage].node[j], row);
        }
    }
    fprintf(f, "%*d |", zb_plan_n_digits(s->n_stage - 1), stage);
    if (row->has_color) {
        put_colored(f, row->text, row->color, row->n);
    } else {
        fwrite(row->text, 1, row->n, f);
    }
    fputc('|', f);
    if (!isnan(s->peak_mem[stage])) {
        fprintf(f, " peak %s", zb_plan_number(s->peak_mem[stage], mem));
    }
    fputc('\n', f);
}

/* A name from a file must not steer the terminal. */
static void put_plain(FILE *f, const char *s)
{
    for (; *s != '\0'; s++) {
        fputc(*s < 0x20 || *s > 0x7e ? '?' : *s, f);
    }
}

static void write_head(const struct zb_schedule *s, const struct row *row,
                       FILE *f)
{
    char a[ZB_PLAN_NUMBER_MAX];

    put_plain(f, s->planner);
    fprintf(f,
            ": %d stages, %d microbatches, placement %s, %d chunk%s per "
            "stage\n",
            s->n_stage, s->n_micro, zb_placement_str(s->placement), s->n_chunk,
            s->n_chunk == 1 ? "" : "s");
    fprintf(f, "makespan %s", zb_plan_number(s->makespan, a));
    fprintf(f, ", span %s", zb_plan_number(s->span, a));
    zb_plan_put_bound(f, s);
    fprintf(f, ", bubble %.1f %%\nobjective %s (%s), planned in %.1f ms\n",
            100 * s->bubble_rate, zb_plan_objective_str(s->objective),
            s->objective == ZB_PLAN_STEADY ? "span" : "makespan", s->plan_ms);
    put_type(f, ZB_NODE_F, row->has_color);
    fputs(" forward, ", f);
    put_type(f, ZB_NODE_B, row->has_color);
    fputs(" input gradients, ", f);
    put_type(f, ZB_NODE_W, row->has_color);
    fputs(" weight gradients, ", f);
    put_type(f, ZB_NODE_BW, row->has_color);
    fprintf(f, " both; small letters: %s; number: microbatch\n",
            s->n_chunk == 2 ? "chunk 1" : "odd chunks");
    fprintf(f, "one column = %.6g\n", 1 / row->scale);
}

enum zb_status zb_plan_write_text(const struct zb_schedule *s,
                                  const struct zb_plan_style *style, FILE *f)
{
    struct row row = {.scale = text_scale(s, style->n_columns),
                      .has_color = style->has_color};

    row.n = (size_t)ceil(s->makespan * row.scale - 1e-6);
    row.text = zb_alloc(row.n);
    row.color = zb_alloc(row.n);
    if (row.text == NULL || row.color == NULL) {
        zb_free(row.text);
        zb_free(row.color);
        return ZB_ENOMEM;
    }
    write_head(s, &row, f);
    for (int i = 0; i < s->n_stage; i++) {
        write_row(s, i, &row, f);
    }
    zb_free(row.text);
    zb_free(row.color);
    return ZB_OK;
}
