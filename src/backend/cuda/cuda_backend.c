/* SPDX-License-Identifier: MIT
 *
 * The table of the cuda backend, its errors, and opening and closing of
 * devices.
 */
#include "config.h"
#include "backend/cuda/cuda_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/log.h"
#include "zb/mem.h"
#include "backend/affinity_int.h"
#include "backend/cuda/cuda_nvml.h"

/* The oldest GPUs that the kernels are built for: Ampere. */
#define MIN_MAJOR 8

static const zb_cuda_kernel_fn kernels[ZB_N_KERNELS] = {
#define ZB_X(name) [ZB_K_##name] = zb_cuda_##name,
    ZB_KERNEL_MAP(ZB_X)
#undef ZB_X
};

/* Those that keep the sums of parts, or sorted rows, in the stream's scratch. */
static const unsigned char needs_scratch[ZB_N_KERNELS] = {
    [ZB_K_col_sum] = 1,       [ZB_K_layernorm_bwd_w] = 1,
    [ZB_K_rmsnorm_bwd_w] = 1, [ZB_K_embedding_bwd_w] = 1,
    [ZB_K_sum_f64] = 1,       [ZB_K_sumsq_f64] = 1,
};

/* ---- errors -------------------------------------------------------------- */

/* What a user can do about it, or "". */
static const char *hint_of(cudaError_t err)
{
    static const struct {
        cudaError_t err;
        const char *hint;
    } table[] = {
        {cudaErrorDevicesUnavailable,
         "; the GPU is busy: another program has it to itself, or its compute "
         "mode allows no more"},
        {cudaErrorNoKernelImageForDevice,
         "; this program was not built for such a GPU: configure it with an "
         "NVCC_GENCODE that names it"},
        {cudaErrorSystemDriverMismatch,
         "; the driver was replaced while it was in use: restart the machine"},
        {cudaErrorECCUncorrectable,
         "; the GPU's memory is faulty: see nvidia-smi and the kernel's log"},
        {cudaErrorHardwareStackError, "; the GPU is lost: see the kernel's log "
                                      "for lines with Xid"},
        {cudaErrorLaunchFailure, "; the GPU is lost to this program: see the "
                                 "kernel's log for lines with Xid"},
        {cudaErrorUnknown, "; the GPU may be lost: see nvidia-smi and the "
                           "kernel's log for lines with Xid"},
        {cudaErrorLaunchTimeout, "; a display's GPU ends what takes long"},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(table); i++) {
        if (table[i].err == err) {
            return table[i].hint;
        }
    }
    return "";
}

enum zb_status zb_cuda_check(const struct zb_device *dev, cudaError_t err,
                             const char *what)
{
    enum zb_status st =
        err == cudaErrorMemoryAllocation ? ZB_ENOMEM : ZB_EDEVICE;

    if (err == cudaSuccess) {
        return ZB_OK;
    }
    (void)cudaGetLastError(); /* it is told of once */
    if (dev == NULL) {
        return zb_fail(st, "cuda: %s: %s%s", what, cudaGetErrorString(err),
                       hint_of(err));
    }
    if (dev->index < 0) { /* not one of the run's */
        return zb_fail(st, "GPU %d: %s: %s%s", dev->gpu, what,
                       cudaGetErrorString(err), hint_of(err));
    }
    return zb_fail(st, "device %d, GPU %d: %s: %s%s", dev->index, dev->gpu,
                   what, cudaGetErrorString(err), hint_of(err));
}

enum zb_status zb_cuda_use(const struct zb_device *dev)
{
    int now = -1;

    ZB_TRY(zb_cuda_check(dev, cudaGetDevice(&now), "which GPU"));
    return now == dev->gpu
               ? ZB_OK
               : zb_cuda_check(dev, cudaSetDevice(dev->gpu), "use the GPU");
}

/* ---- which GPUs ---------------------------------------------------------- */

static void version_str(int version, char text[16])
{
    snprintf(text, 16, "%d.%d", version / 1000, version % 1000 / 10);
}

static enum zb_status bad_driver(cudaError_t err)
{
    char have[16], need[16];
    int driver = 0, runtime = 0;

    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    (void)cudaGetLastError();
    version_str(driver, have);
    version_str(runtime, need);
    if (driver == 0) {
        return zb_fail(ZB_EDEVICE, "cuda: no NVIDIA driver is installed (or "
                                   "its libcuda.so.1 can not be found)");
    }
    if (err == cudaErrorInsufficientDriver) {
        return zb_fail(ZB_EDEVICE,
                       "cuda: the NVIDIA driver is too old: it is for CUDA %s, "
                       "this program needs %s",
                       have, need);
    }
    return zb_cuda_check(NULL, err, "look for GPUs");
}

