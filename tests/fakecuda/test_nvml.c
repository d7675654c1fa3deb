/* SPDX-License-Identifier: MIT
 *
 * What is read of GPUs, from a library made for that, and from none; on
 * emulated GPUs. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"
#include "unit/run_util.h"
#include "unit/zbt.h"
#include "zb/backend.h"
#include "zb/mem.h"

#define MAX_DEVICES 4

static char library[4096]; /* the path of fake_nvml.so */

static void environment(const char *name, const char *refuses,
                        const char *throttle)
{
    setenv("ZB_NVML_LIBRARY", name, 1);
    setenv("FAKE_NVML_REFUSES", refuses, 1);
    setenv("FAKE_NVML_THROTTLE", throttle, 1);
}

/* The states of the GPUs of a backend opened for them. */
static int read_gpus(const int *gpus, int n_devices, struct zb_gpu_state *state)
{
    const struct zb_backend_opts o = {
        .n_devices = n_devices, .threads_per_device = 1, .gpus = gpus};
    struct zb_backend *be = NULL;
    int n;

    fake_cuda_reset(4, 0, 0);
    ZBT_OK(zb_backend_open("cuda", &o, &be));
    n = be->ops->gpu_states(be, state);
    zb_backend_close(be);
    CU_ASSERT_EQUAL(fake_cuda_n_reports(), 0);
    return n;
}

static void every_gpu_is_read_once(void)
{
    static const int gpus[] = {2, 0, 2};
    struct zb_gpu_state state[MAX_DEVICES];

    environment(library, "", "0x44");
    CU_ASSERT_EQUAL_FATAL(read_gpus(gpus, 3, state), 2);
    CU_ASSERT_EQUAL(state[0].gpu, 2);
    CU_ASSERT_EQUAL(state[0].used_bytes, 3 * 1073741824.0);
    CU_ASSERT_DOUBLE_EQUAL(state[0].power_w, 300, 1e-9);
    CU_ASSERT_EQUAL(state[0].sm_mhz, 1003);
    CU_ASSERT_EQUAL(state[0].temperature_c, 53);
    CU_ASSERT_EQUAL(state[0].throttle,
                    ZB_THROTTLE_POWER_CAP | ZB_THROTTLE_HW_THERMAL);
    CU_ASSERT_EQUAL(state[1].gpu, 0);
    CU_ASSERT_EQUAL(state[1].sm_mhz, 1001);
}

/* Reasons of later drivers are not ours. */
static void unknown_reasons_are_left_out(void)
{
    struct zb_gpu_state state[MAX_DEVICES];

    environment(library, "", "0xfffffffffffffe01");
    CU_ASSERT_EQUAL_FATAL(read_gpus(NULL, 1, state), 1);
    CU_ASSERT_EQUAL(state[0].throttle, ZB_THROTTLE_IDLE);
}

static void refused_value_is_not_known_and_no_error(void)
{
    static const char *const refused[] = {
        "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetClockInfo", "nvmlDeviceGetTemperature",
        "nvmlDeviceGetCurrentClocksThrottleReasons"};

    for (size_t i = 0; i < ZB_COUNT_OF(refused); i++) {
        struct zb_gpu_state s[MAX_DEVICES];

        environment(library, refused[i], "1");
        CU_ASSERT_EQUAL_FATAL(read_gpus(NULL, 1, s), 1);
        CU_ASSERT_EQUAL(isnan(s[0].used_bytes) != 0, i == 0);
        CU_ASSERT_EQUAL(isnan(s[0].power_w) != 0, i == 1);
        CU_ASSERT_EQUAL(isnan(s[0].sm_mhz) != 0, i == 2);
        CU_ASSERT_EQUAL(isnan(s[0].temperature_c) != 0, i == 3);
        CU_ASSERT_EQUAL(s[0].throttle == ZB_THROTTLE_UNKNOWN, i == 4);
    }
}

static void library_of_no_use_tells_nothing(void)
{
    struct zb_gpu_state state[MAX_DEVICES];

    environment("", "", "");
    CU_ASSERT_EQUAL(read_gpus(NULL, 2, state), 0);
    environment("libof-no-driver.so.1", "", "");
    CU_ASSERT_EQUAL(read_gpus(NULL, 2, state), 0);
    environment("libm.so.6", "", "");
    CU_ASSERT_EQUAL(read_gpus(NULL, 2, state), 0);
    environment(library, "nvmlInit_v2", "");
    CU_ASSERT_EQUAL(read_gpus(NULL, 2, state), 0);
    environment(library, "nvmlDeviceGetHandleByPciBusId_v2", "");
    CU_ASSERT_EQUAL(read_gpus(NULL, 2, state), 0);
}

