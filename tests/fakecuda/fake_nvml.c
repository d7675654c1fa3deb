/* SPDX-License-Identifier: MIT
 *
 * A management library for the emulated GPUs, to be loaded in place of the
 * driver's (ZB_NVML_LIBRARY). The GPU on bus b (GPU 0 is on bus 1) uses b GiB
 * and b * 100 W, runs at 1000 + b MHz and has 50 + b degrees. In the
 * environment, looked at in every call:
 *
 *     FAKE_NVML_REFUSES=name,name   these functions, as far as they are written
 *                                   here, answer "not supported"
 *     FAKE_NVML_THROTTLE=0x44       the reasons that all GPUs give
 *     FAKE_NVML_SLOW_MS=200         how long a GPU takes to tell its power
 *
 * Like drivers from before the reasons were called events it has only their
 * older name.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define UNINITIALIZED 1
#define NOT_SUPPORTED 3
#define NOT_FOUND 6

#define N_BUSES 64

struct device {
    int bus;
};

struct memory {
    unsigned long long total, free, used;
};

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, struct device **device);
int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *memory);
int nvmlDeviceGetPowerUsage(struct device *device, unsigned *milliwatts);
int nvmlDeviceGetClockInfo(struct device *device, int type, unsigned *mhz);
int nvmlDeviceGetTemperature(struct device *device, int sensor,
                             unsigned *celsius);
int nvmlDeviceGetCurrentClocksThrottleReasons(struct device *device,
                                              unsigned long long *reasons);

static int n_started;
static struct device devices[N_BUSES];

static int answer(const char *function)
{
    const char *refused = getenv("FAKE_NVML_REFUSES");

    if (refused != NULL && strstr(refused, function) != NULL) {
        return NOT_SUPPORTED;
    }
    return n_started > 0 ? SUCCESS : UNINITIALIZED;
}

int nvmlInit_v2(void)
{
    n_started++;
    if (answer("nvmlInit_v2") != SUCCESS) {
        n_started--;
        return NOT_SUPPORTED;
    }
    return SUCCESS;
}

int nvmlShutdown(void)
{
    int st = answer("nvmlShutdown");

    n_started--;
    return st;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, struct device **device)
{
    unsigned domain, bus;

    if (sscanf(pci, "%x:%x:", &domain, &bus) != 2 || domain != 0xfffe ||
        bus >= N_BUSES) {
        return NOT_FOUND;
    }
    devices[bus].bus = (int)bus;
    *device = &devices[bus];
    return answer("nvmlDeviceGetHandleByPciBusId_v2");
}

int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *memory)
{
    memory->used = (unsigned long long)device->bus << 30;
    memory->total = 16ULL << 30;
    memory->free = memory->total - memory->used;
    return answer("nvmlDeviceGetMemoryInfo");
}

int nvmlDeviceGetPowerUsage(struct device *device, unsigned *milliwatts)
{
    const char *slow = getenv("FAKE_NVML_SLOW_MS");

    if (slow != NULL) {
        usleep(1000u * (unsigned)strtoul(slow, NULL, 10));
    }
    *milliwatts = 100000u * (unsigned)device->bus;
    return answer("nvmlDeviceGetPowerUsage");
}

int nvmlDeviceGetClockInfo(struct device *device, int type, unsigned *mhz)
{
    *mhz = type == 1 ? 1000u + (unsigned)device->bus : 1;
    return answer("nvmlDeviceGetClockInfo");
}

int nvmlDeviceGetTemperature(struct device *device, int sensor,
                             unsigned *celsius)
{
    *celsius = sensor == 0 ? 50u + (unsigned)device->bus : 1;
    return answer("nvmlDeviceGetTemperature");
}

int nvmlDeviceGetCurrentClocksThrottleReasons(struct device *device,
                                              unsigned long long *reasons)
{
    const char *text = getenv("FAKE_NVML_THROTTLE");

    (void)device;
    *reasons = text != NULL ? strtoull(text, NULL, 0) : 0;
    return answer("nvmlDeviceGetCurrentClocksThrottleReasons");
}
