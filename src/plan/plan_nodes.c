/* SPDX-License-Identifier: MIT
 *
 * Format nodes: one node per line, "stage type chunk mb start end rollback".
 */
#include "config.h"
#include "plan/plan_format.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum zb_status zb_plan_write_nodes(const struct zb_schedule *s,
                                   const struct zb_plan_style *style, FILE *f)
{
    char start[ZB_PLAN_NUMBER_MAX], end[ZB_PLAN_NUMBER_MAX];

    (void)style;
    for (int i = 0; i < s->n_stage; i++) {
        for (size_t j = 0; j < s->stages[i].n; j++) {
            const struct zb_node *node = &s->stages[i].node[j];

            fprintf(f, "%d %s %d %d %s %s %d\n", i,
                    zb_node_type_str(node->type), node->chunk, node->mb,
                    zb_plan_number(node->start, start),
                    zb_plan_number(node->end, end), node->rollback);
        }
    }
    return ZB_OK;
}

/* One word of a line; len 0 at its end. */
struct word {
    const char *text;
    size_t len;
};

static struct word next_word(const char **at)
{
    struct word w;

    while (**at == ' ' || **at == '\t' || **at == '\r') {
        (*at)++;
    }
    w.text = *at;
    while (**at != '\0' && !isspace((unsigned char)**at)) {
        (*at)++;
    }
    w.len = (size_t)(*at - w.text);
    return w;
}

static enum zb_status read_count(struct word w, const char *name, int *out)
{
    int value = 0;

    for (size_t i = 0; i < w.len; i++) {
        if (!isdigit((unsigned char)w.text[i]) ||
            value > ZB_PLAN_MAX_CELLS / 10) {
            value = -1;
            break;
        }
        value = value * 10 + (w.text[i] - '0');
    }
    if (w.len == 0) {
        return zb_fail(ZB_ECONFIG, "%s is missing", name);
    }
    if (value < 0) {
        return zb_fail(ZB_ECONFIG, "%s '%.*s' is not a number from 0 to %d",
                       name, w.len > 40 ? 40 : (int)w.len, w.text,
                       ZB_PLAN_MAX_CELLS);
    }
    *out = value;
    return ZB_OK;
}

static enum zb_status read_time(struct word w, const char *name, double *out)
{
    char *end;
    double value;

    if (w.len == 0) {
        return zb_fail(ZB_ECONFIG, "%s is missing", name);
    }
    value = strtod(w.text, &end);
    if (end != w.text + w.len || !isfinite(value) || value < 0) {
        return zb_fail(ZB_ECONFIG, "%s '%.*s' is not a number >= 0", name,
                       w.len > 40 ? 40 : (int)w.len, w.text);
    }
    *out = value;
    return ZB_OK;
}

static enum zb_status read_line(const char *at, int *stage_out,
                                struct zb_node *node_out)
{
    struct zb_node node = {0};
    struct word w;

    ZB_TRY(read_count(next_word(&at), "stage", stage_out));
    w = next_word(&at);
    if (!zb_plan_find_type(w.text, w.len, &node.type)) {
        return zb_fail(ZB_ECONFIG, "unknown node type '%.*s'",
                       w.len > 40 ? 40 : (int)w.len, w.text);
    }
    ZB_TRY(read_count(next_word(&at), "chunk", &node.chunk));
    ZB_TRY(read_count(next_word(&at), "mb", &node.mb));
    ZB_TRY(read_time(next_word(&at), "start", &node.start));
    ZB_TRY(read_time(next_word(&at), "end", &node.end));
    ZB_TRY(read_count(next_word(&at), "rollback", &node.rollback));
    w = next_word(&at);
    if (w.len > 0) {
        return zb_fail(ZB_ECONFIG, "'%.*s' after the rollback flag",
                       w.len > 40 ? 40 : (int)w.len, w.text);
    }
    if (node.rollback > 1) {
        return zb_fail(ZB_ECONFIG, "rollback must be 0 or 1");
    }
    *node_out = node;
    return ZB_OK;
}

static enum zb_status add_line(struct zb_plan_draft *d, const char *line)
{
    const char *at = line;
    struct word w = next_word(&at);
    struct zb_node node;
    int stage;

    if (w.len == 0 || w.text[0] == '#') {
        return ZB_OK;
    }
    ZB_TRY(read_line(line, &stage, &node));
    if ((size_t)stage == d->n_stage) {
        ZB_TRY(zb_plan_draft_stage(d));
    }
    if ((size_t)stage + 1 != d->n_stage) {
        return zb_fail(ZB_ECONFIG,
                       "stage %d: stages must be in order, from 0, without "
                       "gaps",
                       stage);
    }
    return zb_plan_draft_node(d, &node);
}

static enum zb_status add_lines(struct zb_plan_draft *d, const char *path,
                                const char *text)
{
    enum zb_status st;
    size_t line_no = 1;

    for (const char *at = text; *at != '\0'; line_no++) {
        st = add_line(d, at);
        if (st != ZB_OK) {
            return zb_fail_in(st, "%s: line %zu", path, line_no);
        }
        at += strcspn(at, "\n");
        at += *at == '\n';
    }
    return ZB_OK;
}

enum zb_status zb_plan_read_nodes(const char *path, const char *text,
                                  size_t len, struct zb_schedule **s_out)
{
    struct zb_plan_draft d = {.max_chunk = -1, .max_mb = -1};
    enum zb_status st = add_lines(&d, path, text);

    (void)len;
    if (st == ZB_OK) {
        st = zb_plan_draft_finish(&d, -1, 0, s_out);
        if (st != ZB_OK) {
            zb_fail_in(st, "%s", path);
        }
    }
    zb_plan_draft_release(&d);
    return st;
}
