package nvml

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

// nvmlSetMemoryLimits_v1_t of CUDA 13.4's nvml.h.
struct limits {
	const char *group;
	unsigned long long soft, hard; // bytes
};

// The loaded library's functions, as nvmlReturn_t; -1 = it lacks one. A soft limit above 0 would let the MPS server end
// clients of other groups that are above theirs.
static int limit_group(void *library, unsigned int index, const char *group, unsigned long long bytes)
{
	void *device;
	int (*find)(unsigned int, void **) = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
	int (*set)(void *, struct limits *) = dlsym(library, "nvmlDeviceSetMemoryLimits_v1");
	struct limits to = {group, 0, bytes};
	int rc = !find || !set ? -1 : find(index, &device);
	return rc ? rc : set(device, &to);
}
*/
import "C"

import (
	"fmt"
	"unsafe"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// setLimits is a function that go-nvml doesn't have yet.
const setLimits = "nvmlDeviceSetMemoryLimits_v1"

// LimitGroup holds the processes of a control group of version 2, together, to so much of the GPU's memory, MiB, until
// the group is removed. group is its folder, e.g. /sys/fs/cgroup/system.slice/slurmstepd.scope/job_12. Drivers from
// release 615 on can (CUDA 13.4), for whole GPUs; root alone may. With the kernel's dmem controller (Linux 6.14) it has
// to be switched on down to the group, without it the driver keeps account itself. Source: NVIDIA, "MPS v3 Memory
// Partitioning" (docs.nvidia.com/deploy/mps).
func (d *Device) LimitGroup(group string, mib int64) error {
	g := d.gpu
	if g == nil || d.Parent != "" || g.lib.held == nil || !g.lib.found(setLimits) {
		return ErrNotSupported
	}
	folder := C.CString(group)
	defer C.free(unsafe.Pointer(folder))
	switch ret := gonvml.Return(C.limit_group(g.lib.held, C.uint(d.Index), folder, C.ulonglong(mib)<<20)); ret {
	case gonvml.SUCCESS:
		return nil
	case -1, gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_FUNCTION_NOT_FOUND:
		return ErrNotSupported
	default:
		return fmt.Errorf("gpu %d: limit the memory of %s: %s", g.minor, group, ret.Error())
	}
}