static enum zb_status count_gpus(int *n_out)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int n = 0;
    cudaError_t err = cudaGetDeviceCount(&n);

    if (err == cudaErrorNoDevice || (err == cudaSuccess && n == 0)) {
        (void)cudaGetLastError();
        return zb_fail(ZB_EDEVICE, "cuda: there is no NVIDIA GPU%s%s",
                       visible != NULL ? " among CUDA_VISIBLE_DEVICES=" : "",
                       visible != NULL ? visible : "");
    }
    if (err != cudaSuccess) {
        return bad_driver(err);
    }
    *n_out = n;
    return ZB_OK;
}

static enum zb_status attribute(int gpu, enum cudaDeviceAttr what,
                                int *value_out)
{
    return zb_cuda_check(NULL, cudaDeviceGetAttribute(value_out, what, gpu),
                         "ask a GPU what it has");
}

static enum zb_status check_gpu(int gpu)
{
    int major = 0, minor = 0;

    ZB_TRY(attribute(gpu, cudaDevAttrComputeCapabilityMajor, &major));
    ZB_TRY(attribute(gpu, cudaDevAttrComputeCapabilityMinor, &minor));
    return major >= MIN_MAJOR
               ? ZB_OK
               : zb_fail(ZB_EUNSUPPORTED,
                         "cuda: GPU %d has compute capability %d.%d; %d.0 or "
                         "more is needed",
                         gpu, major, minor, MIN_MAJOR);
}

enum zb_status zb_cuda_is_usable(int *is_odd_out)
{
    int n = 0, driver = 0;
    enum zb_status st = count_gpus(&n);

    if (st == ZB_OK) {
        *is_odd_out = 1;
        return check_gpu(0);
    }
    (void)cudaDriverGetVersion(&driver);
    *is_odd_out = driver > 0 && cudaGetDeviceCount(&n) != cudaErrorNoDevice;
    (void)cudaGetLastError();
    return st;
}

/* One of each, then the first ones again: "0,1,0". */
static void shared_list(int n_devices, int n_gpus, char *text, size_t size)
{
    size_t len = 0;

    text[0] = '\0';
    for (int i = 0; i < n_devices && len + 8 < size; i++) {
        len += (size_t)snprintf(text + len, size - len, "%s%d",
                                i > 0 ? "," : "", i % n_gpus);
    }
}

/* The GPU of every device of the run. */
static enum zb_status choose_gpus(const struct zb_backend_opts *opts, int *gpu)
{
    char list[64];
    int n_gpus = 0;

    ZB_TRY(count_gpus(&n_gpus));
    if (opts->gpus == NULL && opts->n_devices > n_gpus) {
        shared_list(opts->n_devices, n_gpus, list, sizeof(list));
        return zb_fail(ZB_ECONFIG,
                       "%d devices are more than the %d GPU%s of this machine; "
                       "a list lets devices share a GPU: -g %s",
                       opts->n_devices, n_gpus, n_gpus == 1 ? "" : "s", list);
    }
    for (int i = 0; i < opts->n_devices; i++) {
        gpu[i] = opts->gpus != NULL ? opts->gpus[i] : i;
        if (gpu[i] < 0 || gpu[i] >= n_gpus) {
            return zb_fail(ZB_ECONFIG,
                           "there is no GPU %d: this machine has %d, numbered "
                           "from 0",
                           gpu[i], n_gpus);
        }
        ZB_TRY(check_gpu(gpu[i]));
    }
    return ZB_OK;
}

/* Addresses on the PCI bus, by which hwloc and NVML know GPUs; no context is
 * made for that. */
static enum zb_status find_addresses(struct zb_cuda *be)
{
    char text[32];

    be->pci = zb_alloc_array((size_t)be->base.n_devices, sizeof(*be->pci));
    if (be->pci == NULL) {
        return ZB_ENOMEM;
    }
    for (int i = 0; i < be->base.n_devices; i++) {
        if (cudaDeviceGetPCIBusId(text, sizeof(text), be->gpu[i]) !=
            cudaSuccess) {
            (void)cudaGetLastError();
            text[0] = '\0';
        }
        be->pci[i] = zb_strdup(text);
        if (be->pci[i] == NULL) {
            return ZB_ENOMEM;
        }
    }
    return ZB_OK;
}

static enum zb_status map_threads(struct zb_cuda *be,
                                  const struct zb_backend_opts *opts)
{
    const struct zb_affinity_opts ao = {.n_devices = opts->n_devices,
                                        .threads_per_device =
                                            opts->threads_per_device,
                                        .pci = (const char *const *)be->pci};

    return zb_affinity_new(&ao, &be->base.affinity);
}

