/* SPDX-License-Identifier: MIT
 *
 * Drawings: every node is there, at its time; svg is well-formed XML, trace is
 * JSON, text fits its columns; names from files can do no harm.
 */
#include "config.h"
#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "plan_rig.h"
#include "zb/plan.h"
#include "zbt.h"

static char *draw(const struct zb_schedule *s, enum zb_plan_format format,
                  const struct zb_plan_style *style)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);

    CU_ASSERT_FATAL(f != NULL);
    ZBT_OK(zb_schedule_draw(s, format, style, f));
    fclose(f);
    return text;
}

static size_t count(const char *text, const char *word)
{
    size_t n = 0;

    for (; (text = strstr(text, word)) != NULL; text += strlen(word)) {
        n++;
    }
    return n;
}

static size_t n_compute(const struct zb_schedule *s)
{
    size_t n = 0;

    for (int i = 0; i < s->n_stage; i++) {
        for (size_t j = 0; j < s->stages[i].n; j++) {
            n += (size_t)zb_node_is_compute(s->stages[i].node[j].type);
        }
    }
    return n;
}

static void input_of(const struct zb_schedule *s, struct zb_plan_input *in)
{
    ZBT_OK(zb_plan_input_init(in, s->n_stage, s->n_micro, s->placement,
                              s->n_chunk));
    for (int i = 0; i < s->n_stage; i++) {
        in->max_mem[i] = 1.5 * s->peak_mem[i];
    }
}

/* ---- svg ---- */

/* A tag: name, and whether its attributes are all name="value" with nothing in
 * them that must not be. */
static const char *take_tag(const char *at, char name[16], int *is_empty)
{
    size_t n = 0;

    while (isalnum((unsigned char)*at) && n < 15) {
        name[n++] = *at++;
    }
    name[n] = '\0';
    CU_ASSERT_FATAL(n > 0);
    while (*at == ' ') {
        at += 1 + strspn(at + 1, "abcdefghijklmnopqrstuvwxyzBV0123456789");
        CU_ASSERT_FATAL(at[0] == '=' && at[1] == '"');
        at += 2 + strcspn(at + 2, "\"<&");
        CU_ASSERT_FATAL(*at == '"');
        at++;
    }
    *is_empty = *at == '/';
    at += *is_empty;
    CU_ASSERT_FATAL(*at == '>');
    return at + 1;
}

/* Each tag closed by its own kind, one root, text without stray signs. */
static void check_xml(const char *text)
{
    static char open[8][16];
    size_t depth = 0;
    const char *at = strchr(text, '>') + 2;

    CU_ASSERT_EQUAL(strncmp(text, "<?xml ", 6), 0);
    for (; *at != '\0';) {
        char name[16];
        int is_empty;

        if (at[0] == '<' && at[1] == '/') {
            at = take_tag(at + 2, name, &is_empty);
            CU_ASSERT_FATAL(depth > 0);
            CU_ASSERT_STRING_EQUAL(name, open[--depth]);
            CU_ASSERT(depth > 0 || strcmp(at, "\n") == 0);
        } else if (at[0] == '<') {
            at = take_tag(at + 1, name, &is_empty);
            if (!is_empty) {
                CU_ASSERT_FATAL(depth < 8);
                memcpy(open[depth++], name, sizeof(name));
            }
        } else {
            CU_ASSERT(*at == '\n' || (*at >= 0x20 && *at < 0x7f));
            CU_ASSERT(*at != '&' || at[1] == '#');
            CU_ASSERT(*at != '>');
            at++;
        }
    }
    CU_ASSERT_EQUAL(depth, 0);
}

static void svg_of_every_planner_is_xml_with_a_box_per_node(void)
{
    for (int i = 0; zb_planner_name(i) != NULL; i++) {
        for (int p = 1; p <= 4; p++) {
            struct zb_schedule *s =
                plan_rig_make(zb_planner_name(i), p, 2 * p, 3, 1);
            struct zb_plan_input in;
            struct zb_plan_style style = {.in = &in, .has_messages = p % 2};
            char *text;

            input_of(s, &in);
            text = draw(s, ZB_PLAN_SVG, &style);
            check_xml(text);
            CU_ASSERT_EQUAL(count(text, "><title>"), n_compute(s));
            CU_ASSERT_EQUAL(count(text, "class=\"area\""), (size_t)p);
            CU_ASSERT_EQUAL(count(text, "\"limit\""), (size_t)p);
            CU_ASSERT_EQUAL(count(text, "<script"), 0);
            CU_ASSERT_EQUAL(count(text, "href"), 0);
            CU_ASSERT_PTR_NOT_NULL(strstr(text, "makespan "));
            free(text);
            zb_plan_input_release(&in);
            zb_schedule_free(s);
        }
    }
}

static size_t n_messages(const struct zb_schedule *s)
{
    size_t n = 0;

    for (int i = 0; i < s->n_stage; i++) {
        for (size_t j = 0; j < s->stages[i].n; j++) {
            enum zb_node_type t = s->stages[i].node[j].type;

            n += t == ZB_NODE_SEND_FORWARD || t == ZB_NODE_SEND_BACKWARD;
        }
    }
    return n;
}

