/* SPDX-License-Identifier: MIT
 *
 * PyTorch's pipelining CSV: files of PyTorch (tests/golden/torch_csv.py made
 * them) are read as what they say, ours come back, broken ones are refused by
 * line and action. tests/cli/zbplan_torch.sh holds ours against PyTorch itself.
 */
#include "config.h"
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "plan_rig.h"
#include "zb/plan.h"
#include "zbt.h"

/* ---- files of PyTorch ---- */

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 1 << 16);

    CU_ASSERT_FATAL(f != NULL && text != NULL);
    CU_ASSERT_FATAL(fread(text, 1, (1 << 16) - 1, f) > 0);
    fclose(f);
    return text;
}

/* Only the compute actions of a row, one by one, in the form that is written:
 * a second, simple-minded reader. */
static void strip(const char *from, char *to)
{
    static const char words[] = ",;()\r";

    for (; *from != '\0'; from += *from != '\0') {
        size_t n = strcspn(from, ",;()\r\n");
        size_t digits = strspn(from, "0123456789");
        size_t letters = strspn(from + digits, "FIWB");

        if (digits > 0 && letters == 1 && n > digits + 1 &&
            strspn(from + digits + 1, "0123456789") == n - digits - 1) {
            if (to[-1] != '\n') {
                *to++ = ',';
            }
            memcpy(to, from, n);
            to += n;
        }
        from += n;
        if (*from == '\n') {
            *to++ = '\n';
        } else if (*from == '\0') {
            break;
        } else {
            CU_ASSERT_PTR_NOT_NULL(strchr(words, *from));
        }
    }
    *to = '\0';
}

static void expect_read(const char *name, int p, int m, int n_chunk,
                        enum zb_placement placement)
{
    char rel[64], stripped[1 << 16] = "\n";
    struct zb_schedule *s = NULL;
    const char *path;
    char *theirs, *ours;
    size_t len;

    snprintf(rel, sizeof(rel), "tests/golden/torch_%s.csv", name);
    path = zbt_source_path(rel);
    ZBT_OK(zb_schedule_read(path, &s));
    CU_ASSERT_EQUAL(s->n_stage, p);
    CU_ASSERT_EQUAL(s->n_micro, m);
    CU_ASSERT_EQUAL(s->n_chunk, n_chunk);
    CU_ASSERT_EQUAL(s->placement, placement);
    CU_ASSERT(s->makespan >= 3 * m && s->makespan < 9 * n_chunk * (m + p));
    ZBT_OK(zb_schedule_check(s, NULL));
    theirs = read_file(path);
    strip(theirs, stripped + 1);
    ours = plan_rig_text(s, ZB_PLAN_TORCH, &len);
    CU_ASSERT_STRING_EQUAL(ours, stripped + 1);
    free(ours);
    free(theirs);
    zb_schedule_free(s);
}

static void schedules_of_pytorch_are_read_and_legal(void)
{
    expect_read("1f1b", 4, 8, 1, ZB_PLACE_LINEAR);
    expect_read("gpipe", 3, 5, 1, ZB_PLACE_LINEAR);
    expect_read("interleaved1f1b", 4, 8, 2, ZB_PLACE_LOOP);
    expect_read("interleaved1f1b_3", 2, 4, 3, ZB_PLACE_LOOP);
    expect_read("interleavedzb", 4, 8, 2, ZB_PLACE_LOOP);
    expect_read("zbv", 4, 8, 2, ZB_PLACE_V);
    expect_read("dualpipev", 2, 8, 2, ZB_PLACE_V);
}

static void schedules_of_pytorch_with_messages_are_read_and_legal(void)
{
    expect_read("1f1b_comms", 4, 8, 1, ZB_PLACE_LINEAR);
    expect_read("interleaved1f1b_comms", 4, 8, 2, ZB_PLACE_LOOP);
    expect_read("zbv_comms", 4, 8, 2, ZB_PLACE_V);
}

/* The same order with and without messages takes the same time. */
static void messages_of_pytorch_change_no_time(void)
{
    static const char *const names[] = {"1f1b", "interleaved1f1b", "zbv"};

    for (size_t i = 0; i < ZB_COUNT_OF(names); i++) {
        struct zb_schedule *a = NULL, *b = NULL;
        char rel[64];

        snprintf(rel, sizeof(rel), "tests/golden/torch_%s.csv", names[i]);
        ZBT_OK(zb_schedule_read(zbt_source_path(rel), &a));
        snprintf(rel, sizeof(rel), "tests/golden/torch_%s_comms.csv", names[i]);
        ZBT_OK(zb_schedule_read(zbt_source_path(rel), &b));
        plan_rig_same(a, b, 0);
        zb_schedule_free(a);
        zb_schedule_free(b);
    }
}

/* ---- ours ---- */

static void round_trip(const char *planner, int p, int m)
{
    struct zb_schedule *s = plan_rig_make(planner, p, m, 1, 0), *back = NULL;
    char file[1100];
    enum zb_placement placement = ZB_PLACE_V;
    struct zb_plan_input in;
    size_t len;
    int n_chunk = 0;
    char *text = plan_rig_text(s, ZB_PLAN_TORCH, &len);

    snprintf(file, sizeof(file), "file:%s", plan_rig_file(text, len));
    ZBT_OK(zb_planner_shape(file, &placement, &n_chunk));
    ZBT_OK(zb_plan_input_init(&in, p, m, placement, n_chunk));
    ZBT_OK(zb_plan_make(file, &in, NULL, &back));
    if (p > 1) {
        plan_rig_same(s, back, 0);
    }
    zb_plan_input_release(&in);
    zb_schedule_free(back);
    zb_schedule_free(s);
    free(text);
}

