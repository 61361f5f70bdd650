package nvml

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

// The library stays where it is in memory for good: calls that the loader has bound would lead into nothing after it
// had been closed and opened again elsewhere.
static void hold(const char *library) { dlopen(library, RTLD_LAZY); }
*/
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"time"
	"unsafe"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ErrChanged says that the GPUs or the driver aren't those that the library was opened with.
var ErrChanged = errors.New("the GPUs or their driver have changed")

// hold keeps the library in memory when NVML is shut down.
func (l *Library) hold() {
	library := C.CString(cmp.Or(l.path, "libnvidia-ml.so.1"))
	defer C.free(unsafe.Pointer(library))
	C.hold(library)
}

// Release closes the driver's devices until Acquire. While a process has them open, nvidia-smi doesn't reset a GPU or
// change its MIG mode, and the driver can't be replaced. No method of a Device may be called until then.
func (l *Library) Release() error {
	for i := range l.devices {
		d := &l.devices[i]
		d.gpu.forget()
		for k := range d.MIG.Instances {
			d.MIG.Instances[k].gpu.forget()
		}
	}
	l.released = true
	return l.shutdown()
}

// forget frees the samples of performance monitoring: the next activity begins anew.
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

// Acquire opens the devices again. Returns ErrChanged where they aren't what they were: what is known of them is untrue
// then, and no method of a Device may be called.
func (l *Library) Acquire() error {
	changed := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrChanged}, args...)...)
	}
	// A library of the driver that was replaced fails here.
	if ret := l.api.Init(); ret != gonvml.SUCCESS {
		return changed("%s", ret.Error())
	}
	l.released = false
	if driver, _ := ask(l, "nvmlSystemGetDriverVersion", l.api.SystemGetDriverVersion); driver != l.driver {
		return changed("the driver is %.64q", driver)
	}
	if n, ret := l.api.DeviceGetCount(); ret != gonvml.SUCCESS || n != len(l.devices) {
		return changed("NVML has %d (%s)", n, ret.Error())
	}
	for i := range l.devices {
		d := &l.devices[i]
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
		if err := l.acquireInstances(h, d); err != nil {
			return changed("gpu %d: %w", d.Minor, err)
		}
	}
	return nil
}

// acquireInstances finds a card's MIG instances again.
func (l *Library) acquireInstances(h gonvml.Device, d *Device) error {
	if !d.MIG.Can {
		return nil
	}
	mode, _, ret := h.GetMigMode()
	if ret != gonvml.SUCCESS || (mode == gonvml.DEVICE_MIG_ENABLE) != d.MIG.On {
		return fmt.Errorf("its MIG mode is %d (%s)", mode, ret.Error())
	}
	if !d.MIG.On || !l.found("nvmlDeviceGetMigDeviceHandleByIndex") {
		return nil
	}
	found := 0
	for i := range d.MIG.Max {
		inst, ret := h.GetMigDeviceHandleByIndex(i)
		if ret != gonvml.SUCCESS {
			continue
		}
		if found == len(d.MIG.Instances) || l.uuid(inst) != d.MIG.Instances[found].UUID {
			return errors.New("it has other MIG instances")
		}
		d.MIG.Instances[found].gpu.handle = inst
		found++
	}
	if found != len(d.MIG.Instances) {
		return errors.New("it has lost MIG instances")
	}
	return nil
}
