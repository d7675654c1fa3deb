/* SPDX-License-Identifier: MIT
 *
 * The functions are declared here, as its header does not come with every CUDA
 * toolkit. */
#include "config.h"
#include "backend/cuda/cuda_nvml.h"

#include <dlfcn.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "zb/log.h"
#include "zb/mem.h"

#define NVML_SUCCESS 0
#define NVML_CLOCK_SM 1
#define NVML_TEMPERATURE_GPU 0

struct nvml_memory {
    unsigned long long total, free, used;
};

/* Names in order of preference; drivers have one, the other, or both. */
#define SYMBOL_MAP(X)                                                          \
    X(init, "nvmlInit_v2", "nvmlInit")                                         \
    X(shutdown, "nvmlShutdown", NULL)                                          \
    X(by_pci, "nvmlDeviceGetHandleByPciBusId_v2",                              \
      "nvmlDeviceGetHandleByPciBusId")                                         \
    X(memory, "nvmlDeviceGetMemoryInfo", NULL)                                 \
    X(power, "nvmlDeviceGetPowerUsage", NULL)                                  \
    X(clock, "nvmlDeviceGetClockInfo", NULL)                                   \
    X(temperature, "nvmlDeviceGetTemperature", NULL)                           \
    X(throttle, "nvmlDeviceGetCurrentClocksEventReasons",                      \
      "nvmlDeviceGetCurrentClocksThrottleReasons")

/* Return 0, or what went wrong. */
struct functions {
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_pci)(const char *pci, void **device);
    int (*memory)(void *device, struct nvml_memory *memory);
    int (*power)(void *device, unsigned *milliwatts);
    int (*clock)(void *device, int type, unsigned *mhz);
    int (*temperature)(void *device, int sensor, unsigned *celsius);
    int (*throttle)(void *device, unsigned long long *reasons);
};

struct zb_nvml {
    int was_tried; /* to load it */
    void *library; /* NULL: there is none */
    struct functions f;
};

static void find_symbols(struct zb_nvml *nvml)
{
    static const struct {
        size_t at;
        const char *name[2];
    } symbols[] = {
#define X(field, first, second)                                                \
    {offsetof(struct functions, field), {first, second}},
        SYMBOL_MAP(X)
#undef X
    };

    for (size_t i = 0; i < ZB_COUNT_OF(symbols); i++) {
        void *symbol = dlsym(nvml->library, symbols[i].name[0]);

        if (symbol == NULL && symbols[i].name[1] != NULL) {
            symbol = dlsym(nvml->library, symbols[i].name[1]);
        }
        memcpy((char *)&nvml->f + symbols[i].at, &symbol, sizeof(symbol));
    }
}

/* Why the library is of no use, or NULL. */
static const char *load(struct zb_nvml *nvml, const char *name)
{
    nvml->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (nvml->library == NULL) {
        return dlerror();
    }
    find_symbols(nvml);
    if (nvml->f.init == NULL || nvml->f.shutdown == NULL ||
        nvml->f.by_pci == NULL) {
        return "it lacks functions";
    }
    return nvml->f.init() == NVML_SUCCESS ? NULL : "it can not be started";
}

static void try_once(struct zb_nvml *nvml)
{
    const char *name = getenv("ZB_NVML_LIBRARY"), *why;

    if (nvml->was_tried) {
        return;
    }
    nvml->was_tried = 1;
    name = name != NULL ? name : "libnvidia-ml.so.1";
    why = name[0] != '\0' ? load(nvml, name) : "none is wanted";
    if (why != NULL) {
        zb_log(ZB_LOG_DEBUG,
               "the GPUs' power, clocks and memory are not "
               "known: NVML (%s): %s",
               name, why);
        if (nvml->library != NULL) {
            dlclose(nvml->library);
        }
        nvml->library = NULL;
    }
}

enum zb_status zb_nvml_new(struct zb_nvml **nvml_out)
{
    *nvml_out = zb_alloc(sizeof(**nvml_out));
    return *nvml_out == NULL ? ZB_ENOMEM : ZB_OK;
}

void zb_nvml_free(struct zb_nvml *nvml)
{
    if (nvml != NULL && nvml->library != NULL) {
        (void)nvml->f.shutdown();
        dlclose(nvml->library);
    }
    zb_free(nvml);
}

/* ---- one GPU ------------------------------------------------------------- */

static double read_used(const struct functions *f, void *device)
{
    struct nvml_memory m = {0, 0, 0};

    return f->memory != NULL && f->memory(device, &m) == NVML_SUCCESS
               ? (double)m.used
               : NAN;
}

static double read_power(const struct functions *f, void *device)
{
    unsigned mw = 0;

    return f->power != NULL && f->power(device, &mw) == NVML_SUCCESS ? 1e-3 * mw
                                                                     : NAN;
}

static double read_clock(const struct functions *f, void *device)
{
    unsigned mhz = 0;

    return f->clock != NULL &&
                   f->clock(device, NVML_CLOCK_SM, &mhz) == NVML_SUCCESS
               ? mhz
               : NAN;
}

static double read_temperature(const struct functions *f, void *device)
{
    unsigned celsius = 0;

    return f->temperature != NULL &&
                   f->temperature(device, NVML_TEMPERATURE_GPU, &celsius) ==
                       NVML_SUCCESS
               ? celsius
               : NAN;
}

/* NVML's bits are those of zb/backend.h. */
static int read_throttle(const struct functions *f, void *device)
{
    unsigned long long bits = 0;

    return f->throttle != NULL && f->throttle(device, &bits) == NVML_SUCCESS
               ? (int)(bits & (ZB_THROTTLE_END - 1))
               : ZB_THROTTLE_UNKNOWN;
}

int zb_nvml_read(struct zb_nvml *nvml, const char *pci,
                 struct zb_gpu_state *state)
{
    const struct functions *f = &nvml->f;
    void *device = NULL;

    try_once(nvml);
    if (nvml->library == NULL || f->by_pci(pci, &device) != NVML_SUCCESS) {
        return 0;
    }
    state->used_bytes = read_used(f, device);
    state->power_w = read_power(f, device);
    state->sm_mhz = read_clock(f, device);
    state->temperature_c = read_temperature(f, device);
    state->throttle = read_throttle(f, device);
    return 1;
}
