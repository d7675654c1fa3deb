/* SPDX-License-Identifier: MIT
 *
 * Schedule files: what is written reads back; what is broken is refused by
 * name; random and mutated files never crash.
 */
#include "config.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "zb/mem.h"
#include "zb/plan.h"
#include "plan_quick.h"
#include "plan_rig.h"
#include "zbt.h"

/* ---- round trips ---- */

static void round_trip(const char *planner, int p, int m, double f, double c,
                       enum zb_plan_format format)
{
    struct zb_schedule *s = plan_rig_make(planner, p, m, f, c), *back = NULL;
    size_t len;
    char *text = plan_rig_text(s, format, &len);

    ZBT_OK(zb_schedule_read(plan_rig_file(text, len), &back));
    ZBT_OK(zb_schedule_check(back, NULL));
    plan_rig_same(s, back, format == ZB_PLAN_NODES);
    if (format == ZB_PLAN_JSON) {
        CU_ASSERT_STRING_EQUAL(back->planner, planner);
        CU_ASSERT_EQUAL(
            memcmp(s->peak_mem, back->peak_mem, (size_t)p * sizeof(double)), 0);
    }
    free(text);
    zb_schedule_free(back);
    zb_schedule_free(s);
}

static void written_files_read_back_the_same(void)
{
    for (int i = 0; zb_planner_name(i) != NULL; i++) {
        for (int p = 1; p <= 5; p += 2) {
            for (int m = 1; m <= 9; m += 4) {
                const char *planner = zb_planner_name(i);

                round_trip(planner, p, m, 3, 1, ZB_PLAN_JSON);
                round_trip(planner, p, m, 3, 1, ZB_PLAN_NODES);
                round_trip(planner, p, m, 3.1, 0.7, ZB_PLAN_NODES);
            }
        }
    }
}

static void file_planner_gives_schedule_with_costs_of_input(void)
{
    struct zb_schedule *s = plan_rig_make("get_v_schedule", 3, 6, 1, 0),
                       *again = NULL;
    struct zb_plan_input in;
    char planner[1100];
    size_t len;
    char *text = plan_rig_text(s, ZB_PLAN_NODES, &len);
    enum zb_placement placement;
    int n_chunk;

    snprintf(planner, sizeof(planner), "file:%s", plan_rig_file(text, len));
    ZBT_OK(zb_planner_shape(planner, &placement, &n_chunk));
    CU_ASSERT_EQUAL(placement, ZB_PLACE_V);
    CU_ASSERT_EQUAL(n_chunk, 2);
    ZBT_OK(zb_plan_input_init(&in, 3, 6, placement, n_chunk));
    for (int v = 0; v < 6; v++) {
        in.f_cost[v] = in.b_cost[v] = in.w_cost[v] = 10;
    }
    ZBT_OK(zb_plan_make(planner, &in, &plan_quick, &again));
    CU_ASSERT_EQUAL(again->makespan, 10 * s->makespan);
    zb_schedule_free(again);
    in.max_mem[1] = 1;
    CU_ASSERT_EQUAL(zb_plan_make(planner, &in, &plan_quick, &again),
                    ZB_EINFEASIBLE);
    zb_plan_input_release(&in);
    ZBT_OK(zb_plan_input_init(&in, 3, 7, placement, n_chunk));
    CU_ASSERT_EQUAL(zb_plan_make(planner, &in, &plan_quick, &again), ZB_EINVAL);
    zb_plan_input_release(&in);
    free(text);
    zb_schedule_free(s);
}

static void text_has_one_row_per_stage(void)
{
    struct zb_schedule *s = plan_rig_make("zbv", 4, 8, 1, 0);
    size_t len, n_rows = 0;
    char *text = plan_rig_text(s, ZB_PLAN_TEXT, &len);

    for (const char *at = text; (at = strchr(at, '|')) != NULL; at++) {
        n_rows++;
    }
    CU_ASSERT_EQUAL(n_rows, 2 * 4);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "0 |F0F1F2F3"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "lower bound 51"));
    free(text);
    zb_schedule_free(s);
}

