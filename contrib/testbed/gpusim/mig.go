package gpusim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// The instances an A100-SXM4-40GB and an H200 can be cut into. Slices and their counts are from NVIDIA's MIG user guide
// ("Supported MIG Profiles"), memory and SMs from `nvidia-smi mig -lgip` (the guide has the A100's; of the H200
// 1g.18gb: 16.00 GiB, 16 SMs). The memory of the H200's larger instances is an assumption: 1g.18gb's per eighth.
var (
	a100Instances = map[string]instance{
		"1g.5gb":  {Slices: 1, SMs: 14, MemTotal: 4864},
		"2g.10gb": {Slices: 2, SMs: 28, MemTotal: 9984},
		"3g.20gb": {Slices: 3, SMs: 42, MemTotal: 20096},
		"4g.20gb": {Slices: 4, SMs: 56, MemTotal: 20096},
		"7g.40gb": {Slices: 7, SMs: 98, MemTotal: 40448},
	}
	h200Instances = map[string]instance{
		"1g.18gb":  {Slices: 1, SMs: 16, MemTotal: 16384},
		"2g.35gb":  {Slices: 2, SMs: 32, MemTotal: 2 * 16384},
		"3g.71gb":  {Slices: 3, SMs: 60, MemTotal: 4 * 16384},
		"4g.71gb":  {Slices: 4, SMs: 64, MemTotal: 4 * 16384},
		"7g.141gb": {Slices: 7, SMs: 132, MemTotal: 8 * 16384},
	}
)

// migPrefix is how an instance's UUID begins.
const migPrefix = "MIG-"

// GPUInstance is the number of the GPU instance of the instance with NVML's index k. NVIDIA's own begin at 7 for the
// smallest profiles; these fall as the index rises, to find code that confuses the two orders.
func (c *Config) GPUInstance(k int) int { return 6 + len(c.Instances) - k }

// Instance is one of a GPU's MIG instances.
type Instance struct {
	UUID, Profile    string
	GPUInstance, SMs int
	MemMiB           float64
}

// Instances lists the GPU's MIG instances.
func (d *Device) Instances() (all []Instance) {
	for _, in := range d.rec.Instance[:d.rec.Instances] {
		all = append(all, Instance{cString(in.UUID[:]), cString(in.Profile[:]), in.GPUInstance, in.SMs, in.MemTotal})
	}
	return all
}

// part is the part of the card's SMs that an instance has; of instance 0 all of them.
func (d *deviceRec) part(instance int) float64 {
	if instance == 0 {
		return 1
	}
	return float64(d.Instance[instance-1].SMs) / float64(d.SMs)
}

// Caps are the numbers of the files under /dev/nvidia-caps that give access to a GPU instance and its compute instance
// of the GPU with this device file, as NVIDIA's driver numbers them (nv-caps.c of the open kernel modules).
func Caps(minor, gi int) (gpuInstance, computeInstance int) {
	const first, each, most = 3, 9, 15 // files of an instance, and instances of a GPU
	gpuInstance = first + each*(most*minor+gi)
	return gpuInstance, gpuInstance + 1
}

// WriteDriver writes the driver's folder under /proc as far as it tells of MIG: the numbers of the files that give
// access to instances, and the instances that there are.
func (s *State) WriteDriver(dir string) error {
	minors := "config 1\nmonitor 2\n"
	var errs []error
	for _, d := range s.devs {
		for _, in := range d.Instances() {
			minor, gi := d.rec.Minor, in.GPUInstance
			a, b := Caps(minor, gi)
			minors += fmt.Sprintf("gpu%d/gi%d/access %d\ngpu%[1]d/gi%[2]d/ci0/access %[4]d\n", minor, gi, a, b)
			of := filepath.Join(dir, "nvidia/capabilities", fmt.Sprintf("gpu%d/mig/gi%d/ci0", minor, gi))
			errs = append(errs, os.MkdirAll(of, 0o755), os.WriteFile(filepath.Join(of, "access"),
				fmt.Appendf(nil, "DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", b), 0o444))
		}
	}
	caps := filepath.Join(dir, "nvidia-caps")
	return errors.Join(append(errs, os.MkdirAll(caps, 0o755),
		os.WriteFile(filepath.Join(caps, "mig-minors"), []byte(minors), 0o444))...)
}