static int is_first_use(const struct zb_cuda *be, int i)
{
    for (int k = 0; k < i; k++) {
        if (be->gpu[k] == be->gpu[i]) {
            return 0;
        }
    }
    return 1;
}

/* ---- opening and closing ------------------------------------------------- */

static void warn_of_environment(void)
{
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");

    if (blocking != NULL && strcmp(blocking, "0") != 0 && blocking[0] != '\0') {
        zb_log(ZB_LOG_WARN, "cuda: CUDA_LAUNCH_BLOCKING=%s makes every launch "
                            "wait for its end: slow, and a run whose devices "
                            "wait for each other may hang",
               blocking);
    }
}

static void free_backend(struct zb_cuda *be)
{
    zb_nvml_free(be->nvml);
    zb_affinity_free(be->base.affinity);
    for (int i = 0; be->pci != NULL && i < be->base.n_devices; i++) {
        zb_free(be->pci[i]);
    }
    zb_free(be->pci);
    zb_free(be->is_apart);
    zb_free(be->gpu);
    zb_free(be);
}

static enum zb_status cuda_open(const struct zb_backend_opts *opts,
                                struct zb_backend **be_out)
{
    struct zb_cuda *be = zb_alloc(sizeof(*be));
    enum zb_status st = ZB_ENOMEM;

    if (be == NULL) {
        return ZB_ENOMEM;
    }
    be->base.ops = &zb_backend_cuda_ops;
    be->base.n_devices = opts->n_devices;
    be->gpu = zb_alloc_array((size_t)opts->n_devices, sizeof(*be->gpu));
    be->is_apart =
        zb_alloc_array((size_t)opts->n_devices * (size_t)opts->n_devices, 1);
    if (be->gpu == NULL || be->is_apart == NULL) {
        goto err;
    }
    ZB_TRY_GOTO(st, choose_gpus(opts, be->gpu), err);
    ZB_TRY_GOTO(st, find_addresses(be), err);
    ZB_TRY_GOTO(st, map_threads(be, opts), err);
    ZB_TRY_GOTO(st, zb_nvml_new(&be->nvml), err);
    warn_of_environment();
    *be_out = &be->base;
    return ZB_OK;
err:
    free_backend(be);
    return st;
}

static void cuda_close(struct zb_backend *be)
{
    free_backend((struct zb_cuda *)be);
}

static enum zb_status set_up(struct zb_device *dev)
{
    ZB_TRY(zb_cuda_check(dev, cudaSetDevice(dev->gpu), "use the GPU"));
    ZB_TRY(attribute(dev->gpu, cudaDevAttrMultiProcessorCount, &dev->n_sm));
    ZB_TRY(zb_cuda_enable_peers(dev));
    return zb_cuda_gemm_new(dev, &dev->gemm);
}

static enum zb_status cuda_device_open(struct zb_backend *be, int index,
                                       struct zb_device **dev_out)
{
    struct zb_cuda *cuda = (struct zb_cuda *)be;
    struct zb_device *dev;
    enum zb_status st;

    if (index < 0 || index >= be->n_devices) {
        return zb_fail(ZB_EINVAL, "there is no device %d among %d", index,
                       be->n_devices);
    }
    dev = zb_alloc(sizeof(*dev));
    if (dev == NULL) {
        return ZB_ENOMEM;
    }
    dev->be = cuda;
    dev->index = index;
    dev->gpu = cuda->gpu[index];
    /* Before the context is made: its memory is to be near, too. */
    dev->binding_before = zb_affinity_bind(be->affinity, index);
    st = set_up(dev);
    if (st != ZB_OK) {
        zb_affinity_undo(be->affinity, dev->binding_before);
        zb_free(dev);
        return st;
    }
    *dev_out = dev;
    return ZB_OK;
}

static void cuda_device_close(struct zb_device *dev)
{
    if (dev == NULL) {
        return;
    }
    /* What the host has is freed also when the GPU is lost. */
    (void)cudaSetDevice(dev->gpu);
    zb_cuda_gemm_free(dev->gemm);
    (void)cudaGetLastError();
    zb_affinity_undo(dev->be->base.affinity, dev->binding_before);
    zb_free(dev);
}

/* ---- the rest ------------------------------------------------------------ */