/* ---- what people write ---- */

static void files_without_optional_fields_are_read(void)
{
    plan_rig_legal("{\"stages\":[[{\"type\":\"F\",\"mb\":0},"
                   "{\"type\":\"BW\",\"mb\":0}]]}",
                   ZB_PLACE_LINEAR, 1);
    plan_rig_legal("{\"stages\":["
                   "[{\"type\":\"F\",\"mb\":0},{\"type\":\"BW\",\"mb\":0}],"
                   "[{\"type\":\"F\",\"mb\":0},{\"type\":\"B\",\"mb\":0},"
                   "{\"type\":\"W\",\"mb\":0}]],\"comment\":\"mine\"}",
                   ZB_PLACE_LINEAR, 1);
    plan_rig_legal("# by hand\n"
                   "0 F 0 0 0 1 0\n0 F 1 0 1 2 0\n\n"
                   "0 B 1 0 2 3 0\n0 B 0 0 3 4 0\n"
                   "0 W 1 0 4 5 0\r\n0 W 0 0 5 6 0",
                   ZB_PLACE_V, 2);
}

/* On two stages F chunk 1 of a loop starts on stage 0, of a V on stage 1. */
static void file_that_only_a_loop_makes_legal_is_a_loop(void)
{
    plan_rig_legal("0 F 0 0 0 1 0\n0 F 1 0 2 3 0\n0 BW 1 0 5 6 0\n"
                   "0 BW 0 0 7 8 0\n"
                   "1 F 0 0 1 2 0\n1 F 1 0 3 4 0\n1 BW 1 0 4 5 0\n"
                   "1 BW 0 0 6 7 0\n",
                   ZB_PLACE_V, 2);
    plan_rig_legal("0 F 0 0 0 0 0\n0 SEND_FORWARD 0 0 0 0 0\n"
                   "0 RECV_FORWARD 1 0 0 0 0\n0 F 1 0 0 0 0\n"
                   "0 SEND_FORWARD 1 0 0 0 0\n0 RECV_BACKWARD 1 0 0 0 0\n"
                   "0 BW 1 0 0 0 0\n0 SEND_BACKWARD 1 0 0 0 0\n"
                   "0 RECV_BACKWARD 0 0 0 0 0\n0 BW 0 0 0 0 0\n"
                   "1 RECV_FORWARD 0 0 0 0 0\n1 F 0 0 0 0 0\n"
                   "1 SEND_FORWARD 0 0 0 0 0\n1 RECV_FORWARD 1 0 0 0 0\n"
                   "1 F 1 0 0 0 0\n1 BW 1 0 0 0 0\n1 SEND_BACKWARD 1 0 0 0 0\n"
                   "1 RECV_BACKWARD 0 0 0 0 0\n1 BW 0 0 0 0 0\n"
                   "1 SEND_BACKWARD 0 0 0 0 0\n",
                   ZB_PLACE_LOOP, 2);
}

