/* SPDX-License-Identifier: MIT
 *
 * Format torch: the CSV of torch.distributed.pipelining. One row per rank, one
 * action per cell, an empty cell where the rank waits: 3F0 is F of microbatch 0
 * of virtual stage 3, I is our B, B our BW, 3SEND_F0 and 4RECV_F0 the two ends
 * of one message.
 *
 * Written is the form without messages. It is what _load_csv() takes unless
 * told otherwise and the only one that does not depend on PyTorch's version:
 * the form with messages needs whatever else that version's runtime has actions
 * for (parameters gathered, sends waited for).
 */
#include "config.h"
#include "plan/plan_format.h"

#include <ctype.h>
#include <string.h>

/* ---- writing ---- */

static const char *action_name(enum zb_node_type t)
{
    static const char *const names[] = {[ZB_NODE_F] = "F",
                                        [ZB_NODE_B] = "I",
                                        [ZB_NODE_W] = "W",
                                        [ZB_NODE_BW] = "B"};

    return names[t];
}

enum zb_status zb_plan_write_torch(const struct zb_schedule *s,
                                   const struct zb_plan_style *style, FILE *f)
{
    (void)style;
    for (int i = 0; i < s->n_stage; i++) {
        const char *sep = "";

        for (size_t j = 0; j < s->stages[i].n; j++) {
            const struct zb_node *node = &s->stages[i].node[j];

            if (zb_node_is_compute(node->type)) {
                fprintf(
                    f, "%s%d%s%d", sep,
                    zb_virtual_stage(s->placement, s->n_stage, i, node->chunk),
                    action_name(node->type), node->mb);
                sep = ",";
            }
        }
        fputc('\n', f);
    }
    return ZB_OK;
}

/* ---- one action ---- */

/* Actions by name. What a stage of zbrun does by itself is read and left out:
 * it has all its weights, and its gradients are reduced when they are ready. */
static const struct {
    const char *name;
    int is_skipped;
    enum zb_node_type type;
} actions[] = {
    {"F", 0, ZB_NODE_F},
    {"I", 0, ZB_NODE_B},
    {"W", 0, ZB_NODE_W},
    {"B", 0, ZB_NODE_BW},
    {"SEND_F", 0, ZB_NODE_SEND_FORWARD},
    {"RECV_F", 0, ZB_NODE_RECV_FORWARD},
    {"SEND_B", 0, ZB_NODE_SEND_BACKWARD},
    {"RECV_B", 0, ZB_NODE_RECV_BACKWARD},
    {.name = "UNSHARD", .is_skipped = 1},
    {.name = "RESHARD", .is_skipped = 1},
    {.name = "REDUCE_GRAD", .is_skipped = 1},
    {.name = "WAIT_REDUCE_GRAD", .is_skipped = 1},
    {.name = "WAIT_SEND_F", .is_skipped = 1},
    {.name = "WAIT_SEND_B", .is_skipped = 1},
};

/* A piece of the text: a cell, or one of the actions in it. */
struct piece {
    const char *text;
    size_t len;
};

/* For a message: all of a short one. */
static int shown(struct piece p)
{
    return p.len > 60 ? 60 : (int)p.len;
}

static struct piece trim(struct piece p)
{
    static const char blank[] = " \t\r\"";

    while (p.len > 0 && strchr(blank, p.text[0]) != NULL) {
        p.text++;
        p.len--;
    }
    while (p.len > 0 && strchr(blank, p.text[p.len - 1]) != NULL) {
        p.len--;
    }
    return p;
}

/* Take a number from the front of `p`: -1 when there is none, -2 when it is too
 * large. */
static int take_number(struct piece *p)
{
    int value = -1;

    while (p->len > 0 && isdigit((unsigned char)p->text[0])) {
        if (value != -2) {
            value = (value < 0 ? 0 : value * 10) + (p->text[0] - '0');
            value = value > ZB_PLAN_MAX_CELLS ? -2 : value;
        }
        p->text++;
        p->len--;
    }
    return value;
}

static int find_action(struct piece name)
{
    for (size_t i = 0; i < ZB_COUNT_OF(actions); i++) {
        if (strlen(actions[i].name) == name.len &&
            memcmp(actions[i].name, name.text, name.len) == 0) {
            return (int)i;
        }
    }
    return -1;
}

