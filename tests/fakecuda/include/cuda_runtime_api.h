/* SPDX-License-Identifier: MIT
 *
 * The part of the CUDA runtime that zbrun uses, emulated on the CPU for tests:
 * same names, signatures and numbers as CUDA 13's. What differs from a GPU:
 *
 * - every stream is a thread that works after random delays; copies from and
 *   to any host memory are asynchronous, pageable memory too;
 * - device memory is not host memory: the addresses that cudaMalloc() gives
 *   fault on the host;
 * - there is no default stream: every call names one;
 * - misuse is reported: see fake_cuda.h.
 */
#ifndef FAKE_CUDA_RUNTIME_API_H
#define FAKE_CUDA_RUNTIME_API_H

#include <stddef.h>

#define CUDART_VERSION 13000
#define CUDARTAPI

#ifdef __cplusplus
extern "C" {
#define FAKE_CUDA_OR(value) = value
#else
#define FAKE_CUDA_OR(value)
#endif

/* Name, number and text of each error. */
#define FAKE_CUDA_ERROR_MAP(X)                                                 \
    X(cudaSuccess, 0, "no error")                                              \
    X(cudaErrorInvalidValue, 1, "invalid argument")                            \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                           \
    X(cudaErrorInitializationError, 3, "initialization error")                 \
    X(cudaErrorCudartUnloading, 4, "driver shutting down")                     \
    X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")      \
    X(cudaErrorInvalidDevicePointer, 17, "invalid device pointer")             \
    X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction")           \
    X(cudaErrorInsufficientDriver, 35, "driver older than the runtime")        \
    X(cudaErrorDevicesUnavailable, 46, "devices busy or unavailable")          \
    X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")           \
    X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")            \
    X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                   \
    X(cudaErrorNoKernelImageForDevice, 209, "no kernel for this device")       \
    X(cudaErrorECCUncorrectable, 214, "uncorrectable ECC error")               \
    X(cudaErrorPeerAccessUnsupported, 217, "peer access not supported")        \
    X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")          \
    X(cudaErrorNotReady, 600, "device not ready")                              \
    X(cudaErrorIllegalAddress, 700, "illegal memory access")                   \
    X(cudaErrorLaunchOutOfResources, 701, "too many resources requested")      \
    X(cudaErrorLaunchTimeout, 702, "the launch timed out")                     \
    X(cudaErrorPeerAccessAlreadyEnabled, 704, "peer access already enabled")   \
    X(cudaErrorPeerAccessNotEnabled, 705, "peer access not enabled")           \
    X(cudaErrorTooManyPeers, 711, "too many peers")                            \
    X(cudaErrorHostMemoryAlreadyRegistered, 712, "already registered")         \
    X(cudaErrorHostMemoryNotRegistered, 713, "host memory not registered")     \
    X(cudaErrorHardwareStackError, 714, "hardware stack error")                \
    X(cudaErrorLaunchFailure, 719, "unspecified launch failure")               \
    X(cudaErrorNotSupported, 801, "operation not supported")                   \
    X(cudaErrorSystemDriverMismatch, 803, "driver and libraries differ")       \
    X(cudaErrorUnknown, 999, "unknown error")

enum cudaError {
#define FAKE_CUDA_X(name, number, text) name = number,
    FAKE_CUDA_ERROR_MAP(FAKE_CUDA_X)
#undef FAKE_CUDA_X
};
typedef enum cudaError cudaError_t;

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01
#define cudaEventDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02
#define cudaHostAllocDefault 0x00
#define cudaHostAllocPortable 0x01
#define cudaHostRegisterDefault 0x00
#define cudaHostRegisterPortable 0x01

/* ---- devices ------------------------------------------------------------ */

/* Those fields of CUDA's struct that may be used. */
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    size_t sharedMemPerBlock;
    int regsPerBlock;
    int warpSize;
    int maxThreadsPerBlock;
    int major;
    int minor;
    int multiProcessorCount;
    int integrated;
    int concurrentKernels;
    int ECCEnabled;
    int pciBusID;
    int pciDeviceID;
    int pciDomainID;
    int asyncEngineCount;
    int unifiedAddressing;
    int l2CacheSize;
    size_t sharedMemPerMultiprocessor;
    size_t sharedMemPerBlockOptin;
};

enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrClockRate = 13,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrIntegrated = 18,
    cudaDevAttrComputeMode = 20,
    cudaDevAttrConcurrentKernels = 31,
    cudaDevAttrPciBusId = 33,
    cudaDevAttrPciDeviceId = 34,
    cudaDevAttrMemoryClockRate = 36,
    cudaDevAttrGlobalMemoryBusWidth = 37,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrAsyncEngineCount = 40,
    cudaDevAttrUnifiedAddressing = 41,
    cudaDevAttrPciDomainId = 50,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};

enum cudaComputeMode {
    cudaComputeModeDefault = 0,
    cudaComputeModeExclusive = 1,
    cudaComputeModeProhibited = 2,
    cudaComputeModeExclusiveProcess = 3
};

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr,
                                   int device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device);
cudaError_t cudaDeviceGetPCIBusId(char *pciBusId, int len, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDriverGetVersion(int *driverVersion);
cudaError_t cudaRuntimeGetVersion(int *runtimeVersion);
cudaError_t cudaDeviceCanAccessPeer(int *canAccessPeer, int device,
                                    int peerDevice);
cudaError_t cudaDeviceEnablePeerAccess(int peerDevice, unsigned int flags);
cudaError_t cudaDeviceDisablePeerAccess(int peerDevice);

cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);

/* ---- memory ------------------------------------------------------------- */

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};

enum cudaMemoryType {
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost = 1,
    cudaMemoryTypeDevice = 2,
    cudaMemoryTypeManaged = 3
};

struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int device;
    void *devicePointer;
    void *hostPointer;
};

cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaMalloc(void **devPtr, size_t size);
cudaError_t cudaFree(void *devPtr);
cudaError_t cudaMallocHost(void **ptr, size_t size);
cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int flags);
cudaError_t cudaFreeHost(void *ptr);
cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned int flags);
cudaError_t cudaHostUnregister(void *ptr);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes,
                                     const void *ptr);

/* On a stream of its own, and the host waits. */
cudaError_t cudaMemcpy(void *dst, const void *src, size_t count,
                       enum cudaMemcpyKind kind);
cudaError_t cudaMemset(void *devPtr, int value, size_t count);

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count,
                            enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpyPeerAsync(void *dst, int dstDevice, const void *src,
                                int srcDevice, size_t count,
                                cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count,
                            cudaStream_t stream);

/* ---- streams and events ------------------------------------------------- */

typedef void (*cudaHostFn_t)(void *userData);

cudaError_t cudaStreamCreate(cudaStream_t *pStream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream,
                                      unsigned int flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *pStream,
                                         unsigned int flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int *leastPriority,
                                             int *greatestPriority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned int flags FAKE_CUDA_OR(0));
/* fn may not call CUDA. */
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn,
                               void *userData);

cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start,
                                 cudaEvent_t end);

/* ---- kernels ------------------------------------------------------------ */

enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};

cudaError_t cudaFuncSetAttribute(const void *func, enum cudaFuncAttribute attr,
                                 int value);

#ifdef __cplusplus
}

/* As in CUDA's own header: a kernel without the cast. */
template <class T>
static inline cudaError_t
cudaFuncSetAttribute(T *func, enum cudaFuncAttribute attr, int value)
{
    return cudaFuncSetAttribute((const void *)func, attr, value);
}
#endif

#undef FAKE_CUDA_OR

#endif
