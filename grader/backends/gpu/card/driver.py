"""The part of CUDA's driver API that the judge needs, called by ctypes: contexts, memory, copies and launches.

Source: the CUDA driver API reference (cuda.h of CUDA 12). A failed call raises CudaError with the driver's name of the
error. libcuda is loaded when a `Driver` is made.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p
from typing import Any

LIBRARY = "libcuda.so.1"
#: Values of the driver's enumerations CUmemAllocationType, ...HandleType, CUmemLocationType and CUmemAccess_flags.
PINNED, POSIX_FD, ON_DEVICE, READ_WRITE = 1, 1, 1, 3
#: Value of the driver's enumeration CUmemorytype.
DEVICE_MEMORY = 2
#: Values of the enumeration CUdevice_attribute; MAJOR and MINOR are the GPU's compute capability.
MULTIPROCESSORS, MAJOR, MINOR = 16, 75, 76


class CudaError(RuntimeError):
    """Raised if a driver's function fails. `name` is the driver's name of the error ("CUDA_ERROR_OUT_OF_MEMORY"),
    `code` its number, and `what` the function."""

    def __init__(self, what: str, code: int, name: str) -> None:
        super().__init__(f"{what}: {name} ({code})")
        self.what, self.code, self.name = what, code, name


class _Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _Flags(ctypes.Structure):
    _fields_ = (
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _Properties(ctypes.Structure):
    """The driver's struct CUmemAllocationProp."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", _Location),
        ("win32", c_void_p),
        ("flags", _Flags),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", c_int))


class _Copy2D(ctypes.Structure):
    """The driver's struct CUDA_MEMCPY2D: source, target and size of a copy."""

    _fields_ = (
        *(("source_x", c_size_t), ("source_y", c_size_t), ("source_kind", c_int), ("source_host", c_void_p)),
        *(("source", c_uint64), ("source_array", c_void_p), ("source_pitch", c_size_t)),
        *(("to_x", c_size_t), ("to_y", c_size_t), ("to_kind", c_int), ("to_host", c_void_p)),
        *(("to", c_uint64), ("to_array", c_void_p), ("to_pitch", c_size_t)),
        *(("width", c_size_t), ("height", c_size_t)),
    )