static void broken_nodes_files_are_refused_by_line(void)
{
    plan_rig_refused("", "no nodes");
    plan_rig_refused("hello", "line 1: stage 'hello'");
    plan_rig_refused("0 F 0 0 0 1 0\n0 X 0 0 0 1 0\n",
                     "line 2: unknown node type 'X'");
    plan_rig_refused("1 F 0 0 0 1 0\n", "line 1: stage 1: stages must be");
    plan_rig_refused("0 F 0 0 0 1\n", "line 1: rollback is missing");
    plan_rig_refused("0 F 0 0 0 1 0 9\n", "line 1: '9' after");
    plan_rig_refused("0 F 0 -1 0 1 0\n", "line 1: mb '-1'");
    plan_rig_refused("0 F 0 0 nan 1 0\n", "line 1: start 'nan'");
    plan_rig_refused("0 F 0 99999999999 0 1 0\n", "line 1: mb '99999999999'");
    plan_rig_refused("0 F 0 0 0 1 2\n", "line 1: rollback must be 0 or 1");
    plan_rig_refused("0 F 0 16000000 0 1 0\n", "1 nodes cannot be all of");
    plan_rig_refused("0 F 16000000 0 0 1 0\n", "1 nodes cannot be all of");
    plan_rig_refused("0 F 0 0 0 1 0\n0 BW 0 0 1 2 0\n0 BW 0 0 2 3 0\n",
                     "stage 0, node 2 (BW chunk 0 mb 0) is there twice");
    plan_rig_refused("0 BW 0 0 1 2 0\n0 F 0 0 0 1 0\n",
                     "stage 0, node 0 (BW chunk 0 mb 0) comes before its F");
}

static void broken_json_files_are_refused_by_key(void)
{
#define ONE "[[{\"type\":\"F\",\"mb\":0},{\"type\":\"BW\",\"mb\":0}]]"
    plan_rig_refused("{", "line 1, column 1");
    plan_rig_refused("{}", "\"stages\" is missing");
    plan_rig_refused("{\"stages\":3}", "\"stages\" is not a list");
    plan_rig_refused("{\"stages\":[]}", "no nodes");
    plan_rig_refused("{\"stages\":[3]}", "\"stages\"[0] is not a list");
    plan_rig_refused("{\"stages\":[[3]]}", "\"stages\"[0][0]: not an object");
    plan_rig_refused("{\"stages\":[[{\"type\":\"F\"}]]}",
                     "\"stages\"[0][0]: \"mb\" is missing");
    plan_rig_refused("{\"stages\":[[{\"type\":\"G\",\"mb\":0}]]}",
                     "\"stages\"[0][0]: unknown \"type\" 'G'");
    plan_rig_refused("{\"stages\":[[{\"type\":\"F\",\"mb\":0.5}]]}",
                     "\"stages\"[0][0]: \"mb\" is not a whole number");
    plan_rig_refused("{\"stages\":[[{\"type\":\"F\",\"mb\":0,\"start\":-1}]]}",
                     "\"stages\"[0][0]: \"start\" is not a number >= 0");
    plan_rig_refused("{\"n_stage\":2,\"stages\":" ONE "}",
                     "\"n_stage\" is 2, but \"stages\" has 1");
    plan_rig_refused("{\"n_micro\":2,\"stages\":" ONE "}",
                     "F chunk 0 mb 1 is missing");
    plan_rig_refused("{\"n_micro\":\"a\",\"stages\":" ONE "}",
                     "\"n_micro\" is not a whole number");
    plan_rig_refused("{\"placement\":\"w\",\"stages\":" ONE "}",
                     "\"placement\" is not \"v\"");
    plan_rig_refused("{\"objective\":\"fast\",\"stages\":" ONE "}",
                     "\"objective\" is not \"step\"");
    plan_rig_refused("{\"planner\":1,\"stages\":" ONE "}",
                     "\"planner\" is not a string");
    plan_rig_refused("{\"peak_mem\":[1,2],\"stages\":" ONE "}",
                     "\"peak_mem\" has 2 values for 1 stages");
    plan_rig_refused("{\"makespan\":\"x\",\"stages\":" ONE "}",
                     "\"makespan\" is not a number");
    plan_rig_refused("{\"stages\":" ONE ",\"stages\":" ONE "}", "duplicate");
#undef ONE
}

static void missing_file_is_an_io_error(void)
{
    struct zb_schedule *s;

    CU_ASSERT_EQUAL(zb_schedule_read("/nonexistent/x", &s), ZB_EIO);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "/nonexistent/x"));
}