/* "3F0". The node's chunk is the virtual stage as long as the placement is not
 * known. */
static enum zb_status read_action(struct zb_plan_draft *d, struct piece whole)
{
    struct piece rest = whole, name;
    struct zb_node node = {0};
    int action;

    node.chunk = take_number(&rest);
    name = rest;
    while (rest.len > 0 && !isdigit((unsigned char)rest.text[0])) {
        rest.text++;
        rest.len--;
    }
    name.len -= rest.len;
    action = find_action(name);
    node.mb = take_number(&rest);
    if (node.chunk == -1 || action < 0 || rest.len > 0) {
        return zb_fail(ZB_ECONFIG,
                       "action '%.*s' is not a stage, F, I, W, B, SEND_F, "
                       "RECV_F, SEND_B or RECV_B, and a microbatch",
                       shown(whole), whole.text);
    }
    if (node.chunk == -2 || node.mb == -2) {
        return zb_fail(ZB_ECONFIG, "action '%.*s' has a number above %d",
                       shown(whole), whole.text, ZB_PLAN_MAX_CELLS);
    }
    if (actions[action].is_skipped) {
        return ZB_OK;
    }
    if (node.mb < 0) {
        return zb_fail(ZB_ECONFIG, "action '%.*s' has no microbatch",
                       shown(whole), whole.text);
    }
    node.type = actions[action].type;
    return zb_plan_draft_node(d, &node);
}

/* "(3F1;0B0)OVERLAP_F_B": one after the other is one way to do both. */
static enum zb_status read_overlap(struct zb_plan_draft *d, struct piece cell)
{
    static const char tail[] = ")OVERLAP_F_B";
    size_t n_tail = sizeof(tail) - 1;
    struct piece left;

    if (cell.len < n_tail + 1 ||
        memcmp(cell.text + cell.len - n_tail, tail, n_tail) != 0) {
        return zb_fail(ZB_ECONFIG,
                       "action '%.*s' is not of the form "
                       "(ACTION;ACTION)OVERLAP_F_B",
                       shown(cell), cell.text);
    }
    left = (struct piece){cell.text + 1, cell.len - 1 - n_tail};
    while (left.len > 0) {
        const char *semicolon = memchr(left.text, ';', left.len);
        struct piece one = left;

        if (semicolon != NULL) {
            one.len = (size_t)(semicolon - left.text);
        }
        ZB_TRY(read_action(d, trim(one)));
        one.len += semicolon != NULL;
        left.text += one.len;
        left.len -= one.len;
    }
    return ZB_OK;
}

/* ---- rows ---- */

static enum zb_status read_row(struct zb_plan_draft *d, const char *at,
                               size_t len)
{
    size_t before = d->n;

    ZB_TRY(zb_plan_draft_stage(d));
    for (const char *end = at + len; at < end; at++) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        struct piece cell;

        comma = comma != NULL ? comma : end;
        cell = trim((struct piece){at, (size_t)(comma - at)});
        if (cell.len > 0) {
            ZB_TRY(cell.text[0] == '(' ? read_overlap(d, cell)
                                       : read_action(d, cell));
        }
        at = comma;
    }
    return d->n > before
               ? ZB_OK
               : zb_fail(ZB_ECONFIG, "rank %zu does nothing", d->n_stage - 1);
}

static enum zb_status read_rows(struct zb_plan_draft *d, const char *path,
                                const char *text)
{
    /* Empty lines at the end are no ranks. */
    size_t left = strlen(text);

    while (left > 0 && isspace((unsigned char)text[left - 1])) {
        left--;
    }
    for (size_t line = 1; left > 0; line++) {
        const char *newline = memchr(text, '\n', left);
        size_t len = newline != NULL ? (size_t)(newline - text) : left;
        enum zb_status st = read_row(d, text, len);

        if (st != ZB_OK) {
            return zb_fail_in(st, "%s: line %zu", path, line);
        }
        len += newline != NULL;
        text += len;
        left -= len;
    }
    return ZB_OK;
}

/* ---- placement ---- */

