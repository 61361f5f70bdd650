package nvml

import (
	"fmt"
	"sync"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// gpu is a GPU's handle, and the past values that expose an implausible one.
type gpu struct {
	lib      *library
	handle   gonvml.Device
	minor    int
	memMiB   float64 // 0 = unknown
	pcieMBps float64 // both directions; 0 = unknown
	answers  Answers

	mu     sync.Mutex
	energy float64 // the counter's last value, J
}

// Bounds far above any card of today; a larger value is implausible.
const (
	mostMemory = 4 << 40 // bytes
	mostPower  = 20e3    // W
	mostPCIe   = 1e6     // MB/s, where the link isn't known
	mostEnergy = 1e13    // J: 2 kW for 150 years
)

// has reports whether the GPU has a source; one that is nil has none.
func (g *gpu) has(source string) bool { return g != nil && g.answers[source] }

// failure makes an error of what a call returned.
func (g *gpu) failure(what string, ret gonvml.Return) error {
	switch ret {
	case gonvml.ERROR_GPU_IS_LOST:
		return fmt.Errorf("gpu %d: %w", g.minor, ErrLost)
	case gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_FUNCTION_NOT_FOUND:
		return fmt.Errorf("gpu %d: read %s: %w", g.minor, what, ErrNotSupported)
	}
	return fmt.Errorf("gpu %d: read %s: %s", g.minor, what, ret.Error())
}

// lie makes an error of a figure that can't be true.
func (g *gpu) lie(what string, value any) error {
	return fmt.Errorf("gpu %d: %s of %v: %w", g.minor, what, value, ErrImplausible)
}