/* ---- in a run ------------------------------------------------------------ */

static void step_that_is_watched_reads_and_others_keep_it(void)
{
    static const int gpus[] = {1, 3};
    struct ru_grid grid = {2, 1, 1, 1, ZB_SEQ_WHOLE};
    struct zb_session_opts o = ru_grid_opts(&grid, 8);
    struct zb_step_result res = {.loss = 0};
    struct zb_model *m = ru_llama_on(NULL);
    const struct zb_gpu_state *state;
    struct zb_session *s = NULL;
    struct ru_batch b;
    int n = -1;

    environment(library, "", "2");
    fake_cuda_reset(4, 1, 0);
    o.backend = "cuda";
    o.gpus = gpus;
    ZBT_OK(zb_session_new(m, &o, &s));
    ru_batch_init(&b, 8, RU_SEQ, 1);
    ZBT_OK(zb_train_step(s, &b.in, 1e-3, &res));
    zb_session_gpus(s, &n);
    CU_ASSERT_EQUAL(n, 0);
    zb_session_watch_gpus(s);
    for (int i = 0; i < 2; i++) {
        ZBT_OK(zb_train_step(s, &b.in, 1e-3, &res));
        state = zb_session_gpus(s, &n);
        CU_ASSERT_EQUAL_FATAL(n, 2);
        CU_ASSERT_EQUAL(state[0].gpu, 1);
        CU_ASSERT_EQUAL(state[1].gpu, 3);
        CU_ASSERT_EQUAL(state[1].sm_mhz, 1004);
        CU_ASSERT_EQUAL(state[1].throttle, ZB_THROTTLE_SETTING);
        environment(library, "", "1"); /* nobody looks */
    }
    zb_session_free(s);
    ru_batch_release(&b);
    zb_model_free(m);
    CU_ASSERT_EQUAL(fake_cuda_n_reports(), 0);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

/* A reading of 0.4 s: none in the next 7.6 s, though asked for. The first one
 * does not count, as it loads the library. */
static void slow_driver_is_asked_rarely(void)
{
    static const int gpus[] = {0, 0}, want[] = {1, 1, 0};
    struct ru_grid grid = {2, 1, 1, 1, ZB_SEQ_WHOLE};
    struct zb_session_opts o = ru_grid_opts(&grid, 8);
    struct zb_step_result res = {.loss = 0};
    struct zb_model *m = ru_llama_on(NULL);
    struct zb_session *s = NULL;
    struct ru_batch b;

    environment(library, "", "");
    setenv("FAKE_NVML_SLOW_MS", "400", 1);
    fake_cuda_reset(4, 1, 0);
    o.backend = "cuda";
    o.gpus = gpus;
    ZBT_OK(zb_session_new(m, &o, &s));
    ru_batch_init(&b, 8, RU_SEQ, 1);
    for (size_t i = 0; i < ZB_COUNT_OF(want); i++) {
        int n = -1;

        zb_session_watch_gpus(s);
        ZBT_OK(zb_train_step(s, &b.in, 1e-3, &res));
        zb_session_gpus(s, &n);
        CU_ASSERT_EQUAL(n, want[i]);
    }
    unsetenv("FAKE_NVML_SLOW_MS");
    zb_session_free(s);
    ru_batch_release(&b);
    zb_model_free(m);
    CU_ASSERT_EQUAL(fake_cuda_n_reports(), 0);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(every_gpu_is_read_once),
        ZBT_CASE(unknown_reasons_are_left_out),
        ZBT_CASE(refused_value_is_not_known_and_no_error),
        ZBT_CASE(library_of_no_use_tells_nothing),
        ZBT_CASE(step_that_is_watched_reads_and_others_keep_it),
        ZBT_CASE(slow_driver_is_asked_rarely),
    };
    const char *dir = getenv("builddir");
    char *path;

    snprintf(library, sizeof(library), "%s/tests/fakecuda/fake_nvml.so",
             dir != NULL ? dir : ".");
    path = realpath(library, NULL); /* dlopen() would search for a plain name */
    if (path != NULL) {
        snprintf(library, sizeof(library), "%s", path);
    }
    free(path);
    return zbt_run("nvml", cases, ZB_COUNT_OF(cases));
}