/* The first node, in file order, whose rank does not hold its stage under a
 * placement; d->n when all fit. */
static size_t first_misplaced(const struct zb_plan_draft *d,
                              enum zb_placement placement, int *rank_out)
{
    size_t i = 0;

    for (size_t r = 0; r < d->n_stage; r++) {
        size_t end = r + 1 < d->n_stage ? d->first[r + 1] : d->n;

        for (; i < end; i++) {
            int stage, chunk;

            zb_virtual_to_local(placement, (int)d->n_stage, d->node[i].chunk,
                                &stage, &chunk);
            if (stage != (int)r) {
                *rank_out = (int)r;
                return i;
            }
        }
    }
    return d->n;
}

static enum zb_status misplaced(const struct zb_plan_draft *d,
                                enum zb_placement placement, size_t i, int rank)
{
    int stage, chunk;

    zb_virtual_to_local(placement, (int)d->n_stage, d->node[i].chunk, &stage,
                        &chunk);
    return zb_fail(ZB_ECONFIG,
                   "line %d: %s of stage %d, mb %d: a %s placement of %zu "
                   "ranks has stage %d on rank %d, not on rank %d",
                   rank + 1, zb_node_type_str(d->node[i].type),
                   d->node[i].chunk, d->node[i].mb, zb_placement_str(placement),
                   d->n_stage, d->node[i].chunk, stage, rank);
}

/* The placement that puts every stage on the rank the file has it on. */
static enum zb_status find_placement(struct zb_plan_draft *d,
                                     enum zb_placement *placement_out)
{
    int n_virtual = d->max_chunk + 1, rank = 0, other_rank;
    int n_chunk = n_virtual / (int)d->n_stage;
    enum zb_placement placement;
    size_t wrong;

    if (n_virtual % (int)d->n_stage != 0) {
        return zb_fail(ZB_ECONFIG,
                       "%d stages cannot be spread evenly over %zu ranks",
                       n_virtual, d->n_stage);
    }
    placement = n_chunk == 1   ? ZB_PLACE_LINEAR
                : n_chunk == 2 ? ZB_PLACE_V
                               : ZB_PLACE_LOOP;
    wrong = first_misplaced(d, placement, &rank);
    if (wrong < d->n && n_chunk == 2 &&
        first_misplaced(d, ZB_PLACE_LOOP, &other_rank) == d->n) {
        placement = ZB_PLACE_LOOP;
    } else if (wrong < d->n) {
        return misplaced(d, placement, wrong, rank);
    }
    *placement_out = placement;
    return ZB_OK;
}

static enum zb_status finish(struct zb_plan_draft *d,
                             struct zb_schedule **s_out)
{
    enum zb_placement placement = ZB_PLACE_V;
    struct zb_schedule *s = NULL;
    enum zb_status st;
    int stage;

    ZB_TRY(find_placement(d, &placement));
    d->max_chunk = d->max_chunk / (int)d->n_stage;
    for (size_t i = 0; i < d->n; i++) {
        zb_virtual_to_local(placement, (int)d->n_stage, d->node[i].chunk,
                            &stage, &d->node[i].chunk);
    }
    ZB_TRY(zb_plan_draft_finish(d, (int)placement, 0, &s));
    st = zb_plan_simulate_unit(s);
    if (st != ZB_OK) {
        zb_schedule_free(s);
        return st;
    }
    *s_out = s;
    return ZB_OK;
}

enum zb_status zb_plan_read_torch(const char *path, const char *text,
                                  size_t len, struct zb_schedule **s_out)
{
    struct zb_plan_draft d = {.max_chunk = -1, .max_mb = -1};
    enum zb_status st = read_rows(&d, path, text);

    (void)len;
    if (st == ZB_OK) {
        st = finish(&d, s_out);
        if (st != ZB_OK) {
            zb_fail_in(st, "%s", path);
        }
    }
    zb_plan_draft_release(&d);
    return st;
}

/* An action, possibly after empty cells. A line of format nodes has a space
 * behind its first number. */
int zb_plan_is_torch(const char *text)
{
    size_t n;

    text += strspn(text, " \t\r\n\",(");
    n = strspn(text, "0123456789");
    return n > 0 && isupper((unsigned char)text[n]);
}