static enum zb_status cuda_launch(struct zb_stream *stream,
                                  const struct zb_launch *launch)
{
    enum zb_status st;

    if ((unsigned)launch->kernel >= ZB_N_KERNELS) {
        return zb_fail(ZB_EINVAL, "%s: there is no kernel %d", launch->label,
                       (int)launch->kernel);
    }
    ZB_TRY(zb_cuda_use(stream->dev));
    if (needs_scratch[launch->kernel]) {
        ZB_TRY(zb_cuda_stream_scratch(stream));
    }
    ZB_CUDA_TOUCHES(stream, launch);
    st = kernels[launch->kernel](stream, launch->params);
    return st == ZB_OK ? ZB_OK : zb_fail_in(st, "%s", launch->label);
}

static void cuda_stream_mark(struct zb_stream *stream, const char *node)
{
    (void)stream;
    (void)node;
    ZB_CUDA_TELL(fake_cuda_name_node(stream->cuda, node));
}

static enum zb_status cuda_discard(struct zb_stream *stream, void *ptr,
                                   size_t bytes)
{
    (void)stream;
    (void)ptr;
    (void)bytes;
    ZB_CUDA_TELL(fake_cuda_discard(stream->cuda, ptr, bytes));
    return ZB_OK;
}

static enum zb_status cuda_host_access(struct zb_device *dev, const void *ptr,
                                       size_t bytes, enum zb_access_mode mode)
{
    (void)dev;
    (void)ptr;
    (void)bytes;
    (void)mode;
    ZB_CUDA_TELL(fake_cuda_host_access(ptr, bytes, mode));
    return ZB_OK;
}

static int cuda_gpu_states(struct zb_backend *base, struct zb_gpu_state *state)
{
    struct zb_cuda *be = (struct zb_cuda *)base;
    int n = 0;

    for (int i = 0; i < base->n_devices; i++) {
        if (is_first_use(be, i) &&
            zb_nvml_read(be->nvml, be->pci[i], &state[n])) {
            state[n++].gpu = be->gpu[i];
        }
    }
    return n;
}

/* "NVIDIA H100 80GB HBM3, compute capability 9.0, driver for CUDA 13.0": the
 * first GPU stands for the others. */
static void cuda_describe(const struct zb_backend_opts *opts, char *text,
                          size_t size)
{
    struct cudaDeviceProp prop;
    int driver = 0, first = opts != NULL && opts->gpus ? opts->gpus[0] : 0;
    char version[16];

    if (opts == NULL) {
        version_str(CUDART_VERSION, version);
        snprintf(text, size, "CUDA %s, cuBLASLt", version);
        return;
    }
    (void)cudaDriverGetVersion(&driver);
    version_str(driver, version);
    if (cudaGetDeviceProperties(&prop, first) != cudaSuccess) {
        (void)cudaGetLastError();
        snprintf(text, size, "no GPU %d", first);
        return;
    }
    snprintf(text, size, "%s, compute capability %d.%d, driver for CUDA %s",
             prop.name, prop.major, prop.minor, version);
}

const struct zb_backend_ops zb_backend_cuda_ops = {
    .name = "cuda",
    .summary = "NVIDIA GPUs: own kernels, products by cuBLASLt",
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .find_reach = zb_cuda_find_reach,
    .device_open = cuda_device_open,
    .device_close = cuda_device_close,
    .mem_alloc = zb_cuda_mem_alloc,
    .mem_free = zb_cuda_mem_free,
    .mem_bytes = zb_cuda_mem_bytes,
    .mem_peak_bytes = zb_cuda_mem_peak_bytes,
    .host_alloc = zb_cuda_host_alloc,
    .host_free = zb_cuda_host_free,
    .stream_new = zb_cuda_stream_new,
    .stream_free = zb_cuda_stream_free,
    .product_bytes = zb_cuda_product_bytes,
    .stream_lend = zb_cuda_stream_lend,
    .event_new = zb_cuda_event_new,
    .event_free = zb_cuda_event_free,
    .event_record = zb_cuda_event_record,
    .stream_wait = zb_cuda_stream_wait,
    .event_sync = zb_cuda_event_sync,
    .stream_sync = zb_cuda_stream_sync,
    .launch = cuda_launch,
    .replay_begin = zb_cuda_replay_begin,
    .replay_end = zb_cuda_replay_end,
    .copy_in = zb_cuda_copy_in,
    .copy_out = zb_cuda_copy_out,
    .copy_peer = zb_cuda_copy_peer,
    .gpu_states = cuda_gpu_states,
    .stream_mark = cuda_stream_mark,
    .discard = cuda_discard,
    .host_access = cuda_host_access,
    .stream_stats = zb_cuda_stream_stats,
    .spend = zb_backend_no_spend,
    .event_delay = zb_backend_no_delay,
    .prefers_bf16 = 1,
    .has_host_memory = 1,
    .scratch_bytes = ZB_CUDA_SCRATCH_BYTES,
#ifdef HAVE_NCCL
    .links = &zb_cuda_links,
#endif
};
