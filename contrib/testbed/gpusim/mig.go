package gpusim

import (
	"fmt"
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

func (in *instance) fill(p profile, name string, cfg *Config, gpu, k int) {
	id := uuid(fmt.Sprintf("%s/%s/%d/MIG/%d", cfg.UUIDSeed, cfg.Model, gpu, k))
	setCString(in.UUID[:], "MIG-"+id)
	setCString(in.Profile[:], name)
	// NVIDIA's own numbers begin at 7 for the smallest profiles; any that are
	// neither 0 nor the index serve to find code that confuses the two.
	in.GPUInstance = uint32(7 + k)
	in.Slices, in.SMs, in.MemTotal = p.slices, p.sms, p.memMiB
}

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
	for i := range d.rec.instances() {
		in := &d.rec.Instance[i]
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
	for i := range d.rec.instances() {
		if cString(d.rec.Instance[i].UUID[:]) == uuid {
			return uint32(i + 1), nil
		}
	}
	return 0, fmt.Errorf("%w: %q", ErrNoInstance, uuid)
}

// MIG reports whether MIG mode is on: a process must then name an instance.
func (d *Device) MIG() bool { return d.rec.MIG != 0 }

// instances is their number, bounded in case the file is damaged.
func (d *deviceRec) instances() int { return min(int(d.Instances), MaxInstances) }

// fraction is the part of the card's SMs that slot i can use, 0..1.
func (v *view) fraction(i int) float64 {
	n := int(v.rec.Slot[i].Instance)
	if n == 0 || n > v.rec.instances() {
		return 1
	}
	return v.rec.part(n - 1)
}

func (d *deviceRec) part(instance int) float64 {
	if d.SMs == 0 || d.Instance[instance].SMs == 0 {
		return 1
	}
	return min(1, float64(d.Instance[instance].SMs)/float64(d.SMs))
}

// room is what is left of the memory of an instance (0 = of the card), MiB, and
// below 0 if more is held than there is.
func (v *view) room(instance uint32) float64 {
	if instance == 0 || int(instance) > v.rec.instances() {
		return v.rec.MemTotal - v.held()
	}
	left := v.rec.Instance[instance-1].MemTotal
	for i := range v.dyn.Member {
		if v.dyn.Member[i].Status.present() && v.rec.Slot[i].Instance == instance {
			left -= v.now(i).Mem
		}
	}
	return left
}