class Driver:
    """CUDA's driver, with a context on the first GPU that this process sees. A forked process must not use it."""

    def __init__(self) -> None:
        """Load libcuda and open the context. Raises OSError without libcuda, CudaError without a GPU or a context."""
        self.library = ctypes.CDLL(LIBRARY)
        self.library.cuGetErrorName.argtypes = (c_int, ctypes.POINTER(c_char_p))
        self("cuInit", c_uint(0))
        device, context = c_int(), c_void_p()
        self("cuDeviceGet", byref(device), c_int(0))
        self.device = device.value
        self("cuDevicePrimaryCtxRetain", byref(context), c_int(self.device))
        self.context = context
        self.make_current()

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call the driver's function `name`. Raise CudaError if it fails."""
        code = getattr(self.library, name)(*arguments)
        if code:
            text = c_char_p()
            self.library.cuGetErrorName(code, byref(text))
            raise CudaError(name, code, (text.value or b"an unknown error").decode())

    def make_current(self) -> None:
        """Bind the context to the calling thread."""
        self("cuCtxSetCurrent", self.context)

    def close(self) -> None:
        """Release the context with all its memory."""
        self("cuDevicePrimaryCtxRelease_v2", c_int(self.device))

    # ---- facts

    def attribute(self, which: int) -> int:
        value = c_int()
        self("cuDeviceGetAttribute", byref(value), c_int(which), c_int(self.device))
        return value.value

    def name(self) -> str:
        text = ctypes.create_string_buffer(128)
        self("cuDeviceGetName", text, c_int(128), c_int(self.device))
        return text.value.decode(errors="replace")

    def version(self) -> int:
        """Return the newest version of CUDA that the driver supports, as a number: 13000 for 13.0."""
        value = c_int()
        self("cuDriverGetVersion", byref(value))
        return value.value

    def memory(self) -> tuple[int, int]:
        """Return (free, total) bytes of the GPU's memory. Free bytes are those that no process uses."""
        free, total = c_size_t(), c_size_t()
        self("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    # ---- memory

    def reset_l2(self) -> None:
        """Release the L2 cache lines that a kernel reserved for its data (by an access policy window).

        GPUs before compute capability 8.0 cannot reserve lines.
        """
        if self.attribute(MAJOR) >= 8:
            self("cuCtxResetPersistingL2Cache")

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes of GPU memory for this process alone. Return the address."""
        address = c_uint64()
        self("cuMemAlloc_v2", byref(address), c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        self("cuMemFree_v2", c_uint64(address))

    def create_shared(self, size: int) -> tuple[int, int, int, int]:
        """Allocate memory that another process can map. Return (address, rounded-up size, handle, file descriptor)."""
        properties = _Properties(PINNED, POSIX_FD, _Location(ON_DEVICE, self.device), None, _Flags())
        step, handle, fd = c_size_t(), c_uint64(), c_int()
        self("cuMemGetAllocationGranularity", byref(step), byref(properties), c_int(0))
        size = -(-size // step.value) * step.value
        self("cuMemCreate", byref(handle), c_size_t(size), byref(properties), c_ulonglong(0))
        address = c_uint64()
        try:
            self("cuMemExportToShareableHandle", byref(fd), handle, c_int(POSIX_FD), c_ulonglong(0))
            self(
                "cuMemAddressReserve",
                byref(address),
                c_size_t(size),
                c_size_t(0),
                c_uint64(0),
                c_ulonglong(0),
            )
            self("cuMemMap", address, c_size_t(size), c_size_t(0), handle, c_ulonglong(0))
            access = _Access(_Location(ON_DEVICE, self.device), READ_WRITE)
            self("cuMemSetAccess", address, c_size_t(size), byref(access), c_size_t(1))
        except CudaError:
            self("cuMemRelease", handle)
            raise
        return address.value, size, handle.value, fd.value

    def free_shared(self, address: int, size: int, handle: int) -> None:
        self("cuMemUnmap", c_uint64(address), c_size_t(size))
        self("cuMemAddressFree", c_uint64(address), c_size_t(size))
        self("cuMemRelease", c_uint64(handle))

    def copy_out(self, address: int, size: int) -> bytearray:
        data = bytearray(size)
        target = (ctypes.c_char * size).from_buffer(data)
        self("cuMemcpyDtoH_v2", target, c_uint64(address), c_size_t(size))
        return data

    def copy(self, to: int, source: int, size: int) -> None:
        """Start to copy `size` bytes within the GPU's memory."""
        self("cuMemcpyDtoDAsync_v2", c_uint64(to), c_uint64(source), c_size_t(size), None)

    def set_words(self, address: int, pattern: int, width: int, count: int) -> None:
        """Start to write a pattern of `width` bytes (2 or 4) `count` times."""
        name, kind = {2: ("cuMemsetD16Async", ctypes.c_ushort), 4: ("cuMemsetD32Async", c_uint)}[width]
        self(name, c_uint64(address), kind(pattern), c_size_t(count), None)

    def set_rows(self, address: int, pitch: int, pattern: int, width: int, count: int, rows: int) -> None:
        """Start to write a pattern `count` times (see `set_words`) in each of `rows` rows, `pitch` bytes apart."""
        name, kind = {2: ("cuMemsetD2D16Async", ctypes.c_ushort), 4: ("cuMemsetD2D32Async", c_uint)}[width]
        sizes = c_size_t(count), c_size_t(rows)
        self(name, c_uint64(address), c_size_t(pitch), kind(pattern), *sizes, None)

    def copy_rows(self, to: int, to_pitch: int, source: int, pitch: int, size: int, rows: int) -> None:
        """Start to copy `size` bytes of each row within the GPU's memory."""
        one = _Copy2D(
            *(0, 0, DEVICE_MEMORY, None, source, None, pitch),
            *(0, 0, DEVICE_MEMORY, None, to, None, to_pitch, size, rows),
        )
        self("cuMemcpy2DAsync_v2", byref(one), None)

    def synchronize(self) -> None:
        """Wait until all work of this context is done."""
        self("cuCtxSynchronize")

    # ---- launches

    def load(self, ptx: bytes) -> c_void_p:
        module = c_void_p()
        log = ctypes.create_string_buffer(8192)
        # CU_JIT_ERROR_LOG_BUFFER is 5, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES is 6.
        options = (c_int * 2)(5, 6)
        values = (c_void_p * 2)(ctypes.addressof(log), 8192)
        try:
            self("cuModuleLoadDataEx", byref(module), c_char_p(ptx), c_uint(2), options, values)
        except CudaError as error:
            raise CudaError(
                f"{error.what} [{log.value.decode(errors='replace')}]", error.code, error.name
            ) from error
        return module

    def function(self, module: c_void_p, name: str) -> c_void_p:
        found = c_void_p()
        self("cuModuleGetFunction", byref(found), module, c_char_p(name.encode()))
        return found

    def launch(self, function: c_void_p, blocks: tuple[int, int], threads: int, *arguments: Any) -> None:
        """Start a kernel. `arguments` are ctypes values."""
        places = (c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        one, none = c_uint(1), c_uint(0)
        self(
            "cuLaunchKernel",
            *(function, c_uint(blocks[0]), c_uint(blocks[1]), one, c_uint(threads), one, one, none, None),
            *(places, None),
        )