static void svg_with_messages_has_a_line_for_each(void)
{
    struct zb_schedule *s = plan_rig_make("zbv", 4, 6, 3, 1);
    struct zb_plan_style style = {.has_messages = 1};
    char *text = draw(s, ZB_PLAN_SVG, &style);

    CU_ASSERT_EQUAL(count(text, "<line class=\"m\""), n_messages(s));
    CU_ASSERT_EQUAL(count(text, "class=\"area\""), 0);
    check_xml(text);
    free(text);
    zb_schedule_free(s);
}

/* p = 8, m = 32: each box has its microbatch's number, at 10 pixels. */
static void svg_of_eight_stages_numbers_every_box(void)
{
    struct zb_schedule *s = plan_rig_make("zbv", 8, 32, 1, 0);
    char *text = draw(s, ZB_PLAN_SVG, NULL), *again;

    CU_ASSERT_EQUAL(count(text, "class=\"n\"") + count(text, "class=\"n d\""),
                    n_compute(s));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, ".n{font-size:10px"));
    again = draw(s, ZB_PLAN_SVG, NULL);
    CU_ASSERT_STRING_EQUAL(text, again);
    free(again);
    free(text);
    zb_schedule_free(s);
}

static void svg_of_odd_times_is_still_xml(void)
{
    static const double times[][2] = {
        {0, 0}, {1e-320, 2e-320}, {1e307, 1e308}, {1e308, 1}, {0.1, 1e6}};
    struct zb_schedule *s = plan_rig_make("1f1b", 2, 3, 1, 0);

    for (size_t i = 0; i < ZB_COUNT_OF(times); i++) {
        char *text;

        s->stages[1].node[1].start = times[i][0];
        s->stages[1].node[1].end = times[i][1];
        s->makespan = fmax(times[i][1], i == 0 ? 0 : s->makespan);
        text = draw(s, ZB_PLAN_SVG, NULL);
        check_xml(text);
        free(text);
        text = draw(s, ZB_PLAN_TEXT, NULL);
        CU_ASSERT_EQUAL(count(text, "|"), 4);
        free(text);
    }
    zb_schedule_free(s);
}

static void input_of_other_sizes_is_refused(void)
{
    struct zb_schedule *s = plan_rig_make("zbv", 2, 3, 1, 0);
    struct zb_plan_input in;
    struct zb_plan_style style = {.in = &in};
    FILE *f = fopen("/dev/null", "w");

    ZBT_OK(zb_plan_input_init(&in, 3, 3, ZB_PLACE_V, 2));
    CU_ASSERT_FATAL(f != NULL);
    CU_ASSERT_EQUAL(zb_schedule_draw(s, ZB_PLAN_SVG, &style, f), ZB_EINVAL);
    fclose(f);
    zb_plan_input_release(&in);
    zb_schedule_free(s);
}

static void names_from_files_are_made_harmless(void)
{
    struct zb_schedule *s = plan_rig_make("zbv", 2, 2, 1, 0);
    json_t *root;
    char *text;

    snprintf(s->planner, sizeof(s->planner), "<a&\"'\033[2J\xc3\xa9>\\");
    text = draw(s, ZB_PLAN_SVG, NULL);
    check_xml(text);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "&#60;a&#38;&#34;&#39;?[2J??&#62;"));
    free(text);
    text = draw(s, ZB_PLAN_TEXT, NULL);
    CU_ASSERT_PTR_NULL(strchr(text, '\033'));
    free(text);
    text = draw(s, ZB_PLAN_TRACE, NULL);
    root = json_loads(text, 0, NULL);
    CU_ASSERT_PTR_NOT_NULL(root);
    json_decref(root);
    free(text);
    zb_schedule_free(s);
}

/* ---- trace ---- */

static void trace_has_one_row_per_stage_and_a_bar_per_node(void)
{
    struct zb_schedule *s = plan_rig_make("zbv", 3, 4, 3, 1);
    char *text = draw(s, ZB_PLAN_TRACE, NULL);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL), *event;
    size_t i, n_bars = 0, n_rows = 0;
    double end = 0;

    CU_ASSERT_PTR_NOT_NULL_FATAL(root);
    json_array_foreach(json_object_get(root, "traceEvents"), i, event)
    {
        const char *ph = json_string_value(json_object_get(event, "ph"));
        const char *name = json_string_value(json_object_get(event, "name"));

        CU_ASSERT_FATAL(ph != NULL && name != NULL);
        n_rows += strcmp(name, "thread_name") == 0;
        if (strcmp(ph, "X") == 0) {
            double ts = json_number_value(json_object_get(event, "ts"));
            double dur = json_number_value(json_object_get(event, "dur"));

            n_bars++;
            end = fmax(end, ts + dur);
            CU_ASSERT(dur == (name[0] == 'F' ? 3 : 1));
        }
    }
    CU_ASSERT_EQUAL(n_rows, 3);
    CU_ASSERT_EQUAL(n_bars, n_compute(s));
    CU_ASSERT_EQUAL(end, s->makespan);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"name\":\"F0.3\""));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"name\":\"W1.2\""));
    json_decref(root);
    free(text);
    zb_schedule_free(s);
}

