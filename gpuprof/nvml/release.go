package nvml

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

// The library stays where it is in memory for good: calls that the loader has bound would lead into nothing after it
// had been closed and opened again elsewhere.
static void *hold(const char *library) { return dlopen(library, RTLD_LAZY); }
*/
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ErrChanged says that the GPUs or the driver have changed since the library was opened.
var ErrChanged = errors.New("the GPUs or their driver have changed")

// hold keeps the library in memory when NVML is shut down.
func (l *Library) hold() {
	library := C.CString(cmp.Or(l.path, "libnvidia-ml.so.1"))
	defer C.free(unsafe.Pointer(library))
	l.held = C.hold(library)
}

// Release closes the driver's devices until Acquire. While a process has them open, nvidia-smi doesn't reset a GPU or
// change its MIG mode, and the driver can't be replaced. No method of a Device may be called until then.
func (l *Library) Release() error {
	for i := range l.devices {
		l.devices[i].forget()
	}
	l.released = true
	return l.shutdown()
}

// forget frees the samples of performance monitoring: the next Activity is ErrNotYet, as after Open.
func (d *Device) forget() {
	d.gpu.forget()
	for k := range d.MIG.Instances {
		d.MIG.Instances[k].gpu.forget()
	}
}

func (g *gpu) forget() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range []*gonvml.GpmSample{&g.last, &g.now} {
		if *s != nil && g.lib.found("nvmlGpmSampleFree") {
			_ = (*s).Free()
		}
		*s = nil
	}
	g.at, g.seen = time.Time{}, Activity{}
}

// Acquire opens the devices again, or checks them if they are open. anew: GPUs have another compute mode or other MIG
// instances; then Devices are new and earlier Devices of these GPUs must not be used. If GPUs or driver have changed it
// returns ErrChanged, and no Device may be used.
func (l *Library) Acquire() (anew bool, err error) {
	changed := func(format string, args ...any) (bool, error) {
		return false, fmt.Errorf("%w: "+format, append([]any{ErrChanged}, args...)...)
	}
	// A library of the driver that was replaced fails here.
	if l.released {
		if ret := l.api.Init(); ret != gonvml.SUCCESS {
			return changed("%s", ret.Error())
		}
	}
	l.released = false
	if driver, _ := ask(l, "nvmlSystemGetDriverVersion", l.api.SystemGetDriverVersion); driver != l.driver {
		return changed("the driver is %.64q", driver)
	}
	if n, ret := l.api.DeviceGetCount(); ret != gonvml.SUCCESS || n != len(l.devices) {
		return changed("NVML has %d (%s)", n, ret.Error())
	}
	devices := slices.Clone(l.devices)
	for i := range devices {
		d := &devices[i]
		h, ret := l.api.DeviceGetHandleByIndex(d.Index)
		if (ret != gonvml.SUCCESS) != (d.Lost != "") {
			return changed("gpu %d: %s", d.Minor, ret.Error())
		}
		if d.Lost != "" {
			continue
		}
		if uuid := l.uuid(h); uuid != d.UUID {
			return changed("gpu %d is %.64q", d.Minor, uuid)
		}
		d.gpu.handle = h
		if !l.acquireInstances(h, d) || l.mode(h) != d.Mode {
			d.forget()
			devices[i] = l.describe(d.Index, h)
			anew = true
		}
	}
	l.devices = devices
	return anew, nil
}

// acquireInstances takes new handles of a card's MIG instances; false = the card has other instances than before.
func (l *Library) acquireInstances(h gonvml.Device, d *Device) bool {
	is := l.mig(h, d)
	same := func(a, b Instance) bool {
		return a.UUID == b.UUID && a.model == b.model && a.mode == b.mode && a.GPUInstance == b.GPUInstance &&
			a.ComputeInstance == b.ComputeInstance
	}
	if is.On != d.MIG.On || !slices.EqualFunc(is.Instances, d.MIG.Instances, same) {
		return false
	}
	for k := range is.Instances {
		d.MIG.Instances[k].gpu.handle = is.Instances[k].gpu.handle
	}
	return true
}
