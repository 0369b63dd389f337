// A substitute for libcuda whose "GPU memory" is this machine's memory, for tests of arenas and the clock without a GPU. It has the
// functions that grader/backends/gpu/card/driver.py calls. Shared allocations are files in memory. Compiled by tests/test_card.py.
#define _GNU_SOURCE
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long u64;
static const char *entry[16];
static int entries;

int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuGetErrorName(int code, const char **name) { *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_INVALID_VALUE"; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = 0; return ordinal ? 101 : 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)64; return device; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device; }
int cuCtxResetPersistingL2Cache(void) { return 0; }
int cuCtxSetCurrent(void *context) { return context != (void *)64; }
int cuCtxSynchronize(void) { return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) { *value = which == 16 ? 2 : which; return device; }
int cuDeviceGetName(char *text, int size, int device) { strncpy(text, "a pretended card", size); return device; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuMemGetInfo_v2(size_t *left, size_t *total) { *left = 1u << 28; *total = 1u << 29; return 0; }
int cuMemAlloc_v2(u64 *address, size_t size) { if (size > (1u << 29)) return 2; *address = (u64)malloc(size); return 0; }
int cuMemFree_v2(u64 address) { free((void *)address); return 0; }
int cuMemGetAllocationGranularity(size_t *step, const void *properties, int option) { *step = 1 << 21; return 0; }
int cuMemCreate(u64 *handle, size_t size, const void *properties, u64 flags) {
    int fd = memfd_create("device", 0);
    if (fd < 0 || ftruncate(fd, size)) return 2;
    *handle = fd;
    return 0;
}
int cuMemRelease(u64 handle) { return close(handle); }
int cuMemExportToShareableHandle(int *fd, u64 handle, int type, u64 flags) { *fd = dup(handle); return type != 1 || *fd < 0; }
int cuMemAddressReserve(u64 *address, size_t size, size_t alignment, u64 hint, u64 flags) {
    *address = (u64)mmap(0, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return 0;
}
int cuMemMap(u64 address, size_t size, size_t offset, u64 handle, u64 flags) {
    return mmap((void *)address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, handle, offset) == MAP_FAILED;
}
int cuMemSetAccess(u64 address, size_t size, const int *access, size_t count) { return access[2] != 3 || count != 1; }
int cuMemUnmap(u64 address, size_t size) { return 0; }
int cuMemAddressFree(u64 address, size_t size) { return munmap((void *)address, size); }
int cuMemcpyDtoH_v2(void *to, u64 from, size_t size) { memcpy(to, (void *)from, size); return 0; }
int cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t size, void *stream) { memcpy((void *)to, (void *)from, size); return stream != 0; }
int cuMemsetD16Async(u64 to, unsigned short value, size_t count, void *stream) { for (size_t i = 0; i < count; i++) ((uint16_t *)to)[i] = value; return stream != 0; }
int cuMemsetD32Async(u64 to, unsigned value, size_t count, void *stream) { for (size_t i = 0; i < count; i++) ((uint32_t *)to)[i] = value; return stream != 0; }
struct copy { size_t x, y; int kind; const void *host; u64 source; void *array; size_t pitch, to_x, to_y; int to_kind; void *to_host; u64 to; void *to_array; size_t to_pitch, width, height; };
int cuMemcpy2DAsync_v2(const struct copy *c, void *stream) {
    if (c->kind != 2 || c->to_kind != 2 || c->width > c->pitch || c->width > c->to_pitch) return 1;
    for (size_t i = 0; i < c->height; i++) memcpy((char *)c->to + i * c->to_pitch, (char *)c->source + i * c->pitch, c->width);
    return stream != 0;
}
#define MEMSET_2D(bits, type) \
int cuMemsetD2D##bits##Async(u64 to, size_t pitch, type value, size_t width, size_t height, void *stream) { \
    for (size_t i = 0; i < height; i++) cuMemsetD##bits##Async(to + i * pitch, value, width, stream); \
    return 0; \
}
MEMSET_2D(16, unsigned short)
MEMSET_2D(32, unsigned)
int cuModuleLoadDataEx(void **module, const char *text, unsigned count, int *options, void **values) {
    *module = (void *)8;
    return count != 2 || !strstr(text, ".entry fill_sets(") || !strstr(text, ".entry count_changed(") || !strstr(text, ".entry count_differing(");
}
int cuModuleGetFunction(u64 *function, void *module, const char *name) { entry[entries] = strdup(name); *function = ++entries; return 0; }

static unsigned mixed(unsigned h) { h ^= h >> 16; h *= 0x85ebca6bu; h ^= h >> 13; h *= 0xc2b2ae35u; return h ^ (h >> 16); }
static float as_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static uint32_t as_bits(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }
static float get(const void *p, u64 i, int type) {
    if (type == 0) return ((const float *)p)[i];
    if (type == 1) return (float)((const _Float16 *)p)[i];
    return as_float((uint32_t)((const uint16_t *)p)[i] << 16);
}
static void put(void *p, u64 i, float x, int type) {
    if (type == 0) ((float *)p)[i] = x;
    else if (type == 1) ((_Float16 *)p)[i] = (_Float16)x;
    else { uint32_t b = as_bits(x); ((uint16_t *)p)[i] = (b + 0x7fff + ((b >> 16) & 1)) >> 16; }
}
static float drawn(u64 i, unsigned seed, float low, float span) {
    unsigned h = mixed(mixed((unsigned)i ^ seed) + (unsigned)(i >> 32) * 0x9e3779b9u + seed);
    volatile float scaled = span * ((float)(h >> 8) * (1.0f / 16777216.0f));
    return low + scaled;
}
int cuLaunchKernel(u64 function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **a, void **extra) {
    if (!gx || !gy || gy > 65535 || gz != 1 || !bx || by != 1 || bz != 1 || shared || stream || extra) return 1;
    const char *name = entry[function - 1];
    if (!strcmp(name, "fill_sets") || !strcmp(name, "count_changed")) {
        u64 first = *(u64 *)a[0], stride = *(u64 *)a[1], count = *(u64 *)a[3];
        unsigned sets = *(unsigned *)a[2], seed = *(unsigned *)a[4], step = *(unsigned *)a[5];
        float low = *(float *)a[6], span = *(float *)a[7], kept[1];
        int type = *(int *)a[8];
        for (unsigned s = 0; s < sets; s++)
            for (u64 i = 0; i < count; i++) {
                char *to = (char *)(first + s * stride);
                float x = drawn(i, seed + s * step, low, span);
                if (name[0] == 'f') put(to, i, x, type);
                else {
                    int width = type ? 2 : 4;
                    put(kept, 0, x, type);
                    *(u64 *)*(u64 *)a[9] += memcmp(kept, to + i * width, width) != 0;
                }
            }
        return 0;
    }
    float absolute = *(float *)a[6], relative = *(float *)a[7];
    int type = *(int *)a[8];
    for (unsigned s = 0; s < *(unsigned *)a[4]; s++)
        for (u64 i = 0; i < *(u64 *)a[5]; i++) {
            float p = get((char *)*(u64 *)a[0] + s * *(u64 *)a[1], i, type), q = get((char *)*(u64 *)a[2] + s * *(u64 *)a[3], i, type);
            *(u64 *)*(u64 *)a[9] += !(fabsf(p - q) <= absolute + relative * fabsf(q));
        }
    return 0;
}