static void write_to_full_device_is_an_io_error(void)
{
    struct zb_schedule *s = plan_rig_make("zbv", 2, 2, 1, 0);
    FILE *f = fopen("/dev/full", "w");

    if (f != NULL) {
        CU_ASSERT_EQUAL(zb_schedule_write(s, ZB_PLAN_JSON, f), ZB_EIO);
        fclose(f);
    }
    zb_schedule_free(s);
}

/* ---- random and mutated files ---- */

static void random_bytes(struct zbt_rng *r, char *text, size_t len)
{
    static const char words[] = "0123456789 FBWSEND_RECV\n{}[]\",:.-e";
    int is_wordy = zbt_rand_in(r, 0, 2) > 0;

    for (size_t i = 0; i < len; i++) {
        text[i] = is_wordy ? words[zbt_rand_in(r, 0, (long)sizeof(words) - 2)]
                           : (char)zbt_rand_in(r, 0, 255);
    }
}

/* Change a written file in one place. */
static void mutate_text(struct zbt_rng *r, char *text, size_t *len)
{
    size_t i, j, n;

    if (*len < 2) {
        return;
    }
    i = (size_t)zbt_rand_in(r, 0, (long)*len - 1);
    j = (size_t)zbt_rand_in(r, 0, (long)*len - 1);
    switch (zbt_rand_in(r, 0, 6)) {
    case 0:
        text[i] = (char)zbt_rand_in(r, 0, 255);
        break;
    case 1: /* another digit */
        i += strcspn(text + i, "0123456789");
        if (i < *len) {
            text[i] = (char)zbt_rand_in(r, '0', '9');
        }
        break;
    case 2:
        *len = zbt_rand_in(r, 0, 9) == 0 ? i : *len;
        break;
    case 3: /* copy a piece over another */
        n = (size_t)zbt_rand_in(r, 1, 80);
        n = i + n > *len ? *len - i : n;
        n = j + n > *len ? *len - j : n;
        memmove(text + i, text + j, n);
        break;
    case 4: /* remove a piece */
        n = (size_t)zbt_rand_in(r, 1, zbt_rand_in(r, 0, 1) ? 3 : 60);
        n = i + n > *len ? *len - i : n;
        memmove(text + i, text + i + n, *len - i - n);
        *len -= n;
        break;
    case 5: /* another letter */
        text[i] = "FBWSR-.e\"[]{},: \n"[zbt_rand_in(r, 0, 16)];
        break;
    default: /* swap two lines' starts */
        n = strcspn(text + i, "\n");
        i = i + n < *len ? i + n : i;
        text[i] = text[j];
        break;
    }
    text[*len] = '\0';
}

/* Read it: a text for each refusal, or a schedule the checker can judge. */
static int read_any(const char *text, size_t len)
{
    const char *path = plan_rig_file(text, len);
    struct zb_schedule *s = NULL;
    enum zb_status st;
    int is_legal;

    zb_fail(ZB_OK, "%s", "");
    st = zb_schedule_read(path, &s);
    if (st != ZB_OK) {
        CU_ASSERT_EQUAL(st, ZB_ECONFIG);
        CU_ASSERT_EQUAL(strncmp(zb_error_text(), path, strlen(path)), 0);
        CU_ASSERT(strlen(zb_error_text()) > strlen(path) + 4);
        return 0;
    }
    st = zb_schedule_check(s, NULL);
    is_legal = st == ZB_OK;
    CU_ASSERT(st == ZB_OK || st == ZB_ECONFIG);
    CU_ASSERT(st == ZB_OK || zb_error_text()[0] != '\0');
    zb_schedule_free(s);
    return is_legal;
}

