package gpusim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// profile is a kind of MIG instance.
type profile struct {
	slices uint32 // of the GPU's seven
	sms    uint32
	memMiB float64
}

// The instances an A100-SXM4-40GB and an H200 can be cut into. Slices and
// their counts are from NVIDIA's MIG user guide ("Supported MIG Profiles"), memory and SMs from
// `nvidia-smi mig -lgip` (the guide has the A100's; of the H200 1g.18gb: 16.00 GiB, 16 SMs). The
// memory of the H200's larger instances is an assumption: 1g.18gb's per eighth.
var (
	a100Instances = map[string]profile{
		"1g.5gb": {1, 14, 4864}, "2g.10gb": {2, 28, 9984}, "3g.20gb": {3, 42, 20096},
		"4g.20gb": {4, 56, 20096}, "7g.40gb": {7, 98, 40448},
	}
	h200Instances = map[string]profile{
		"1g.18gb": {1, 16, 16384}, "2g.35gb": {2, 32, 2 * 16384}, "3g.71gb": {3, 60, 4 * 16384},
		"4g.71gb": {4, 64, 4 * 16384}, "7g.141gb": {7, 132, 8 * 16384},
	}
)

// migPrefix is how an instance's UUID begins.
const migPrefix = "MIG-"

func (in *instance) fill(p profile, name string, cfg *Config, gpu, k int) {
	id := uuid(fmt.Sprintf("%s/%s/%d/MIG/%d", cfg.UUIDSeed, cfg.Model, gpu, k))
	setCString(in.UUID[:], migPrefix+id)
	setCString(in.Profile[:], name)
	in.GPUInstance = uint32(cfg.GPUInstance(k)) //nolint:gosec // there are 8 at most
	in.Slices, in.SMs, in.MemTotal = p.slices, p.sms, p.memMiB
}

// GPUInstance is the number of the GPU instance of the instance with NVML's index k. NVIDIA's own begin at 7 for the
// smallest profiles; these fall as the index rises, to find code that confuses the two orders.
func (c *Config) GPUInstance(k int) int { return 6 + len(c.Instances) - k }

// Instance is one of a GPU's MIG instances.
type Instance struct {
	UUID        string  `json:"uuid"`
	Profile     string  `json:"profile"`
	GPUInstance int     `json:"gpu_instance"`
	SMs         int     `json:"sms"`
	MemMiB      float64 `json:"mem_mib"`
}

// Instances lists the GPU's MIG instances.
func (d *Device) Instances() []Instance {
	out := []Instance{}
	for _, in := range d.rec.instances() {
		out = append(out, Instance{
			UUID: cString(in.UUID[:]), Profile: cString(in.Profile[:]), GPUInstance: int(in.GPUInstance),
			SMs: int(in.SMs), MemMiB: in.MemTotal,
		})
	}
	return out
}

// instance finds a MIG instance by its UUID: its place + 1, 0 = the whole card.
func (d *Device) instance(uuid string) (uint32, error) {
	if uuid == "" {
		if d.MIG() {
			return 0, fmt.Errorf("%w: the GPU is in MIG mode", ErrNoInstance)
		}
		return 0, nil
	}
	for i, in := range d.rec.instances() {
		if cString(in.UUID[:]) == uuid {
			return uint32(i + 1), nil
		}
	}
	return 0, fmt.Errorf("%w: %q", ErrNoInstance, uuid)
}

// MIG reports whether MIG mode is on: a process must then name an instance.
func (d *Device) MIG() bool { return d.rec.MIG != 0 }

func (d *deviceRec) instances() []instance { return d.Instance[:d.Instances] }

// fraction is the part of the card's SMs that slot i can use, 0..1.
func (v *view) fraction(i int) float64 {
	return v.rec.part(v.rec.Slot[i].Instance)
}

// part is the part of the card's SMs that an instance has, by its place + 1; 0 = all of them.
func (d *deviceRec) part(instance uint32) float64 {
	if instance == 0 {
		return 1
	}
	return float64(d.Instance[instance-1].SMs) / float64(d.SMs)
}

// room is what is left of the memory of an instance (0 = of the card), MiB, and
// below 0 if more is held than there is.
func (v *view) room(instance uint32) float64 {
	if instance == 0 {
		return v.rec.MemTotal - v.held()
	}
	left := v.rec.Instance[instance-1].MemTotal
	for i, s := range v.present {
		if s.Instance == instance {
			left -= v.now(i).Mem
		}
	}
	return left
}

// slicesOfGPU is into how many slices a GPU is cut at most.
const slicesOfGPU = 7

// MaxClients returns how many MPS clients the part serves at a time: an instance fewer than the card, in proportion to
// its slices (MIG User Guide, "Deployment Considerations").
func (p Part) MaxClients() int {
	most := p.Device.MaxClients()
	if in, err := p.instance(p.Instance); err == nil && in > 0 {
		return max(1, most*int(p.rec.Instance[in-1].Slices)/slicesOfGPU)
	}
	return most
}

// MemMiB returns the part's memory, MiB.
func (p Part) MemMiB() float64 {
	if in, err := p.instance(p.Instance); err == nil && in > 0 {
		return p.rec.Instance[in-1].MemTotal
	}
	return p.Device.MemMiB()
}

// Caps are the numbers of the files under /dev/nvidia-caps that give access to a GPU instance and a compute instance of
// the GPU with this device file, as NVIDIA's driver numbers them (nv-caps.c of the open kernel modules).
func Caps(minor, gi, ci int) (gpuInstance, computeInstance int) {
	const first, each, most = 3, 9, 15 // files of an instance, and instances of a GPU
	gpuInstance = first + each*(most*minor+gi)
	return gpuInstance, gpuInstance + 1 + ci
}

// WriteDriver writes the driver's folder under /proc as far as it tells of MIG: the numbers of the files that give
// access to instances, and the instances that there are.
func (s *State) WriteDriver(dir string) error {
	minors := "config 1\nmonitor 2\n"
	var errs []error
	for _, d := range s.devs {
		for _, in := range d.rec.instances() {
			minor, gi, ci := int(d.rec.Minor), int(in.GPUInstance), int(in.ComputeInstance)
			a, b := Caps(minor, gi, ci)
			minors += fmt.Sprintf("gpu%d/gi%d/access %d\ngpu%[1]d/gi%[2]d/ci%[4]d/access %[5]d\n", minor, gi, a, ci, b)
			of := filepath.Join(dir, "nvidia/capabilities", fmt.Sprintf("gpu%d/mig/gi%d/ci%d", minor, gi, ci))
			errs = append(errs, os.MkdirAll(of, 0o755), os.WriteFile(filepath.Join(of, "access"),
				fmt.Appendf(nil, "DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", b), 0o444))
		}
	}
	caps := filepath.Join(dir, "nvidia-caps")
	return errors.Join(append(errs, os.MkdirAll(caps, 0o755),
		os.WriteFile(filepath.Join(caps, "mig-minors"), []byte(minors), 0o444))...)
}