static void every_planner_comes_back_with_its_times(void)
{
    static const int sizes[][2] = {{1, 3}, {2, 4}, {3, 6}, {4, 8}, {8, 16}};

    for (int i = 0; zb_planner_name(i) != NULL; i++) {
        for (size_t k = 0; k < ZB_COUNT_OF(sizes); k++) {
            round_trip(zb_planner_name(i), sizes[k][0], sizes[k][1]);
        }
    }
}

static void order_of_two_stages_is_written_as_pytorch_does(void)
{
    struct zb_schedule *s = plan_rig_make("1f1b", 2, 3, 1, 0);
    size_t len;
    char *text = plan_rig_text(s, ZB_PLAN_TORCH, &len);

    CU_ASSERT_STRING_EQUAL(text, "0F0,0F1,0B0,0F2,0B1,0B2\n"
                                 "1F0,1B0,1F1,1B1,1F2,1B2\n");
    free(text);
    zb_schedule_free(s);
}

/* ---- what people write ---- */

static void spaces_quotes_and_idle_cells_are_read(void)
{
    plan_rig_legal("0F0,0B0", ZB_PLACE_LINEAR, 1);
    plan_rig_legal(",, 0F0 ,\t\"0I0\",,0W0,,\r\n\r\n\n", ZB_PLACE_LINEAR, 1);
    plan_rig_legal("0F0,1F0,(1B0;0B0)OVERLAP_F_B\n", ZB_PLACE_V, 2);
    plan_rig_legal("0F0,,,3F0,3B0,0B0\n,1F0,2F0,2B0,1B0\n", ZB_PLACE_V, 2);
    plan_rig_legal("0F0,,2F0,,2B0,,0B0\n,1F0,,3F0,3B0,,1B0\n", ZB_PLACE_LOOP,
                   2);
    plan_rig_legal("0F0,0SEND_F0,0RECV_B0,0B0\n"
                   "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0,1REDUCE_GRAD\n",
                   ZB_PLACE_LINEAR, 1);
}

static void broken_files_are_refused_by_line_and_action(void)
{
    plan_rig_refused("0F0,0X0\n", "line 1: action '0X0' is not");
    plan_rig_refused("0F0,0B0\n1F0,1B0x\n", "line 2: action '1B0x' is not");
    plan_rig_refused("0F0,F0\n", "line 1: action 'F0' is not");
    plan_rig_refused("0F0,0\n", "line 1: action '0' is not");
    plan_rig_refused("0F0,-1F0\n", "line 1: action '-1F0' is not");
    plan_rig_refused("0F0,0B\n", "line 1: action '0B' has no microbatch");
    plan_rig_refused("0F0,0F99999999999\n",
                     "line 1: action '0F99999999999' has a number above");
    plan_rig_refused("0F0,(0B0)\n",
                     "line 1: action '(0B0)' is not of the form");
    plan_rig_refused("0F0,(0B0;9)OVERLAP_F_B\n", "line 1: action '9' is not");
    plan_rig_refused("0F0,0B0\n\n1F0,1B0\n", "line 2: rank 1 does nothing");
    plan_rig_refused("0UNSHARD\n", "line 1: rank 0 does nothing");
    plan_rig_refused("0F0,2F0,0B0,2B0\n1F0,1B0\n",
                     "3 stages cannot be spread evenly over 2 ranks");
    plan_rig_refused("1F0,1B0\n0F0,0B0\n",
                     "line 1: F of stage 1, mb 0: a linear placement of 2 "
                     "ranks "
                     "has stage 1 on rank 1, not on rank 0");
    plan_rig_refused("0F0,1F0,1B0,0B0\n2F0,3F0,3B0,2B0\n",
                     "line 1: F of stage 1, mb 0: a v placement of 2 ranks");
    plan_rig_refused("0F0,0B0\n1F1,1B1\n",
                     "stage 0: F chunk 0 mb 1 is missing");
    plan_rig_refused("0F0,0F1,0B1,0B0\n",
                     "stage 0, node 2 (BW chunk 0 mb 1) is out of order");
    plan_rig_refused("0F0,0I0\n", "stage 0: W chunk 0 mb 0 is missing");
    plan_rig_refused("0F0,0SEND_F0,0B0\n", "has no stage at its other end");
    plan_rig_refused("0F0,15000000F0\n", "2 nodes cannot be all of");
}

/* Backward passes last microbatch first: the gradients would add up in another
 * order than everywhere else. */
static void reverse_order_of_microbatches_is_refused(void)
{
    struct zb_schedule *s = NULL;

    CU_ASSERT_EQUAL(
        zb_schedule_read(zbt_source_path("tests/golden/torch_loopedbfs.csv"),
                         &s),
        ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "is out of order: mb 0"));
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(schedules_of_pytorch_are_read_and_legal),
        ZBT_CASE(schedules_of_pytorch_with_messages_are_read_and_legal),
        ZBT_CASE(messages_of_pytorch_change_no_time),
        ZBT_CASE(every_planner_comes_back_with_its_times),
        ZBT_CASE(order_of_two_stages_is_written_as_pytorch_does),
        ZBT_CASE(spaces_quotes_and_idle_cells_are_read),
        ZBT_CASE(broken_files_are_refused_by_line_and_action),
        ZBT_CASE(reverse_order_of_microbatches_is_refused),
    };

    return zbt_run("plan_torch", cases, ZB_COUNT_OF(cases));
}
