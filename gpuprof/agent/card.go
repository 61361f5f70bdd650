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
	// Sample reads utilisation, memory, PCIe and power at once; see nvml.Library.
	Sample() (nvml.Sample, error)
	// Energy is a counter, J.
	Energy() (float64, error)
	// Activity is what performance monitoring saw since the last call.
	Activity() (nvml.Activity, error)
	// Samples are the driver's own utilisations since then.
	Samples(since time.Time) ([]nvml.Point, error)
	// Processes lists who computes there.
	Processes() ([]nvml.Process, error)
	// ProcessUtilisation is what each of them used since then.
	ProcessUtilisation(since time.Time) ([]nvml.ProcessUse, error)
}

// figured is a Card whose figures can be read one by one, so that one that fails
// takes no other along.
type figured interface {
	Utilisation() (gpu, mem float64, err error)
	Memory() (mib float64, err error)
	PCIe() (rx, tx float64, err error) // MB/s
	Power() (w float64, err error)
}

// whole is a GPU without MIG.
type whole struct {
	*nvml.Device
	lib   nvml.Library
	at    int // index in lib.Devices
	meter meter
}

func (c *whole) Sample() (nvml.Sample, error) { return c.lib.Sample(c.at) }

func (c *whole) Activity() (nvml.Activity, error) {
	return c.meter.read(c.Device.Answers.GPM, c.Device.Meter)
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

// part is a MIG instance. NVML tells neither its utilisation by itself nor its PCIe
// and power.
type part struct {
	*nvml.Instance
	of    *nvml.Device
	meter meter
}

func (c *part) Sample() (nvml.Sample, error) {
	mem, err := c.Instance.Memory()
	return nvml.Sample{MemMiB: mem}, err
}

func (c *part) Energy() (float64, error) { return 0, nvml.ErrNotSupported }

func (c *part) Activity() (nvml.Activity, error) {
	return c.meter.read(c.of.Answers.GPM, func() (*nvml.Meter, error) { return c.of.InstanceMeter(c.Instance) })
}

func (c *part) Samples(time.Time) ([]nvml.Point, error) { return nil, nvml.ErrNotSupported }

func (c *part) ProcessUtilisation(time.Time) ([]nvml.ProcessUse, error) {
	return nil, nvml.ErrNotSupported
}