static void mutated_files_get_a_message_or_a_verdict(void)
{
    struct zbt_rng r = {31337};
    size_t total = 0, goal = (size_t)(zbt_is_long() ? 20 : 3) << 20;
    long n_files = 0, n_legal = 0;

    while (total < goal) {
        const char *planner = zb_planner_name((int)zbt_rand_in(&r, 0, 3));
        struct zb_schedule *s =
            plan_rig_make(planner, (int)zbt_rand_in(&r, 1, 4),
                          (int)zbt_rand_in(&r, 1, 8), 1, 0);
        enum zb_plan_format format =
            (enum zb_plan_format)zbt_rand_in(&r, ZB_PLAN_JSON, ZB_PLAN_TORCH);
        size_t len, full;
        char *text = plan_rig_text(s, format, &full), *copy = malloc(full + 1);

        CU_ASSERT_FATAL(copy != NULL);
        for (int k = 0; k < 16; k++) {
            long n = zbt_rand_in(&r, 1, zbt_rand_in(&r, 0, 1) ? 1 : 12);

            memcpy(copy, text, full + 1);
            len = full;
            while (n-- > 0) {
                mutate_text(&r, copy, &len);
            }
            n_legal += read_any(copy, len);
            n_files++;
            total += len;
        }
        free(copy);
        free(text);
        zb_schedule_free(s);
    }
    printf("\n  %ld files, %ld still legal\n", n_files, n_legal);
    CU_ASSERT(n_legal > 0 && n_legal < n_files);
}

static void random_files_get_a_message(void)
{
    struct zbt_rng r = {12};
    size_t total = 0, goal = (size_t)(zbt_is_long() ? 4 : 1) << 20;
    static char text[4096];

    while (total < goal) {
        size_t len = (size_t)zbt_rand_in(&r, 0, (long)sizeof(text));

        random_bytes(&r, text, len);
        read_any(text, len);
        total += len;
    }
}

static void files_with_failing_allocation_leave_nothing(void)
{
    struct zb_schedule *s = plan_rig_make("zbv", 2, 3, 1, 0);

    for (int i = 0; i < ZB_N_PLAN_FORMATS; i++) {
        enum zb_plan_format format = (enum zb_plan_format)i;
        int is_read = format >= ZB_PLAN_JSON && format <= ZB_PLAN_TORCH;
        struct zb_plan_style style = {.has_messages = 1};
        size_t len;
        char *text = plan_rig_text(s, format, &len);
        const char *path = plan_rig_file(text, len);
        FILE *null = fopen("/dev/null", "w");

        CU_ASSERT_FATAL(null != NULL);
        for (uint64_t k = 1;; k++) {
            int64_t before = zb_mem_live();
            struct zb_schedule *back = NULL;
            enum zb_status st;
            int failed;

            zb_mem_fail_at(k);
            st = is_read ? zb_schedule_read(path, &back)
                         : zb_schedule_draw(s, format, &style, null);
            failed = zb_mem_failed();
            zb_mem_fail_at(0);
            zb_schedule_free(back);
            CU_ASSERT_EQUAL(zb_mem_live(), before);
            CU_ASSERT_EQUAL(st, failed ? ZB_ENOMEM : ZB_OK);
            if (!failed) {
                break;
            }
        }
        fclose(null);
        free(text);
    }
    zb_schedule_free(s);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(written_files_read_back_the_same),
        ZBT_CASE(file_planner_gives_schedule_with_costs_of_input),
        ZBT_CASE(text_has_one_row_per_stage),
        ZBT_CASE(files_without_optional_fields_are_read),
        ZBT_CASE(file_that_only_a_loop_makes_legal_is_a_loop),
        ZBT_CASE(broken_nodes_files_are_refused_by_line),
        ZBT_CASE(broken_json_files_are_refused_by_key),
        ZBT_CASE(missing_file_is_an_io_error),
        ZBT_CASE(write_to_full_device_is_an_io_error),
        ZBT_CASE(mutated_files_get_a_message_or_a_verdict),
        ZBT_CASE(random_files_get_a_message),
        ZBT_CASE(files_with_failing_allocation_leave_nothing),
    };

    return zbt_run("plan_files", cases, ZB_COUNT_OF(cases));
}
