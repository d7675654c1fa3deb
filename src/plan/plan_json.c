/* SPDX-License-Identifier: MIT
 *
 * Format json: one object with a list of compute nodes per stage.
 */
#include "config.h"
#include "plan/plan_format.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "zb/mem.h"

/* ---- writing ---- */

static void put_number(FILE *f, double x)
{
    char text[ZB_PLAN_NUMBER_MAX];

    fputs(isfinite(x) ? zb_plan_number(x, text) : "null", f);
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

enum zb_status zb_plan_write_json(const struct zb_schedule *s,
                                  const struct zb_plan_style *style, FILE *f)
{
    (void)style;
    fputs("{\"planner\":", f);
    zb_plan_put_json(f, s->planner);
    fprintf(f,
            ",\"n_stage\":%d,\"n_micro\":%d,\"placement\":\"%s\","
            "\"objective\":\"%s\",\n\"makespan\":",
            s->n_stage, s->n_micro, zb_placement_str(s->placement),
            zb_plan_objective_str(s->objective));
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
    return ZB_OK;
}

/* ---- reading ---- */

/* What the file says about itself; 0, -1 or NULL where it does not. */
struct head {
    int n_stage;
    int n_micro;
    int placement;
    enum zb_plan_objective objective;
    const char *planner;
    const json_t *peak_mem;
};

static enum zb_status read_int(const json_t *object, const char *key, int least,
                               int *value_out)
{
    const json_t *value = json_object_get(object, key);
    json_int_t x;

    if (value == NULL) {
        return ZB_OK;
    }
    x = json_integer_value(value);
    if (!json_is_integer(value) || x < least || x > ZB_PLAN_MAX_CELLS) {
        return zb_fail(ZB_ECONFIG, "\"%s\" is not a whole number from %d to %d",
                       key, least, ZB_PLAN_MAX_CELLS);
    }
    *value_out = (int)x;
    return ZB_OK;
}

static enum zb_status read_number(const json_t *object, const char *key,
                                  double *value_out)
{
    const json_t *value = json_object_get(object, key);
    double x;

    if (value == NULL) {
        return ZB_OK;
    }
    x = json_number_value(value);
    if (!json_is_number(value) || !isfinite(x) || x < 0) {
        return zb_fail(ZB_ECONFIG, "\"%s\" is not a number >= 0", key);
    }
    *value_out = x;
    return ZB_OK;
}

static enum zb_status read_node(const json_t *object, struct zb_node *node_out)
{
    const json_t *type = json_object_get(object, "type");
    struct zb_node node = {.mb = -1};
    const char *name;

    if (!json_is_object(object)) {
        return zb_fail(ZB_ECONFIG, "not an object");
    }
    if (!json_is_string(type)) {
        return zb_fail(ZB_ECONFIG, "\"type\" is %s",
                       type == NULL ? "missing" : "not a string");
    }
    name = json_string_value(type);
    if (!zb_plan_find_type(name, strlen(name), &node.type)) {
        return zb_fail(ZB_ECONFIG, "unknown \"type\" '%.40s'", name);
    }
    ZB_TRY(read_int(object, "chunk", 0, &node.chunk));
    ZB_TRY(read_int(object, "mb", 0, &node.mb));
    if (node.mb < 0) {
        return zb_fail(ZB_ECONFIG, "\"mb\" is missing");
    }
    ZB_TRY(read_number(object, "start", &node.start));
    node.end = node.start;
    ZB_TRY(read_number(object, "end", &node.end));
    *node_out = node;
    return ZB_OK;
}

static enum zb_status read_stage(struct zb_plan_draft *d, const json_t *stage)
{
    const json_t *object;
    struct zb_node node;
    enum zb_status st;
    size_t i;

    if (!json_is_array(stage)) {
        return zb_fail(ZB_ECONFIG, "\"stages\"[%zu] is not a list", d->n_stage);
    }
    ZB_TRY(zb_plan_draft_stage(d));
    json_array_foreach(stage, i, object)
    {
        st = read_node(object, &node);
        if (st == ZB_OK) {
            st = zb_plan_draft_node(d, &node);
        }
        if (st != ZB_OK) {
            return zb_fail_in(st, "\"stages\"[%zu][%zu]", d->n_stage - 1, i);
        }
    }
    return ZB_OK;
}

static enum zb_status read_placement(const json_t *root, int *placement_out)
{
    const json_t *value = json_object_get(root, "placement");
    const char *name = json_string_value(value);

    if (value == NULL) {
        return ZB_OK;
    }
    for (int i = ZB_PLACE_V; name != NULL && i <= ZB_PLACE_LINEAR; i++) {
        if (strcmp(name, zb_placement_str((enum zb_placement)i)) == 0) {
            *placement_out = i;
            return ZB_OK;
        }
    }
    return zb_fail(ZB_ECONFIG,
                   "\"placement\" is not \"v\", \"loop\" or \"linear\"");
}

static enum zb_status read_objective(const json_t *root,
                                     enum zb_plan_objective *objective_out)
{
    const json_t *value = json_object_get(root, "objective");
    const char *name = json_string_value(value);

    if (value == NULL) {
        return ZB_OK;
    }
    for (int i = ZB_PLAN_STEP; name != NULL && i <= ZB_PLAN_STEADY; i++) {
        if (strcmp(name, zb_plan_objective_str((enum zb_plan_objective)i)) ==
            0) {
            *objective_out = (enum zb_plan_objective)i;
            return ZB_OK;
        }
    }
    return zb_fail(ZB_ECONFIG, "\"objective\" is not \"step\" or \"steady\"");
}

static enum zb_status read_head(const json_t *root, struct head *h)
{
    static const char *const numbers[] = {"makespan", "span", "bubble_rate",
                                          "plan_ms"};
    const json_t *planner = json_object_get(root, "planner");
    double ignored;

    ZB_TRY(read_int(root, "n_stage", 1, &h->n_stage));
    ZB_TRY(read_int(root, "n_micro", 1, &h->n_micro));
    ZB_TRY(read_placement(root, &h->placement));
    ZB_TRY(read_objective(root, &h->objective));
    if (planner != NULL && !json_is_string(planner)) {
        return zb_fail(ZB_ECONFIG, "\"planner\" is not a string");
    }
    h->planner = json_string_value(planner);
    /* These follow from the nodes; they only must be what they should be. */
    for (size_t i = 0; i < ZB_COUNT_OF(numbers); i++) {
        ZB_TRY(read_number(root, numbers[i], &ignored));
    }
    h->peak_mem = json_object_get(root, "peak_mem");
    if (h->peak_mem != NULL && !json_is_array(h->peak_mem)) {
        return zb_fail(ZB_ECONFIG, "\"peak_mem\" is not a list");
    }
    return ZB_OK;
}

static enum zb_status read_stages(const json_t *root, const struct head *h,
                                  struct zb_plan_draft *d)
{
    const json_t *stages = json_object_get(root, "stages"), *stage;
    size_t i;

    if (!json_is_array(stages)) {
        return zb_fail(ZB_ECONFIG, "\"stages\" is %s",
                       stages == NULL ? "missing" : "not a list");
    }
    if (h->n_stage > 0 && (size_t)h->n_stage != json_array_size(stages)) {
        return zb_fail(ZB_ECONFIG, "\"n_stage\" is %d, but \"stages\" has %zu",
                       h->n_stage, json_array_size(stages));
    }
    json_array_foreach(stages, i, stage)
    {
        ZB_TRY(read_stage(d, stage));
    }
    return ZB_OK;
}

static enum zb_status take_peaks(const struct head *h, struct zb_schedule *s)
{
    const json_t *value;
    size_t i;

    if (h->peak_mem == NULL) {
        return ZB_OK;
    }
    if (json_array_size(h->peak_mem) != (size_t)s->n_stage) {
        return zb_fail(ZB_ECONFIG, "\"peak_mem\" has %zu values for %d stages",
                       json_array_size(h->peak_mem), s->n_stage);
    }
    json_array_foreach(h->peak_mem, i, value)
    {
        if (!json_is_number(value) && !json_is_null(value)) {
            return zb_fail(ZB_ECONFIG, "\"peak_mem\"[%zu] is not a number", i);
        }
        s->peak_mem[i] = json_is_null(value) ? NAN : json_number_value(value);
    }
    return ZB_OK;
}

static enum zb_status read_root(const json_t *root, struct zb_schedule **s_out)
{
    struct zb_plan_draft d = {.max_chunk = -1, .max_mb = -1};
    struct head h = {.placement = -1};
    struct zb_schedule *s = NULL;
    enum zb_status st = read_head(root, &h);

    if (st == ZB_OK) {
        st = read_stages(root, &h, &d);
    }
    if (st == ZB_OK) {
        st = zb_plan_draft_finish(&d, h.placement, h.n_micro, &s);
    }
    if (st == ZB_OK) {
        st = take_peaks(&h, s);
    }
    zb_plan_draft_release(&d);
    if (st != ZB_OK) {
        zb_schedule_free(s);
        return st;
    }
    s->objective = h.objective;
    if (h.planner != NULL) {
        snprintf(s->planner, sizeof(s->planner), "%s", h.planner);
    }
    *s_out = s;
    return ZB_OK;
}

enum zb_status zb_plan_read_json(const char *path, const char *text, size_t len,
                                 struct zb_schedule **s_out)
{
    json_error_t error;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    enum zb_status st;

    if (root == NULL) {
        return zb_fail(ZB_ECONFIG, "%s: line %d, column %d: %s", path,
                       error.line, error.column, error.text);
    }
    st = read_root(root, s_out);
    json_decref(root);
    return st == ZB_OK ? ZB_OK : zb_fail_in(st, "%s", path);
}

int zb_plan_is_json(const char *text)
{
    return text[strspn(text, " \t\r\n")] == '{';
}
