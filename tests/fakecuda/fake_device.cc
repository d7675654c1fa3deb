/* SPDX-License-Identifier: MIT
 *
 * GPUs, and the names of errors.
 */
#include "fakecuda/fake_int.h"

#include <chrono>
#include <cstdio>
#include <cstring>

using namespace fake;

/* Few, so that grids are small and their loops have something to do. */
#define N_SM 3
#define MAJOR 9
#define MINOR 0

static bool is_gpu(int device)
{
    return device >= 0 && (size_t)device < the().gpus.size();
}

/* ---- errors -------------------------------------------------------------- */

static const struct {
    cudaError_t err;
    const char *name, *text;
} errors[] = {
#define X(name, number, text) {name, #name, text},
    FAKE_CUDA_ERROR_MAP(X)
#undef X
};

const char *cudaGetErrorName(cudaError_t err)
{
    for (const auto &e : errors) {
        if (e.err == err) {
            return e.name;
        }
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t err)
{
    for (const auto &e : errors) {
        if (e.err == err) {
            return e.text;
        }
    }
    return "unrecognized error code";
}

cudaError_t cudaGetLastError(void)
{
    call c("cudaGetLastError", false);
    cudaError_t last = me().last;

    me().last = cudaSuccess;
    return last;
}

cudaError_t cudaPeekAtLastError(void)
{
    call c("cudaPeekAtLastError", false);

    return me().last;
}

/* ---- GPUs ---------------------------------------------------------------- */

cudaError_t cudaDriverGetVersion(int *version)
{
    call c("cudaDriverGetVersion");
    trouble wrong = the().wrong;

    *version = wrong == trouble::no_driver    ? 0
               : wrong == trouble::old_driver ? 11040
                                              : CUDART_VERSION;
    return c.end(cudaSuccess);
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    call c("cudaRuntimeGetVersion");

    *version = CUDART_VERSION;
    return c.end(cudaSuccess);
}

cudaError_t cudaGetDeviceCount(int *count)
{
    call c("cudaGetDeviceCount");

    *count = c.fault == cudaSuccess ? (int)the().gpus.size() : 0;
    if (the().wrong == trouble::no_driver ||
        the().wrong == trouble::old_driver) {
        *count = 0;
        return c.end(cudaErrorInsufficientDriver);
    }
    if (the().wrong == trouble::no_gpu) {
        *count = 0;
    }
    return c.end(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *device)
{
    call c("cudaGetDevice");

    if (c.fault != cudaSuccess || the().gpus.empty()) {
        return c.end(cudaErrorNoDevice);
    }
    *device = me().gpu;
    return c.end(cudaSuccess);
}

/* With the others that make one, if a test asked for that. */
static void make_context(call &c, gpu &g)
{
    state &s = the();

    g.has_context = true;
    s.n_making++;
    s.most_making = s.n_making > s.most_making ? s.n_making : s.most_making;
    s.contexts.notify_all();
    s.contexts.wait_for(c.lock, std::chrono::seconds(10),
                        [&s] { return s.most_making >= s.n_gathered; });
    s.n_making--;
}

cudaError_t cudaSetDevice(int device)
{
    call c("cudaSetDevice");

    if (c.fault != cudaSuccess || !is_gpu(device)) {
        return c.end(cudaErrorInvalidDevice);
    }
    if (the().wrong == trouble::busy) {
        return c.end(cudaErrorDevicesUnavailable);
    }
    me().gpu = device;
    if (!the().gpus[(size_t)device].has_context) {
        make_context(c, the().gpus[(size_t)device]);
    }
    return c.end(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr,
                                   int device)
{
    call c("cudaDeviceGetAttribute");

    if (c.fault != cudaSuccess || !is_gpu(device)) {
        return c.end(cudaErrorInvalidDevice);
    }
    switch (attr) {
    case cudaDevAttrMultiProcessorCount:
        *value = N_SM;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = MAJOR;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = MINOR;
        break;
    case cudaDevAttrPciBusId:
        *value = device + 1;
        break;
    case cudaDevAttrPciDeviceId:
    case cudaDevAttrPciDomainId:
        *value = 0;
        break;
    default:
        return c.end(cudaErrorInvalidValue);
    }
    return c.end(cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    call c("cudaGetDeviceProperties");

    if (c.fault != cudaSuccess || !is_gpu(device)) {
        return c.end(cudaErrorInvalidDevice);
    }
    std::memset(prop, 0, sizeof(*prop));
    std::snprintf(prop->name, sizeof(prop->name), "emulated GPU");
    prop->totalGlobalMem = the().gpu_bytes;
    prop->major = MAJOR;
    prop->minor = MINOR;
    prop->multiProcessorCount = N_SM;
    prop->pciBusID = device + 1;
    return c.end(cudaSuccess);
}

/* No machine has devices in so high a domain. */
cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device)
{
    call c("cudaDeviceGetPCIBusId");

    if (c.fault != cudaSuccess || !is_gpu(device)) {
        return c.end(cudaErrorInvalidDevice);
    }
    std::snprintf(text, (size_t)size, "fffe:%02x:00.0", device + 1);
    return c.end(cudaSuccess);
}

/* ---- memory of other GPUs ------------------------------------------------ */

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    call c("cudaDeviceCanAccessPeer");

    if (c.fault != cudaSuccess || !is_gpu(device) || !is_gpu(peer)) {
        return c.end(cudaErrorInvalidDevice);
    }
    *can = device != peer && !the().gpus[(size_t)device].is_apart[peer];
    return c.end(cudaSuccess);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    call c("cudaDeviceEnablePeerAccess");

    if (c.fault != cudaSuccess || flags != 0 || !is_gpu(peer) ||
        peer == me().gpu) {
        return c.end(flags != 0 ? cudaErrorInvalidValue
                                : cudaErrorInvalidDevice);
    }
    gpu &g = the().gpus[(size_t)me().gpu];
    if (g.is_apart[peer]) {
        return c.end(cudaErrorPeerAccessUnsupported);
    }
    if (g.has_access[peer]) {
        return c.end(cudaErrorPeerAccessAlreadyEnabled);
    }
    g.has_access[peer] = true;
    return c.end(cudaSuccess);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    call c("cudaDeviceDisablePeerAccess");

    if (c.fault != cudaSuccess || !is_gpu(peer)) {
        return c.end(cudaErrorInvalidDevice);
    }
    gpu &g = the().gpus[(size_t)me().gpu];
    if (!g.has_access[peer]) {
        return c.end(cudaErrorPeerAccessNotEnabled);
    }
    g.has_access[peer] = false;
    return c.end(cudaSuccess);
}
