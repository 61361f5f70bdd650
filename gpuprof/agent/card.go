package agent

import (
	"errors"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
)

// Card is a GPU, or a MIG instance, as the agent reads it. A figure that it doesn't
// give is nvml.ErrNotSupported, one that can't be true nvml.ErrImplausible, and
// everything is nvml.ErrLost once the GPU has fallen off the bus.
type Card interface {
	// Utilisation is the GPU's and its memory's, 0..1.
	Utilisation() (gpu, mem float64, err error)
	// Read is the value of a source of NVML that is one number, see nvml.Sources.
	Read(source string) (float64, error)
	// PCIe is what comes from the host and goes to it, MB/s. It takes a driver 40 ms.
	PCIe() (rx, tx float64, err error)
	// Activity is what performance monitoring saw since the last call.
	Activity() (nvml.Activity, error)
	// Samples are the driver's own utilisations since then.
	Samples(since time.Time) ([]nvml.Point, error)
	// Processes lists what computes there.
	Processes() ([]nvml.Process, error)
	// ProcessUtilisation is what each of them used since then.
	ProcessUtilisation(since time.Time) ([]nvml.ProcessUse, error)
}

// whole is a GPU without MIG.
type whole struct {
	*nvml.Device
	meter meter
}

func (c *whole) Activity() (nvml.Activity, error) {
	return c.meter.read(c.Device.Answers[nvml.GPM], c.Device.Meter)
}

// meter is a meter of performance monitoring that is made when it is first read.
type meter struct{ m *nvml.Meter }

func (m *meter) read(has bool, start func() (*nvml.Meter, error)) (nvml.Activity, error) {
	if !has {
		return nvml.Activity{}, nvml.ErrNotSupported
	}
	if m.m != nil {
		return m.m.Read()
	}
	var err error
	if m.m, err = start(); err != nil {
		return nvml.Activity{}, err
	}
	return nvml.Activity{}, errNotYet
}

// errNotYet: there is nothing to compare with yet.
var errNotYet = errors.New("no earlier reading")

// part is a MIG instance. NVML gives neither its utilisation nor its PCIe and power.
type part struct {
	*nvml.Instance
	of    *nvml.Device
	meter meter
}

func (c *part) Utilisation() (gpu, mem float64, err error) { return 0, 0, nvml.ErrNotSupported }

func (c *part) PCIe() (rx, tx float64, err error) { return 0, 0, nvml.ErrNotSupported }

func (c *part) Activity() (nvml.Activity, error) {
	return c.meter.read(c.of.Answers[nvml.GPM], func() (*nvml.Meter, error) { return c.of.InstanceMeter(c.Instance) })
}

func (c *part) Samples(time.Time) ([]nvml.Point, error) { return nil, nvml.ErrNotSupported }

func (c *part) ProcessUtilisation(time.Time) ([]nvml.ProcessUse, error) {
	return nil, nvml.ErrNotSupported
}
