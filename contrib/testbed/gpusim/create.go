package gpusim

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/google/renameio/v2"
)

// driver is one that a simulated machine can claim to have.
type driver struct {
	version string
	cuda    int // as cuDriverGetVersion: 12020 = 12.2
}

// defaultDriver is the branch of the driver where a machine is made without one.
const defaultDriver = "535"

// drivers are the known ones by branch: the four of which NVIDIA's own control daemon was seen, and the first on which
// MPS serves more clients.
var drivers = map[string]driver{
	"470": {"470.256.02", 11040},
	"535": {"535.183.01", 12020},
	"550": {"550.163.01", 12040},
	"555": {"555.58.02", 12050},
	"590": {"590.44.01", 13010},
}

// Config describes the machine Create makes. A zero field means its default.
type Config struct {
	Model string // of every GPU, see ModelNames; default titanxp
	GPUs  int    // default 1
	// Scale is how many GPU seconds pass in a real second; default 1.
	Scale float64
	// UUIDSeed makes the GPUs' UUIDs; the same seed gives the same ones.
	UUIDSeed string
	// Minors are the GPUs' minor numbers (N of /dev/nvidiaN) in NVML's order; default 0, 1, ….
	Minors []int
	// MIG switches MIG mode on, where the card can.
	MIG bool
	// Instances are the MIG instances' profiles of each GPU, e.g. "1g.5gb"; any switches MIG on. Uncut are the GPUs, by
	// NVML's index, that stay whole.
	Instances []string
	Uncut     []int
	// Exclusive puts the GPUs into the mode EXCLUSIVE_PROCESS: one process at a time then has a context of its own on
	// each, an MPS server too, whose clients are none of these.
	Exclusive bool
	// Driver is the branch of the machine's driver: 470, 535 (default), 550, 555 or 590.
	Driver string
}

// exclusiveProcess is NVML_COMPUTEMODE_EXCLUSIVE_PROCESS.
const exclusiveProcess = 3

// model returns the card, and sets defaults.
func (c *Config) model() (model, error) {
	c.Model, c.Driver = cmp.Or(c.Model, "titanxp"), cmp.Or(c.Driver, defaultDriver)
	c.GPUs, c.Scale = cmp.Or(c.GPUs, 1), cmp.Or(c.Scale, 1)
	c.MIG = c.MIG || len(c.Instances) > 0
	for i := len(c.Minors); i < c.GPUs; i++ {
		c.Minors = append(c.Minors, i)
	}
	m, there := models[c.Model]
	_, known := drivers[c.Driver]
	switch {
	case !there:
		return m, fmt.Errorf("no simulated card %q (there are %v)", c.Model, ModelNames())
	case !known:
		return m, fmt.Errorf("no simulated driver %q", c.Driver)
	case c.GPUs < 1 || c.GPUs > MaxDevices || !(c.Scale > 0):
		return m, fmt.Errorf("%d GPUs (up to %d), %v GPU seconds a second", c.GPUs, MaxDevices, c.Scale)
	case c.MIG && m.instances == nil:
		return m, fmt.Errorf("a %s has no MIG", m.name)
	}
	for _, name := range c.Instances {
		if _, ok := m.instances[name]; !ok {
			return m, fmt.Errorf("a %s has no MIG instance %q", m.name, name)
		}
	}
	return m, nil
}

// Create makes a state file with idle GPUs at path ("" = $GPUSIM_STATE). An existing one is replaced in one
// step; programs that have the old one open keep computing on the old one.
func Create(path string, cfg Config) error {
	path, err := statePath(path)
	if err != nil {
		return err
	}
	m, err := cfg.model()
	if err != nil {
		return fmt.Errorf("create simulated GPUs: %w", err)
	}
	mem := make([]byte, fileSize(cfg.GPUs))
	h := headerIn(mem)
	*h = fileHeader{
		Version: version, Devices: cfg.GPUs, Scale: cfg.Scale, T0ns: monotonic(), Cuda: drivers[cfg.Driver].cuda,
	}
	copy(h.Magic[:], magic)
	setCString(h.Driver[:], drivers[cfg.Driver].version)
	for i := range cfg.GPUs {
		deviceIn(mem, i).fill(&m, &cfg, i)
	}
	// Jobs of several users compute on it: see the package comment.
	if err := renameio.WriteFile(path, mem, 0o666, renameio.IgnoreUmask()); err != nil {
		return fmt.Errorf("create simulated GPUs: %w", err)
	}
	return nil
}

// uuid makes a UUID of a name.
func uuid(name string) string {
	x := sha256.Sum256([]byte(name))
	return fmt.Sprintf("%x-%x-%x-%x-%x", x[:4], x[4:6], x[6:8], x[8:10], x[10:16])
}

func (d *deviceRec) fill(m *model, cfg *Config, i int) {
	name := fmt.Sprintf("%s/%s/%d", cfg.UUIDSeed, cfg.Model, i)
	setCString(d.UUID[:], "GPU-"+uuid(name))
	setCString(d.Name[:], m.name)
	d.card, d.Minor = m.card, cfg.Minors[i]
	if cfg.Driver >= "590" && !m.SameUser {
		d.MaxClients = clientsRecent
	}
	if cfg.Exclusive {
		d.ComputeMode = exclusiveProcess
	}
	if d.MIG = cfg.MIG && !slices.Contains(cfg.Uncut, i); d.MIG {
		for k, profile := range cfg.Instances {
			in := &d.Instance[k]
			*in = m.instances[profile]
			in.GPUInstance = cfg.GPUInstance(k)
			setCString(in.UUID[:], migPrefix+uuid(fmt.Sprintf("%s/MIG/%d", name, k)))
			setCString(in.Profile[:], profile)
		}
		d.Instances = len(cfg.Instances)
	}
	for k := range d.Dyn {
		d.Dyn[k].PowerW = m.PowerIdle
	}
}
