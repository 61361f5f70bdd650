package gpusim

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// figures are the NVML figures a fault can be set for.
var figures = []string{
	"handle", "name", "uuid", "minor", "arch", "cores", "memory", "utilization", "pcie-throughput",
	"pcie-link", "power", "processes", "mps-processes", "process-utilization", "samples", "gpm", "mig",
}

// faultModes are the ways in which a figure can be wrong: the call fails, or what it returns is 0, near its type's
// largest number, or falls as time passes.
var faultModes = []string{"none", "return", "zero", "huge", "backwards"}

// SetFault makes an NVML figure of the GPU misbehave: mode is zero, huge,
// backwards, return=CODE (the call returns that nvmlReturn_t) or none. The figure
// "all" means every one.
func (d *Device) SetFault(figure, mode string) error {
	name, arg, hasArg := strings.Cut(mode, "=")
	m := slices.Index(faultModes, name)
	var code int64
	var err error
	if hasArg {
		code, err = strconv.ParseInt(arg, 10, 32)
	}
	if m < 0 || err != nil || hasArg != (name == "return") || hasArg && (code < 0 || code > math.MaxInt32) {
		return fmt.Errorf("fault %q: must be zero, huge, backwards, return=CODE or none", mode)
	}
	if figure != "all" && !slices.Contains(figures, figure) {
		return fmt.Errorf("no figure %q (there are %s)", figure, strings.Join(figures, ", "))
	}
	return d.state.locked(func() error {
		for i, f := range figures {
			if figure == "all" || f == figure {
				d.rec.Fault[i] = fault{Mode: uint32(m), Value: int32(code)}
			}
		}
		return nil
	})
}

// exclusiveProcess is NVML_COMPUTEMODE_EXCLUSIVE_PROCESS.
const exclusiveProcess = 3

// SetLost makes the GPU fall off the bus, or brings it back. Applications on a
// lost GPU fail at once.
func (d *Device) SetLost(lost bool) error {
	return d.state.locked(func() error {
		d.rec.Lost = 0
		if lost {
			d.rec.Lost = 1
		}
		return nil
	})
}