/* ---- text ---- */

static size_t longest_line(const char *text)
{
    size_t longest = 0;

    for (; *text != '\0'; text += *text == '\n') {
        size_t n = strcspn(text, "\n");

        if (memchr(text, '|', n) != NULL && n > longest) {
            longest = n;
        }
        text += n;
    }
    return longest;
}

static void text_rows_fit_the_columns(void)
{
    static const int columns[] = {60, 80, 132, 400};

    for (size_t i = 0; i < ZB_COUNT_OF(columns); i++) {
        struct zb_plan_style style = {.n_columns = columns[i]};

        for (int m = 4; m <= 64; m *= 4) {
            struct zb_schedule *s = plan_rig_make("zbv", 4, m, 1.5, 0);
            char *text = draw(s, ZB_PLAN_TEXT, &style);

            CU_ASSERT(longest_line(text) <= (size_t)columns[i]);
            CU_ASSERT_EQUAL(count(text, "|"), 8);
            free(text);
            zb_schedule_free(s);
        }
    }
}

/* Without its colours a coloured text has the same letters. */
static void colors_change_no_letter(void)
{
    struct zb_schedule *s = plan_rig_make("zbv", 4, 8, 1, 0);
    struct zb_plan_style style = {.has_color = 1};
    char *plain = draw(s, ZB_PLAN_TEXT, NULL);
    char *color = draw(s, ZB_PLAN_TEXT, &style), *to = color;

    CU_ASSERT_PTR_NULL(strchr(plain, '\033'));
    CU_ASSERT(count(color, "\033[38;5;") > n_compute(s) / 2);
    CU_ASSERT(count(color, "\033[0m") >= 4);
    for (const char *at = color; *at != '\0'; at++) {
        if (*at == '\033') {
            at += strcspn(at, "m");
        } else {
            *to++ = *at;
        }
    }
    *to = '\0';
    CU_ASSERT_STRING_EQUAL(color, plain);
    free(color);
    free(plain);
    zb_schedule_free(s);
}

static void expect_text(const struct zb_schedule *s, const char *part,
                        int is_there)
{
    char *text = draw(s, ZB_PLAN_TEXT, NULL);

    CU_ASSERT_EQUAL(strstr(text, part) != NULL, is_there);
    free(text);
}

static void gap_is_that_of_the_objective(void)
{
    struct zb_schedule *s = plan_rig_make("zbv", 4, 8, 1, 0), *back = NULL;
    char *json;

    s->makespan = 52;
    s->span = 48;
    s->lower_bound = 50;
    expect_text(s, "lower bound 50 (gap 4.00 %)", 1);
    expect_text(s, "objective step (makespan)", 1);
    s->objective = ZB_PLAN_STEADY;
    s->lower_bound = 48;
    CU_ASSERT_EQUAL(zb_schedule_gap(s), 0);
    expect_text(s, "lower bound 48 (gap 0.00 %)", 1);
    expect_text(s, "objective steady (span)", 1);
    s->lower_bound = 0;
    CU_ASSERT(isnan(zb_schedule_gap(s)));
    expect_text(s, "lower bound 0, bubble", 1);
    s->lower_bound = NAN;
    CU_ASSERT(isnan(zb_schedule_gap(s)));
    expect_text(s, "lower bound", 0);
    json = draw(s, ZB_PLAN_JSON, NULL);
    ZBT_OK(zb_schedule_read(plan_rig_file(json, strlen(json)), &back));
    CU_ASSERT_EQUAL(back->objective, ZB_PLAN_STEADY);
    free(json);
    zb_schedule_free(back);
    zb_schedule_free(s);
}

static void formats_are_found_by_name(void)
{
    enum zb_plan_format format;

    for (int i = 0; i < ZB_N_PLAN_FORMATS; i++) {
        ZBT_OK(zb_plan_format_find(zb_plan_format_str((enum zb_plan_format)i),
                                   &format));
        CU_ASSERT_EQUAL((int)format, i);
    }
    CU_ASSERT_EQUAL(zb_plan_format_find("png", &format), ZB_EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(
        zb_error_text(), "'png': text, json, nodes, torch, svg or trace"));
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(svg_of_every_planner_is_xml_with_a_box_per_node),
        ZBT_CASE(svg_with_messages_has_a_line_for_each),
        ZBT_CASE(svg_of_eight_stages_numbers_every_box),
        ZBT_CASE(svg_of_odd_times_is_still_xml),
        ZBT_CASE(input_of_other_sizes_is_refused),
        ZBT_CASE(names_from_files_are_made_harmless),
        ZBT_CASE(trace_has_one_row_per_stage_and_a_bar_per_node),
        ZBT_CASE(text_rows_fit_the_columns),
        ZBT_CASE(colors_change_no_letter),
        ZBT_CASE(gap_is_that_of_the_objective),
        ZBT_CASE(formats_are_found_by_name),
    };

    return zbt_run("plan_draw", cases, ZB_COUNT_OF(cases));
}
